"""What Gymnasium's locomotion tasks have in common, in batched form: models, resets and control costs.

The models are Gymnasium's own files, read from the installed package, so that the physics is the same bit for bit.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from striderl.data.actions import ActuationSpec
from striderl.data.checked_fields import MAY_BE_INFINITE
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.envs.mujoco.base import MujocoEnv
from striderl.envs.mujoco.randomize import Randomization
from striderl.envs.mujoco.simulation import Float, Int, MujocoConfig, control_spec


def open_range(low: float, high: float) -> tuple[float, float]:
    """Return a setting of a config that is a range; a side may be infinite, which other settings may not."""
    value: tuple[float, float] = field(default=(low, high), metadata=MAY_BE_INFINITE)
    return value


@dataclass(frozen=True, kw_only=True)
class LocomotionConfig(MujocoConfig):
    """Settings of all of these tasks; the names are Gymnasium's."""

    forward_reward_weight: float = 1.0
    """Weight of the speed along x."""
    exclude_current_positions_from_observation: bool = True
    """Whether the position along the ground is kept out of the observation."""
    obs_dtype: str = "float32"
    """Precision of the observation; 'float64' is what Gymnasium gives."""


class Locomotion(MujocoEnv):
    """A robot whose actions are its motors' controls and whose observation is one vector named 'obs'."""

    def __init__(
        self,
        config: LocomotionConfig,
        *,
        model_file: str,
        reset_noise_scale: float,
        normal_velocities: bool,
        reward_weights: Mapping[str, float],
        randomize: Sequence[Randomization],
        persistent: bool = False,
    ) -> None:
        """Build the envs; `normal_velocities`: whether initial velocities are normal or uniform."""
        model = load_gymnasium_model(model_file)
        spec = ObsSpec({"obs": ComponentSpec(shape=(self.observation_size(model, config),), dtype=config.obs_dtype)})
        super().__init__(
            model, config, obs_spec=spec, reward_weights=reward_weights, randomize=randomize, persistent=persistent
        )
        self.actuation = _actuation(model)
        self._reset_noise_scale, self._normal_velocities = reset_noise_scale, normal_velocities
        self.x_velocity: Float = self.state_array("x_velocity")
        """Speed along x over the last step, m/s."""

    @staticmethod
    def observation_size(model: Any, config: Any) -> int:
        """Return how many numbers are observed: positions and velocities, without x where it is left out."""
        return int(model.nq + model.nv - config.exclude_current_positions_from_observation)

    def reset_state(self, ids: Int) -> None:
        """Start near the model's default pose."""
        scale = self._reset_noise_scale
        self.qpos[ids] += self.uniform("qpos", ids, self.model.nq, low=-scale, high=scale)
        if self._normal_velocities:
            self.qvel[ids] += scale * self.normal("qvel", ids, self.model.nv)
        else:
            self.qvel[ids] += self.uniform("qvel", ids, self.model.nv, low=-scale, high=scale)

    def apply_action(self, actions: Float) -> None:
        """Use the actions as controls."""
        self.ctrl[:] = actions

    def control_effort(self) -> Float:
        """Return the sum of squared actions, [N]."""
        return np.asarray(np.square(self.actions).sum(axis=1))

    def metrics(self) -> dict[str, Tensor]:
        """Return the speed along x over the last step; right after a reset still that of the episode before."""
        return {"x_velocity": torch.from_numpy(self.x_velocity.astype(np.float32)).to(self.device)}


def _actuation(model: Any) -> ActuationSpec:
    """Describe `apply_action`: controls as they are, which MuJoCo clips to their ranges."""
    low, high = control_spec(model).bounds()
    is_joint = model.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT
    names = [model.joint(int(index)).name for index in model.actuator_trnid[:, 0]] if is_joint.all() else []
    return ActuationSpec(
        target="control",
        scale=(1.0,) * model.nu,
        offset=(0.0,) * model.nu,
        target_low=tuple(low) if np.isfinite(low).all() else None,
        target_high=tuple(high) if np.isfinite(high).all() else None,
        joint_names=tuple(names) if all(names) and names else None,
    )


def load_gymnasium_model(file: str) -> Any:
    """Load one of Gymnasium's MuJoCo models by its file name, or another model by its path."""
    package = importlib.util.find_spec("gymnasium")
    if package is None or package.origin is None:
        raise ImportError("Gymnasium's models are read from its package, which is not installed: pip install gymnasium")
    path = Path(file)
    if path.name == file:
        path = Path(package.origin).parent / "envs" / "mujoco" / "assets" / file
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file {path}")
    # HalfCheetah has an attribute that MuJoCo 4 deprecates, with a warning on stderr and in a file in the work folder
    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(_ignore)
    try:
        return mujoco.MjModel.from_xml_path(str(path))
    finally:
        mujoco.set_mju_user_warning(previous)


def _ignore(_: Any) -> None:
    """Ignore a warning."""


def between(value: Float, bounds: tuple[float, float]) -> Any:
    """Return where low < value < high."""
    return (bounds[0] < value) & (value < bounds[1])
