"""Behaviours: each does to a distribution what its name says, with the noise it was handed and no other."""

from __future__ import annotations

import pytest
import torch

from striderl.collect.actors.behaviours import (
    BehaviourActor,
    EpsilonGreedy,
    GaussianNoise,
    Greedy,
    OrnsteinUhlenbeck,
    Sample,
)
from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.data.noise import draw_all
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.networks.distributions.deterministic import Deterministic, QValues
from striderl.ops.ramps import Ramp
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.stages import Remember

BOX = BoxSpec(shape=(2,), low=-2.0, high=2.0)
OBS = ObsSpec({"x": ComponentSpec(shape=(3,))})


def drawn(specs, count, seed=0):
    noise = draw_all(specs, seed=seed, iteration=0, env_index=torch.arange(count), num_steps=1)
    return {name: values[0] for name, values in noise.items()}


def test_epsilon_greedy_throws_its_coin():
    behaviour = EpsilonGreedy(DiscreteSpec(n=4), 0.25)
    values = QValues(torch.tensor([0.0, 3.0, 1.0, 2.0]).repeat(20_000, 1))
    actions, _ = behaviour({}, {}, values, drawn(behaviour.noise(None), 20_000))
    counts = torch.bincount(actions, minlength=4) / 20_000
    # a random action is any of the four: 1/16 each, the greedy one 3/4 more
    assert torch.allclose(counts, torch.tensor([1 / 16, 13 / 16, 1 / 16, 1 / 16]), atol=0.01)


def test_epsilon_follows_its_ramp_and_masks_are_kept():
    behaviour = EpsilonGreedy(DiscreteSpec(n=3, mask="allowed"), Ramp(start=1.0, end=0.0, num_steps=100))
    mask = torch.tensor([[True, False, True]]).repeat(500, 1)
    values = QValues.from_values(torch.tensor([[0.0, 9.0, 1.0]]).repeat(500, 1), mask)
    noise = drawn(behaviour.noise(None), 500)
    early, _ = behaviour({"allowed": mask}, {}, values, noise)
    assert set(early.tolist()) == {0, 2}
    behaviour.at(100)
    late, _ = behaviour({"allowed": mask}, {}, values, noise)
    assert set(late.tolist()) == {2}


def test_gaussian_noise_has_its_size_and_stays_within_bounds():
    behaviour = GaussianNoise(BOX, 0.1)
    mode = Deterministic(torch.zeros(50_000, 2), 1)
    actions, _ = behaviour({}, {}, mode, drawn(behaviour.noise(None), 50_000))
    assert float(actions.std()) == pytest.approx(0.2, rel=0.02)  # a tenth of half the range, which is 2
    edge, _ = behaviour({}, {}, Deterministic(torch.full((1000, 2), 2.0), 1), drawn(behaviour.noise(None), 1000))
    assert float(edge.max()) == 2.0


def test_ornstein_uhlenbeck_walks_as_written():
    # scale 2; the walk after one step from 0 with noise 1 is sigma √dt = 0.3 · 0.1 = 0.03; after a second one it is
    # 0.03 - 0.15 · 0.01 · 0.03 + 0.03
    behaviour = OrnsteinUhlenbeck(BOX, 0.3, theta=0.15, dt=0.01)
    state = behaviour.initial_state(1, torch.device("cpu"))
    noise = {"exploration": torch.ones(1, 2)}
    mode = Deterministic(torch.zeros(1, 2), 1)
    first, state = behaviour({}, state, mode, noise)
    assert torch.allclose(first, torch.full((1, 2), 0.06))
    second, state = behaviour({}, state, mode, noise)
    assert torch.allclose(second, torch.full((1, 2), 2 * (0.06 - 0.000045)))


def test_wrong_actions_are_named():
    with pytest.raises(TypeError, match="EpsilonGreedy wants one discrete action, found BoxSpec"):
        EpsilonGreedy(BOX, 0.1)
    with pytest.raises(TypeError, match="GaussianNoise wants real-valued actions, found DiscreteSpec"):
        GaussianNoise(DiscreteSpec(n=2), 0.1)


def make_actor(behaviour, **settings):
    torch.manual_seed(0)
    policy = ActorPolicy(OBS, BOX, ActorConfig(hidden_dims=(8,), head="squashed_gaussian", **settings))
    return BehaviourActor(policy, behaviour, store_state=bool(settings.get("stages")))


def test_actor_samples_plays_the_mode_and_acts_at_random():
    obs = {"x": torch.randn(6, 3)}
    for behaviour in (Sample(), Greedy()):
        actor = make_actor(behaviour)
        noise = drawn(actor.noise(), 6)
        acted = actor.act(obs, actor.initial_state(6, torch.device("cpu")), noise)
        dist, _, _ = actor.policy.act(obs, {}, {})
        expected = dist.sample(noise["action"]) if isinstance(behaviour, Sample) else dist.mode()
        assert torch.equal(acted.actions, expected)
        actor.random = True
        random = actor.act(obs, actor.initial_state(6, torch.device("cpu")), noise).actions
        assert not torch.equal(random, expected) and float(random.abs().max()) <= 2.0


def test_actor_stores_the_memory_before_the_step():
    actor = make_actor(OrnsteinUhlenbeck(BOX), stages=(Remember(hidden_size=4),))
    state = actor.initial_state(6, torch.device("cpu"))
    noise = drawn(actor.noise(), 6)
    first = actor.act({"x": torch.randn(6, 3)}, state, noise)
    second = actor.act({"x": torch.randn(6, 3)}, first.state, noise)
    assert all(float(value.abs().sum()) == 0.0 for value in first.columns["state"].values())
    name = next(iter(second.columns["state"]))
    assert torch.equal(second.columns["state"][name], first.state[f"policy/{name}"])
    assert float(first.state["behaviour/walk"].abs().sum()) > 0.0
