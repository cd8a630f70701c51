"""The program of a worker process that holds some of the envs of a `VecEnvProcesses`, as one `VecEnv`.

    trainer                                                  worker
    b"u" set-up, builder                   ────────▶         builds its VecEnv
                                           ◀────────  b"d"   its `PartFacts`
    b"b" bind: shared tensors, rows        ────────▶
    b"t" step                              ────────▶         reads its rows of the actions, steps, writes its rows
                                           ◀────────  b"."   the step's 'log', empty when there is none
    b"q" quit                              ────────▶         closes its env and ends

Commands: b bind, r reset, t step, m masked reset, a ages of episodes, v render, g a value by name, l load a state,
q quit. It has one torch thread; the envs' own threads are the env's business.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from striderl.data import tree
from striderl.data.actions import ActionSpec, ActuationSpec
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.envs.vec_env import Obs, StateUnsupportedError, VecEnv
from striderl.envs.workers.block import PHASES
from striderl.envs.workers.channel import Channel, Packet, contents_of, pack, unpack
from striderl.envs.workers.child import DONE, Worker, run
from striderl.envs.workers.convert import EnvFactory
from striderl.envs.workers.errors import traceback_text
from striderl.envs.workers.layout import Array
from striderl.envs.workers.shared_tensors import SharedMemory, tensors_in, wait_for_device


@dataclass(frozen=True, kw_only=True)
class PartFacts:
    """What the trainer must learn of an env that lives in another process."""

    num_envs: int
    """How many envs the worker has."""
    obs_spec: ObsSpec
    """As of `VecEnv`."""
    action_spec: ActionSpec
    """As of `VecEnv`."""
    info_spec: Mapping[str, TensorSpec]
    """As of `VecEnv`."""
    gives_final_obs: bool
    """As of `VecEnv`."""
    max_episode_length: int
    """As of `VecEnv`."""
    step_dt: float
    """As of `VecEnv`."""
    render_fps: float
    """As of `VecEnv`."""
    actuation: ActuationSpec | None
    """As of `VecEnv`."""

    @property
    def action_parts(self) -> dict[str, TensorSpec]:
        """The parts of an action; a single one has the name ''."""
        tensor = self.action_spec.tensor
        return {"": tensor} if isinstance(tensor, TensorSpec) else dict(tensor)

    def tensors(self) -> dict[str, TensorSpec]:
        """Return every tensor that trainer and worker exchange, by name."""
        flags = {name: TensorSpec(dtype="bool") for name in ("terminated", "truncated", "mask")}
        final = self.obs_spec if self.gives_final_obs else {}
        return {
            **{f"action/{name}": spec for name, spec in self.action_parts.items()},
            **{f"obs/{name}": spec for name, spec in self.obs_spec.items()},
            **{f"final_obs/{name}": spec for name, spec in final.items()},
            **{f"info/{name}": spec for name, spec in self.info_spec.items()},
            "reward": TensorSpec(),
            "episode_length": TensorSpec(dtype="int64"),
            **flags,
        }


def facts_of(env: VecEnv) -> PartFacts:
    """Describe an env."""
    return PartFacts(
        num_envs=env.num_envs,
        obs_spec=env.obs_spec,
        action_spec=env.action_spec,
        info_spec=dict(env.info_spec),
        gives_final_obs=env.gives_final_obs,
        max_episode_length=env.max_episode_length,
        step_dt=env.step_dt,
        render_fps=env.render_fps,
        actuation=env.actuation,
    )


def named(tensors: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Return the tensors whose name begins with 'kind/', by the rest of their names."""
    start = f"{kind}/"
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def main(descriptor: int, parent_pid: int) -> None:
    """Run a spawned worker with this descriptor as its channel."""
    torch.set_num_threads(1)
    sys.exit(run(socket.socket(fileno=descriptor), parent_pid, (), VecWorker))


