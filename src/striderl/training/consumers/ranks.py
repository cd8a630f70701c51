"""Consumers for several processes: pool what episodes gave, and stay together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from striderl.training.consumers.consumer import NOTHING, Reaction, Run, is_due
from striderl.training.distributed import Learner, Ranks
from striderl.training.record import Record

EPISODES = "collect/episodes"
OF_EPISODES = ("collect/return_mean", "collect/length_mean")


class PoolEpisodes:
    """Replaces the mean return and length of episodes by those over all processes; first in the list, on every rank."""

    SAVED_NAME: ClassVar[str] = "PoolEpisodes"

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def consume(self, record: Record, run: Run) -> Reaction:
        """Add up what all processes have seen; one small sum."""
        count = record.metrics.get(EPISODES, 0.0)
        # without a finished episode there are no means, but the others still wait for this sum
        sums = [count, *(count * record.metrics.get(name, 0.0) for name in OF_EPISODES)]
        packed = torch.tensor(sums, dtype=torch.float64, device=self.ranks.device)
        total, *parts = self.ranks.all_reduce_sum(packed).tolist()
        if not total:
            return NOTHING
        return Reaction({EPISODES: total, **{name: part / total for name, part in zip(OF_EPISODES, parts)}})

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: there is no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load nothing."""

    def close(self) -> None:
        """Do nothing."""


class KeepTogether:
    """Stops all processes when rank 0 stops, and checks that they have the same parameters; last, on every rank."""

    SAVED_NAME: ClassVar[str] = "KeepTogether"

    def __init__(self, ranks: Ranks, algorithm: Learner, *, every: int = 10) -> None:
        """Compare parameters every so many iterations; 0 means never."""
        self.ranks, self.algorithm, self.every = ranks, algorithm, every

    def consume(self, record: Record, run: Run) -> Reaction:
        """Raise, naming the odd one out, when processes have drifted apart."""
        if is_due(record.iteration, self.every):
            groups = self.algorithm.updater.groups
            self.ranks.require_equal({name: group.flat.flat for name, group in groups.items()})
        ending = self.ranks.of_main(run.ending)
        return Reaction(stop="rank 0 stopped") if ending and not self.ranks.is_main else NOTHING

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: there is no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load nothing."""

    def close(self) -> None:
        """Do nothing."""
