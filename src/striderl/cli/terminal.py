"""Output of the commands: results to the standard output, errors to the standard error, without a traceback."""

from __future__ import annotations

import errno
import os
import sys


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
