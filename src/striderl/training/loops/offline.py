"""A dataset and nothing else: an iteration is so many gradient steps on samples of it.

Normalisers learn from the whole dataset before the first step, and from nothing afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from striderl.data import tree
from striderl.execution.interrupts import check_interrupt
from striderl.storage.replay.replay import Replay
from striderl.training.distributed import fingerprints
from striderl.training.guard import Guard
from striderl.training.loops.loop import LoopCounters
from striderl.training.loops.off_policy import ReplayLearner, check_replay_algorithm
from striderl.training.loops.on_policy import loaded_counters, take_back_if_broken
from striderl.training.plans import OfflinePlan
from striderl.training.protocols import ReplayAlgorithm

_CHUNK = 8192
"""How many steps of the dataset the normalisers are shown at a time."""
_TOLD_APART = ("act", "rew", "terminated", "truncated")
"""The columns by which datasets are told apart."""


class OfflineLoop:
    """The work of an iteration that learns from a dataset; of the dataset itself a fingerprint is saved."""

    phases: tuple[str, ...] = ("learn",)
    first_phase = "learn"
    is_warm = True

    def __init__(self, algorithm: ReplayAlgorithm, dataset: Replay, plan: OfflinePlan, *, seed: int = 0) -> None:
        """Put the parts together, or say which of them do not fit; nothing is run yet."""
        check_replay_algorithm(algorithm, "OfflinePlan")
        if not isinstance(dataset, Replay):
            raise TypeError(f"an OfflinePlan learns from a filled Replay, found {type(dataset).__name__}")
        if len(dataset) == 0:
            raise ValueError("the dataset is empty; fill the Replay before training from it")
        dataset.view = algorithm.view()  # how samples are read is the algorithm's choice, whoever filled the replay
        self.algorithm, self.dataset, self.plan, self.seed = algorithm, dataset, plan, seed
        self.counters = LoopCounters()
        self.guard = Guard(algorithm)
        self._learner = ReplayLearner(algorithm, dataset, plan.batch_size, seed, absorbs=False)
        self._updates_left = 0
        """Gradient steps of the iteration under way; 0 between iterations."""
        self._fingerprint = _fingerprint(dataset)
        self._num_valid = dataset.read.valid(dataset.read.chronological()).sum()

    def run(self, phase: str, iteration: int) -> None:
        """Take the gradient steps of an iteration."""
        if self._updates_left == 0:
            self.counters.begin()
            if self.counters.num_updates == 0:
                self._update_normalization()
            self.guard.before()
            self._learner.begin(self.guard.kept)
            self._updates_left = self.plan.num_updates_per_iteration
        started = time.perf_counter()
        while self._updates_left:
            check_interrupt()
            self.counters.num_updates += self._learner.step(self.counters.num_updates)
            self._updates_left -= 1
        self.counters.numbers = self._learner.finish()
        take_back_if_broken(self.guard, self.counters, self.dataset.read.device, self._num_valid, len(self.dataset))
        self.guard.forget()
        self.counters.learning_seconds += time.perf_counter() - started

    def _update_normalization(self) -> None:
        """Let the normalisers learn from all of the dataset."""
        every = self.dataset.read.chronological()
        self.guard.keep()
        try:
            for start in range(0, every.shape[0], _CHUNK):
                self.algorithm.update_normalization(self.dataset.read.rows(every[start : start + _CHUNK]))
        except BaseException:
            self.guard.roll_back()
            raise

    def finish(self, numbers: dict[str, float]) -> dict[str, float]:
        """Return the numbers as they are."""
        return numbers

    def is_over(self, iteration: int) -> bool:
        """Ask the plan."""
        return self.plan.is_over(iteration)

    def remaining_iterations(self, iteration: int) -> int | None:
        """Ask the plan."""
        return self.plan.remaining_iterations(iteration)

    def state_dict(self, phase: str) -> dict[str, Any]:
        """Return what was learned and where sampling stands."""
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
        """Go on with the same dataset; another one is refused."""
        if state["dataset"].tolist() != self._fingerprint.tolist():
            raise ValueError("this run has learned from another dataset; going on with this one would be another run")
        self.algorithm.load_state_dict(state["algorithm"])
        self.dataset.sampler.load_state_dict(state["picker"])
        self.seed = int(state["seed"])
        self.counters = loaded_counters(self.counters, state)
        self.guard.load_state_dict(state["guard"])
        self._learner = ReplayLearner(self.algorithm, self.dataset, self.plan.batch_size, self.seed, absorbs=False)
        self._updates_left = 0

    def close(self) -> None:
        """Do nothing: there are no envs."""


def _fingerprint(dataset: Replay) -> Tensor:
    """Return a few numbers that another dataset would not have."""
    columns = dataset.read.columns(dataset.read.chronological())
    leaves = tree.leaves({name: columns[name] for name in _TOLD_APART})
    return fingerprints({str(number): leaf for number, leaf in enumerate(leaves)})
