"""What every learner from datasets must do: ends of episodes, samples that do not count, saving, the trainer."""

from __future__ import annotations

import pytest
import torch
from offline_sets import (
    DISCRETE,
    EVERY,
    VALUED,
    dataset,
    greedy,
    learner,
    q_values,
    spec_of,
    steps_of,
    train,
)

from striderl.data import tree
from striderl.data.actions import DiscreteSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.execution.modes import Compiled
from striderl.execution.updater import Updater
from striderl.training.plans import OfflinePlan
from striderl.training.protocols import ReplayAlgorithm, UpdateNoise
from striderl.training.trainer import Trainer

SPECIAL = {"cql": {"penalty": 0.0}, "iql": {"expectile": 0.5}, "iql choices": {"expectile": 0.5}}
"""Without these, CQL's values are lower and IQL's higher on purpose."""
QUICK = {"rate": 1e-2, "tau": 0.2}
"""Settings with which values are learned in few steps."""


def updates(name):
    return 200 if name == "cql choices" else 150


def actions(name, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if name in DISCRETE:  # as many of each: then the penalty of CQL moves no value
        return torch.arange(count) % 2
    return torch.rand(count, 1, generator=generator) * 2.0 - 1.0


@pytest.mark.slow
@pytest.mark.parametrize("name", VALUED)
def test_a_time_limit_is_no_end(name):
    # reward 1 in every step, and only the clock ends episodes: V = 1 / (1 - 0.5) = 2
    algorithm = learner(name, **QUICK, **SPECIAL.get(name, {}))
    steps = steps_of(torch.ones(128, 1), actions(name, 128), torch.ones(128), terminated=False)
    train(algorithm, dataset(algorithm, steps), updates(name))
    found = q_values(algorithm, torch.ones(5, 1), actions(name, 5, seed=1))
    torch.testing.assert_close(found, torch.full((5,), 2.0), atol=0.1, rtol=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", VALUED)
def test_a_termination_is_an_end(name):
    # three steps of reward 1, then the task is over: 1 + 0.5 + 0.25, 1 + 0.5, 1; the last step leads to a state
    # that looks like the first, which must not be valued
    algorithm = learner(name, 3, **QUICK, **SPECIAL.get(name, {}))
    place = torch.arange(192) % 3
    obs, following = torch.eye(3)[place], torch.eye(3)[(place + 1) % 3]
    steps = steps_of(obs, actions(name, 192), torch.ones(192), terminated=place == 2, obs_next=following)
    train(algorithm, dataset(algorithm, steps), updates(name))
    found = q_values(algorithm, torch.eye(3), actions(name, 3, seed=1))
    torch.testing.assert_close(found, torch.tensor([1.75, 1.5, 1.0]), atol=0.1, rtol=0.0)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in VALUED])
def test_cloning_does_not_look_at_ends_or_rewards(name):
    weights = []
    for terminated, reward in ((True, 1.0), (False, -5.0)):
        algorithm = learner(name)
        rewards = torch.full((32,), reward)
        steps = steps_of(torch.ones(32, 1), actions(name, 32), rewards, terminated=terminated)
        train(algorithm, dataset(algorithm, steps), 5)
        weights.append(tree.copy(dict(algorithm.policy.state_dict())))
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())


def some_sample(name, count=12, seed=0):
    algorithm = learner(name, 2)
    generator = torch.Generator().manual_seed(seed)
    obs, following = torch.randn(2, count, 2, generator=generator)
    ends = torch.arange(count) % 4 == 0
    rewards = torch.randn(count, generator=generator)
    steps = steps_of(obs, actions(name, count), rewards, terminated=ends, obs_next=following)
    return dataset(algorithm, steps).sample(count).data


def updated(name, sample, *, count=12, first=0, times=1):
    algorithm = learner(name, 2)
    noise = UpdateNoise(algorithm.noise(), count, 0, torch.device("cpu"))
    for number in range(first, first + times):
        algorithm.update(sample, None, tree.index(noise.at(number), slice(0, len(sample["rew"]))))
    return algorithm


