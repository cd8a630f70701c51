"""Output of the commands: results to the standard output, errors to the standard error, without a traceback."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable, Iterator


class UsageError(Exception):
    """The command line names something unknown; the message lists what exists. Exit code 2."""


def be_patient() -> None:
    """Let torch's idle threads sleep instead of spin; has an effect before torch is loaded.

    A thread that spins takes its core from the simulation and other processes: on two busy cores the quadruped
    trains ten times slower with it (`OMP_WAIT_POLICY=ACTIVE` brings it back).
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def rank_of_torchrun() -> tuple[int, int]:
    """Return (the rank of this process, how many torchrun has started); (0, 1) for a process alone."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    return (int(os.environ.get("RANK", "0")), world_size) if world_size > 1 else (0, 1)


def say(text: str = "") -> None:
    """Write a line to the standard output."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def complain(text: str) -> None:
    """Write an error to the standard error; a closed terminal is skipped."""
    try:
        rank, _ = rank_of_torchrun()
        sys.stderr.write(f"striderl: rank {rank}: {text}\n" if rank else f"striderl: {text}\n")
        sys.stderr.flush()
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def leave_closed_terminal() -> None:
    """Discard output for a closed terminal; else the interpreter would fail at its exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def message_of(error: BaseException) -> str:
    """Return the message of an error: a KeyError without Python's quotes around it, an OSError without errno."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.strerror.lower()}: {str(error.filename)!r}"
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)


# -- progress ----------------------------------------------------------------------------------------------------------


QUIET_SECONDS = 2.0
"""A command that is done sooner shows no progress."""
_REDRAW_SECONDS = 0.2
_LINE_SECONDS = 15.0


class CommandProgress:
    """Show how far a command is and how long it will still take, on the standard error.

    On a terminal one line is redrawn; elsewhere a line is written now and then, so that a log stays short.
    """

    def __init__(self, title: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Name what is done."""
        self._title, self._clock = title, clock
        self._began = clock()
        self._shown = self._began + QUIET_SECONDS
        self._drawn = False

    def __call__(self, share: float) -> None:
        """Show that this share, from 0 to 1, is done; 0 or less where the end is not known."""
        now = self._clock()
        if now < self._shown:
            return
        live = sys.stderr.isatty()
        self._shown = now + (_REDRAW_SECONDS if live else _LINE_SECONDS)
        text = progress_text(self._title, share, now - self._began)
        with contextlib.suppress(OSError, ValueError):  # a closed terminal must not end the command
            sys.stderr.write(f"\r\x1b[K{text[: _columns()]}" if live else f"{text}\n")
            sys.stderr.flush()
        self._drawn = self._drawn or live

    def close(self) -> None:
        """Take the line away."""
        if self._drawn:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()


@contextlib.contextmanager
def showing_progress(title: str) -> Iterator[CommandProgress]:
    """Show the progress of what is done inside, from its third second on."""
    progress = CommandProgress(title)
    try:
        yield progress
    finally:
        progress.close()


def progress_text(title: str, share: float, seconds: float) -> str:
    """Return 'evaluate: 40 %, 0:06, 0:09 to go'."""
    spent = _minutes(seconds)
    if not share > 0.0:
        return f"{title}: {spent}"
    left = seconds * (1.0 - min(share, 1.0)) / min(share, 1.0)
    return f"{title}: {100.0 * min(share, 1.0):.0f} %, {spent}, {_minutes(left)} to go"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns - 1
    except (OSError, ValueError):
        return 79
