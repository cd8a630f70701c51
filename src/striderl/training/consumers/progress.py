"""`Progress`: how far the run is, how fast it goes and how long it will still take."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from striderl.training.consumers.consumer import NOTHING, Reaction, Run, is_due
from striderl.training.record import Record

_log = logging.getLogger(__name__)


class ProgressReport(NamedTuple):
    """Where the run stands."""

    iteration: int
    env_steps: int
    steps_per_second: float
    """Of this iteration."""
    elapsed_seconds: float
    """Spent collecting and learning so far, resumed parts included."""
    remaining_seconds: float | None
    """Estimated from the mean time of an iteration; None without a limit."""
    metrics: Mapping[str, float]
    """The metrics of this iteration."""

    def __str__(self) -> str:
        left = "" if self.remaining_seconds is None else f", {self.remaining_seconds:.0f} s to go"
        returned = self.metrics.get("collect/return_mean")
        reward = "" if returned is None else f", return {returned:.4g}"
        return (
            f"iteration {self.iteration}, {self.env_steps} steps, {self.steps_per_second:.0f} steps/s{reward}, "
            f"{self.elapsed_seconds:.0f} s{left}"
        )


class Progress:
    """Reports every n iterations, to a function or to the log."""

    def __init__(self, write: Callable[[ProgressReport], None] | None = None, *, every: int = 1) -> None:
        """Call `write` with each report; without it, reports go to the logging module at level INFO."""
        if every < 1:
            raise ValueError(f"Progress: every is at least 1, found {every}")
        self.write, self.every = write, every
        self.elapsed_seconds = 0.0
        self.iterations = 0

    def consume(self, record: Record, run: Run) -> Reaction:
        """Count, and report if it is time."""
        self.elapsed_seconds += record.collection_seconds + record.learning_seconds
        self.iterations += 1
        if is_due(record.iteration, self.every) or run.ending:
            report = self._report(record, run.remaining_iterations)
            if self.write is None:
                _log.info("%s", report)
            else:
                self.write(report)
        return NOTHING

    def _report(self, record: Record, remaining: int | None) -> ProgressReport:
        return ProgressReport(
            record.iteration,
            record.env_steps,
            record.steps_per_second,
            self.elapsed_seconds,
            None if remaining is None else remaining * self.elapsed_seconds / self.iterations,
            record.metrics,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the time and the number of iterations it was spent on."""
        return {"elapsed_seconds": self.elapsed_seconds, "iterations": self.iterations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting."""
        self.elapsed_seconds, self.iterations = float(state["elapsed_seconds"]), int(state["iterations"])

    def close(self) -> None:
        """Do nothing."""
