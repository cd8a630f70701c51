"""N simulations of one model: MuJoCo's native batch, with failures as a mask and an exact state to save.

state row of env i   [ time | qpos | qvel | act | … | qacc_warmstart | ctrl | … ]     mjSTATE_INTEGRATION
                              ▲      ▲                                  ▲
sim.qpos [N, nq] ─────────────┘      │  live views: a write is the state of the next call
sim.qvel [N, nv] ────────────────────┘                                  │
sim.ctrl [N, nu] ───────────────────────────────────────────────────────┘
sim.bind("xpos") [N, nbody, 3]     copied out after every call; read-only
sim.expand("body_mass") [N, nbody] one value per env instead of the model's; writable
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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
