"""All workers of a pool at once: wait for answers, deaths and deadlines, and end them all in bounded time.

One poll object watches every wire and every process descriptor, so a death is seen at the moment it happens, whoever
is being waited for. Nothing here loads torch.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Sequence

from striderl.envs.workers.channel import ChannelClosed
from striderl.envs.workers.handle import WorkerHandle
from striderl.envs.workers.launch import Launcher
from striderl.envs.workers.lifeline import KILL_SIGNAL

CLOSE_TIME = 4.0
"""Seconds after which nothing of a pool is left, at the latest."""
_SLICE = 0.5
_STACK_TIME = 0.3


class Crew:
    """The workers of one pool; it knows nothing of the pool, so that it can be ended when the pool is garbage."""

    def __init__(self, launcher: Launcher, handles: Sequence[WorkerHandle]) -> None:
        self.launcher = launcher
        self.handles = list(handles)
        self._owner = os.getpid()
        self._poll = select.poll()
        self._deaths = select.poll()
        """The processes alone: who waits for all answers does not want to be woken by each."""
        self._by_wire: dict[int, WorkerHandle] = {}
        self._by_process: dict[int, WorkerHandle] = {}
        self._closed = False

    def watch(self, handle: WorkerHandle) -> None:
        """Start to look for answers and for the death of a worker that was just launched."""
        if handle.channel is not None and handle.child is not None:
            self._by_wire[handle.channel.fileno()] = handle
            self._by_process[handle.child.handle] = handle
            self._poll.register(handle.channel.fileno(), select.POLLIN)
            self._poll.register(handle.child.handle, select.POLLIN)
            self._deaths.register(handle.child.handle, select.POLLIN)

    def drop(self, handle: WorkerHandle) -> None:
        """Stop to look, and kill the worker if it still runs."""
        self._forget(handle)
        handle.discard()

    def pump(self, timeout: float) -> None:
        """Take in what has happened; wait for something to happen, at most so many seconds."""
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
            self.pump(0.0)  # last words of those that ended first
            for handle in self.handles:
                self.drop(handle)
            self.launcher.close(max(0.1, end - time.monotonic()))
        return [text for handle in self.handles for text in handle.close_texts]

    def _wait_once(self, waiting: Sequence[WorkerHandle], longest: float, *, last: WorkerHandle | None = None) -> None:
        """Wait one slice of time; slices are counted, so a pause of the whole machine does not use up a deadline.

        With `last`, sleep until this one has answered, or somebody has died: the others' answers can wait for it.
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
        """Wait until all workers have ended, and listen to what they say meanwhile."""
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
        """Kill every worker that is left; all are told before any is waited for."""
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
