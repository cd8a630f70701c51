"""What a view can do to an env besides stepping it: its MuJoCo model and poses, pushes, commands, terrain levels.

    env                                  model and pose   push    reward terms   command          level
    MujocoEnv (built in)                 yes              yes     each           quadrupeds       where there are any
    GymnasiumEnv of MuJoCo tasks         yes              yes     their sum      –                –
    RslRlEnv of mjlab                    yes              yes     each           velocity terms   generated terrain
    all others                           –                –       their sum      –                –

`controls_of` chooses by what the env has. All arrays are [N, …] copies, for all envs of the env.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.rsl_rl.env import RslRlEnv
from striderl.envs.vec_env import Step, VecEnv

Array = NDArray[Any]
_FREE, _SLIDE = 0, 2  # mjtJoint


@dataclass(frozen=True, kw_only=True)
class CommandEntry:
    """One number of a command."""

    name: str
    """What it commands, with its unit."""
    low: float
    """The smallest that is given."""
    high: float
    """The largest."""


VELOCITY_NAMES = ("forward, m/s", "left, m/s", "turning left, rad/s")


class EnvControls:
    """An env without a model of MuJoCo: it is shown by its pictures, and only stepped and reset."""

    def __init__(self, env: VecEnv) -> None:
        """Control this env."""
        self.env = env
        self.model: Any | None = None
        """The MuJoCo model, where there is one."""
        self.can_push = False
        """Whether the robot can be pushed."""
        self.command_entries: tuple[CommandEntry, ...] = ()
        """What is commanded; empty where nothing is."""
        self.num_levels = 0
        """How many terrain levels there are; 0 where there is no choice."""

    def pose(self) -> Array | None:
        """Return the joint positions of all envs, [N, nq]."""
        return None

    def reward_terms(self, step: Step) -> Mapping[str, Array]:
        """Return the terms of the last step's reward, [N] each."""
        return {"reward": step.reward.detach().cpu().numpy()}

    def push(self, env_index: int, forward: float, left: float) -> None:
        """Add a velocity, m/s along the world's axes, to the robot's base."""
        raise ValueError(f"{type(self.env).__name__} has no robot that can be pushed")

    def command(self, env_index: int) -> Array:
        """Return the command of an env."""
        return np.zeros(0)

    def set_command(self, env_index: int, values: Array) -> None:
        """Set the command of an env, until the env draws another one."""
        raise ValueError(f"{type(self.env).__name__} has no commands")

    def level(self, env_index: int) -> int:
        """Return the terrain level of an env."""
        return 0

    def set_level(self, env_index: int, level: int) -> None:
        """Set the terrain level at which the env's next episode begins."""
        raise ValueError(f"{type(self.env).__name__} has no terrain levels")


class MujocoControls(EnvControls):
    """A built-in MuJoCo task."""

    def __init__(self, env: Any) -> None:
        """Control a `MujocoEnv`."""
        super().__init__(env)
        self._mujoco = env
        self.model, self._dofs = env.model, pushed_dofs(env.model)
        self.can_push = bool(self._dofs)
        self._command: Any = getattr(env, "command", None)
        self._levels: Any = getattr(env, "levels", None)
        if isinstance(self._command, np.ndarray):
            self.command_entries = _velocity_entries(env)
        if self._levels is not None and self._levels.num_levels > 1:
            self.num_levels = int(self._levels.num_levels)

    def pose(self) -> Array:
        """Return the joint positions."""
        return self._mujoco.pose().numpy()  # type: ignore[no-any-return]

    def reward_terms(self, step: Step) -> Mapping[str, Array]:
        """Return the weighted terms."""
        terms = self._mujoco.reward_terms
        return dict(zip(terms.weights, np.array(terms.values)))

    def push(self, env_index: int, forward: float, left: float) -> None:
        """Change the velocity of the root joint."""
        for dof, change in zip(self._dofs, (forward, left)):
            self._mujoco.qvel[env_index, dof] += change

    def command(self, env_index: int) -> Array:
        """Return the commanded velocity."""
        return np.array(self._command[env_index]) if self.command_entries else super().command(env_index)

    def set_command(self, env_index: int, values: Array) -> None:
        """Set the commanded velocity."""
        if not self.command_entries:
            super().set_command(env_index, values)
        self._command[env_index] = values

    def level(self, env_index: int) -> int:
        """Return the level."""
        return int(self._levels.level[env_index]) if self.num_levels else 0

    def set_level(self, env_index: int, level: int) -> None:
        """Set the level; the env is to be reset."""
        if not self.num_levels:
            super().set_level(env_index, level)
        self._levels.level[env_index] = level


class GymnasiumControls(EnvControls):
    """Gymnasium's MuJoCo tasks, in this process."""

    def __init__(self, env: GymnasiumEnv, models: list[Any], datas: list[Any]) -> None:
        """Control envs with these models and data."""
        super().__init__(env)
        self.model, self._datas = models[0], datas
        self._dofs = pushed_dofs(models[0])
        self.can_push = bool(self._dofs)

    def pose(self) -> Array:
        """Return the joint positions."""
        return np.stack([np.array(data.qpos) for data in self._datas])

    def push(self, env_index: int, forward: float, left: float) -> None:
        """Change the velocity of the root joint."""
        for dof, change in zip(self._dofs, (forward, left)):
            self._datas[env_index].qvel[dof] += change


