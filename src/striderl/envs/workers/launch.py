"""Start worker processes, and the trainer's handle on them.

    spawn        a fresh interpreter; the main script is not run again, so it needs no `if __name__ == "__main__"`
    fork         a copy of the trainer's process: quick, but it copies locks that other threads hold
    forkserver   a fork of a small clean process (see fork_server)

A worker starts with one open file: its end of a wire. All else comes over that. Process descriptors (pidfd) signal a
death at once, whichever process else holds the worker's pipes, and never hit a process that took over a number.
Nothing here loads torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import spawn as multiprocessing_spawn
from typing import Protocol, TypeVar

from striderl.envs.workers import child, fork_server
from striderl.envs.workers.channel import Channel, ChannelClosed, channel_pair, pack, unpack
from striderl.envs.workers.convert import EnvFactory
from striderl.envs.workers.parent_watchdog import KILL_SIGNAL

_trainer_ends: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""The trainer's ends of all wires; a forked worker closes its copies, or its siblings would never see theirs close."""

_KEEPER_SECONDS = 1.0
"""How long a keeper has to end its worker; it needs a hundredth of that."""

Result = TypeVar("Result")


class Child:
    """A running process that the trainer started, directly or through the fork server: the keeper of a worker."""

    def __init__(self, pid: int, handle: int, reap: Callable[[], int | None]) -> None:
        self.pid = pid
        self.handle = handle
        """Process descriptor: readable once the process has ended."""
        self._reap = reap
        self._exit_code: int | None = None
        self._reaped = False
        self._close = weakref.finalize(self, os.close, handle)

    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        return not self._reaped and not self.wait(0.0)

    def wait(self, timeout: float) -> bool:
        """Wait until the process has ended, at most so many seconds, and return whether it has."""
        if self._reaped:
            return True
        watch = select.poll()
        watch.register(self.handle, select.POLLIN)
        return bool(watch.poll(max(0, int(timeout * 1000))))

    def send_signal(self, number: int) -> None:
        """Send a signal; a process that has ended takes no notice."""
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, number)

    def kill(self) -> None:
        """End a worker at once, and what its envs have started; a keeper that does not follow is killed as well."""
        self.send_signal(KILL_SIGNAL)
        if not self.wait(_KEEPER_SECONDS):
            self.send_signal(signal.SIGKILL)

    def exit_code(self) -> int | None:
        """Return how the process ended (minus the signal if it was killed); None when unknown."""
        if not self._reaped and self.wait(0.0):
            self._exit_code, self._reaped = self._reap(), True
        return self._exit_code

    def release(self) -> None:
        """Close the descriptor of a process that has ended."""
        self.exit_code()
        self._close()


class Launcher(Protocol):
    """Starts workers of one pool."""

    needs_payload: bool
    """Whether factories travel to the worker as bytes."""

    def launch(self, factories: Sequence[EnvFactory], timeout: float) -> tuple[Child, Channel]:
        """Start a worker, and return the process and the trainer's end of its wire."""

    def close(self, timeout: float) -> None:
        """End whatever helps to start workers."""


class SpawnLauncher:
    """Starts each worker in a fresh interpreter."""

    needs_payload = True

    def launch(self, factories: Sequence[EnvFactory], timeout: float) -> tuple[Child, Channel]:
        """Start a worker; see `Launcher`."""
        return spawn_module(child.__name__)

    def close(self, timeout: float) -> None:
        """Do nothing: no process helps to spawn."""


class ForkLauncher:
    """Copies the trainer's process for each worker."""

    needs_payload = False

    def launch(self, factories: Sequence[EnvFactory], timeout: float) -> tuple[Child, Channel]:
        """Start a worker; see `Launcher`."""
        ours, theirs = _trainer_end_first(channel_pair())
        trainer_pid = os.getpid()

        def fork() -> int:
            pid = os.fork()
            if pid == 0:
                _be_a_forked_worker(theirs, trainer_pid, factories)
            return pid

        sys.stdout.flush()
        sys.stderr.flush()
        pid = in_lasting_thread(fork)
        theirs.close()
        return Child(pid, os.pidfd_open(pid), lambda: fork_server.reap(pid)), Channel(ours)

    def close(self, timeout: float) -> None:
        """Do nothing: no process helps to fork."""


