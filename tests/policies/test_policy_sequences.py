"""Whole policies: a sequence equals its steps for any resets, and padding touches nothing."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_cases import difference, random_memo, random_obs, step_by_step

from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.policies.encode import Encode
from striderl.policies.estimate import Adapt, Estimate
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, Remember

SPEC = ObsSpec(
    {
        "imu": ComponentSpec(shape=(4,)),
        "velocity": ComponentSpec(shape=(3,)),
        "image": ComponentSpec(shape=(1, 4, 4), dtype="uint8"),
        "friction": ComponentSpec(shape=(2,), group="critic"),
    }
)
KINDS = ("lstm", "gru")
ENCODERS = ("mlp", "conv")
ESTIMATORS = ("none", "plain", "own", "actor")
ADAPTORS = ("none", "plain", "own")
CONV = {"channels": [2], "kernel_sizes": [2], "strides": [1]}
LIMIT = 1e-6


@functools.cache
def build(kind: str, num_layers: int, encoder: str, estimator: str, adaptor: str) -> Policy:
    """Build a policy with the stages named; the critic has a memory and an encoder of its own."""
    torch.manual_seed(0)
    memory = Remember(type=kind, hidden_size=5, num_layers=num_layers)
    own = Remember(type=kind, hidden_size=3)
    encode = Encode(components=("image",), output_size=4)
    if encoder == "conv":
        encode = Encode(components=("image",), model="Conv2dHeadModel", settings=CONV, output_size=4)
    actor: list = []
    if adaptor != "none":
        actor.append(
            Adapt(
                obs_components=("imu",),
                target_components=("friction",),
                memory=own if adaptor == "own" else None,
                replace_state_prob=0.5,
            )
        )
    if estimator in ("plain", "own"):
        actor.append(
            Estimate(
                obs_components=("imu",),
                target_components=("velocity",),
                memory=own if estimator == "own" else None,
                replace_state_prob=0.5,
            )
        )
    actor += [encode, memory]
    if estimator == "actor":
        actor.append(Estimate(target_components=("velocity",), use_actor_rnn=True))
    config = PolicyConfig(
        trunk=(NormalizeObs(),),
        actor=tuple(actor),
        critic=(encode, memory),
        actor_hidden_dims=(6,),
        critic_hidden_dims=(6,),
    )
    policy = Policy(SPEC, BoxSpec(shape=(2,)), config)
    policy.update_normalization({name: torch.randn(50, *part.shape) for name, part in SPEC.items()})
    return policy


combinations = st.tuples(
    st.sampled_from(KINDS),
    st.integers(1, 2),
    st.sampled_from(ENCODERS),
    st.sampled_from(ESTIMATORS),
    st.sampled_from(ADAPTORS),
)


@st.composite
def windows(draw):
    num_steps, num_envs = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    size = num_steps * num_envs
    resets = torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size))).view(num_steps, num_envs)
    return resets, draw(st.integers(0, 1000))


def random_state(policy: Policy, num_envs: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(num_envs, *spec.shape, generator=generator) for name, spec in policy.state_spec().items()}


def inputs(policy: Policy, resets: torch.Tensor, seed: int):
    num_steps, num_envs = resets.shape
    return (
        random_obs(policy, num_steps, num_envs, seed=seed),
        random_state(policy, num_envs, seed),
        random_memo(policy, num_steps, num_envs, seed=seed),
    )


def assert_same(sequence, steps) -> None:
    for name, value in sequence.distribution.params().items():
        assert difference(value, torch.stack([out.distribution.params()[name] for out in steps])) <= LIMIT, name
    assert difference(sequence.value, torch.stack([out.value for out in steps])) <= LIMIT
    assert sequence.aux.keys() == steps[0].aux.keys()
    for name, value in sequence.aux.items():
        assert difference(value, torch.stack([out.aux[name] for out in steps])) <= LIMIT, name
    for name, value in sequence.state.items():
        assert difference(value, steps[-1].state[name]) <= LIMIT, name


@pytest.mark.slow
@given(combinations, windows())
@settings(max_examples=150)
def test_a_sequence_equals_its_steps(combination, window):
    policy = build(*combination)
    resets, seed = window
    obs, state, stage_draws = inputs(policy, resets, seed)
    with torch.no_grad():
        assert_same(policy(obs, state, stage_draws, resets), step_by_step(policy, obs, state, stage_draws, resets))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("adaptor", ADAPTORS)
def test_every_combination_once(kind, encoder, estimator, adaptor):
    policy = build(kind, 1, encoder, estimator, adaptor)
    resets = torch.tensor([[True, False], [False, True], [False, False], [True, True]])
    obs, state, stage_draws = inputs(policy, resets, 7)
    with torch.no_grad():
        whole = policy(obs, state, stage_draws, resets)
        assert_same(whole, step_by_step(policy, obs, state, stage_draws, resets))
        # one env per minibatch: [T, 1, …] keeps its shape and its numbers
        for env in range(2):
            column = slice(env, env + 1)
            alone = policy(
                {name: value[:, column] for name, value in obs.items()},
                {name: value[column] for name, value in state.items()},
                {name: value[:, column] for name, value in stage_draws.items()},
                resets[:, column],
            )
            assert alone.value.shape == (4, 1)
            assert difference(alone.value, whole.value[:, column]) <= LIMIT
            assert difference(alone.distribution.mode(), whole.distribution.mode()[:, column]) <= LIMIT


@functools.cache
def build_trunk(kind: str, encoder: str) -> Policy:
    """Build a policy whose trunk encodes and remembers for both, which therefore see the same components."""
    torch.manual_seed(0)
    model = {"model": "Conv2dHeadModel", "settings": CONV} if encoder == "conv" else {}
    seen = ("imu", "velocity", "image")
    config = PolicyConfig(
        actor_obs=seen,
        critic_obs=seen,
        trunk=(
            NormalizeObs(),
            Encode(components=("image",), output_size=4, **model),
            Remember(type=kind, hidden_size=5, num_layers=2),
        ),
        critic=(Remember(type=kind, hidden_size=3),),
        actor_hidden_dims=(6,),
        critic_hidden_dims=(6,),
    )
    return Policy(SPEC, BoxSpec(shape=(2,)), config)


@pytest.mark.slow
@given(st.sampled_from(KINDS), st.sampled_from(ENCODERS), windows())
@settings(max_examples=30)
def test_a_trunk_that_encodes_and_remembers_runs_sequences_like_steps(kind, encoder, window):
    policy = build_trunk(kind, encoder)
    resets, seed = window
    obs, state, stage_draws = inputs(policy, resets, seed)
    assert any(name.startswith("trunk/2_Remember") for name in state)
    with torch.no_grad():
        assert_same(policy(obs, state, stage_draws, resets), step_by_step(policy, obs, state, stage_draws, resets))


@pytest.mark.slow
@given(combinations, windows())
@settings(max_examples=40)
def test_gradients_of_a_sequence_are_those_of_its_steps(combination, window):
    policy = build(*combination)
    resets, seed = window
    obs, state, stage_draws = inputs(policy, resets, seed)
    weights = torch.randn(*resets.shape, generator=torch.Generator().manual_seed(seed))

    def gradients(mean, value, aux):
        policy.zero_grad()
        loss = (weights * (mean.sum(-1) + value)).sum()
        loss = loss + sum(part.square().sum() for name, part in aux.items() if name.endswith("/estimate"))
        loss.backward()
        return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}

    whole = policy(obs, state, stage_draws, resets)
    one = gradients(whole.distribution.mode(), whole.value, whole.aux)
    steps = step_by_step(policy, obs, state, stage_draws, resets)
    stacked = {name: torch.stack([out.aux[name] for out in steps]) for name in whole.aux}
    other = gradients(
        torch.stack([out.distribution.mode() for out in steps]), torch.stack([out.value for out in steps]), stacked
    )
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert difference(value, other[name]) <= 1e-5 * (1.0 + float(value.abs().max())), name


@pytest.mark.slow
@given(combinations, windows(), st.integers(0, 1000))
@settings(max_examples=60)
def test_nan_in_padding_touches_neither_outputs_nor_gradients(combination, window, holes):
    policy = build(*combination)
    resets, seed = window
    obs, state, stage_draws = inputs(policy, resets, seed)
    valid = torch.rand(*resets.shape, generator=torch.Generator().manual_seed(holes)) < 0.7

    def run(filler: float):
        policy.zero_grad()
        filled = {
            name: torch.where(valid.view(*valid.shape, *[1] * (value.dim() - 2)), value, filler)
            if value.is_floating_point()
            else value
            for name, value in obs.items()
        }
        # an env whose first step is padding has no state worth anything either
        begun = {name: torch.where(valid[0].view(-1, 1, 1), value, filler) for name, value in state.items()}
        out = policy(filled, begun, stage_draws, resets, valid)
        kept = torch.where(valid, out.distribution.log_prob(torch.zeros(*valid.shape, 2)) + out.value, 0.0)
        estimates = [value for name, value in out.aux.items() if name.endswith("/estimate")]
        loss = kept.sum() + sum(torch.where(valid.unsqueeze(-1), value, 0.0).square().sum() for value in estimates)
        loss.backward()
        return out, {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}

    (dirty, dirty_grads), (clean, clean_grads) = run(float("nan")), run(0.0)
    assert torch.equal(dirty.value, clean.value) and dirty.value.isfinite().all()
    assert torch.equal(dirty.distribution.mode(), clean.distribution.mode())
    for name, value in clean_grads.items():
        assert value.isfinite().all() and torch.equal(dirty_grads[name], value), name


def test_a_hole_ends_an_episode():
    # step 1 of env 0 is padding: step 2 begins from nothing, as after a reset
    policy = build("gru", 1, "mlp", "own", "none")
    resets = torch.zeros(4, 2, dtype=torch.bool)
    obs, state, stage_draws = inputs(policy, resets, 3)
    valid = torch.ones(4, 2, dtype=torch.bool)
    valid[1, 0] = False
    begins = resets.clone()
    begins[2, 0] = True
    with torch.no_grad():
        holed, reset = policy(obs, state, stage_draws, resets, valid), policy(obs, state, stage_draws, begins)
    assert difference(holed.value[2:], reset.value[2:]) <= LIMIT
    assert difference(holed.value[:, 1], reset.value[:, 1]) <= LIMIT
