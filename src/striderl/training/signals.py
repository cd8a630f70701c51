"""Being asked to stop: SIGTERM, SIGINT and SIGHUP are noted, the work comes to a good end, and the process leaves.

    first signal      noted; the phase under way is finished, the run saved, exit code 128 + signal (143, 130 or 129)
    second signal     the process ends at once with that code, as a checkpoint of earlier is on disk whole

Nothing is raised into running code, so no tensor, file or simulation is left half changed. A signal that is ignored
when the process starts stays ignored: `nohup` does so with SIGHUP, a shell with SIGINT for what it runs behind.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that are noted."""


class Interrupted(BaseException):
    """Raised between two steps of an evaluation when the run was asked to stop; it is done again after a resume.

    Like KeyboardInterrupt it is no Exception: who goes on after failures must not go on after this.
    """


class StopSignals:
    """Notes SIGTERM, SIGINT and SIGHUP while it is entered; in another thread than the main one it notes nothing."""

    def __init__(self) -> None:
        self.received = 0
        """The first signal that came, to this process or to one that it learns with; 0 while none has."""
        self._noted = 0
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """What a process that a signal ended returns: 143 for SIGTERM, 130 for SIGINT, 129 for SIGHUP."""
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

    def follow(self, number: int) -> None:
        """Stop for a signal that another process has received; this one's own may still come, and is its first."""
        if number:  # without one, the handler may just have noted this process's own
            self.received = number

    def leave(self) -> None:
        """Ignore further signals: everything is saved, and the process is about to end with the code that it has."""
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
