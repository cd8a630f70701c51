"""Consumers for several processes, seen from one of them; the others' part of each sum is written down here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from striderl.algorithms.on_policy.ppo import PPO
from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.policies.policy import Policy, PolicyConfig
from striderl.training.consumers.ranks import KeepTogether, PoolEpisodes
from striderl.training.distributed import Ranks, fingerprints
from striderl.training.record import Record
from striderl.training.signals import Interrupted


@dataclass(frozen=True, kw_only=True)
class Heard(Ranks):
    """A rank that is told what the others add to each sum."""

    others: list[torch.Tensor] = field(default_factory=list)
    of_rank_0: list[Any] = field(default_factory=list)

    def all_reduce_sum(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.others.pop(0)

    def gather(self, value: Any) -> list[Any]:
        return []

    def from_main(self, function: Callable[[], Any]) -> Any:
        return self.of_rank_0.pop(0) if self.of_rank_0 else function()


@dataclass
class FakeRun:
    ending: bool = False
    remaining_iterations: int | None = None

    def state_dict(self) -> dict[str, object]:
        return {}


def record(**metrics: float) -> Record:
    return Record(
        iteration=10,
        env_steps=10,
        num_updates=1,
        num_steps=10,
        metrics={f"collect/{name}": value for name, value in metrics.items()},
        collection_seconds=1.0,
        learning_seconds=1.0,
    )


def test_episodes_of_all_ranks_are_pooled():
    # one episode of return 4 and length 2 here; three of return 8 and length 6 elsewhere
    ranks = Heard(world_size=2, others=[torch.tensor([3.0, 24.0, 18.0])])
    found = PoolEpisodes(ranks).consume(record(episodes=1.0, return_mean=4.0, length_mean=2.0), FakeRun())
    assert found.metrics == {"collect/episodes": 4.0, "collect/return_mean": 7.0, "collect/length_mean": 5.0}


def test_a_rank_without_episodes_takes_part_in_the_sum():
    ranks = Heard(world_size=2, others=[torch.tensor([2.0, 6.0, 8.0]), torch.zeros(3)])
    consumer = PoolEpisodes(ranks)
    assert consumer.consume(record(), FakeRun()).metrics["collect/return_mean"] == 3.0
    assert not consumer.consume(record(), FakeRun()).metrics and not ranks.others


def learner() -> PPO:
    torch.manual_seed(0)
    sizes = PolicyConfig(actor_hidden_dims=(4,), critic_hidden_dims=(4,))
    return PPO(Policy(ObsSpec({"x": ComponentSpec(shape=(2,))}), BoxSpec(shape=(1,)), sizes))


def test_all_ranks_stop_with_rank_0():
    ranks = Heard(rank=1, world_size=2, of_rank_0=[(True, {"evaluate/return_mean": 3.0}), (False, {})])
    consumer = KeepTogether(ranks, learner(), every=0)
    reaction = consumer.consume(record(), FakeRun())
    assert reaction.stop == "rank 0 stopped" and reaction.metrics == {"evaluate/return_mean": 3.0}
    assert not consumer.consume(record(), FakeRun(ending=True)).stop  # what another rank thinks does not count


def test_an_evaluation_that_was_broken_off_in_rank_0_is_waited_for_no_longer():
    with pytest.raises(Interrupted):
        KeepTogether(Heard(rank=1, world_size=2, of_rank_0=[None]), learner()).consume(record(), FakeRun())


def test_ranks_that_drifted_apart_are_named():
    # rank 1 of three has a fingerprint of its own, the two others have ours
    algorithm = learner()
    own = torch.zeros(3, 1, dtype=torch.int64)
    own[2] = fingerprints({"policy": algorithm.updater.groups["policy"].flat.flat})
    own[1] = 123
    ranks = Heard(world_size=3, others=[own])
    with pytest.raises(RuntimeError, match=r"drifted apart: rank 1 has other values in 'policy'\."):
        KeepTogether(ranks, algorithm, every=5).consume(record(), FakeRun())
