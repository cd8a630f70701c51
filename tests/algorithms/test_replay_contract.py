"""What every learner from replay promises: time limits, closed-form values, exact repetition, masks, capture."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from replay_cases import ALL, CHOICES, NUMBERS, Setting, build, clock, learned, learner_of, value_of

from striderl.algorithms.actor_critic.sac import SAC
from striderl.algorithms.actor_critic.td3 import TD3
from striderl.data import tree
from striderl.envs.toy.bandits import Bandit, ContinuousBandit
from striderl.envs.toy.chains import Chain, Terminator, TimeLimit
from striderl.envs.toy.grid import Grid
from striderl.execution.capture import check_capture
from striderl.execution.modes import Compiled
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.value_functions import QFunction, QFunctionConfig

EVERYONE = sorted(ALL)
RECURRENT = ("recurrent dqn", "recurrent sac")
ONE_STEP = sorted(set(CHOICES) - {"recurrent dqn", "n-step dqn", "rainbow"})
"""Those that learn the best values from random actions; several steps of them have the value of what was done."""
UPDATES = {"crossq": 400, "ddpg": 120, "noisy dqn": 120, "recurrent dqn": 70, "recurrent sac": 70}
"""Gradient steps of those that want another number than 90."""


def updates(name: str) -> int:
    return UPDATES.get(name, 90)


# -- time limits -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERYONE)
def test_a_time_limit_is_no_end(name):
    # 1 in every step for ever: V = 1 / (1 - 0.5) = 2. Taking time-outs after 2 steps for ends: 1 + 0.5 · 0.5 V = 1.33
    env = clock(name, TimeLimit, 2)
    algorithm = learned(build(name, env), env, updates(name))
    assert value_of(algorithm, {"obs": torch.ones(1, 1)}).item() == pytest.approx(2.0, abs=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERYONE)
def test_an_end_is_an_end(name):
    # 1 in each of 3 steps: 1 + 0.5 + 0.25, 1 + 0.5, 1. Bootstrapping over the end: 2 everywhere
    env = clock(name, Terminator, 3)
    algorithm = learned(build(name, env), env, updates(name))
    values = value_of(algorithm, {"obs": torch.eye(3)}).tolist()
    known = 1 if name in RECURRENT else 3  # with memory, the second step is known after the first one only
    assert values[:known] == pytest.approx([1.75, 1.5, 1.0][:known], abs=0.15)


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dqn", "sac", "td3"])
def test_a_copy_says_that_it_does_not_learn(name):
    # its optimiser holds the parameters of the original, or nobody's
    env = clock(name, TimeLimit, 2)
    for taken in (0, 3):
        original = learned(build(name, env), env, taken)
        before = tree.copy(original.state_dict())
        with pytest.raises(RuntimeError, match="a copy, or another algorithm on the same module"):
            learned(copy.deepcopy(original), env, 1)
        for _, (one, other) in tree.zipped(before, original.state_dict()):
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_gradients_that_were_let_go_come_back():
    env = clock("sac", TimeLimit, 2)
    one, other = build("sac", env), build("sac", env)
    learned(one, env, 2)
    learned(other, env, 2)
    other.policy.zero_grad()
    learned(one, env, 2)
    learned(other, env, 2)
    for mine, yours in zip(one.policy.parameters(), other.policy.parameters()):
        assert torch.equal(mine, yours)


@pytest.mark.parametrize(("learner", "head"), [(SAC, "deterministic"), (TD3, "squashed_gaussian")])
def test_a_head_that_does_not_fit_is_named(learner, head):
    env = ContinuousBandit(2)
    policy = ActorPolicy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(4,), head=head))
    with pytest.raises(ValueError, match=f"{learner.__name__} wants a policy with another head"):
        learner(policy, QFunction(env.obs_spec, env.action_spec, QFunctionConfig(hidden_dims=(4,))))


# -- learning ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(CHOICES) - set(ONE_STEP)))  # the others walk a chain, below
def test_the_paying_arm_is_found(name):
    env = Bandit(4)
    algorithm = learned(build(name, env), env, updates(name))
    obs = {"obs": torch.ones(1, 1)}
    distribution, _, _ = algorithm.policy.act(obs, algorithm.policy.initial_state(1), {})
    assert distribution.mode().tolist() == [0]
    assert value_of(algorithm, obs).item() == pytest.approx(1.0, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_the_best_number_is_found(name):
    # 1 - (a - 0.5)²: between 0.2 and 0.8 nine tenths and more of what there is
    env = ContinuousBandit(4)
    count = 200 if name in RECURRENT else max(240, updates(name))
    algorithm = learned(build(name, env, Setting(low=-6.0, high=2.0)), env, count, num_steps=512)
    obs = {"obs": torch.ones(1, 1)}
    distribution, _, _ = algorithm.policy.act(obs, algorithm.policy.initial_state(1), {})
    assert distribution.mode().item() == pytest.approx(0.5, abs=0.35)
    assert value_of(algorithm, obs).item() == pytest.approx(1.0, abs=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_STEP)
def test_a_chain_is_walked(name):
    # 5 places, 1 on arrival at the last: 0.8³, 0.8², 0.8, 1
    env = Chain(8)
    count = 600 if name == "rescaled dqn" else 300  # what is learned there is three times smaller
    algorithm = learned(build(name, env, Setting(gamma=0.8, high=2.0)), env, count, num_steps=1024)
    obs = {"obs": torch.eye(5)[:4]}
    assert value_of(algorithm, obs).tolist() == pytest.approx(env.value(0.8)[:4].tolist(), abs=0.15)
    distribution, _, _ = algorithm.policy.act(obs, {}, {})
    assert distribution.mode().tolist() == [1, 1, 1, 1]


# -- masks -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_STEP)
def test_forbidden_moves_are_neither_learned_from_nor_made(name):
    env = Grid(8)
    algorithm = learned(build(name, env, Setting(gamma=0.8, low=-5.0, high=0.5)), env, 260, num_steps=1024)
    # each step costs 1, five to go: -(1 + 0.8 + …) = -3.36. A value of 0 for moves into walls, which nobody ever made
    # and so nobody corrected, would show as a start that is worth more
    obs = env.reset(3)
    assert value_of(algorithm, obs).tolist() == pytest.approx([-3.36] * 8, abs=0.45)
    for _ in range(5):
        distribution, _, _ = algorithm.policy.act(obs, {}, {})
        move = distribution.mode()
        assert obs["action_mask"].gather(1, move.unsqueeze(1)).all()
        obs = env.step(move).obs
    assert env.episode_length_buf.tolist() == [0] * 8  # all have arrived, by the shortest way


# -- exact repetition --------------------------------------------------------------------------------------------------


def env_for(name: str) -> Any:
    return clock(name, TimeLimit, 3)


def fixed_step(name: str, *, weights: int = 0, setting: Setting | None = None) -> tuple[Any, Any, Any]:
    """Return an algorithm, a sample and noise."""
    env = env_for(name)
    algorithm = build(name, env, setting, weights)
    learner = learner_of(algorithm, env, num_steps=64, batch_size=8)
    return algorithm, learner.replay.sample(8), learner.noise.at(0)


def state_of(algorithm: Any) -> list[tuple[str, Any]]:
    return [
        (path, leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)
        for path, leaf in tree.items(algorithm.state_dict())
    ]


def assert_same(one: list[tuple[str, Any]], two: list[tuple[str, Any]]) -> None:
    assert [path for path, _ in one] == [path for path, _ in two]
    for (path, first), (_, second) in zip(one, two):
        same = torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second
        assert same, path


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERYONE)
def test_the_same_step_twice_is_the_same_and_a_saved_one_goes_on(name):
    one, sample, noise = fixed_step(name)
    two, _, _ = fixed_step(name)
    other, _, _ = fixed_step(name, weights=5)
    for algorithm in (one, two):
        algorithm.update(sample.data, sample.weight, noise)
    assert_same(state_of(one), state_of(two))
    other.load_state_dict(two.state_dict())
    for algorithm in (one, other):
        algorithm.update(sample.data, sample.weight, noise)
    assert_same(state_of(one), state_of(other))
    assert one.num_updates == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERYONE)
def test_samples_that_do_not_count_change_nothing(name):
    one, sample, noise = fixed_step(name)
    two, _, _ = fixed_step(name)
    data = dict(sample.data)
    data["valid"] = data["valid"].clone()
    data["valid"][..., 2] = False  # a sample, or a whole sequence
    if "learn" in data:
        data["learn"] = data["learn"] & data["valid"]

    def spoiled(leaf: torch.Tensor) -> torch.Tensor:
        changed = leaf.clone()
        if leaf.is_floating_point():
            (changed[:, 2] if data["valid"].dim() == 2 else changed[2:3]).fill_(float("nan"))
        return changed

    bad = {
        name: tree.map(spoiled, data[name]) if name in ("obs", "obs_next", "act", "rew") else data[name]
        for name in data
    }
    one.update(data, sample.weight, noise)
    two.update(bad, sample.weight, noise)
    assert_same(state_of(one), state_of(two))
    assert all(torch.isfinite(leaf).all() for path, leaf in state_of(two) if isinstance(leaf, torch.Tensor))


@pytest.mark.parametrize("name", EVERYONE)
def test_targets_of_ones_own_are_learned_from(name, monkeypatch):
    usual, sample, noise = fixed_step(name)
    other, _, _ = fixed_step(name)
    original, num_calls = other.targets, 0

    def own(minibatch):
        nonlocal num_calls
        num_calls += 1
        return original(minibatch) - 1000.0

    monkeypatch.setattr(other, "targets", own)
    for algorithm in (usual, other):
        algorithm.update(sample.data, sample.weight, noise)
    found = [(one, two) for (_, one), (_, two) in zip(state_of(usual), state_of(other)) if torch.is_tensor(one)]
    assert num_calls == 1 and any(not torch.equal(one, two) for one, two in found)


@pytest.mark.parametrize("name", EVERYONE)
def test_a_gradient_that_is_not_finite_is_skipped(name):
    algorithm, sample, noise = fixed_step(name)
    before = {path: leaf.clone() for path, leaf in tree.items(dict(algorithm.policy.state_dict()))}
    broken = {**sample.data, "rew": torch.full_like(sample.data["rew"], float("nan"))}
    broken["obs"] = {name: torch.full_like(value, float("inf")) for name, value in broken["obs"].items()}
    algorithm.update(broken, sample.weight, noise)
    after = dict(tree.items(dict(algorithm.policy.state_dict())))
    assert all(torch.equal(leaf, after[path]) for path, leaf in before.items())
    assert all(torch.isfinite(leaf).all() for _, leaf in state_of(algorithm) if isinstance(leaf, torch.Tensor))


@pytest.mark.parametrize("name", EVERYONE)
def test_priorities_are_one_finite_number_per_sample(name):
    algorithm, sample, noise = fixed_step(name, setting=Setting(prioritized=True))
    numbers = algorithm.update(sample.data, sample.weight, noise)
    assert numbers["td_error"].shape == (8,)
    assert (numbers["td_error"] >= 0.0).all() and torch.isfinite(numbers["td_error"]).all()


# -- capture and compiling ---------------------------------------------------------------------------------------------


def loss_functions(algorithm: Any) -> list[Any]:
    return [
        getattr(algorithm, name) for name in ("losses", "critic_losses", "actor_losses") if hasattr(algorithm, name)
    ]


def captured_minibatch(algorithm: Any, sample: Any, noise: Any) -> dict[str, Any]:
    """Return what the losses read, with masks in place: that is the form of a GPU."""
    if hasattr(algorithm, "minibatch"):
        minibatch = algorithm.minibatch(sample.data, sample.weight, noise)
        if hasattr(algorithm, "critic"):
            minibatch["target"] = algorithm.targets(minibatch)
            minibatch["features"] = algorithm.critic_features(minibatch)
        return minibatch
    minibatch = {**sample.data, "weight": sample.weight, "noise": dict(noise)}
    if hasattr(algorithm, "together"):
        minibatch["next_action"], minibatch["cost"] = algorithm.next_action(minibatch)
        following = algorithm.together(minibatch)[1]
        minibatch["target"] = algorithm.targets({**minibatch, "following": following})
    if hasattr(algorithm, "least_values"):
        minibatch["least"] = algorithm.least_values(minibatch)
    return minibatch


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERYONE)
def test_losses_can_be_captured(name):
    algorithm, sample, noise = fixed_step(name)
    minibatch = captured_minibatch(algorithm, sample, noise)
    for function in loss_functions(algorithm):

        def numbers(data: Any, function: Any = function) -> Any:
            losses, statistics = function(data)
            return {key: weight * loss for key, (weight, loss) in losses.items()}, statistics

        report = check_capture(numbers, [minibatch], atol=1e-5, rtol=1e-5, name=f"{name}: {function.__name__}")
        assert report.num_ops > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["double dqn", "c51", "sac", "td3", "discrete sac", "crossq"])
def test_compiled_steps_are_eager_steps(name):
    one, sample, noise = fixed_step(name)
    two, _, _ = fixed_step(name)
    for part in vars(two).values():
        if hasattr(part, "mode") and hasattr(part, "groups"):
            part.mode = Compiled(strict=True, backend="aot_eager")
    for _ in range(3):
        one.update(sample.data, sample.weight, noise)
        two.update(sample.data, sample.weight, noise)
    for (path, first), (_, second) in zip(state_of(one), state_of(two)):
        if isinstance(first, torch.Tensor):
            torch.testing.assert_close(
                first, second, atol=1e-5, rtol=1e-5, msg=lambda text, path=path: f"{path}: {text}"
            )