class ForkServerLauncher:
    """Has workers forked by a small process of its own, which is started with the first of them."""

    needs_payload = True

    def __init__(self) -> None:
        self._server: Child | None = None

    def launch(self, factories: Sequence[EnvFactory], timeout: float) -> tuple[Child, Channel]:
        """Start a worker; see `Launcher`."""
        if self._server is not None and not self._server.is_alive():
            self.close(0.1)
        if self._server is None:
            self._server, self._channel = spawn_module(fork_server.__name__)
        ours, theirs = _trainer_end_first(channel_pair())
        try:
            self._channel.send(b"f", b"", [theirs.fileno()])
            body, files = self._answer(timeout)
        finally:
            theirs.close()
        pid = int(unpack(body))
        return Child(pid, files[0], lambda: self._ask_how_ended(pid)), Channel(ours)

    def close(self, timeout: float) -> None:
        """End the fork server; workers that still run end with it."""
        if self._server is None:
            return
        self._channel.close()
        if not self._server.wait(timeout / 2):
            self._server.send_signal(signal.SIGKILL)
            self._server.wait(timeout / 2)
        self._server.release()
        self._server = None

    def _ask_how_ended(self, pid: int) -> int | None:
        try:
            self._channel.send(b"w", pack(pid))
            body, _ = self._answer(1.0)
        except (OSError, TimeoutError):
            return None
        code = unpack(body)
        return None if code is None else int(code)

    def _answer(self, timeout: float) -> tuple[bytes, list[int]]:
        watch = select.poll()
        watch.register(self._channel.fileno(), select.POLLIN)
        if not watch.poll(max(1, int(min(timeout, 1e6) * 1000))):
            raise TimeoutError(f"the fork server did not answer within {timeout:.1f} s")
        packet = self._channel.receive()
        if packet is None:
            raise ChannelClosed("the fork server gave no answer")
        return packet.body, packet.files


def make_launcher(start_method: str) -> Launcher:
    """Return a launcher for one pool."""
    if start_method == "fork":
        return ForkLauncher()
    return ForkServerLauncher() if start_method == "forkserver" else SpawnLauncher()


def spawn_module(module: str) -> tuple[Child, Channel]:
    """Start a fresh interpreter that calls `main(descriptor, parent_pid)` of a module."""
    ours, theirs = _trainer_end_first(channel_pair())
    # the trainer handles Ctrl-C from the first moment, not only once the modules are loaded
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "import sys, json, importlib; sys.path[:] = json.loads(sys.argv[2]); "
        "importlib.import_module(sys.argv[1]).main(int(sys.argv[3]), int(sys.argv[4]))"
    )
    arguments = [module, json.dumps([str(entry) for entry in sys.path]), str(theirs.fileno()), str(os.getpid())]
    command = [os.fsdecode(multiprocessing_spawn.get_executable()), "-c", code, *arguments]

    def start() -> subprocess.Popen[bytes]:
        # in a session of its own, which signals to the trainer's process group do not reach
        return subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, start_new_session=True)

    process = in_lasting_thread(start)
    theirs.close()
    return Child(process.pid, os.pidfd_open(process.pid), process.poll), Channel(ours)


def _trainer_end_first(ends: tuple[socket.socket, socket.socket]) -> tuple[socket.socket, socket.socket]:
    _trainer_ends.add(ends[0])
    return ends


def _be_a_forked_worker(end: socket.socket, trainer_pid: int, factories: Sequence[EnvFactory]) -> None:
    """Run the worker in the forked copy; never returns into the trainer's code."""
    code = 1
    try:
        for other in list(_trainer_ends):
            other.close()
        code = child.run(end, trainer_pid, factories)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


# -- a thread that lasts ---------------------------------------------------------------------------------------------


def in_lasting_thread(function: Callable[[], Result]) -> Result:
    """Call a function in a thread that lives as long as the process.

    The kernel takes the death of the *thread* that made a process for the death of its parent. A pool that is built in
    a passing thread would lose its workers with it, so they are then started from a thread kept for the purpose.
    """
    if threading.current_thread() is threading.main_thread():
        return function()
    return _starter().call(function)


class _Starter:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self._requests: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="striderl-starter", daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._requests.get()()

    def call(self, function: Callable[[], Result]) -> Result:
        outcome: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()

        def request() -> None:
            try:
                outcome.put(function())
            except BaseException as error:  # noqa: BLE001  (handed to the caller, whose error it is)
                outcome.put(error)

        self._requests.put(request)
        result = outcome.get()
        if isinstance(result, BaseException):
            raise result
        return result


_starters: list[_Starter] = []
_starters_lock = threading.Lock()


def _starter() -> _Starter:
    """Return this process's starter thread; a forked process does not inherit its parent's."""
    with _starters_lock:
        if not _starters or _starters[-1].pid != os.getpid():
            _starters[:] = [_Starter()]
        return _starters[-1]
