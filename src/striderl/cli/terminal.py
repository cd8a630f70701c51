"""Output of the commands: results to the standard output, errors to the standard error, without a traceback."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path


class UsageError(Exception):
    """The command line names something unknown; the message lists what exists. Exit code 2."""


def be_patient() -> None:
    """Let torch's idle threads spin briefly and then sleep; has an effect before torch is loaded.

    A thread that spins takes its core from the simulation and other processes: on two busy cores the quadruped
    trains ten times slower with it (`OMP_WAIT_POLICY=ACTIVE` brings it back). One that sleeps at once is woken for
    every layer of a small network. `GOMP_SPINCOUNT` is read by GNU's OpenMP, which torch has on Linux.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def rank_of_torchrun() -> tuple[int, int]:
    """Return (the rank of this process, how many torchrun has started); (0, 1) for a process alone."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    return (int(os.environ.get("RANK", "0")), world_size) if world_size > 1 else (0, 1)


_KEPT = "\n\t"


def printable(text: str, *, keep: str = "") -> str:
    """Return a text without control characters: names in files from elsewhere must not steer the terminal."""
    return "".join(letter if letter.isprintable() or letter in keep else "?" for letter in text)


def say(text: str = "") -> None:
    """Write a line to the standard output."""
    sys.stdout.write(f"{printable(text, keep=_KEPT)}\n")
    sys.stdout.flush()


def complain(text: str) -> None:
    """Write an error to the standard error; a closed terminal is skipped."""
    try:
        rank, _ = rank_of_torchrun()
        text = printable(text, keep=_KEPT)
        sys.stderr.write(f"striderl: rank {rank}: {text}\n" if rank else f"striderl: {text}\n")
        sys.stderr.flush()
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def acknowledge(name: str) -> None:
    """Write that a signal has come, from its handler: straight to the descriptor, as any buffer may be in use."""
    if rank_of_torchrun()[0]:
        return  # rank 0 writes it
    begin = "\n" if sys.stderr.isatty() else ""
    with contextlib.suppress(OSError, ValueError):
        os.write(
            sys.stderr.fileno(), f"{begin}striderl: {name}: finishing this phase, saving; again to stop now\n".encode()
        )


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


def is_of_env(error: Exception) -> bool:
    """Return whether an env is at fault: it broke its contract, raised, died or did not answer in time."""
    from striderl.envs.vec_env import ContractError  # loads torch, which help does without
    from striderl.envs.workers.errors import EnvError

    return isinstance(error, (ContractError, EnvError))


def add_way_on(error: Exception, task: str, folder: Path, steps: Sequence[int]) -> None:
    """Note at an error of an env how it is looked into, and whether the run goes on from a checkpoint."""
    if is_of_env(error):
        error.add_note(f"'striderl doctor {task}' looks for what else is wrong with this env")
        last = f"'striderl resume {folder}' goes on from step {steps[-1]:,}" if steps else "nothing was saved yet"
        error.add_note(last)


# -- progress ----------------------------------------------------------------------------------------------------------


QUIET_SECONDS = 2.0
"""On a terminal, a command that is done sooner shows no progress."""
LINE_SECONDS = 15.0
"""Elsewhere a line is written this often, so that a log stays short."""
_REDRAW_SECONDS = 0.2
_BAR = 24


class CommandProgress:
    """Show how far a command is and how long it will still take, on the standard error.

    On a terminal one line with a bar is redrawn; elsewhere a line is written every 15 seconds.
    """

    def __init__(self, title: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Name what is done."""
        self._title, self._clock = title, clock
        self._began = clock()
        self._live = sys.stderr.isatty()
        self._shown = self._began + (QUIET_SECONDS if self._live else LINE_SECONDS)
        self._drawn = False
        self._share = 0.0

    def __call__(self, share: float) -> None:
        """Take that this share, from 0 to 1, is done; 0 where the end is not known."""
        self._share = share
        self.show()

    def show(self) -> None:
        """Show the last share, if it is time."""
        now, live = self._clock(), self._live
        if now < self._shown:
            return
        self._shown = now + (_REDRAW_SECONDS if live else LINE_SECONDS)
        text = progress_text(self._title, self._share, now - self._began)
        with contextlib.suppress(OSError, ValueError):  # a closed terminal must not end the command
            sys.stderr.write(f"\r\x1b[K{with_bar(text, self._share, _columns())}" if live else f"{text}\n")
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
    """Show the progress of what is done inside, from its third second on; the time also goes on while it is silent."""
    progress, over = CommandProgress(title), threading.Event()

    def tick() -> None:
        while not over.wait(_REDRAW_SECONDS):
            progress.show()

    ticker = threading.Thread(target=tick, name="striderl-progress", daemon=True)
    ticker.start()
    try:
        yield progress
    finally:
        over.set()
        ticker.join()
        progress.close()


def progress_text(title: str, share: float, seconds: float) -> str:
    """Return 'evaluate: 40 %, 0:06, 0:09 to go'."""
    spent = _minutes(seconds)
    if not share > 0.0:
        return f"{title}: {spent}"
    left = seconds * (1.0 - min(share, 1.0)) / min(share, 1.0)
    return f"{title}: {100.0 * min(share, 1.0):.0f} %, {spent}, {_minutes(left)} to go"


def with_bar(text: str, share: float, columns: int) -> str:
    """Return a line of at most so many columns, with a bar where the share is known and there is room for one."""
    room = min(_BAR, columns - len(text) - 1)
    if not share > 0.0 or room < 8:
        return text[:columns]
    full = round(room * min(share, 1.0))
    done, left = ("━", "─") if "utf" in (getattr(sys.stderr, "encoding", "") or "").lower() else ("#", "-")
    return f"{done * full}{left * (room - full)} {text}"


def _minutes(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02}"


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns - 1
    except (OSError, ValueError):
        return 79
