"""Offline training: an iteration is a number of gradient steps on samples of a dataset.

Normalisers are updated from the whole dataset before the first step, and not afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from striderl.data import tree
from striderl.execution.interrupts import check_interrupt
from striderl.ops.moments import pooled
from striderl.storage.replay.replay import Replay
from striderl.training.distributed import Ranks, fingerprints
from striderl.training.guard import Guard
from striderl.training.loops.loop import LoopCounters
from striderl.training.loops.off_policy import ReplayLearner, check_replay_algorithm
from striderl.training.loops.on_policy import loaded_counters, take_back_if_broken
from striderl.training.plans import OfflinePlan
from striderl.training.protocols import ReplayAlgorithm

_CHUNK = 8192
"""Steps of the dataset per update of the normalisers."""
_TOLD_APART = ("act", "rew", "terminated", "truncated")
"""The columns that the fingerprint of a dataset is computed from."""


class OfflineLoop:
    """Learn from a dataset; checkpoints hold only a fingerprint of the dataset."""

    phases: tuple[str, ...] = ("learn",)
    first_phase = "learn"
    is_warm = True

    def __init__(
        self,
        algorithm: ReplayAlgorithm,
        dataset: Replay,
        plan: OfflinePlan,
        *,
        seed: int = 0,
        ranks: Ranks | None = None,
    ) -> None:
        """Put the parts together, or raise naming those that do not fit; nothing is run yet.

        Of several processes, `ranks`, each has a shard of the dataset.
        """
        check_replay_algorithm(algorithm, "OfflinePlan")
        if not isinstance(dataset, Replay):
            raise TypeError(f"an OfflinePlan learns from a filled Replay, found {type(dataset).__name__}")
        if len(dataset) == 0:
            raise ValueError("the dataset is empty; fill the Replay before training from it")
        dataset.view = algorithm.view()  # the algorithm chooses how samples are read
        self.algorithm, self.dataset, self.plan, self.seed = algorithm, dataset, plan, seed
        self.counters = LoopCounters()
        self.ranks = ranks or Ranks()
        self.guard = Guard(algorithm, reduce=self.ranks.reduce)
        self.learner = self.new_learner()
        self._updates_left = 0
        """Gradient steps of the iteration under way; 0 between iterations."""
        self._fingerprint = _fingerprint(dataset)
        self._num_valid = dataset.read.valid(dataset.read.chronological()).sum()

    def new_learner(self) -> ReplayLearner:
        """Return a learner that samples from the beginning; a loaded state then replaces its counters."""
        return ReplayLearner(
            self.algorithm, self.dataset, self.plan.batch_size, self.seed, absorbs=False, ranks=self.ranks
        )

    def run(self, phase: str, iteration: int) -> None:
        """Take the gradient steps of an iteration."""
        if self._updates_left == 0:
            self.counters.begin()
            if self.counters.num_updates == 0:
                self._update_normalization()
            self.guard.before()
            self.learner.begin(self.guard.kept)
            self._updates_left = self.plan.num_updates_per_iteration
        started = time.perf_counter()
        while self._updates_left:
            check_interrupt()
            self.counters.num_updates += self.learner.step(self.counters.num_updates)
            self._updates_left -= 1
        self.counters.numbers = self.learner.finish()
        take_back_if_broken(self.guard, self.counters, self.dataset.read.device, self._num_valid, len(self.dataset))
        self.guard.forget()
        self.counters.learning_seconds += time.perf_counter() - started

    def _update_normalization(self) -> None:
        """Update the normalisers from the whole dataset."""
        every = self.dataset.read.chronological()
        longest = self.ranks.largest(
            every.shape[0]
        )  # all processes pool as often, some of them with no step at the end
        self.guard.keep()
        try:
            for start in range(0, longest, _CHUNK):
                with pooled(self.ranks.reduce):
                    self.algorithm.update_normalization(self.dataset.read.rows(every[start : start + _CHUNK]))
        except BaseException:
            self.guard.roll_back()
            raise

    def settle(self) -> None:
        """Do nothing: between iterations nothing is under way."""

    def finish(self, numbers: dict[str, float]) -> dict[str, float]:
        """Return the metrics unchanged."""
        return numbers

    def is_over(self, iteration: int) -> bool:
        """Return whether the plan is fulfilled."""
        return self.plan.is_over(iteration)

    def remaining_iterations(self, iteration: int) -> int | None:
        """Return how many iterations the plan has left, or None without a limit."""
        return self.plan.remaining_iterations(iteration)

    def state_dict(self, phase: str) -> dict[str, Any]:
        """Return the learned state and the sampler's."""
        return {
            "seed": self.seed,
            "env_steps": 0,
            "num_updates": self.counters.num_updates,
            "faults": self.counters.faults.state_dict(),
            "guard": self.guard.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "picker": self.dataset.sampler.state_dict(),
            "dataset": self._fingerprint.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any], phase: str, iteration: int) -> None:
        """Load a state; raise where it belongs to another dataset."""
        if state["dataset"].tolist() != self._fingerprint.tolist():
            raise ValueError("this run has learned from another dataset; going on with this one would be another run")
        self.algorithm.load_state_dict(state["algorithm"])
        self.dataset.sampler.load_state_dict(state["picker"])
        self.seed = int(state["seed"])
        self.counters = loaded_counters(self.counters, state)
        self.guard.load_state_dict(state["guard"])
        self.learner = self.new_learner()
        self._updates_left = 0

    def close(self) -> None:
        """Do nothing: there are no envs."""


def _fingerprint(dataset: Replay) -> Tensor:
    """Return the fingerprint of a dataset."""
    columns = dataset.read.columns(dataset.read.chronological())
    leaves = tree.leaves({name: columns[name] for name in _TOLD_APART})
    return fingerprints({str(number): leaf for number, leaf in enumerate(leaves)})
