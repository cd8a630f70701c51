"""A worker never outlives its trainer, and nothing that its envs started outlives the worker.

    trainer ──(spawn, fork)──▶ keeper ──fork──▶ worker ──▶ what an env starts, in whatever session
    trainer ──▶ fork server ──▶ keeper ──…       the kernel kills a worker whose keeper dies (PDEATHSIG)

The keeper is a small process that waits for the end of its worker or of its parent, whichever comes first; a trainer
that is killed with kill -9 is such an end. It is a subreaper: an orphan below it becomes its child instead of init's, a
daemon in a session of its own included. So it can end everything below it, and then ends as its worker did, with the
same exit code or signal. Signals that the trainer sends to it are passed on to the worker.

PDEATHSIG works for stopped processes and for C code that never returns, but only from the moment it is set: a parent
that died before is noticed by looking at the parent's process id once more. A thread that waits for the trainer's end
stands by for systems where the signal is not to be had. On a system without subreapers, what an env moves into a
process group of its own is not found. Nothing here loads torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import select
import signal
import threading
import time
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
EXIT_ORPHANED = 113
"""Exit code of a worker that found its trainer gone."""
KILL_SIGNAL = signal.SIGUSR2
"""Makes a keeper kill its worker and everything below it; SIGKILL would leave it no time for that."""
_FORWARDED = (signal.SIGTERM, signal.SIGUSR1)
_END_SECONDS = 3.0
"""How long a keeper tries to end what an env has started."""


def hold_on_to_parent(parent_pid: int) -> None:
    """Tie this process's life to that of its parent process."""
    _die_with_parent()
    if os.getppid() != parent_pid:
        os._exit(EXIT_ORPHANED)


def watch_trainer(trainer_pid: int) -> None:
    """End this process when the trainer has ended; a second line of defence, in a thread of its own."""
    threading.Thread(target=_leave_after, args=(trainer_pid,), name="striderl-lifeline", daemon=True).start()


def _die_with_parent() -> None:
    """Request SIGKILL on the parent's death; where it has no such call, the watching thread remains."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return
    prctl(option, ctypes.c_ulong(value), 0, 0, 0)


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


# -- the keeper --------------------------------------------------------------------------------------------------------


def fork_worker(parent_pid: int) -> None:
    """Turn this process into a keeper, and return in the worker that it forks; the keeper itself never returns.

    The worker leads a session of its own: signals to the trainer's process group, from a terminal or from `timeout`,
    do not reach it.
    """
    _lead_a_session()
    keeper_pid = os.getpid()
    signals = {KILL_SIGNAL, *_FORWARDED}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # none may come before there is a worker to pass it on to
    worker_pid = os.fork()
    if worker_pid:
        _keep(worker_pid, parent_pid)
    for number in signals:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    _lead_a_session()
    hold_on_to_parent(keeper_pid)


def _lead_a_session() -> None:
    if os.getsid(0) != os.getpid():
        os.setsid()


def _keep(worker_pid: int, parent_pid: int) -> None:
    """Wait for the end of the worker or of the parent, end everything below, and end as the worker did."""
    status = EXIT_ORPHANED << 8
    try:
        _Keeper(worker_pid).wait(parent_pid)
        status = _end_all(worker_pid)
    finally:
        _end_as(status)


class _Keeper:
    """Passes signals on to the worker."""

    def __init__(self, worker_pid: int) -> None:
        self.worker_pid = worker_pid
        gc.disable()  # objects of the trainer's process are never finalised here
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        _close_files()
        for number in (KILL_SIGNAL, *_FORWARDED):
            signal.signal(number, self._pass_on)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.worker_pid, signal.SIGKILL if number == KILL_SIGNAL else number)

    def wait(self, parent_pid: int) -> None:
        """Return when the worker or the parent has ended."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # else one just before `poll` would wait with it
        watch = select.poll()
        watch.register(reader, select.POLLIN)
        try:
            # the worker stays a zombie until it is waited for in `_end_all`: its number is not taken over by another
            for pid in (self.worker_pid, parent_pid):
                watch.register(os.pidfd_open(pid), select.POLLIN)
        except ProcessLookupError:
            return
        while os.getppid() == parent_pid and {descriptor for descriptor, _ in watch.poll()} == {reader}:
            os.read(reader, 512)


def _close_files() -> None:
    """Close what a forked keeper inherits of the trainer: it would hold the other ends of its pipes open."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # the one that listed the folder is closed already
                os.close(int(name))


def _end_all(worker_pid: int) -> int:
    """Kill what is below this process until there is nothing left; return the wait status of the worker."""
    status, deadline = EXIT_ORPHANED << 8, time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            # those below a child that has ended are children of this process by now, and the next round's
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                status = found[1] if found[0] == worker_pid else status
        except ChildProcessError:
            break
        time.sleep(0.002)
    return status


def _children() -> list[int]:
    """Return the processes whose parent is this one."""
    own = os.getpid()
    try:
        return [int(word) for word in Path(f"/proc/{own}/task/{own}/children").read_text().split()]
    except OSError:  # a kernel without that file
        return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _parent_of(entry) == own]


def _parent_of(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _end_as(status: int) -> None:
    """End this process with the exit code, or the signal, of a wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else EXIT_ORPHANED)