class MjlabControls(EnvControls):
    """A task of mjlab, by the managers and the simulation of its env."""

    def __init__(self, env: RslRlEnv) -> None:
        """Control the env behind an adapter."""
        super().__init__(env)
        self._simulator = env.unwrapped
        self.model, self._data = self._simulator.sim.mj_model, self._simulator.sim.data
        self._dofs = pushed_dofs(self.model)
        self.can_push = bool(self._dofs)
        self._command_name = self._find_command()
        terrain = getattr(self._simulator.scene, "terrain", None)
        self._terrain = terrain if getattr(terrain, "terrain_origins", None) is not None else None
        if self._terrain is not None and self._terrain.terrain_origins.shape[0] > 1:
            self.num_levels = int(self._terrain.terrain_origins.shape[0])

    def _find_command(self) -> str:
        """Take the first command of three numbers: a velocity."""
        manager: Any = getattr(self._simulator, "command_manager", None)
        for name in getattr(manager, "active_terms", ()):
            value = manager.get_command(name)
            if isinstance(value, torch.Tensor) and value.ndim == 2 and value.shape[1] == 3:
                ranges = getattr(getattr(manager.get_term(name), "cfg", None), "ranges", None)
                limits = [getattr(ranges, each, None) for each in ("lin_vel_x", "lin_vel_y", "ang_vel_z")]
                self.command_entries = tuple(
                    CommandEntry(name=entry, low=float(low), high=float(high))
                    for entry, (low, high) in zip(VELOCITY_NAMES, (limit or (-1.0, 1.0) for limit in limits))
                )
                return str(name)
        return ""

    def pose(self) -> Array:
        """Return the joint positions."""
        return np.array(self._data.qpos.detach().cpu().numpy(), np.float64)

    def reward_terms(self, step: Step) -> Mapping[str, Array]:
        """Return the terms as mjlab's own viewer has them: weighted, per second."""
        manager = getattr(self._simulator, "reward_manager", None)
        if manager is None:
            return super().reward_terms(step)
        rows = [dict(manager.get_active_iterable_terms(index)) for index in range(self.env.num_envs)]
        return {name: np.array([row[name][0] for row in rows]) for name in rows[0]}

    def push(self, env_index: int, forward: float, left: float) -> None:
        """Change the velocity of the root joint."""
        for dof, change in zip(self._dofs, (forward, left)):
            self._data.qvel[env_index, dof] += change

    def command(self, env_index: int) -> Array:
        """Return the commanded velocity."""
        if not self._command_name:
            return super().command(env_index)
        value = self._simulator.command_manager.get_command(self._command_name)
        return np.array(value[env_index].detach().cpu().numpy(), np.float64)

    def set_command(self, env_index: int, values: Array) -> None:
        """Write into the command's own tensor."""
        if not self._command_name:
            super().set_command(env_index, values)
        value = self._simulator.command_manager.get_command(self._command_name)
        value[env_index] = torch.as_tensor(values, dtype=value.dtype, device=value.device)

    def level(self, env_index: int) -> int:
        """Return the terrain level."""
        return 0 if self._terrain is None else int(self._terrain.terrain_levels[env_index])

    def set_level(self, env_index: int, level: int) -> None:
        """Set level and origin; the env is to be reset."""
        if self._terrain is None:
            super().set_level(env_index, level)
            return
        terrain = self._terrain
        terrain.terrain_levels[env_index] = level
        terrain.env_origins[env_index] = terrain.terrain_origins[level, int(terrain.terrain_types[env_index])]


def controls_of(env: VecEnv) -> EnvControls:
    """Choose the controls for an env."""
    if isinstance(env, GymnasiumEnv):
        try:
            models, datas = env.get_attr("model"), env.get_attr("data")
        except Exception as error:  # noqa: BLE001  (whatever an env raises: it is shown by its pictures)
            del error
            return EnvControls(env)
        is_mujoco = all(hasattr(model, "nq") and hasattr(data, "qpos") for model, data in zip(models, datas))
        return GymnasiumControls(env, models, datas) if is_mujoco else EnvControls(env)
    if isinstance(env, RslRlEnv):
        return MjlabControls(env) if hasattr(getattr(env.unwrapped, "sim", None), "mj_model") else EnvControls(env)
    return MujocoControls(env) if hasattr(env, "model") and hasattr(env, "reward_terms") else EnvControls(env)


def pushed_dofs(model: Any) -> tuple[int, ...]:
    """Return the degrees of freedom that a push changes: of a free root joint x and y, of a sliding one x alone."""
    if not model.njnt:
        return ()
    kind = int(model.jnt_type[0])
    return (0, 1) if kind == _FREE else (0,) if kind == _SLIDE else ()


def _velocity_entries(env: Any) -> tuple[CommandEntry, ...]:
    """Return the ranges of a quadruped's commands; without ranges of the task, those of a slow walk."""
    ranges = getattr(env.config, "commands", None)
    found = [getattr(ranges, name, (-1.0, 1.0)) for name in ("forward", "sideways", "turning")]
    return tuple(
        CommandEntry(name=name, low=float(low), high=float(high)) for name, (low, high) in zip(VELOCITY_NAMES, found)
    )
