"""Envs in worker processes over shared memory: the trainer's side.

    rows      0 … 15        16 … 31       32 … 47
              worker 0      worker 1      worker 2          each a process with consecutive envs
    memory  ┌─────────────┬─────────────┬─────────────┐
            │ obs, reward, flags, actions, infos      │     one anonymous block, mapped by all
            └─────────────┴─────────────┴─────────────┘
    wires      s → .         s → .         s → .            one byte each way per step

A worker that raises, dies or does not respond in time is named, and then the pool raises, or restarts it, by its
config. In a step in which a worker died, its rows are marked invalid and truncated; they carry the last
good observation as the final one and the first observation after the restart. Nothing here loads torch.

The settings of worker processes.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from striderl.data.naming import unknown
from striderl.envs.workers.block import check_spaces
from striderl.envs.workers.channel import anonymous_file, mapped, pack, unpack
from striderl.envs.workers.convert import EnvFactory
from striderl.envs.workers.errors import ContractViolation
from striderl.envs.workers.handle import WorkerGroup, WorkerHandle, lives_on
from striderl.envs.workers.launch import make_launcher
from striderl.envs.workers.layout import Array, Buffers, Description, Layout, env_seeds

_log = logging.getLogger(__name__)


class WorkerPool:
    """A fixed number of worker processes that together hold N envs; a back end of `GymnasiumEnv`."""

    num_slots = 2
    runs_ahead = True

    def __init__(self, factories: Sequence[EnvFactory], config: WorkerConfig, *, first_env_index: int = 0) -> None:
        self.num_envs = len(factories)
        if not 1 <= config.num_workers <= self.num_envs:
            raise ValueError(f"{self.num_envs} envs want 1 to {self.num_envs} workers, found {config.num_workers}")
        self.config = config
        self.seed: int | None = None
        self.closed = False
        self.borders = [self.num_envs * index // config.num_workers for index in range(config.num_workers + 1)]
        """Where the envs of one worker end and those of the next begin."""
        self._first_env_index = first_env_index
        self._factories = list(factories)
        self._descriptions: dict[int, Description] = {}
        self._layout: Layout | None = None
        self._memory_file = -1
        launcher = make_launcher(config.start_method)
        self._payloads = self._pickled() if launcher.needs_payload else [b""] * config.num_workers
        self._handles = [
            WorkerHandle(index, start, stop, first_env_index)
            for index, (start, stop) in enumerate(zip(self.borders, self.borders[1:]))
        ]
        self._worker_group = WorkerGroup(launcher, self._handles)
        self._finalizer = weakref.finalize(self, self._worker_group.shut_down)
        try:
            self.description = self._start()
        except BaseException:
            self.close()
            raise

    # -- life --------------------------------------------------------------------------------------------------------

    @property
    def restarts(self) -> int:
        """How many times a worker was restarted."""
        return sum(handle.restarts for handle in self._handles)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that run."""
        return [handle.pid for handle in self._handles if handle.child is not None]

    def bind(self, layout: Layout) -> None:
        """Set up the shared arrays."""
        self._layout = layout
        self._memory_file = anonymous_file(layout.num_bytes)
        self.buffers: Buffers = layout.buffers(mapped(self._memory_file, layout.num_bytes))
        self.valid: Array = np.ones(self.num_envs, np.bool_)
        for handle in self._handles:
            handle.rows = self.buffers.rows(handle.start, handle.stop)
            self._send_layout(handle)
        self._worker_group.wait_for(self._handles)
        for handle in self._handles:
            self._settle(handle)

    def close(self) -> list[str]:
        """End all workers within five seconds and return what their envs raised while closing."""
        self.closed = True
        texts = self._worker_group.shut_down()
        self._finalizer.detach()
        if self._memory_file >= 0:
            os.close(self._memory_file)
            self._memory_file = -1
        return texts

    # -- commands ----------------------------------------------------------------------------------------------------

    def reset(self, seed: int | None, start: int, stop: int) -> None:
        """Start new episodes in all envs of a part, from the seed where given."""
        handles = self._handles_in(start, stop)
        self._worker_group.wait_for(handles)  # from an interrupted step
        if seed is not None:
            self.seed = seed
        for handle in handles:
            handle.take()
            if lives_on(handle):
                handle.failure = None  # its env raised; a reset is a new start for it
            if handle.failure is None:
                self._send_reset(handle, handle.slot ^ 1, seed, restart=0)
        self._worker_group.wait_for(handles)
        for handle in handles:
            self._settle(handle, reset=True)
            handle.slot ^= 1
        self.valid[start:stop] = True

    def reset_masked(self, start: int, stop: int) -> None:
        """Start new episodes where the reset mask is true; a worker lost meanwhile shows in the next step."""
        handles = [handle for handle in self._handles_in(start, stop) if _rows(handle).reset_mask.any()]
        for handle in handles:
            self._refuse_failed(handle)
            if handle.failure is None:
                body = bytes([handle.slot, handle.slot ^ 1])
                handle.send("reset", b"m", body, self.config.deadline)
        self._worker_group.wait_for(handles)
        for handle in handles:
            handle.take()
            self._refuse_failed(handle)
            if handle.failure is None:
                handle.slot ^= 1

    def send_step(self, start: int, stop: int) -> None:
        """Have the envs of a part take one step with the actions in the buffers."""
        handles = self._handles_in(start, stop)
        for handle in handles:
            self._refuse_failed(handle)
            self._refuse_busy(handle, "step_async")
        for handle in handles:
            if handle.failure is None:
                handle.send("step", b"s", bytes([handle.slot ^ 1]), self.config.deadline)

    def wait_step(self, start: int, stop: int) -> None:
        """Wait for the step of a part, and restart the workers it was lost with."""
        handles = self._handles_in(start, stop)
        self._worker_group.wait_for(handles)
        for handle in handles:
            if handle.failure is None:
                handle.take()
            self._refuse_failed(handle)
        for handle in handles:
            alive = handle.failure is None
            if not alive:
                self._replace_lost_rows(handle)
            self.valid[handle.start : handle.stop] = alive
            handle.slot ^= 1

    def is_ready(self, start: int, stop: int) -> bool:
        """Return whether `wait_step` would not wait."""
        self._worker_group.pump(0.0)
        return not any(handle.is_waiting for handle in self._handles_in(start, stop))

    def wait_any(self, ranges: Sequence[tuple[int, int]], timeout: float | None) -> list[bool]:
        """Wait until a part is ready, at most so many seconds, and return of each whether it is."""
        groups = [self._handles_in(start, stop) for start, stop in ranges]
        self._worker_group.wait_any(groups, timeout)
        return [not any(handle.is_waiting for handle in group) for group in groups]

    def pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return (slot, start, stop) of where the current observations of a part lie."""
        result: list[tuple[int, int, int]] = []
        for handle in self._handles_in(start, stop):
            if result and result[-1][0] == handle.slot:
                result[-1] = (handle.slot, result[-1][1], handle.stop)
            else:
                result.append((handle.slot, handle.start, handle.stop))
        return result

    def render(self, row: int) -> Array:
        """Return the picture of one env."""
        handle = next(handle for handle in self._handles if handle.start <= row < handle.stop)
        frame: Array = self._ask([handle], "render", b"v", pack(row - handle.start))[0]
        return frame

    def get_attr(self, name: str) -> list[Any]:
        """Return an attribute of every env."""
        return [value for values in self._ask(self._handles, "get_attr", b"g", pack(name)) for value in values]

    # -- failure -----------------------------------------------------------------------------------------------------

    def _refuse_failed(self, handle: WorkerHandle) -> None:
        """Raise a worker's failure unless it is to be restarted; a broken contract is always raised."""
        if handle.failure is None:
            return
        if self.config.on_failure == "raise" or isinstance(handle.failure, ContractViolation):
            handle.take()
            raise handle.failure

    def _refuse_busy(self, handle: WorkerHandle, what: str) -> None:
        if handle.is_busy and handle.failure is None:
            raise RuntimeError(f"worker {handle.index} has a step under way; call step_wait before {what}")

    def _settle(self, handle: WorkerHandle, *, reset: bool = False) -> None:
        """Return the reply to a command that must succeed, on a restarted worker if need be."""
        handle.take()
        self._refuse_failed(handle)
        if handle.failure is not None:
            self._restart(handle, reset=reset)

    def _restart(self, handle: WorkerHandle, *, reset: bool) -> None:
        """Replace a failed worker by a new one, with new seeds, until one comes up or too many have failed."""
        while (cause := handle.failure) is not None:
            if isinstance(cause, ContractViolation):
                raise cause
            if handle.restarts >= self.config.max_restarts:
                cause.add_note(f"worker {handle.index} was restarted {handle.restarts} times, which is max_restarts")
                raise cause
            handle.restarts += 1
            _log.warning("restart %d of worker %d: %s", handle.restarts, handle.index, cause)
            self._worker_group.drop(handle)
            self._launch(handle)
            self._worker_group.wait_for([handle])
            self._take_description(handle)
            if self._layout is not None and not handle.has_failed():
                self._send_layout(handle)
                self._worker_group.wait_for([handle])
                handle.take()
            if reset and not handle.has_failed():
                self._send_reset(handle, handle.slot ^ 1, self.seed, restart=handle.restarts)
                self._worker_group.wait_for([handle])
                handle.take()

    def _replace_lost_rows(self, handle: WorkerHandle) -> None:
        """Restart a worker and fill its rows of the step that was lost: truncated, reward 0, last good observation."""
        handle.take()
        self._restart(handle, reset=True)
        rows = _rows(handle)
        rows.reward[:], rows.terminated[:], rows.truncated[:] = 0.0, False, True
        for final, obs in zip(rows.final_obs, rows.obs):
            final[:] = obs[handle.slot]
        for info in rows.infos:
            info[:] = 0

    # -- parts -------------------------------------------------------------------------------------------------------

    def _start(self) -> Description:
        for handle in self._handles:
            self._launch(handle)
        self._worker_group.wait_for(self._handles)
        for handle in self._handles:
            self._take_description(handle)
            self._settle(handle)
        first = self._descriptions[0]
        return replace(first, limits=tuple(limit for part in self._descriptions.values() for limit in part.limits))

    def _take_description(self, handle: WorkerHandle) -> None:
        """Keep a new worker's description of its envs, and raise where they differ from the first worker's."""
        packet = handle.take()
        if handle.failure is None and packet is not None:
            found: Description = unpack(packet.body)
            wanted = self._descriptions.setdefault(0, found)
            check_spaces(wanted, found, self._first_env_index, self._first_env_index + handle.start)
            self._descriptions[handle.index] = found

    def _launch(self, handle: WorkerHandle) -> None:
        factories = self._factories[handle.start : handle.stop]
        handle.launch(self._worker_group.launcher, factories, self._payloads[handle.index], self.config.start_deadline)
        self._worker_group.watch(handle)

    def _send_layout(self, handle: WorkerHandle) -> None:
        body = pack((self._layout, handle.start, handle.stop))
        handle.send("init", b"b", body, self.config.start_deadline, [self._memory_file])

    def _send_reset(self, handle: WorkerHandle, slot: int, seed: int | None, *, restart: int) -> None:
        handle.seed = self.seed
        if seed is not None:
            for row in range(handle.start, handle.stop):
                self.buffers.seeds[row] = env_seeds(seed, self._first_env_index + row, restart)
        handle.send("reset", b"r", bytes([slot, seed is not None]), self.config.deadline)

    def _ask(self, handles: Sequence[WorkerHandle], phase: str, kind: bytes, body: bytes) -> list[Any]:
        """Request values; what an env raises is raised here, and its worker continues."""
        for handle in handles:
            self._refuse_busy(handle, phase)
            if handle.failure is not None:
                raise handle.failure
            handle.send(phase, kind, body, self.config.deadline)
        self._worker_group.wait_for(handles)
        packets = [handle.take() for handle in handles]
        failures = [handle.failure for handle in handles if handle.failure is not None]
        for handle in handles:
            if lives_on(handle):
                handle.failure = None
        if failures:
            raise failures[0]
        return [unpack(packet.body) for packet in packets if packet is not None]

    def _handles_in(self, start: int, stop: int) -> list[WorkerHandle]:
        return [handle for handle in self._handles if start <= handle.start and handle.stop <= stop]

    def _pickled(self) -> list[bytes]:
        """Return each worker's factories as bytes; cloudpickle, which Gymnasium brings, takes lambdas and closures."""
        import cloudpickle  # type: ignore[import-untyped]

        parts = zip(self.borders, self.borders[1:])
        return [bytes(cloudpickle.dumps(self._factories[start:stop])) for start, stop in parts]