def flat(state):
    return [leaf for leaf in tree.leaves(state) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("name", EVERY)
def test_samples_that_do_not_count_change_nothing(name):
    sample = some_sample(name)
    valid = torch.arange(12) < 8
    marked = {**sample, "valid": valid}

    def spoil(leaf):
        bad = torch.full_like(leaf, float("nan")) if leaf.is_floating_point() else torch.zeros_like(leaf)
        return torch.where(valid.view(-1, *[1] * (leaf.dim() - 1)), leaf, bad)

    spoiled = {**tree.map(spoil, {key: value for key, value in sample.items() if key != "valid"}), "valid": valid}
    kept = tree.index(sample, slice(0, 8))
    with_them, with_nan, without = (updated(name, each, times=2).state_dict() for each in (marked, spoiled, kept))
    assert all(torch.equal(one, two) for one, two in zip(flat(with_them), flat(with_nan)))
    for one, two in zip(flat(with_them), flat(without)):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_a_saved_learner_goes_on_bit_for_bit(name):
    algorithm = learner(name, 2, seed=0)
    following = torch.ones(64, 2)
    steps = steps_of(torch.randn(64, 2), actions(name, 64), torch.randn(64), terminated=False, obs_next=following)
    replay = dataset(algorithm, steps)
    plan = OfflinePlan(num_updates_per_iteration=3, batch_size=16, total_iterations=4)
    whole = Trainer(algorithm, replay, plan)
    next(whole), next(whole)
    saved = whole.state_dict()
    list(whole)
    other = learner(name, 2, seed=5)
    again = Trainer(other, dataset(other, steps, seed=9), plan)
    again.load_state_dict(saved)
    records = list(again)
    assert [record.num_updates for record in records] == [9, 12]
    assert all(torch.equal(a, b) for a, b in zip(flat(algorithm.state_dict()), flat(other.state_dict())))
    assert records[-1].metrics == whole.record.metrics


@pytest.mark.parametrize("name", EVERY)
def test_it_is_a_replay_algorithm_that_learns_under_the_trainer(name):
    algorithm = learner(name, 2)
    assert isinstance(algorithm, ReplayAlgorithm)
    before = tree.copy(dict(algorithm.policy.state_dict()))
    steps = steps_of(torch.randn(64, 2), actions(name, 64), torch.randn(64))
    plan = OfflinePlan(num_updates_per_iteration=4, batch_size=8, total_iterations=2)
    records = list(Trainer(algorithm, dataset(algorithm, steps), plan))
    assert len(records) == 2 and records[-1].env_steps == 0
    assert all(torch.isfinite(torch.tensor(value)) for value in records[-1].metrics.values())
    assert any(not torch.equal(value, before[key]) for key, value in algorithm.policy.state_dict().items())


@pytest.mark.parametrize("name", EVERY)
def test_a_gradient_that_is_not_finite_is_skipped(name):
    algorithm = learner(name, 2)
    before = tree.copy(dict(algorithm.policy.state_dict()))
    sample = some_sample(name)
    broken = {**sample, "rew": torch.full_like(sample["rew"], float("nan"))}
    broken["obs"] = {"obs": torch.full_like(sample["obs"]["obs"], float("inf"))}
    algorithm.update(broken, None, UpdateNoise(algorithm.noise(), 12, 0, torch.device("cpu")).at(0))
    assert all(torch.equal(value, before[key]) for key, value in algorithm.policy.state_dict().items())
    assert all(bool(leaf.isfinite().all()) for leaf in flat(algorithm.state_dict()))


MASKED = ObsSpec(
    {"obs": ComponentSpec(shape=(1,)), "mask": ComponentSpec(shape=(3,), dtype="bool", group="action_mask")}
)


@pytest.mark.slow
@pytest.mark.parametrize("name", DISCRETE)
def test_forbidden_choices_are_never_chosen_and_never_valued(name):
    # choice 2 pays most where it is allowed, and is forbidden in half of the data; episodes go on by the clock
    spec = DiscreteSpec(n=3, mask="mask")
    more = {"temperature": 10.0} if name == "iql choices" else {}
    algorithm = learner(name, action_spec=spec, obs_spec=MASKED, hidden=(8,), **more)
    count = 240
    allowed = torch.ones(count, 3, dtype=torch.bool)
    allowed[::2, 2] = False
    act = torch.arange(count) % 3
    act[::2] = act[::2] % 2
    rew = torch.tensor([0.0, 0.5, 1.0])[act]
    steps = steps_of(torch.ones(count, 1), act, rew, mask=allowed)
    train(algorithm, dataset(algorithm, steps, MASKED), 150)
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, True]])
    chosen = greedy(algorithm, {"obs": torch.ones(3, 1), "mask": mask})
    assert bool(mask.gather(1, chosen.unsqueeze(1)).all())
    if name != "bc choices":
        assert chosen.tolist() == [1, 0, 2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iql", "bcq"])
def test_a_compiled_step_is_the_eager_step(name):
    sample = some_sample(name)
    eager, compiled = learner(name, 2), learner(name, 2)
    for updater in [part for part in vars(compiled).values() if isinstance(part, Updater)]:
        updater.mode = Compiled(strict=True, backend="aot_eager")
    noise = UpdateNoise(eager.noise(), 12, 0, torch.device("cpu"))
    for number in range(2):
        one = eager.update(sample, None, noise.at(number))
        two = compiled.update(sample, None, noise.at(number))
        for key, value in one.items():
            torch.testing.assert_close(two[key], value, atol=1e-5, rtol=1e-4)
    for mine, theirs in zip(flat(eager.state_dict()), flat(compiled.state_dict())):
        torch.testing.assert_close(theirs, mine, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["td3_bc", "cql", "iql"])
def test_real_valued_learners_want_real_valued_actions(name):
    with pytest.raises(TypeError, match="real-valued"):
        learner(name, action_spec=spec_of("bcq"))
