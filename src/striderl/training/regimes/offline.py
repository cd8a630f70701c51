"""A dataset and nothing else: an iteration is so many gradient steps on samples of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from striderl.storage.replay import Replay
from striderl.training.guard import Guard
from striderl.training.off_policy import ReplayAlgorithm
from striderl.training.plans import OfflinePlan
from striderl.training.regimes.off_policy import Learner, check_replay_algorithm
from striderl.training.regimes.on_policy import loaded_tally, take_back_if_broken
from striderl.training.regimes.regime import Tally


class OfflineRegime:
    """The work of an iteration that learns from a dataset; the dataset is not part of what is saved."""

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
        self.tally = Tally()
        self.guard = Guard(algorithm)
        self._learner = Learner(algorithm, dataset, plan.batch_size, seed)

    def run(self, phase: str, iteration: int) -> None:
        """Take the gradient steps of an iteration."""
        self.tally.begin()
        self.guard.before()
        started = time.perf_counter()
        for _ in range(self.plan.num_updates_per_iteration):
            self._learner.step(self.tally.num_updates)
            self.tally.num_updates += 1
        self.tally.numbers = self._learner.finish()
        take_back_if_broken(self.guard, self.tally, self.dataset.read.device)
        self.tally.learning_seconds = time.perf_counter() - started

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
            "num_updates": self.tally.num_updates,
            "faults": self.tally.faults.state_dict(),
            "guard": self.guard.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "picker": self.dataset.picker.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], phase: str, iteration: int) -> None:
        """Go on with the same dataset."""
        self.algorithm.load_state_dict(state["algorithm"])
        self.dataset.picker.load_state_dict(state["picker"])
        self.seed = int(state["seed"])
        self.tally = loaded_tally(self.tally, state)
        self.guard.load_state_dict(state["guard"])
        self._learner = Learner(self.algorithm, self.dataset, self.plan.batch_size, self.seed)

    def close(self) -> None:
        """Do nothing: there are no envs."""
