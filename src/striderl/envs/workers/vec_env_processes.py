"""One `VecEnv` whose envs live in several processes, each with a simulator and a Python of its own.

    env = make("my_package.envs:MyEnv", num_envs=4096, device="cuda", num_processes=4)
    env = VecEnvProcesses(build, 4096, WorkerConfig(num_workers=4), device="cuda")     build(num_envs, first_env_index)

    rows      0 … 1023      1024 … 2047      2048 … 3071      3072 … 4095
              worker 0      worker 1         worker 2         worker 3         the trainer: policy, update
    memory  ┌─────────────┬────────────────┬────────────────┬─────────────┐
            │ actions, obs, final_obs, reward, flags, infos               │   one run of bytes, on the GPU by CUDA IPC
            └─────────────┴────────────────┴────────────────┴─────────────┘
    wires      t → .         t → .            t → .            t → .           a few bytes each way per step

For simulators whose Python takes time for each env. A step takes as long as that of the slowest part: what a simulator
pays per env is divided by the number of processes, what it pays per step is paid by all at the same time. One that only
starts kernels, as mjlab does, is slower in several processes: they share the GPU. Observations of envs on a GPU never
pass through the host. Envs whose random streams follow `first_env_index` (all built-in ones) give the bits of a
single process with as many envs.

A worker that raises, dies or does not reply in time is named, as with `WorkerPool`; it is not restarted.
"""

from __future__ import annotations

import functools
import itertools
import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from striderl.envs.vec_env import (
    Actions,
    ContractError,
    Obs,
    StateUnsupportedError,
    Step,
    VecEnv,
    check_ages,
    check_env_index,
    check_mask,
    not_ready,
)
from striderl.envs.workers import vec_child
from striderl.envs.workers.channel import Channel, Packet, pack, unpack
from striderl.envs.workers.convert import EnvFactory
from striderl.envs.workers.errors import ContractViolation, EnvCloseWarning
from striderl.envs.workers.handle import WorkerGroup, WorkerHandle, lives_on
from striderl.envs.workers.launch import Child, spawn_module
from striderl.envs.workers.pool import WorkerConfig
from striderl.envs.workers.shared_tensors import SharedMemory, num_bytes, tensors_in, wait_for_device

BuildPart = Callable[[int, int], VecEnv]
"""Builds a part of the envs: (number of envs, global index of the first) -> env. It is pickled, by cloudpickle."""


class VecLauncher:
    """Starts each worker in a fresh interpreter: CUDA cannot be used in a fork."""

    needs_payload = True

    def launch(self, factories: Sequence[EnvFactory], timeout: float) -> tuple[Child, Channel]:
        """Start a worker; see `launch.Launcher`."""
        return spawn_module(vec_child.__name__)

    def close(self, timeout: float) -> None:
        """Do nothing: no process helps to spawn."""


