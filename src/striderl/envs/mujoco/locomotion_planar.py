"""HalfCheetah, Hopper and Walker2d: robots that move in a plane, with the rules of Gymnasium's v5."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from striderl.envs.mujoco.base import Rows
from striderl.envs.mujoco.locomotion_base import Locomotion, LocomotionConfig, between, open_range
from striderl.envs.mujoco.randomize import Randomization
from striderl.envs.mujoco.simulation import Arrays, Bool, Float


class PlanarLocomotion(Locomotion):
    """Locomotion in the plane: qpos starts with x, z and the pitch of the trunk; speed is averaged over a step."""

    config: LocomotionConfig

    def apply_action(self, actions: Float) -> None:
        """Store the positions, then set the controls."""
        self._x_before = self.qpos[:, 0].copy()
        super().apply_action(actions)

    def after_physics(self) -> None:
        """Compute the speed from the distance of this step."""
        np.subtract(self.qpos[:, 0], self._x_before, out=self.x_velocity)
        self.x_velocity /= self.step_dt

    def observed(self, rows: Rows, velocity: Float) -> Arrays:
        """Put positions and these velocities into one vector."""
        first = 1 if self.config.exclude_current_positions_from_observation else 0
        return {"obs": np.concatenate((self.qpos[rows, first:], velocity), axis=1)}


@dataclass(frozen=True, kw_only=True)
class HalfCheetahConfig(LocomotionConfig):
    """Gymnasium's settings of HalfCheetah-v5."""

    frame_skip: int = 5
    """Physics substeps per step; the cheetah acts 20 times per second."""
    ctrl_cost_weight: float = 0.1
    """Weight of the squared actions, as a cost."""
    reset_noise_scale: float = 0.1
    """How far first positions and velocities are from the default pose."""
    xml_file: str = "half_cheetah.xml"
    """The model: a file of Gymnasium's, or a path."""


class HalfCheetah(PlanarLocomotion):
    """Run forward on two legs; there is no way to fail."""

    SAVED_NAME: ClassVar[str] = "HalfCheetah"

    config: HalfCheetahConfig

    def __init__(self, config: HalfCheetahConfig, *, randomize: Sequence[Randomization] = ()) -> None:
        """Build the envs."""
        super().__init__(
            config,
            model_file=config.xml_file,
            reset_noise_scale=config.reset_noise_scale,
            normal_velocities=True,
            reward_weights={"forward": config.forward_reward_weight, "ctrl": -config.ctrl_cost_weight},
            randomize=randomize,
        )

    def observe(self, rows: Rows) -> Arrays:
        """Return positions and velocities."""
        return self.observed(rows, self.qvel[rows])

    def terminated(self) -> Bool:
        """Never end."""
        return np.zeros(self.num_envs, np.bool_)

    def rewards(self) -> Mapping[str, Float]:
        """Return speed and effort."""
        return {"forward": self.x_velocity, "ctrl": self.control_effort()}


@dataclass(frozen=True, kw_only=True)
class WalkerConfig(LocomotionConfig):
    """What Hopper and Walker2d share."""

    frame_skip: int = 4
    """Physics substeps per step; the robots act 125 times per second."""
    ctrl_cost_weight: float = 1e-3
    """Weight of the squared actions, as a cost."""
    healthy_reward: float = 1.0
    """Reward for every step in which the robot is healthy."""
    terminate_when_unhealthy: bool = True
    """Whether an unhealthy robot ends its episode."""
    reset_noise_scale: float = 5e-3
    """How far first positions and velocities are from the default pose."""


class HealthyLocomotion(PlanarLocomotion):
    """Planar locomotion that ends when the robot is not healthy."""

    config: WalkerConfig

    def __init__(self, config: WalkerConfig, *, model_file: str, randomize: Sequence[Randomization] = ()) -> None:
        """Build the envs."""
        weights = {
            "forward": config.forward_reward_weight,
            "survive": config.healthy_reward,
            "ctrl": -config.ctrl_cost_weight,
        }
        super().__init__(
            config,
            model_file=model_file,
            reset_noise_scale=config.reset_noise_scale,
            normal_velocities=False,
            reward_weights=weights,
            randomize=randomize,
        )
        self._healthy = np.ones(self.num_envs, np.bool_)

    @abstractmethod
    def healthy(self) -> Bool:
        """Return which robots are upright, bool [N]."""

    def observe(self, rows: Rows) -> Arrays:
        """Return positions, and velocities of at most 10."""
        return self.observed(rows, self.qvel[rows].clip(-10.0, 10.0))

    def terminated(self) -> Bool:
        """End where the robot is not healthy, if so configured."""
        self._healthy = self.healthy()
        return ~self._healthy if self.config.terminate_when_unhealthy else np.zeros(self.num_envs, np.bool_)

    def rewards(self) -> Mapping[str, Float]:
        """Return speed, health and effort."""
        return {
            "forward": self.x_velocity,
            "survive": self._healthy.astype(np.float64),
            "ctrl": self.control_effort(),
        }


@dataclass(frozen=True, kw_only=True)
class HopperConfig(WalkerConfig):
    """Gymnasium's settings of Hopper-v5."""

    healthy_state_range: tuple[float, float] = open_range(-100.0, 100.0)
    """Between what every position but x and z, and every velocity, must be."""
    healthy_z_range: tuple[float, float] = open_range(0.7, float("inf"))
    """Between what the height of the trunk must be, m."""
    healthy_angle_range: tuple[float, float] = open_range(-0.2, 0.2)
    """Between what the pitch of the trunk must be, rad."""
    xml_file: str = "hopper.xml"
    """The model: a file of Gymnasium's, or a path."""


class Hopper(HealthyLocomotion):
    """Hop forward on one leg."""

    SAVED_NAME: ClassVar[str] = "Hopper"

    config: HopperConfig

    def __init__(self, config: HopperConfig, *, randomize: Sequence[Randomization] = ()) -> None:
        """Build the envs."""
        super().__init__(config, model_file=config.xml_file, randomize=randomize)

    def healthy(self) -> Bool:
        """Return which robots are upright and move at a sane speed."""
        upright = between(self.qpos[:, 1], self.config.healthy_z_range)
        upright &= between(self.qpos[:, 2], self.config.healthy_angle_range)
        sane = between(self.qpos[:, 2:], self.config.healthy_state_range).all(axis=1)
        sane &= between(self.qvel, self.config.healthy_state_range).all(axis=1)
        return np.asarray(upright & sane)


@dataclass(frozen=True, kw_only=True)
class Walker2dConfig(WalkerConfig):
    """Gymnasium's settings of Walker2d-v5."""

    healthy_z_range: tuple[float, float] = open_range(0.8, 2.0)
    """Between what the height of the trunk must be, m."""
    healthy_angle_range: tuple[float, float] = open_range(-1.0, 1.0)
    """Between what the pitch of the trunk must be, rad."""
    xml_file: str = "walker2d_v5.xml"
    """The model: a file of Gymnasium's, or a path."""


class Walker2d(HealthyLocomotion):
    """Walk forward on two legs."""

    SAVED_NAME: ClassVar[str] = "Walker2d"

    config: Walker2dConfig

    def __init__(self, config: Walker2dConfig, *, randomize: Sequence[Randomization] = ()) -> None:
        """Build the envs."""
        super().__init__(config, model_file=config.xml_file, randomize=randomize)

    def healthy(self) -> Bool:
        """Return which robots are upright."""
        upright = between(self.qpos[:, 1], self.config.healthy_z_range)
        return np.asarray(upright & between(self.qpos[:, 2], self.config.healthy_angle_range))