def _rows(handle: WorkerHandle) -> Buffers:
    assert handle.rows is not None
    return handle.rows


START_METHODS = ("spawn", "fork", "forkserver")
"""Start methods of a worker process; see launch.py."""


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """How envs are spread over processes, and what happens when one fails."""

    num_workers: int = 0
    """Worker processes, each with a consecutive part of the envs; 0 steps all envs in the trainer's own process."""
    start_method: str = "spawn"
    """'spawn' (a fresh interpreter), 'forkserver' (a fork of a small, clean one) or 'fork' (a copy of the trainer)."""
    deadline: float = 60.0
    """Seconds that one step, reset, picture or attribute of a worker's envs may take; may be infinite."""
    start_deadline: float = 120.0
    """Seconds until a worker must have built its envs."""
    on_failure: str = "raise"
    """'raise' ends the run with the error of the env; 'restart' restarts its worker and marks the lost rows."""
    max_restarts: int = 10
    """How often each worker may be restarted over the life of the env before its error is raised all the same."""

    def __post_init__(self) -> None:
        if self.num_workers < 0 or self.max_restarts < 0:
            raise ValueError(f"WorkerConfig wants counts of 0 or more, found {self.num_workers=}, {self.max_restarts=}")
        if self.start_method not in START_METHODS:
            raise ValueError(unknown("start_method", self.start_method, START_METHODS, where="WorkerConfig"))
        if self.on_failure not in ("raise", "restart"):
            raise ValueError(unknown("on_failure", self.on_failure, ("raise", "restart"), where="WorkerConfig"))
        if not self.deadline > 0.0 or not self.start_deadline > 0.0:
            raise ValueError(f"WorkerConfig wants deadlines above 0, found {self.deadline=}, {self.start_deadline=}")
        if self.num_workers == 0 and self.on_failure == "restart":
            raise ValueError("WorkerConfig: on_failure='restart' wants worker processes; set num_workers to 1 or more")
