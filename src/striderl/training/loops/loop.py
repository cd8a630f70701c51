"""Interface between trainer and training loop: the work of one iteration, cut into phases.

    Trainer   owns the loop: phases in order, the record, the callbacks, saving
    TrainLoop    owns the work: collecting, targets, gradient steps; and the parts that do it

    on-policy     warmup ─▶ [ collect ─▶ prepare ─▶ update ─▶ absorb ]       a fresh rollout each time
    off-policy    warmup ─▶ [ interact ]                                     steps and gradient steps take turns
    offline                 [ learn ]                                        gradient steps from a dataset

Phases in brackets are repeated. A training loop never looks at the clock or the log of the run; the trainer never looks
into an algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from striderl.training.guard import FaultReport, Guard


@dataclass
class LoopCounters:
    """What an iteration has done so far."""

    env_steps: int = 0
    """Over all envs, since the run began."""
    num_updates: int = 0
    """Gradient steps since the run began."""
    num_steps: int = 0
    """Env steps of this iteration."""
    numbers: dict[str, Tensor] = field(default_factory=dict)
    """0-d tensors of this iteration by name, 'collect/…' and 'train/…'."""
    collection_seconds: float = 0.0
    """How long collecting took in this iteration."""
    learning_seconds: float = 0.0
    """How long learning took in this iteration."""
    faults: FaultReport = field(default_factory=FaultReport)
    """Report of non-finite numbers since the run began."""

    def begin(self) -> None:
        """Start an iteration: keep the counters of the run, reset the rest."""
        self.num_steps, self.numbers = 0, {}
        self.collection_seconds = self.learning_seconds = 0.0


class TrainLoop(Protocol):
    """The work of an iteration, phase by phase."""

    first_phase: str
    """First phase of a new run: one that is done once, or the first of `phases`."""
    phases: tuple[str, ...]
    """The phases of an iteration, in order."""
    counters: LoopCounters
    """Counters and metrics of the loop."""
    seed: int
    """Seed of the sample order."""
    guard: Guard
    """Rolls back an update that made the learned state non-finite."""

    @property
    def is_warm(self) -> bool:
        """Whether the warm-up is finished; it is run again until then."""
        ...

    def run(self, phase: str, iteration: int) -> None:
        """Run a phase; `iteration` counts finished iterations."""
        ...

    def settle(self) -> None:
        """Finish what runs beside the learner; nothing where there is no such thing."""
        ...

    def finish(self, numbers: dict[str, float]) -> dict[str, float]:
        """Return the metrics of an iteration for the record; nothing else may depend on them."""
        ...

    def is_over(self, iteration: int) -> bool:
        """Return whether the plan is fulfilled."""
        ...

    def remaining_iterations(self, iteration: int) -> int | None:
        """Return how many iterations are left, or None without a limit."""
        ...

    def state_dict(self, phase: str) -> dict[str, Any]:
        """Return copies of everything needed to resume at this phase."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], phase: str, iteration: int) -> None:
        """Load a state and resume at this phase."""
        ...

    def close(self) -> None:
        """Close the envs."""
        ...
