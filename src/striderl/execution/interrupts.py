"""Ctrl-C between two steps instead of in the middle of one.

    with deferred_interrupts():
        step ─ check_interrupt() ─ step ─ check_interrupt() ─ step
              │                        ▲
              SIGINT ──── waits ───────┘ raises KeyboardInterrupt here

Python raises KeyboardInterrupt wherever it happens to be: between two tensors of an optimiser step, or inside the exit
of `torch.no_grad()`. Inside the `with`, SIGINT is stored and raised at the next `check_interrupt`, at the end at the
latest. A second SIGINT, a second or more after one which still waits, is raised at once, for a step that hangs.

It works in the main thread and in place of Python's own handler; where another handler is installed, that one is left
alone, and so is a block inside a block.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType

PATIENCE_SECONDS = 1.0
"""How long an interrupt may wait before a second one is raised wherever the program is."""


class _Pending:
    """The one SIGINT of this process that may be waiting."""

    def __init__(self) -> None:
        self.since: float | None = None
        """When it came, in seconds of the monotonic clock; None while there is none."""
        self.process = 0
        """The process that waits for it: a fork inherits the handler, but never checks it."""

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT."""
        now = time.monotonic()
        if os.getpid() != self.process or (self.since is not None and now - self.since >= PATIENCE_SECONDS):
            self.since = None
            raise KeyboardInterrupt
        if self.since is None:
            self.since = now


_pending = _Pending()
_note = _pending.note  # one object, so that the handler can be compared with it


class deferred_interrupts:  # noqa: N801  (a context manager, named like a function)
    """Hold SIGINT back between two calls of `check_interrupt`; see the top of this module."""

    def __init__(self) -> None:
        self._installed = False

    def __enter__(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return
        _pending.since, _pending.process = None, os.getpid()
        self._installed = True
        signal.signal(signal.SIGINT, _note)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._installed:
            return
        self._installed = False
        if signal.getsignal(signal.SIGINT) is _note:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if _pending.since is not None:
            _pending.since = None
            if not isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt from error


def interrupt_waits() -> bool:
    """Return whether a SIGINT waits to be raised in this thread."""
    return _pending.since is not None and threading.current_thread() is threading.main_thread()


def check_interrupt() -> None:
    """Raise KeyboardInterrupt if a SIGINT waits: here no step is half done."""
    if _pending.since is not None and threading.current_thread() is threading.main_thread():
        _pending.since = None
        raise KeyboardInterrupt