class VecEnvProcesses(VecEnv):
    """Envs in `workers.num_workers` processes behind one `VecEnv`."""

    def __init__(
        self,
        build: BuildPart,
        num_envs: int,
        workers: WorkerConfig,
        *,
        device: torch.device | str = "cpu",
        first_env_index: int = 0,
    ) -> None:
        """Start the processes, have each build its part, and share the tensors."""
        if not 1 <= workers.num_workers <= num_envs:
            raise ValueError(f"{num_envs} envs want 1 to {num_envs} processes, found {workers.num_workers}")
        if workers.on_failure != "raise" or workers.start_method != "spawn":
            raise ValueError(
                "VecEnvProcesses wants on_failure='raise' and start_method='spawn', found "
                f"{workers.on_failure!r} and {workers.start_method!r}: its processes are whole simulators"
            )
        self.num_envs, self.device, self.first_env_index = num_envs, torch.device(device), first_env_index
        self.config = workers
        borders = [num_envs * index // workers.num_workers for index in range(workers.num_workers + 1)]
        self._handles = [
            WorkerHandle(index, start, stop, first_env_index)
            for index, (start, stop) in enumerate(itertools.pairwise(borders))
        ]
        self._group = WorkerGroup(VecLauncher(), self._handles)
        self._finalizer = weakref.finalize(self, self._group.shut_down)
        self._has_episode = False
        try:
            self._take_facts(self._start(build))
            self._share()
        except BaseException:
            self.close()
            raise

    # -- the contract --------------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env; with a seed, restart all random streams from it."""
        for handle in self._handles:
            handle.seed = seed
        self._ask("reset", b"r", pack(seed))
        self._has_episode = True
        return self._copied("obs")

    def step(self, actions: Actions) -> Step:
        """Advance every env by one step; an env whose episode ends starts the next one before this returns."""
        self._require_episode()
        self._write_actions(actions)
        replies = self._ask("step", b"t")
        return Step(
            obs=self._copied("obs"),
            reward=self._shared["reward"].clone(),
            terminated=self._shared["terminated"].clone(),
            truncated=self._shared["truncated"].clone(),
            final_obs=self._copied("final_obs") if self.gives_final_obs else None,
            info={**self._copied("info"), "log": self._joined_log([unpack(p.body) if p.body else {} for p in replies])},
        )

    def reset_envs(self, mask: Tensor) -> Obs:
        """Abandon the episode of the envs where mask [N] is true, start new ones, and return the observation of all."""
        self._require_episode()
        check_mask(mask, self.num_envs)
        self._shared["mask"].copy_(mask)
        self._ask("reset", b"m")
        return self._copied("obs")

    @property
    def episode_length_buf(self) -> Tensor:
        """Steps taken so far in each env's episode, int64 [N]."""
        return self._shared["episode_length"].clone()

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        check_ages(value, self.num_envs)
        self._shared["episode_length"].copy_(value)
        self._ask("reset", b"a")

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every part."""
        self._require_episode()
        states = self._values("state")
        for state in states:
            if isinstance(state, StateUnsupportedError):
                raise state
        return {"processes": len(states), "parts": {str(index): state for index, state in enumerate(states)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> Obs:
        """Continue from a saved state, with as many processes as it was saved from."""
        found = state.get("processes", 0)
        if found != len(self._handles):
            raise ValueError(
                f"the state was saved from {found or 'no'} processes and cannot be loaded into {len(self._handles)}; "
                f"set num_processes to {found}"
            )
        self._ask("reset", b"l", [pack(state["parts"][str(handle.index)]) for handle in self._handles])
        self._has_episode = True
        return self._copied("obs")

    def render(self, env_index: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return one env's picture as uint8 [height, width, 3]."""
        check_env_index(env_index, self.num_envs)
        handle = next(handle for handle in self._handles if handle.start <= env_index < handle.stop)
        packet = self._ask("render", b"v", pack(env_index - handle.start), [handle])[0]
        return cast("np.ndarray[Any, np.dtype[np.uint8]]", unpack(packet.body))

    def pose(self) -> Tensor | None:
        """Return the joint positions of the envs' MuJoCo model, [N, nq]; None without such a model."""
        parts = self._values("pose")
        return None if any(part is None for part in parts) else torch.cat(parts)

    def metrics(self) -> dict[str, Tensor]:
        """Return running task metrics per env, float [N] each."""
        parts = self._values("metrics")
        return {name: torch.cat([part[name] for part in parts]).to(self.device) for name in parts[0]}

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [handle.pid for handle in self._handles if handle.child is not None]

    def close(self) -> None:
        """End all processes within five seconds; what their envs raised while closing is a warning."""
        self._has_episode = False
        texts = self._group.shut_down()
        self._finalizer.detach()
        for text in texts:
            warnings.warn(f"closing an env raised:\n{text}", EnvCloseWarning, stacklevel=2)

    # -- start ---------------------------------------------------------------------------------------------------------

    def _start(self, build: BuildPart) -> list[vec_child.PartFacts]:
        import cloudpickle  # type: ignore[import-untyped]

        for handle in self._handles:
            part = functools.partial(build, handle.stop - handle.start, self.first_env_index + handle.start)
            handle.launch(self._group.launcher, (), bytes(cloudpickle.dumps(part)), self.config.start_deadline)
            self._group.watch(handle)
        return [unpack(packet.body) for packet in self._replies(self._handles)]

    def _take_facts(self, parts: Sequence[vec_child.PartFacts]) -> None:
        first = parts[0]
        for handle, part in zip(self._handles, parts):
            wanted = handle.stop - handle.start
            if part.num_envs != wanted:
                raise ContractError(f"worker {handle.index}: {wanted} envs were asked for, its env has {part.num_envs}")
            if replace(part, num_envs=first.num_envs) != first:
                raise ContractError(f"the env of worker {handle.index} differs from that of worker 0: {part}, {first}")
        self.obs_spec, self.action_spec, self.info_spec = first.obs_spec, first.action_spec, first.info_spec
        self.gives_final_obs, self.max_episode_length = first.gives_final_obs, first.max_episode_length
        self.step_dt, self.render_fps, self.actuation = first.step_dt, first.render_fps, first.actuation
        self._facts = first

    def _share(self) -> None:
        specs = self._facts.tensors()
        shared = SharedMemory.allocate(num_bytes(specs, self.num_envs), self.device)
        self._shared = tensors_in(shared.memory, specs, self.num_envs)
        wait_for_device(self.device)
        try:
            for handle in self._handles:
                body = pack((shared.handle(), self.num_envs, handle.start, handle.stop))
                handle.send("init", b"b", body, self.config.start_deadline, shared.files)
            self._replies(self._handles)
        finally:
            for descriptor in shared.files:  # mapped by now, here and in the workers
                os.close(descriptor)

    # -- exchange ------------------------------------------------------------------------------------------------------

    def _ask(
        self, phase: str, kind: bytes, body: bytes | Sequence[bytes] = b"", handles: Sequence[WorkerHandle] = ()
    ) -> list[Packet]:
        """Send a command to every worker (or those given) and return their replies; raise the first failure."""
        asked = list(handles or self._handles)
        if any(handle.channel is None for handle in asked):
            raise not_ready(self, closed=True)
        for handle in asked:
            if handle.failure is not None:
                raise handle.failure
        wait_for_device(self.device)
        for handle, content in zip(asked, [body] * len(asked) if isinstance(body, bytes) else body):
            handle.send(phase, kind, content, self.config.deadline)
        return self._replies(asked)

    def _replies(self, handles: Sequence[WorkerHandle]) -> list[Packet]:
        self._group.wait_for(handles)
        packets = [handle.take() for handle in handles]
        failures = [handle.failure for handle in handles if handle.failure is not None]
        for handle in handles:
            if lives_on(handle):
                handle.failure = None  # its env raised, but it can take commands: a reset may help
        if failures:
            failure = failures[0]
            raise ContractError(str(failure)) if isinstance(failure, ContractViolation) else failure
        return [packet for packet in packets if packet is not None]

    def _values(self, name: str) -> list[Any]:
        return [unpack(packet.body) for packet in self._ask("get_attr", b"g", pack(name))]

    def _require_episode(self) -> None:
        if not self._has_episode:
            raise not_ready(self, closed=self._handles[0].channel is None)

    def _write_actions(self, actions: Actions) -> None:
        given: Mapping[str, Any] = actions if isinstance(actions, Mapping) else {"": actions}
        wanted = vec_child.named(self._shared, "action")
        if given.keys() != wanted.keys():
            found = sorted(given) if isinstance(actions, Mapping) else type(actions).__name__
            raise ValueError(f"step: actions: wanted a dict with {sorted(wanted)}, found {found}")
        for name, rows in wanted.items():
            action, shown = given[name], f"step: action {name!r}" if name else "step: actions"
            if not isinstance(action, Tensor) or action.shape != rows.shape:
                got = list(action.shape) if isinstance(action, Tensor) else type(action).__name__
                raise ValueError(f"{shown}: wanted a tensor of shape {list(rows.shape)}, found {got}")
            if not rows.is_floating_point() and action.is_floating_point():
                raise ValueError(f"{shown}: wanted whole numbers ({rows.dtype}), found {action.dtype}")
            rows.copy_(action.detach())

    def _copied(self, kind: str) -> dict[str, Tensor]:
        """Return copies: an env never changes a tensor that it has returned."""
        return {name: tensor.clone() for name, tensor in vec_child.named(self._shared, kind).items()}

    def _joined_log(self, logs: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return the mean of each logged number over the parts that have it, each counted by its envs."""
        weights = [handle.stop - handle.start for handle in self._handles]
        joined = {}
        for name in dict.fromkeys(name for log in logs for name in log):
            pairs = [(log[name], weight) for log, weight in zip(logs, weights) if name in log]
            joined[name] = sum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs)
        return joined
