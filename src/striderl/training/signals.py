"""Graceful stop: after SIGTERM, SIGINT or SIGHUP the phase is finished, the run saved, and the process exits.

    first signal      noted; the phase under way is finished, the run saved, exit code 128 + signal (143, 130 or 129)
    second signal     the process ends at once with that code, as an earlier checkpoint is complete on disk

Nothing is raised into running code, so no tensor, file or simulation is left half changed. A signal that is ignored
when the process starts stays ignored: `nohup` does so with SIGHUP, a shell with SIGINT for background jobs.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that are noted."""


class Interrupted(BaseException):
    """Raised between two steps of an evaluation after a signal; the evaluation is repeated after a resume.

    Like KeyboardInterrupt it is no Exception: code that continues after failures must not continue after this.
    """


class StopSignals:
    """Catch SIGTERM, SIGINT and SIGHUP while entered; outside the main thread it catches nothing."""

    def __init__(self, acknowledge: Callable[[str], None] | None = None) -> None:
        """Call `acknowledge` with the signal's name as soon as the first one comes."""
        self._acknowledge = acknowledge
        self.received = 0
        """The first signal that came, to this process or to one that it learns with; 0 while none has."""
        self._noted = 0
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """Exit code after a signal: 143 for SIGTERM, 130 for SIGINT, 129 for SIGHUP."""
        return 128 + self.received if self.received else 0

    @property
    def name(self) -> str:
        """The name of the signal; empty without one."""
        return signal.Signals(self.received).name if self.received else ""

    def check(self) -> None:
        """Raise Interrupted when a signal has come."""
        if self.received:
            raise Interrupted(self.name)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted:
            os._exit(128 + number)
        self._noted = number
        self.received = self.received or number
        if self._acknowledge is not None:
            self._acknowledge(signal.Signals(number).name)

    def follow(self, number: int) -> None:
        """Stop for a signal that another process has received; this one's own may still come, and is its first."""
        if number:  # without one, the handler may just have noted this process's own
            self.received = number

    def leave(self) -> None:
        """Ignore further signals: everything is saved, and the process is about to exit."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)
        self._before = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            wanted = [number for number in STOPPING if signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._note) for number in wanted}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}
