"""A policy without stages, or with normalisers alone, takes a short way: the same bits, and hooks are still called."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs

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
    policy.is_plain = False
    long = policy(obs, {}, {})
    assert torch.equal(short.value, long.value)
    for one, two in zip(short.distribution.params().values(), long.distribution.params().values()):
        assert torch.equal(one, two)
    assert (short.state, short.aux) == (long.state, long.aux) == ({}, {})


def test_other_dtypes_and_strides_give_the_same_bits():
    policy = made(ONE, BoxSpec(shape=(2,)))
    wide = torch.randn(4, 10, generator=torch.Generator().manual_seed(2))
    for value in (wide[:, ::2], wide[:, :5].double()):
        policy.is_plain = True
        short = policy({"obs": value}, {}, {}).value
        policy.is_plain = False
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


# -- with normalisers --------------------------------------------------------------------------------------------------


def normalizing(spec: ObsSpec = ONE, *, critic: bool = True) -> Policy:
    torch.manual_seed(0)
    stages = (NormalizeObs(),)
    config = PolicyConfig(
        actor=stages, critic=stages if critic else (), actor_hidden_dims=(8,), critic_hidden_dims=(8,)
    )
    return Policy(spec, BoxSpec(shape=(2,)), config)


def assert_both_ways_agree(policy: Policy, obs: dict[str, torch.Tensor]) -> None:
    """Run both ways, gradients included."""
    found = []
    for plain in (True, False):
        policy.is_plain = plain
        policy.zero_grad()
        output = policy(obs, {}, {})
        (output.value.sum() + output.distribution.mode().square().sum()).backward()
        gradients = [parameter.grad for parameter in policy.parameters() if parameter.grad is not None]
        found.append([output.value, *output.distribution.params().values(), *gradients])
    policy.is_plain = True
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


@pytest.mark.parametrize("critic", [True, False])
@pytest.mark.parametrize("spec", [ONE, TWO])
@pytest.mark.parametrize("lead", [(4,), (3, 4)])
def test_normalised_observations_give_the_same_bits(lead, spec, critic):
    policy, obs = normalizing(spec, critic=critic), observed(spec, *lead)
    assert policy.is_plain
    assert_both_ways_agree(policy, obs)
    for shift in (1.0, 5.0):
        policy.update_normalization({name: value * 3.0 + shift for name, value in obs.items()})
        assert_both_ways_agree(policy, obs)


def test_statistics_that_change_are_used_at_once():
    policy, obs = normalizing(), observed(ONE, 4)
    policy.update_normalization(obs)
    policy(obs, {}, {})
    clone = copy.deepcopy(policy)
    for each in (policy, clone):  # a copy counts the changes of its buffers anew
        for shift in range(6):
            each.update_normalization({"obs": obs["obs"] + shift})
            assert_both_ways_agree(each, obs)
    clone.load_state_dict(normalizing().state_dict())
    assert_both_ways_agree(clone, obs)
    assert_both_ways_agree(clone.double(), {"obs": obs["obs"].double()})
    assert_both_ways_agree(clone, obs)  # of another dtype than the weights


def test_hooks_around_a_normaliser_are_called():
    policy, obs = normalizing(), observed(ONE, 4)
    stage = next(iter(policy.actor.stages.values()))
    for part in (policy.actor, stage, next(iter(stage.normalizers.values()))):
        seen: list[int] = []
        handle = part.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        policy(obs, {}, {})
        assert seen == [1]
        handle.remove()