class VecWorker(Worker):
    """Execute the trainer's commands on one `VecEnv`."""

    def __init__(self, channel: Channel, control: Array) -> None:
        super().__init__(channel, control)
        self._rows: dict[str, Tensor] = {}
        self._commands: dict[bytes, Callable[[Packet], Packet]] = {
            b"b": self._bind,
            b"r": self._reset,
            b"t": self._step,
            b"m": self._reset_masked,
            b"a": self._set_ages,
            b"v": self._render,
            b"g": self._get,
            b"l": self._load,
        }

    def build(self, first_index: int, factories: Sequence[EnvFactory], payload: Sequence[int]) -> bool:
        """Build the env and describe it to the trainer; false when that failed."""
        try:
            self._env: VecEnv = unpack(contents_of(payload[0]))()
            if self._env.first_env_index != first_index:
                self._env.first_env_index = first_index  # envs of simulators: their seeds must differ all the same
            facts = pack(facts_of(self._env))
        except BaseException as error:  # noqa: BLE001  (whatever an env raises arrives as text)
            self._report(error)
            return False
        self._channel.send(b"d", facts)
        return True

    def _bind(self, packet: Packet) -> Packet:
        handle, num_envs, start, stop = unpack(packet.body)
        whole = tensors_in(SharedMemory.attach(handle, packet.files).memory, facts_of(self._env).tensors(), num_envs)
        self._rows = {name: tensor[start:stop] for name, tensor in whole.items()}
        return DONE

    def _enter(self, phase: str) -> None:
        """Note what is going on, of all envs: none can be named."""
        self._control[0], self._control[1] = PHASES.index(phase), -1

    def _leave(self) -> None:
        wait_for_device(self._rows["reward"].device)
        self._control[0] = 0

    def _write_obs(self, obs: Obs) -> None:
        for name, rows in named(self._rows, "obs").items():
            rows.copy_(obs[name])
        self._rows["episode_length"].copy_(self._env.episode_length_buf)

    def _reset(self, packet: Packet) -> Packet:
        self._enter("reset")
        self._write_obs(self._env.reset(unpack(packet.body)))
        self._leave()
        return DONE

    def _step(self, packet: Packet) -> Packet:
        self._enter("step")
        # a copy: the env may keep its actions, and the trainer writes the next ones here
        actions: Any = {name: rows.clone() for name, rows in named(self._rows, "action").items()}
        step = self._env.step(actions.get("", actions))
        self._write_obs(step.obs)
        self._rows["reward"].copy_(step.reward)
        self._rows["terminated"].copy_(step.terminated)
        self._rows["truncated"].copy_(step.truncated)
        if step.final_obs is not None:
            for name, rows in named(self._rows, "final_obs").items():
                rows.copy_(step.final_obs[name])
        for name, rows in named(self._rows, "info").items():
            rows.copy_(step.info[name])
        log = {name: float(value) for name, value in step.info.get("log", {}).items()}
        self._leave()
        return Packet(b".", pack(log), []) if log else DONE

    def _reset_masked(self, packet: Packet) -> Packet:
        self._enter("reset")
        self._write_obs(self._env.reset_envs(self._rows["mask"].clone()))
        self._leave()
        return DONE

    def _set_ages(self, packet: Packet) -> Packet:
        self._enter("reset")
        self._env.episode_length_buf = self._rows["episode_length"].clone()
        self._leave()
        return DONE

    def _render(self, packet: Packet) -> Packet:
        self._enter("render")
        frame = self._env.render(unpack(packet.body))
        self._control[0] = 0
        return Packet(b"p", pack(frame), [])

    def _get(self, packet: Packet) -> Packet:
        self._enter("get_attr")
        name = unpack(packet.body)
        try:
            value: Any = {"metrics": self._env.metrics, "pose": self._env.pose, "state": self._env.state_dict}[name]()
        except StateUnsupportedError as error:
            value = error
        self._control[0] = 0
        return Packet(b"p", pack(_on_host(value)), [])

    def _load(self, packet: Packet) -> Packet:
        self._enter("reset")
        self._write_obs(self._env.load_state_dict(unpack(packet.body)))
        self._leave()
        return DONE

    def _close(self) -> list[str]:
        self._enter("close")
        self._rows.clear()  # released before the trainer, which owns the memory, frees it
        try:
            self._env.close()
        except BaseException as error:  # noqa: BLE001  (reported to the trainer; everything is released all the same)
            return [traceback_text(error)]
        return []


def _on_host(value: Any) -> Any:
    """Return a value with its tensors on the CPU: it travels as bytes."""
    if not isinstance(value, (Mapping, Tensor)):
        return value
    return tree.map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, value)
