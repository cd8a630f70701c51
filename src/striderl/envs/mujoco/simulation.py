"""N simulations of one model: MuJoCo's native batch, with failures as a mask and an exact state to save.

state row of env i   [ time | qpos | qvel | act | … | qacc_warmstart | ctrl | … ]     mjSTATE_INTEGRATION
                              ▲      ▲                                  ▲
sim.qpos [N, nq] ─────────────┘      │  live views: a write is the state of the next call
sim.qvel [N, nv] ────────────────────┘                                  │
sim.ctrl [N, nu] ───────────────────────────────────────────────────────┘
sim.bind("xpos") [N, nbody, 3]     copied out after every call; read-only
sim.expand("body_mass") [N, nbody] one value per env instead of the model's; writable

Also here: named arrays to tensors and back, the settings of every MuJoCo task, and the spec of its controls.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.data.actions import BoxSpec
from striderl.data.checked_fields import check_field_types, check_num_threads
from striderl.data.naming import missing_extra

try:
    import mujoco
    from mujoco.batch import Batch, SimulationError
except ImportError as error:
    raise ImportError(missing_extra("mujoco>=3.17", "mujoco", purpose="Batched MuJoCo simulation")) from error

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

# The warnings after which MuJoCo has thrown a simulation's state away: bad qpos, qvel, qacc and ctrl, in this order.
_FATAL = slice(int(mujoco.mjtWarning.mjWARN_BADQPOS), int(mujoco.mjtWarning.mjWARN_BADCTRL) + 1)


_NONE = np.zeros(0, np.int64)


class Simulation:
    """MuJoCo's `Batch` with the few things that an environment needs on top of it."""

    def __init__(self, model: Any, num_envs: int, *, num_threads: int = 0, persistent: bool = False) -> None:
        """Make N simulations; `persistent` keeps one MjData per env, which makes `stage` of `step` free."""
        self.model = model
        self.num_envs = num_envs
        threads = num_threads if num_threads > 0 else available_cores()
        self.batch = Batch(model, num_envs, min(threads, num_envs), persistent)
        self.qpos: Float = self.batch.bind("qpos")
        self.qvel: Float = self.batch.bind("qvel")
        self.act: Float = self.batch.bind("act")
        self.ctrl: Float = self.batch.bind("ctrl")
        self.time: Float = self.batch.bind("time")
        self._physics: Float = self.batch.state[:, : 1 + model.nq + model.nv + model.na]
        self._fatal: NDArray[np.int32] = self.batch.warning[:, _FATAL, 1]
        self._outputs: dict[str, Any] = {}
        self._nominal: dict[str, Any] = {}
        self._constants_depend = False

    def bind(self, name: str) -> Any:
        """Return a live [N, …] array over an MjData field; derived fields are refreshed after every call."""
        array = self.batch.bind(name)
        if not array.flags.writeable:
            self._outputs[name] = array
        return array

    def expand(self, name: str) -> Any:
        """Give a model field ('body_mass', 'opt.gravity', …) one value per env and return them, [N, …], writable."""
        rows = self.batch.expand(name)
        if name not in self._nominal:
            self._nominal[name] = rows[0].copy()
            self._constants_depend |= name in mujoco.MjModel._setconst_inputs or name.startswith("opt.")
        return rows

    def field(self, name: str) -> Any:
        """Return a model field as [N, …] to read: each env's own values where it is expanded, else the model's."""
        if name in self._nominal:
            return self.batch.expand(name)
        value = np.asarray(getattr(self.model, name))
        return np.broadcast_to(value, (self.num_envs, *value.shape))

    def restore_fields(self, ids: Int) -> None:
        """Put the model's own values back into every expanded field of these envs."""
        for name, value in self._nominal.items():
            self.batch.expand(name)[ids] = value

    def update_constants(self, ids: Int | None = None) -> None:
        """Recompute what the model derives from the expanded fields (subtree masses, inverse weights, …)."""
        if self._constants_depend:
            self.batch.set_const(ids)

    def step(self, substeps: int, stage: int) -> Int:
        """Advance every env by that many substeps and return the ids of those that failed."""
        raised = self._guarded(self.batch.step, None, substeps, stage)
        # count_nonzero takes a third of the time of any() and all(), which matters with few envs
        finite = np.isfinite(self._physics)
        if not len(raised) and not np.count_nonzero(self._fatal) and np.count_nonzero(finite) == finite.size:
            return raised
        failed = np.logical_or(self._fatal.any(axis=1), ~finite.all(axis=1))
        failed[raised] = True
        return np.flatnonzero(failed)

    def restart(self, ids: Int) -> None:
        """Put these envs into the model's default state; call `forward` when the new state has been written."""
        self._guarded(self.batch.reset, ids, -1, mujoco.mjtStage.mjSTAGE_NONE.value)

    def forward(self, ids: Int) -> Int:
        """Compute all derived fields of these envs from their state; return the ids of those that failed."""
        return self._guarded(self.batch.forward, ids)

    def _guarded(self, call: Callable[..., None], *arguments: Any) -> Int:
        """Make a call of the batch and return the ids of the simulations in which MuJoCo raised an error."""
        try:
            call(*arguments)
        except SimulationError as error:
            return np.asarray(error.ids, np.int64)
        return _NONE

    def state_dict(self) -> dict[str, Any]:
        """Return states, expanded fields and derived fields as tensors.

        Derived fields are saved because after a step they lag behind the state and cannot be recomputed from it.
        """
        return {
            "rows": torch.from_numpy(self.batch.state.copy()),
            "fields": {name: torch.from_numpy(self.batch.expand(name).copy()) for name in self._nominal},
            "outputs": {name: torch.from_numpy(array.copy()) for name, array in self._outputs.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        wanted, found = tuple(self.batch.state.shape), tuple(state["rows"].shape)
        if wanted != found:
            raise ValueError(f"the saved simulation has state rows of shape {found}, this one wants {wanted}")
        for part, here in (("fields", self._nominal), ("outputs", self._outputs)):
            if set(state[part]) != set(here):
                raise ValueError(f"the saved simulation has {part} {sorted(state[part])}, this one {sorted(here)}")
        for name, value in state["fields"].items():
            self.expand(name)[...] = value.cpu().numpy()
        self.update_constants()
        self.batch.warning[...] = 0
        self.batch.state[...] = state["rows"].cpu().numpy()
        for name, value in state["outputs"].items():
            array = self._outputs[name]
            array.flags.writeable = True
            array[...] = value.cpu().numpy()
            array.flags.writeable = False


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# -- saving ------------------------------------------------------------------------------------------------------------


Arrays = dict[str, NDArray[Any]]


def saved(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Return copies of the arrays as tensors."""
    return {name: torch.from_numpy(value.copy()) for name, value in arrays.items()}


def check_names(here: Mapping[str, Any], found: Mapping[str, Any], *, where: str) -> None:
    """Raise ValueError unless a saved state has the same names as this object."""
    if set(here) != set(found):
        raise ValueError(f"{where}: the saved state has {sorted(found)}, this env has {sorted(here)}")


def load_arrays(arrays: Arrays, found: Mapping[str, Tensor], *, where: str) -> None:
    """Write saved tensors into the arrays, in place."""
    check_names(arrays, found, where=where)
    for name, value in found.items():
        if tuple(value.shape) != arrays[name].shape:
            shapes = f"{list(value.shape)}, this env {list(arrays[name].shape)}"
            raise ValueError(f"{where}: the saved state has {name!r} of shape {shapes}")
        arrays[name][...] = value.cpu().numpy()


# -- settings ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MujocoConfig:
    """Settings of every MuJoCo task."""

    num_envs: int = 1
    """How many envs are simulated together."""
    num_threads: int = 0
    """Threads of the simulation; 0 takes every core this process may use. Results do not depend on it."""
    frame_skip: int = 1
    """Physics substeps per env step (the decimation of a controller)."""
    max_episode_length: int = 1000
    """Steps after which an episode is truncated; 0 for no limit."""
    device: str = "cpu"
    """Device of the returned tensors; the simulation itself is on the CPU."""
    first_env_index: int = 0
    """The global index of env 0 when several processes share one set of envs; random numbers follow it."""
    render_height: int = 480
    """Rows of a rendered frame."""
    render_width: int = 640
    """Columns of a rendered frame."""
    camera: str = ""
    """Name of the model's camera to look through; empty: the one named 'track', else one that follows the root body."""

    def __post_init__(self) -> None:
        check_field_types(self)
        _check_parts(self)
        if self.num_envs < 1 or self.frame_skip < 1:
            raise ValueError(f"num_envs and frame_skip are at least 1, found {self.num_envs} and {self.frame_skip}")
        check_num_threads(self.num_threads)
        if self.max_episode_length < 0:
            raise ValueError(f"max_episode_length is 0 (no limit) or positive, found {self.max_episode_length}")


def _check_parts(config: MujocoConfig) -> None:
    """Raise TypeError for a field that needs a config of its own and has another type."""
    hints = typing.get_type_hints(type(config))
    for field in fields(config):
        wanted, value = hints[field.name], getattr(config, field.name)
        if isinstance(wanted, type) and is_dataclass(wanted) and not isinstance(value, wanted):
            names = ", ".join(part.name for part in fields(wanted))
            raise TypeError(
                f"{type(config).__name__}.{field.name}: wanted a {wanted.__name__}, found {type(value).__name__} "
                f"{value!r}; write {wanted.__name__}(…) with any of: {names}"
            )


def control_spec(model: Any) -> BoxSpec:
    """Describe the model's controls as an action: one number per actuator, bounded where its control is limited."""
    limited = np.asarray(model.actuator_ctrllimited, np.bool_)
    low = np.where(limited, model.actuator_ctrlrange[:, 0], -np.inf)
    high = np.where(limited, model.actuator_ctrlrange[:, 1], np.inf)
    names = tuple(model.actuator(index).name or f"actuator_{index}" for index in range(model.nu))
    return BoxSpec(shape=(model.nu,), low=tuple(low), high=tuple(high), names=names)
