"""`Guarded`: a logger that may raise, hang or fill the disk without affecting training.

    training ──log(step, numbers)──▶ [ row row row … ] ──▶ daemon thread ──▶ the logger
                 returns at once       at most `capacity`     one call at a time, in order

The first failure is logged in one warning that names the logger and the reason; the rest is counted. The logger is
retried, because disks are emptied and networks come back. Local files have patience: training waits for the
row, so that it is on disk before the next checkpoint, until a first row takes longer than that; then it never waits
again. A script that ends without `close` is closed at its exit: a daemon thread would take the rows that wait with it.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from striderl.loggers.logger import Logger

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """Limits of a guarded logger."""

    capacity: int = 4096
    """How many calls may wait; when there are as many, further ones are dropped and counted."""
    deadline: float = 30.0
    """Seconds that one call may take before a warning that the logger hangs."""
    close_seconds: float = 5.0
    """Seconds that `close` waits for what is left; then it is abandoned."""

    def __post_init__(self) -> None:
        if self.capacity < 1 or not self.deadline > 0 or not self.close_seconds >= 0:
            raise ValueError(f"GuardConfig: capacity >= 1, deadline > 0 and close_seconds >= 0, found {self}")


class Guarded(Logger):
    """Pass every call to the logger in a thread of its own; see the top of this module."""

    def __init__(self, logger: Logger, config: GuardConfig | None = None) -> None:
        """Guard the logger; the thread starts with the first call."""
        self.logger = logger
        self.guard = config or GuardConfig()
        self.dropped = 0
        """Calls that were dropped because too many waited, or because the logger was closed."""
        self.failed = 0
        """Calls that raised."""
        self._calls: deque[Callable[[], None]] = deque()
        self._change = threading.Condition()
        self.thread: threading.Thread | None = None
        self._asked = self._done = 0
        self.busy_since: float | None = None
        self._patience = logger.patience
        self._warned = self._closing = False

    @property
    def name(self) -> str:
        """The name of the logger behind."""
        return self.logger.name

    # -- what training calls -------------------------------------------------------------------------------------------

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Pass a copy of the metrics on."""
        copied = dict(numbers)
        self._pass_on(lambda: self.logger.log(step, copied))

    def text(self, name: str, value: str) -> None:
        """Pass a text on."""
        self._pass_on(lambda: self.logger.text(name, value))

    def config(self, values: Mapping[str, Any]) -> None:
        """Pass the settings on."""
        self._pass_on(lambda: self.logger.config(values))

    def video(self, step: int, name: str, path: Path) -> None:
        """Pass a video on."""
        self._pass_on(lambda: self.logger.video(step, name, path))

    def file(self, path: Path) -> None:
        """Pass a file on."""
        self._pass_on(lambda: self.logger.file(path))

    def artifact(self, name: str) -> None:
        """Pass the name of an artifact on."""
        self._pass_on(lambda: self.logger.artifact(name))

    def resume_at(self, step: int) -> None:
        """Pass on the step that the run resumes at."""
        self._pass_on(lambda: self.logger.resume_at(step))

    def close(self) -> None:
        """Wait a few seconds for what is left, and close the logger behind."""
        if self._closing:
            return
        if self.thread is not None:
            self._pass_on(self.logger.close, last=True)
            with self._change:
                finished = self._change.wait_for(self._idle, self.guard.close_seconds)
            if not finished:
                self._warn(f"had not finished {self.guard.close_seconds:g} s after the run; the last rows may be lost")
        with self._change:
            self._closing = True
            self._change.notify_all()
        atexit.unregister(self.close)
        if self.dropped or self.failed:
            _log.info("logger %s: %d calls failed, %d were dropped", self.name, self.failed, self.dropped)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _pass_on(self, call: Callable[[], None], *, last: bool = False) -> None:
        with self._change:
            full = len(self._calls) >= self.guard.capacity and not last
            if self._closing or full:
                self.dropped += 1
            else:
                self._calls.append(call)
                self._asked += 1
                self._change.notify_all()
            hung = self.busy_since is not None and time.monotonic() - self.busy_since > self.guard.deadline
        if full:
            self._warn(f"is too slow: {self.guard.capacity} calls wait, further ones are dropped until it catches up")
        elif hung:
            self._warn(f"has not come back from one call for more than {self.guard.deadline:g} s")
        self._start()
        self._wait()

    def _start(self) -> None:
        if self.thread is None and not self._closing:
            self.thread = threading.Thread(target=self._work, name=f"striderl-{self.name}", daemon=True)
            try:
                self.thread.start()
                atexit.register(self.close)
            except RuntimeError as error:
                self._warn(f"has no thread: {error}")

    def _wait(self) -> None:
        """Give a logger with patience the time to finish, unless it has used that up before."""
        if not self._patience:
            return
        with self._change:
            finished = self._change.wait_for(self._idle, self._patience)
        if not finished:
            self._warn(f"took longer than {self._patience:g} s for one call; training no longer waits for it")
            self._patience = 0.0

    def _idle(self) -> bool:
        return self._done == self._asked

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: bool(self._calls) or self._closing)
                if not self._calls:
                    return
                call = self._calls.popleft()
                self.busy_since = time.monotonic()
            try:
                call()
            # whatever a tracker's client raises, a library that calls sys.exit included: training must not be affected
            except (Exception, SystemExit) as error:  # noqa: BLE001
                self.failed += 1
                self._warn(f"failed with {type(error).__name__}: {error}")
            with self._change:
                self._done += 1
                self.busy_since = None
                self._change.notify_all()

    def _warn(self, reason: str) -> None:
        with self._change:
            first, self._warned = not self._warned, True
        if first:
            _log.warning("logger %s %s. Training goes on; rows of this logger may be missing", self.name, reason)


def guard_all(loggers: Iterable[Logger], config: GuardConfig | None = None) -> tuple[Guarded, ...]:
    """Guard each logger that is not guarded yet."""
    return tuple(logger if isinstance(logger, Guarded) else Guarded(logger, config) for logger in loggers)
