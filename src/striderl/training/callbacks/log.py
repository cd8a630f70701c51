"""`Log`: write the metrics of each iteration to loggers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from striderl.loggers.guarded import guard_all
from striderl.loggers.logger import Logger
from striderl.training.callbacks.callback import Reaction, RunningTrainer, is_due
from striderl.training.record import Record


class Log:
    """Log the metrics of every n-th record to one or several loggers; the step is the record's own.

    Each logger is guarded: one that raises, hangs or fills the disk costs a warning and its own rows, nothing else. The
    step of the last record is part of the state; in a resumed run the loggers drop rows beyond it. It adds
    'time/iteration_seconds', all the time since the record before, callbacks included (or since it was built).
    """

    SAVED_NAME: ClassVar[str] = "Log"

    def __init__(self, *loggers: Logger, every: int = 1, clock: Callable[[], float] = time.perf_counter) -> None:
        """Log every `every` iterations, and at the end; `clock` returns seconds."""
        for logger in loggers:
            if not isinstance(logger, Logger):
                raise TypeError(
                    f"Log wants loggers, found {type(logger).__name__}; derive it from striderl.loggers.Logger"
                )
        if every < 1:
            raise ValueError(f"Log: every is at least 1, found {every}")
        self.loggers, self.every = guard_all(loggers), every
        """The loggers, guarded; give these to `Video` as well."""
        self.step = 0
        """The step of the last record, logged or not."""
        self._clock, self._before = clock, clock()

    def on_iteration(self, record: Record, run: RunningTrainer) -> Reaction:
        """Log, if it is time."""
        now = self._clock()
        seconds, self._before = now - self._before, now
        reaction = Reaction(seconds={"iteration": seconds})
        if is_due(record.iteration, self.every) or run.ending:
            numbers = record.with_seconds(reaction.seconds).numbers()
            for logger in self.loggers:
                logger.log(record.step, numbers)
        self.step = record.step
        return reaction

    def resume_at(self, step: int) -> None:
        """Drop rows of the loggers beyond a step; 0 for a run that restarts in an old folder."""
        self.step = step
        for logger in self.loggers:
            logger.resume_at(step)

    def state_dict(self) -> dict[str, Any]:
        """Return the step of the last record; the loggers hold the rows."""
        return {"step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the step: nothing is logged twice."""
        self.resume_at(int(state["step"]))

    def close(self) -> None:
        """Close the loggers, which takes a few seconds at most for one that hangs."""
        for logger in self.loggers:
            logger.close()
