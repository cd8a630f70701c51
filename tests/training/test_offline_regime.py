"""Learning from a dataset: normalisers know all of it before the first step, and a run knows its dataset again."""

from __future__ import annotations

import pytest
import torch

from striderl.algorithms.offline.behaviour_cloning import BehaviourCloning
from striderl.data.actions import BoxSpec
from striderl.data.specs import ObsSpec
from striderl.datasets.offline import replay_of
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.stages import NormalizeObs
from striderl.training.guard import DivergedError
from striderl.training.plans import OfflinePlan
from striderl.training.record import Record
from striderl.training.trainer import Trainer

OBS, ACT = ObsSpec.from_flat(2), BoxSpec(shape=(1,), low=-1.0, high=1.0)


def trainer(seed=0, count=300, **added):
    torch.manual_seed(0)
    config = ActorConfig(hidden_dims=(4,), stages=(NormalizeObs(),))
    algorithm = BehaviourCloning(ActorPolicy(OBS, ACT, config))
    draw = torch.Generator().manual_seed(seed)
    obs = 5.0 + 3.0 * torch.randn(1, count, 2, generator=draw)
    steps = {
        "obs": {"obs": obs},
        "obs_next": {"obs": obs},
        "act": torch.rand(1, count, 1, generator=draw),
        "rew": torch.zeros(1, count),
        "terminated": torch.ones(1, count, dtype=torch.bool),
        **added,
    }
    plan = OfflinePlan(num_updates_per_iteration=2, batch_size=8, total_iterations=2)
    return Trainer(algorithm, replay_of(steps, OBS, ACT), plan), obs[0]


def statistics(made):
    state = made.algorithm.policy.state_dict()
    return {name: value.clone() for name, value in state.items() if "normalizers" in name}


def test_normalisers_learn_from_the_whole_dataset_once():
    made, obs = trainer()
    next(made)
    first = statistics(made)
    means = [value for name, value in first.items() if name.endswith("mean")]
    torch.testing.assert_close(means[0].flatten().float(), obs.mean(dim=0), atol=1e-4, rtol=0.0)
    next(made)
    assert all(torch.equal(value, first[name]) for name, value in statistics(made).items())


def test_a_run_does_not_go_on_with_another_dataset():
    made, _ = trainer()
    next(made)
    same, _ = trainer()
    same.load_state_dict(made.state_dict())
    assert same.num_updates == 2
    for other in (trainer(seed=1)[0], trainer(count=299)[0]):
        with pytest.raises(ValueError, match="has learned from another dataset"):
            other.load_state_dict(made.state_dict())


def test_records_are_numbered_by_what_is_counted():
    made, _ = trainer()
    assert [(record.env_steps, record.step) for record in made] == [(0, 2), (0, 4)]
    assert Record(iteration=1, env_steps=7, num_updates=3, num_steps=7).step == 7


def test_a_dataset_without_valid_steps_ends_with_an_error():
    made, _ = trainer(valid=torch.zeros(1, 300, dtype=torch.bool))
    made.regime.guard.patience = 1
    next(made)
    with pytest.raises(DivergedError, match=r"0 of 300 samples were valid; the envs, or the dataset, mark"):
        next(made)


def test_an_interrupted_iteration_goes_on_to_the_same_bits():
    made, other = trainer()[0], trainer()[0]
    update, calls = made.algorithm.update, []

    def interrupted(*inputs):
        calls.append(1)
        found = update(*inputs)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return found

    made.algorithm.update = interrupted
    with pytest.raises(KeyboardInterrupt):
        next(made)
    assert next(made).metrics == next(other).metrics
    for name, value in other.algorithm.policy.state_dict().items():
        assert torch.equal(made.algorithm.policy.state_dict()[name], value), name
