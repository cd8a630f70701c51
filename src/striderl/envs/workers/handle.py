"""The trainer's handle of one worker: its process, its channel, the present command and its result.

    idle ──send──▶ waiting ──packet──▶ answered ──take──▶ idle
                      │
                      └──report, death or deadline──▶ failed      (stays failed until it is reset or restarted)

Nothing here loads torch.

All workers of a pool at once: wait for answers, deaths and deadlines, and end them all in bounded time.

One poll object watches every wire and every process descriptor, so a death is detected at once, whichever worker
is being waited for. Nothing here loads torch.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

import numpy as np

from striderl.envs.workers.block import PHASES
from striderl.envs.workers.channel import (
    Channel,
    ChannelClosed,
    Packet,
    anonymous_file,
    file_with,
    mapped,
    pack,
    read_all,
    unpack,
)
from striderl.envs.workers.child import CONTROL_BYTES, STACK_SIGNAL
from striderl.envs.workers.convert import EnvFactory
from striderl.envs.workers.errors import (
    VIOLATIONS,
    ContractViolation,
    EnvError,
    EnvRaised,
    EnvTimeout,
    EnvWorkerDied,
    Place,
    describe_exit,
    shortened,
)
from striderl.envs.workers.launch import Child, Launcher
from striderl.envs.workers.layout import Array, Buffers
from striderl.envs.workers.parent_watchdog import KILL_SIGNAL

_GRACE = 1.0
_CLOSING_TIME = 1.0


class WorkerHandle:
    """One worker of a pool and the envs start to stop that it holds."""

    def __init__(self, index: int, start: int, stop: int, first_env_index: int) -> None:
        self.index = index
        self.start = start
        self.stop = stop
        self.slot = 0
        """Which slot of the observation the trainer was given last."""
        self.restarts = 0
        self.failure: EnvError | ContractViolation | None = None
        self.packet: Packet | None = None
        self.close_texts: list[str] = []
        self.child: Child | None = None
        self.channel: Channel | None = None
        self.rows: Buffers | None = None
        """This worker's rows of the shared arrays, once they exist."""
        self.seed: int | None = None
        """The run's seed."""
        self._first_env_index = first_env_index
        self._control: Array = np.zeros(3, np.int64)
        self._stack_file = -1
        self._phase = ""
        self._left = 0.0
        self._limit = 0.0
        self._counted_at = 0.0
        self._waited_for = False

    # -- process -----------------------------------------------------------------------------------------------------

    def launch(self, launcher: Launcher, factories: Sequence[EnvFactory], payload: bytes, limit: float) -> None:
        """Start the process, which builds its envs; its description is the reply to wait for."""
        self.failure, self.packet = None, None
        control_file = anonymous_file(CONTROL_BYTES)
        self._control = mapped(control_file, CONTROL_BYTES).view(np.int64)
        self._stack_file = anonymous_file(0)
        self._control[:] = PHASES.index("init"), self._first_env_index + self.start, 0
        files = [control_file, self._stack_file]
        try:
            self.child, self.channel = launcher.launch(factories, limit)
            if launcher.needs_payload:
                files.append(file_with(payload))
            setup = {
                "trainer_pid": os.getpid(),
                "first_index": self._first_env_index + self.start,
                "path": [str(entry) for entry in sys.path],
            }
            self.send("init", b"u", pack(setup), limit, files)
        except (OSError, TimeoutError) as error:
            self.failure = EnvWorkerDied(f"{self.place()}: its worker could not be started: {error}", self.place())
        finally:
            for descriptor in [control_file, *files[2:]]:
                os.close(descriptor)

    @property
    def pid(self) -> int:
        """The process id of the worker; before it runs, of what is starting it. 0 without a process."""
        return 0 if self.child is None else int(self._control[2]) or self.child.pid

    def discard(self) -> None:
        """Kill the process if it still runs, and release it."""
        if self.child is not None:
            self.child.kill()
            self.child.wait(1.0)
            self.child.release()
        if self.channel is not None:
            self.channel.close()
        if self._stack_file >= 0:
            os.close(self._stack_file)
        self.child, self.channel, self._stack_file, self._phase = None, None, -1, ""

    # -- commands ----------------------------------------------------------------------------------------------------

    def send(self, phase: str, kind: bytes, body: bytes, limit: float, files: Sequence[int] = ()) -> None:
        """Send a command with a deadline in seconds; a dead worker is detected while waiting."""
        assert self.channel is not None
        self.packet, self._phase = None, phase
        self._left = self._limit = limit
        self._counted_at, self._waited_for = time.monotonic(), False
        try:  # noqa: SIM105  (in every step: `suppress` takes as long as the call)
            self.channel.send(kind, body, files)
        except ChannelClosed:
            pass  # it is found out while waiting

    @property
    def is_busy(self) -> bool:
        """Whether a command was sent whose reply was not taken yet."""
        return self._phase != ""

    @property
    def is_waiting(self) -> bool:
        """Whether a reply is pending."""
        return self._phase != "" and self.packet is None and self.failure is None

    def has_failed(self) -> bool:
        """Return whether there is an unhandled failure."""
        return self.failure is not None

    def take(self) -> Packet | None:
        """Return the reply and become idle; None when the command failed."""
        packet, self.packet, self._phase = self.packet, None, ""
        return packet

    # -- time --------------------------------------------------------------------------------------------------------

    def time_left(self) -> float:
        """Return the seconds until the deadline of the command under way.

        Time in which the trainer was busy elsewhere counts, but the first look always leaves a moment, so that a slow
        trainer does not take an answer that is on its way for a hang.
        """
        now = time.monotonic()
        self._left -= now - self._counted_at
        self._counted_at = now
        if not self._waited_for:
            self._left, self._waited_for = max(self._left, min(_GRACE, self._limit)), True
        return self._left

    def count(self, seconds: float) -> None:
        """Count time that was spent waiting; a pause of the whole machine is not in it."""
        self._left -= seconds
        self._counted_at = time.monotonic()

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""
        return self.is_waiting and self._left <= 0.0

    # -- what comes back ---------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read what has arrived; to be called when the wire is readable."""
        assert self.channel is not None
        try:
            packet = self.channel.receive(wait=False)
        except ChannelClosed:
            self.note_death()
            return
        if packet is not None:
            self._sort(packet)

    def note_death(self) -> None:
        """Record that the process has ended, or has closed its wire and is as good as dead."""
        if self.child is None or self.channel is None:
            return
        with contextlib.suppress(ChannelClosed):  # its last packets may still be in the channel
            while (packet := self.channel.receive(wait=False)) is not None:
                self._sort(packet)
        if self.child.wait(_CLOSING_TIME):
            how = describe_exit(self.child.exit_code())
        else:
            how = "closed its connection"
            self.child.kill()
        if self.failure is None:
            place = self.place()
            self.failure = EnvWorkerDied(f"{place}: its worker process {how}", place)

    def note_timeout(self) -> None:
        """Record that the time is up, with the worker's stack, and kill it."""
        place = self.place()
        stack = shortened(read_all(self._stack_file).decode(errors="replace").strip()) or "unavailable"
        message = f"{place} did not finish within {self._limit:g} s. Python stack of its worker:\n{stack}"
        self.failure = EnvTimeout(message, place)
        if self.child is not None:
            self.child.kill()

    def ask_for_stack(self) -> None:
        """Have the worker write down its Python stack."""
        if self.child is not None:
            self.child.send_signal(STACK_SIGNAL)

    def stack_size(self) -> int:
        """Return how much of the stack is written."""
        return os.fstat(self._stack_file).st_size

    def place(self, control: Sequence[int] | None = None) -> Place:
        """Return where the worker is now, as far as it has reported."""
        number, env_index = control if control is not None else self._control[:2].tolist()
        first, last = self._first_env_index + self.start, self._first_env_index + self.stop - 1
        phase = PHASES[number] if 0 < number < len(PHASES) else self._phase or "idle"
        single = number > 0 and phase != "idle" and first <= env_index <= last
        row = env_index - first if single else 0
        num_steps = int(self.rows.num_steps[row]) if self.rows is not None else 0
        return Place(
            env_index=first + row,
            last_env_index=first + row if single else last,
            worker_index=self.index,
            phase=phase,
            seed=self.seed,
            env_seed=int(self.rows.seeds[row, 0]) if self.rows is not None and self.seed is not None else None,
            step=num_steps + (phase == "step" or self._phase == "step"),
            episode_step=int(self.rows.episode_length[row]) if self.rows is not None else 0,
        )

    def _sort(self, packet: Packet) -> None:
        if packet.kind == b"!":
            self._note_report(packet)
        elif packet.kind == b"c":
            self.close_texts.extend(unpack(packet.body))
        else:
            self.packet = packet

    def _note_report(self, packet: Packet) -> None:
        report = unpack(packet.body)
        if report["kind"] == "contract":
            self.failure = VIOLATIONS[report["type"]](report["text"])
            return
        place = self.place(report["place"])
        self.failure = EnvRaised(f"{place} raised {report['type']}:\n{report['text']}", place)


