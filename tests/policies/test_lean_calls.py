"""A policy without stages takes a short way: the same bits as the long one, and hooks are still called."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.policies.policy import Policy, PolicyConfig

ONE = ObsSpec({"obs": ComponentSpec(shape=(5,))})
TWO = ObsSpec({"obs": ComponentSpec(shape=(5,)), "height": ComponentSpec(group="critic")})


def made(spec: ObsSpec, action: BoxSpec | DiscreteSpec, hidden: tuple[int, ...] = (8, 8)) -> Policy:
    torch.manual_seed(0)
    return Policy(spec, action, PolicyConfig(actor_hidden_dims=hidden, critic_hidden_dims=hidden))


def observed(spec: ObsSpec, *lead: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(*lead, *part.shape, generator=generator) for name, part in spec.items()}


@pytest.mark.parametrize("lead", [(4,), (3, 4)])
@pytest.mark.parametrize("hidden", [(8, 8), ()])
@pytest.mark.parametrize("spec", [ONE, TWO])
@pytest.mark.parametrize("action", [BoxSpec(shape=(2,)), DiscreteSpec(n=3)])
def test_both_ways_give_the_same_bits(spec, action, hidden, lead):
    policy, obs = made(spec, action, hidden), observed(spec, *lead)
    short = policy(obs, {}, {})
    policy._has_stages = True
    long = policy(obs, {}, {})
    assert torch.equal(short.value, long.value)
    for one, two in zip(short.distribution.params().values(), long.distribution.params().values()):
        assert torch.equal(one, two)
    assert (short.state, short.aux) == (long.state, long.aux) == ({}, {})


def test_other_dtypes_and_strides_give_the_same_bits():
    policy = made(ONE, BoxSpec(shape=(2,)))
    wide = torch.randn(4, 10, generator=torch.Generator().manual_seed(2))
    for value in (wide[:, ::2], wide[:, :5].double()):
        policy._has_stages = False
        short = policy({"obs": value}, {}, {}).value
        policy._has_stages = True
        assert torch.equal(short, policy({"obs": value}, {}, {}).value)


def test_hooks_on_any_part_are_called():
    policy, obs = made(ONE, BoxSpec(shape=(2,))), observed(ONE, 4)
    seen: list[str] = []
    parts = {"body": policy.actor_body, "layers": policy.actor_body.model, "layer": policy.actor_body.model[0]}
    for name, part in {**parts, "head": policy.head, "value": policy.value_head}.items():
        part.register_forward_hook(lambda *_, name=name: seen.append(name))
        policy(obs, {}, {})
        assert name in seen
        seen.clear()


def test_a_layer_that_was_replaced_is_used():
    policy, obs = made(ONE, BoxSpec(shape=(2,))), observed(ONE, 4)
    before = policy(obs, {}, {}).value
    policy.critic_body.model[0] = nn.Linear(5, 8)
    assert not torch.equal(policy(obs, {}, {}).value, before)
    policy.critic_body.model[0].forward = lambda x: x.new_zeros(len(x), 8)
    assert policy(obs, {}, {}).value.unique().numel() == 1  # every row now starts from the same zeros


def test_a_missing_component_is_still_named():
    policy = made(TWO, BoxSpec(shape=(2,)))
    with pytest.raises(KeyError, match="height"):
        policy({"obs": torch.zeros(4, 5)}, {}, {})
    with pytest.raises(ValueError, match="obs"):
        made(ONE, BoxSpec(shape=(2,)))({"obs": torch.zeros(4, 6)}, {}, {})
