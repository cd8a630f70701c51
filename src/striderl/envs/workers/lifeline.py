"""A worker never outlives its trainer, even when the trainer is killed with kill -9 and the env hangs.

    trainer ──(spawn, fork)──▶ worker             the kernel kills the worker when its parent dies (PDEATHSIG)
    trainer ──▶ fork server ──▶ worker            … and along the whole chain

PDEATHSIG works for stopped processes and for C code that never returns, but only from the moment it is set: a parent
that died before is noticed by looking at the parent's process id once more. A thread that waits for the trainer's end
stands by for systems where the signal is not to be had. Nothing here loads torch.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time

_PR_SET_PDEATHSIG = 1
EXIT_ORPHANED = 113
"""Exit code of a worker that found its trainer gone."""


def hold_on_to_parent(parent_pid: int) -> None:
    """Tie this process's life to that of its parent process."""
    _die_with_parent()
    if os.getppid() != parent_pid:
        os._exit(EXIT_ORPHANED)


def watch_trainer(trainer_pid: int) -> None:
    """End this process when the trainer has ended; a second line of defence, in a thread of its own."""
    threading.Thread(target=_leave_after, args=(trainer_pid,), name="striderl-lifeline", daemon=True).start()


def _die_with_parent() -> None:
    """Ask the kernel for SIGKILL on the parent's death; where it has no such call, the watching thread remains."""
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return
    prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)


def _leave_after(trainer_pid: int) -> None:
    """Wait for the trainer's end, then end this process at once."""
    try:
        descriptor = os.pidfd_open(trainer_pid)
    except ProcessLookupError:
        os._exit(EXIT_ORPHANED)
    except (OSError, AttributeError):
        _leave_after_polling(trainer_pid)
        return
    watch = select.poll()
    watch.register(descriptor, select.POLLIN)
    while not watch.poll():
        pass
    os._exit(EXIT_ORPHANED)


def _leave_after_polling(trainer_pid: int) -> None:
    """Do the same on a system without process descriptors (a sandbox may forbid them)."""
    while True:
        try:
            os.kill(trainer_pid, 0)
        except OSError:
            os._exit(EXIT_ORPHANED)
        time.sleep(0.5)
