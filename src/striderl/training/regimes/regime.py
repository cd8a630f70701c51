"""What the trainer asks of a regime: the work of one iteration, cut into phases.

    Trainer   owns the loop: phases in order, the record, the consumers, saving
    Regime    owns the work: collecting, targets, gradient steps; and the parts that do it

    on-policy     warmup ─▶ [ collect ─▶ prepare ─▶ update ─▶ absorb ]       a fresh rollout each time
    off-policy    warmup ─▶ [ interact ]                                     steps and gradient steps take turns
    offline                 [ learn ]                                        gradient steps from a dataset

Phases in brackets are repeated. A regime never looks at the clock or the log of the run; the trainer never looks into
an algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from striderl.training.guard import FaultReport, Guard


@dataclass
class Tally:
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
    """What was not finite, since the run began."""

    def begin(self) -> None:
        """Start an iteration: the counters of the run go on, the rest is forgotten."""
        self.num_steps, self.numbers = 0, {}
        self.collection_seconds = self.learning_seconds = 0.0


class Regime(Protocol):
    """The work of an iteration, phase by phase."""

    first_phase: str
    """Where a new run begins: a phase that is done once, or the first of `phases`."""
    phases: tuple[str, ...]
    """The phases of an iteration, in order."""
    tally: Tally
    """What was done."""
    seed: int
    """What decides the order of samples."""
    guard: Guard
    """Takes an update back that broke what was learned."""

    @property
    def is_warm(self) -> bool:
        """Whether the phase that is done once has done its work; it is run again until then."""
        ...

    def run(self, phase: str, iteration: int) -> None:
        """Do the work of a phase; `iteration` counts those that are finished."""
        ...

    def finish(self, numbers: dict[str, float]) -> dict[str, float]:
        """Return the numbers of an iteration as they go into the record; nothing else may depend on them."""
        ...

    def is_over(self, iteration: int) -> bool:
        """Tell whether the plan is fulfilled."""
        ...

    def remaining_iterations(self, iteration: int) -> int | None:
        """Return how many iterations are still to come, or None without a limit."""
        ...

    def state_dict(self, phase: str) -> dict[str, Any]:
        """Return copies of everything needed to go on with this phase."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], phase: str, iteration: int) -> None:
        """Go on with this phase."""
        ...

    def close(self) -> None:
        """Close the envs."""
        ...