def lives_on(handle: WorkerHandle) -> bool:
    """Return whether a failed worker's process is still usable: an env raised in it, but it can take commands."""
    raised = isinstance(handle.failure, (EnvRaised, ContractViolation))
    return raised and handle.child is not None and handle.child.is_alive()


# -- all workers -------------------------------------------------------------------------------------------------------


CLOSE_TIME = 4.0
"""Seconds after which nothing of a pool is left, at the latest."""
_SLICE = 0.5
_STACK_TIME = 0.3


class WorkerGroup:
    """The workers of one pool; it has no reference to the pool, so that it can be ended when the pool is garbage."""

    def __init__(self, launcher: Launcher, handles: Sequence[WorkerHandle]) -> None:
        self.launcher = launcher
        self.handles = list(handles)
        self._owner = os.getpid()
        self._poll = select.poll()
        self._deaths = select.poll()
        """Polls the processes alone: waiting for all replies must not wake up for each."""
        self._by_wire: dict[int, WorkerHandle] = {}
        self._by_process: dict[int, WorkerHandle] = {}
        self._closed = False

    def watch(self, handle: WorkerHandle) -> None:
        """Start polling a worker that was just launched, for replies and for its death."""
        if handle.channel is not None and handle.child is not None:
            self._by_wire[handle.channel.fileno()] = handle
            self._by_process[handle.child.handle] = handle
            self._poll.register(handle.channel.fileno(), select.POLLIN)
            self._poll.register(handle.child.handle, select.POLLIN)
            self._deaths.register(handle.child.handle, select.POLLIN)

    def drop(self, handle: WorkerHandle) -> None:
        """Stop polling, and kill the worker if it still runs."""
        self._forget(handle)
        handle.discard()

    def pump(self, timeout: float) -> None:
        """Process events; wait for one, at most so many seconds."""
        events = self._poll.poll(max(0, round(timeout * 1000)))
        for descriptor, _ in events:
            handle = self._by_wire.get(descriptor)
            if handle is not None:
                handle.read()
        for descriptor, _ in events:
            handle = self._by_process.get(descriptor)
            if handle is not None:
                handle.note_death()
                self._forget(handle)

    def wait_for(self, handles: Sequence[WorkerHandle]) -> None:
        """Wait until each of these workers has answered or failed, be it by running into its deadline."""
        waiting = [handle for handle in handles if handle.is_waiting]
        while waiting:
            self._wait_once(waiting, _SLICE, last=waiting[-1])
            waiting = [handle for handle in waiting if handle.is_waiting]

    def wait_any(self, groups: Sequence[Sequence[WorkerHandle]], timeout: float | None) -> None:
        """Wait until one of these groups has nothing to wait for, at most so many seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        self.pump(0.0)
        while all(any(handle.is_waiting for handle in group) for group in groups):
            left = _SLICE if end is None else min(_SLICE, end - time.monotonic())
            if left <= 0.0:
                return
            self._wait_once([handle for group in groups for handle in group if handle.is_waiting], left)

    def shut_down(self) -> list[str]:
        """End every worker: ask, then terminate, then kill. Returns what the envs raised while closing.

        A forked copy of the trainer's process does nothing: the workers are not its own.
        """
        if self._closed or os.getpid() != self._owner:
            return []
        self._closed = True
        end = time.monotonic() + CLOSE_TIME
        try:
            for handle in self.handles:
                if handle.channel is not None:
                    with contextlib.suppress(ChannelClosed):
                        handle.channel.send(b"q")
            self._wait_for_ends(end - 2.0)
            self._signal_all(signal.SIGTERM)
            self._wait_for_ends(end - 1.5)
        finally:
            self._kill_all()
            self._wait_for_ends(end - 0.5)
            self.pump(0.0)  # last packets of those that ended first
            for handle in self.handles:
                self.drop(handle)
            self.launcher.close(max(0.1, end - time.monotonic()))
        return [text for handle in self.handles for text in handle.close_texts]

    def _wait_once(self, waiting: Sequence[WorkerHandle], longest: float, *, last: WorkerHandle | None = None) -> None:
        """Wait one slice of time; slices are counted, so a pause of the whole machine does not use up a deadline.

        With `last`, sleep until this one has replied, or a worker has died: the others' replies can wait for it.
        """
        piece = max(0.0, min(longest, *(handle.time_left() for handle in waiting)))
        before = time.monotonic()
        if last is not None and last.channel is not None:
            self._sleep(last.channel.fileno(), piece)
            self.pump(0.0)
        else:
            self.pump(piece)
        passed = min(time.monotonic() - before, piece + 0.1)
        for handle in waiting:
            handle.count(passed)
        late = [handle for handle in waiting if handle.is_late]
        if late:
            self.pump(0.0)
            self._give_up([handle for handle in late if handle.is_waiting])

    def _sleep(self, wire: int, timeout: float) -> None:
        self._deaths.register(wire, select.POLLIN)
        try:
            self._deaths.poll(max(0, round(timeout * 1000)))
        finally:
            self._deaths.unregister(wire)

    def _give_up(self, late: Sequence[WorkerHandle]) -> None:
        """Fail workers whose time is up, after a short wait for all their stacks together."""
        for handle in late:
            handle.ask_for_stack()
        end, sizes = time.monotonic() + _STACK_TIME, [-1]
        while time.monotonic() < end:
            time.sleep(0.02)
            before, sizes = sizes, [handle.stack_size() for handle in late]
            if all(sizes) and sizes == before:
                break
        for handle in late:
            handle.note_timeout()
            self._forget(handle)

    def _wait_for_ends(self, end: float) -> None:
        """Wait until all workers have ended, and read their packets meanwhile."""
        while True:
            alive = [handle for handle in self.handles if handle.child is not None and handle.child.is_alive()]
            left = end - time.monotonic()
            if not alive or left <= 0.0:
                return
            if any(handle.child is not None and handle.child.handle in self._by_process for handle in alive):
                self.pump(min(left, 0.1))
            else:
                time.sleep(min(left, 0.01))

    def _signal_all(self, number: int) -> None:
        for handle in self.handles:
            if handle.child is not None and handle.child.is_alive():
                handle.child.send_signal(number)

    def _kill_all(self) -> None:
        """Kill every worker that is left; all are signalled before any is waited for."""
        self._signal_all(KILL_SIGNAL)
        for handle in self.handles:
            if handle.child is not None and handle.child.is_alive():
                handle.child.kill()

    def _forget(self, handle: WorkerHandle) -> None:
        for table in (self._by_wire, self._by_process):
            for descriptor in [number for number, found in table.items() if found is handle]:
                del table[descriptor]
                for poll in (self._poll, self._deaths):
                    with contextlib.suppress(KeyError):
                        poll.unregister(descriptor)
