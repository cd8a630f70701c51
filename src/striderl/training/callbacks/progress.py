"""`Progress`: how far the run is, how fast it goes and how long it will still take."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from striderl.loggers.console_logger import ELAPSED_SECONDS, REMAINING_SECONDS, TOTAL_ITERATIONS
from striderl.loggers.guarded import Guarded, guard_all
from striderl.loggers.logger import Logger
from striderl.training.callbacks.callback import NOTHING, Reaction, RunningTrainer, is_due
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
    """Reports every n iterations: to a console, to a function, or to the logging module."""

    SAVED_NAME: ClassVar[str] = "Progress"

    def __init__(self, write: Logger | Callable[[ProgressReport], None] | None = None, *, every: int = 1) -> None:
        """Show each report on a console, such as `ConsoleLogger`, or call `write`; without it, log at level INFO.

        A console shows the metrics of the record, the time spent and the time left; it is guarded like the loggers of
        `Log`, because a terminal can be closed or stopped.
        """
        if every < 1:
            raise ValueError(f"Progress: every is at least 1, found {every}")
        if write is not None and not isinstance(write, Logger) and not callable(write):
            raise TypeError(f"Progress wants a console or a function of a report, found {type(write).__name__}")
        self.console: Guarded | None = guard_all([write])[0] if isinstance(write, Logger) else None
        self.write = None if isinstance(write, Logger) else write
        self.every = every
        self.elapsed_seconds = 0.0
        self.iterations = 0

    def on_iteration(self, record: Record, run: RunningTrainer) -> Reaction:
        """Count, and report if it is time."""
        self.elapsed_seconds += record.collection_seconds + record.learning_seconds
        self.iterations += 1
        if is_due(record.iteration, self.every) or run.ending:
            self._show(record, run.remaining_iterations)
        return NOTHING

    def _show(self, record: Record, remaining: int | None) -> None:
        seconds = None if remaining is None else remaining * self.elapsed_seconds / self.iterations
        if self.console is not None:
            numbers = {**record.numbers(), ELAPSED_SECONDS: self.elapsed_seconds}
            if remaining is not None and seconds is not None:
                numbers |= {TOTAL_ITERATIONS: float(record.iteration + remaining), REMAINING_SECONDS: seconds}
            self.console.log(record.step, numbers)
            return
        report = ProgressReport(
            record.iteration,
            record.env_steps,
            record.steps_per_second,
            self.elapsed_seconds,
            seconds,
            record.metrics,
        )
        if self.write is None:
            _log.info("%s", report)
        else:
            self.write(report)

    def state_dict(self) -> dict[str, Any]:
        """Return the time and the number of iterations it was spent on."""
        return {"elapsed_seconds": self.elapsed_seconds, "iterations": self.iterations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the counts."""
        self.elapsed_seconds, self.iterations = float(state["elapsed_seconds"]), int(state["iterations"])

    def close(self) -> None:
        """Close the console, if there is one."""
        if self.console is not None:
            self.console.close()
