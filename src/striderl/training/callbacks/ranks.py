"""Callbacks for several processes: pool the envs' metrics, and keep the processes in step.

    rank 0    PoolEpisodes ─▶ Evaluate ─▶ Log ─▶ Stop ─▶ KeepTogether ─▶ Save
    others    PoolEpisodes ─────────────────────────────▶ KeepTogether ─▶ Save
                                                             └ rank 0's metrics and its reason to stop

Callbacks after `KeepTogether` get the same record in every process, and so decide the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from striderl.execution.updater import Updater
from striderl.training.callbacks.callback import NOTHING, Callback, Reaction, RunningTrainer, is_due
from striderl.training.callbacks.save import Save
from striderl.training.distributed import DistributedLearner, Ranks
from striderl.training.record import Record
from striderl.training.signals import Interrupted

EPISODES = "collect/episodes"
RETURN_STD, RETURN_MIN, RETURN_MAX = "collect/return_std", "collect/return_min", "collect/return_max"
BAD_SAMPLES = "faults/bad_samples"
OF_EPISODES = ("collect/return_mean", "collect/length_mean")


class PoolEpisodes:
    """Replace the metrics of one process's envs by those over all processes; first in the list, on every rank.

    The mean return and length are pooled in every process, other metrics in rank 0.
    """

    SAVED_NAME: ClassVar[str] = "PoolEpisodes"

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def on_iteration(self, record: Record, run: RunningTrainer) -> Reaction:
        """Pool the metrics of all processes: one small sum, and one small message to rank 0."""
        count = record.metrics.get(EPISODES, 0.0)
        # without a finished episode there are no means, but the others still wait for this sum
        sums = [count, *(count * record.metrics.get(name, 0.0) for name in OF_EPISODES)]
        packed = torch.tensor(sums, dtype=torch.float64, device=self.ranks.device)
        total, *parts = self.ranks.all_reduce_sum(packed).tolist()
        own = {name: value for name, value in record.metrics.items() if name.startswith(("collect/", "faults/"))}
        pooled = pooled_numbers(self.ranks.gather(own))
        if total:
            pooled |= {EPISODES: total, **{name: part / total for name, part in zip(OF_EPISODES, parts)}}
        return Reaction(pooled) if pooled else NOTHING

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: there is no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load nothing."""

    def close(self) -> None:
        """Do nothing."""


def pooled_numbers(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics of all processes as one process would log them: spreads, extremes, counts and means.

    A metric that an env logs is averaged over the processes that have it.
    """
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part[name] for part in parts if name in part]
        if name == BAD_SAMPLES:
            found[name] = sum(values)
        elif name in (RETURN_MIN, RETURN_MAX):
            found[name] = min(values) if name == RETURN_MIN else max(values)
        elif name not in (EPISODES, RETURN_STD, *OF_EPISODES):
            found[name] = sum(values) / len(values)
    spread = [part for part in parts if RETURN_STD in part]
    if spread:
        count = sum(part[EPISODES] for part in spread)
        mean = sum(part[EPISODES] * part[OF_EPISODES[0]] for part in spread) / count
        squares = sum(part[EPISODES] * (part[RETURN_STD] ** 2 + part[OF_EPISODES[0]] ** 2) for part in spread) / count
        found[RETURN_STD] = math.sqrt(max(0.0, squares - mean**2))
    return found


class KeepTogether:
    """Give all processes rank 0's metrics, stop them when it stops, and check that their parameters are equal.

    It comes after all callbacks that only rank 0 has, on every rank.
    """

    SAVED_NAME: ClassVar[str] = "KeepTogether"

    def __init__(self, ranks: Ranks, algorithm: DistributedLearner, *, every: int = 10) -> None:
        """Compare parameters after the first and every so many iterations; 0 means never."""
        self.ranks, self.algorithm, self.every = ranks, algorithm, every

    def on_iteration(self, record: Record, run: RunningTrainer) -> Reaction:
        """Raise, naming the differing rank, when the parameters of processes differ."""
        of_main = self.ranks.from_main(lambda: (run.ending, dict(record.metrics)))
        if of_main is None:
            raise Interrupted("in rank 0")  # by a signal, in an evaluation or a video; see `RunningTrainer`
        if self.every and (record.iteration == 1 or is_due(record.iteration, self.every)):
            self.ranks.require_equal(learned_tensors(self.algorithm))
        if self.ranks.is_main:
            return NOTHING
        ending, metrics = of_main
        return Reaction(metrics, stop="rank 0 stopped" if ending else "")

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: there is no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load nothing."""

    def close(self) -> None:
        """Do nothing."""


def learned_tensors(algorithm: DistributedLearner) -> dict[str, torch.Tensor]:
    """Return the parameters of all updaters of an algorithm by the name of their group."""
    updaters = [part for part in vars(algorithm).values() if isinstance(part, Updater)]
    return {name: group.flat.flat for updater in updaters for name, group in updater.groups.items()}


def together(ranks: Ranks, algorithm: DistributedLearner, callbacks: Sequence[Callback]) -> Sequence[Callback]:
    """Return the callbacks of one of several processes with the pooling ones; unchanged for one process."""
    if ranks.world_size == 1:
        return callbacks
    saving = [callback for callback in callbacks if isinstance(callback, Save)]
    others = [callback for callback in callbacks if not isinstance(callback, Save)]
    return [PoolEpisodes(ranks), *others, KeepTogether(ranks, algorithm), *saving]
