"""Ant and Humanoid: locomotion in 3D with contact forces, with the rules of Gymnasium's v5.

Contact forces as Gymnasium reads them: mj_rnePostConstraint on each env's MjData after the step.

MuJoCo computes `cfrc_ext` inside a step only for sensors that need it, and with the Runge-Kutta integrator of Ant and
Humanoid for another stage of the step than the one whose data remains. Gymnasium calls the function afterwards, on
what remains. MuJoCo's batch has no such call, so this is the one place with a loop over envs: about 10 µs for each env
that touches something, where a step of an Ant takes 170.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from striderl.envs.mujoco.base import Rows
from striderl.envs.mujoco.locomotion_base import Locomotion, LocomotionConfig, between, open_range
from striderl.envs.mujoco.randomize import Randomization
from striderl.envs.mujoco.simulation import Arrays, Bool, Float, Int, Simulation


@dataclass(frozen=True, kw_only=True)
class SpatialConfig(LocomotionConfig):
    """What Ant and Humanoid share."""

    frame_skip: int = 5
    """Physics substeps per step."""
    terminate_when_unhealthy: bool = True
    """Whether an unhealthy robot ends its episode."""
    include_cfrc_ext_in_observation: bool = True
    """Whether contact forces are observed."""


class SpatialLocomotion(Locomotion):
    """Locomotion with a free body, which qpos starts with; a subclass defines its position and when it is healthy."""

    config: SpatialConfig

    def __init__(
        self,
        config: SpatialConfig,
        *,
        model_file: str,
        reset_noise_scale: float,
        normal_velocities: bool,
        reward_weights: Mapping[str, float],
        randomize: Sequence[Randomization],
    ) -> None:
        """Build the envs."""
        super().__init__(
            config,
            model_file=model_file,
            reset_noise_scale=reset_noise_scale,
            normal_velocities=normal_velocities,
            reward_weights=reward_weights,
            randomize=randomize,
            persistent=True,
        )
        self._first = 2 if config.exclude_current_positions_from_observation else 0
        self._healthy = np.ones(self.num_envs, np.bool_)
        self.contact_force: Float = self.state_array("contact_force", (self.model.nbody, 6))
        """Torque and force from outside on each body, [N, bodies, 6], of the last step."""
        self._external = ExternalForces(self.simulation)
        self._wants_forces = config.include_cfrc_ext_in_observation or self.reward_terms.weights["contact"] != 0.0

    @abstractmethod
    def x_position(self) -> Float:
        """Return where the robots are, [N], as Gymnasium measures it: from derived fields, a substep late."""

    @abstractmethod
    def healthy(self) -> Bool:
        """Return which robots are healthy, bool [N]."""

    @abstractmethod
    def contact_cost(self) -> Float:
        """Return what the contact forces cost before weighting, [N]."""

    def reset_state(self, ids: Int) -> None:
        """Start near the default pose; nothing has been touched yet."""
        super().reset_state(ids)
        self.contact_force[ids] = 0.0

    def apply_action(self, actions: Float) -> None:
        """Store the positions, then set the controls."""
        self._x_before = self.x_position()
        super().apply_action(actions)

    def after_physics(self) -> None:
        """Measure the speed and the forces of this step."""
        np.subtract(self.x_position(), self._x_before, out=self.x_velocity)
        self.x_velocity /= self.step_dt
        if self._wants_forces:
            self._external.measure(self.contact_force)

    def terminated(self) -> Bool:
        """End where the robot is not healthy, if so configured."""
        self._healthy = self.healthy()
        return ~self._healthy if self.config.terminate_when_unhealthy else np.zeros(self.num_envs, np.bool_)

    def rewards(self) -> Mapping[str, Float]:
        """Return speed, health, effort and what contacts cost."""
        return {
            "forward": self.x_velocity,
            "survive": self._healthy.astype(np.float64),
            "ctrl": self.control_effort(),
            "contact": self.contact_cost(),
        }

    def joined(self, rows: Rows, parts: Sequence[NDArray[Any]]) -> Arrays:
        """Put positions, velocities and these [n, …] parts into one vector."""
        flat = [part.reshape(len(part), -1) for part in parts]
        return {"obs": np.concatenate([self.qpos[rows, self._first :], self.qvel[rows], *flat], axis=1)}


@dataclass(frozen=True, kw_only=True)
class AntConfig(SpatialConfig):
    """Gymnasium's settings of Ant-v5."""

    ctrl_cost_weight: float = 0.5
    """Weight of the squared actions, as a cost."""
    contact_cost_weight: float = 5e-4
    """Weight of the squared contact forces, as a cost."""
    healthy_reward: float = 1.0
    """Reward for every step in which the robot is healthy."""
    main_body: int | str = 1
    """The body whose speed counts, by number or name."""
    healthy_z_range: tuple[float, float] = open_range(0.2, 1.0)
    """Between what the height of the trunk must be, m."""
    contact_force_range: tuple[float, float] = open_range(-1.0, 1.0)
    """Contact forces are cut to this range."""
    reset_noise_scale: float = 0.1
    """How far first positions and velocities are from the default pose."""
    xml_file: str = "ant.xml"
    """The model: a file of Gymnasium's, or a path."""


class Ant(SpatialLocomotion):
    """Run forward on four legs."""

    SAVED_NAME: ClassVar[str] = "Ant"

    config: AntConfig

    def __init__(self, config: AntConfig, *, randomize: Sequence[Randomization] = ()) -> None:
        """Build the envs."""
        super().__init__(
            config,
            model_file=config.xml_file,
            reset_noise_scale=config.reset_noise_scale,
            normal_velocities=True,
            reward_weights={
                "forward": config.forward_reward_weight,
                "survive": config.healthy_reward,
                "ctrl": -config.ctrl_cost_weight,
                "contact": -config.contact_cost_weight,
            },
            randomize=randomize,
        )
        self._body = self.model.body(config.main_body).id
        self._xpos: Float = self.bind("xpos")

    @staticmethod
    def observation_size(model: Any, config: AntConfig) -> int:
        """Count positions, velocities and the forces on all bodies but the world."""
        positions = model.nq - 2 * config.exclude_current_positions_from_observation
        return int(positions + model.nv + 6 * (model.nbody - 1) * config.include_cfrc_ext_in_observation)

    def x_position(self) -> Float:
        """Return where the main body is."""
        return self._xpos[:, self._body, 0].copy()

    def healthy(self) -> Bool:
        """Return which robots are neither flat on the ground nor in the air."""
        low, high = self.config.healthy_z_range
        height = self.qpos[:, 2]
        return np.asarray((low <= height) & (height <= high))

    def contact_cost(self) -> Float:
        """Return the sum of squared forces, each cut to the range."""
        return np.asarray(np.square(self._cut(slice(None))).sum(axis=(1, 2)))

    def observe(self, rows: Rows) -> Arrays:
        """Return positions, velocities and forces."""
        parts = [self._cut(rows)[:, 1:]] if self.config.include_cfrc_ext_in_observation else []
        return self.joined(rows, parts)

    def _cut(self, rows: Rows) -> Float:
        return self.contact_force[rows].clip(*self.config.contact_force_range)


@dataclass(frozen=True, kw_only=True)
class HumanoidConfig(SpatialConfig):
    """Gymnasium's settings of Humanoid-v5."""

    forward_reward_weight: float = 1.25
    """Weight of the speed along x."""
    ctrl_cost_weight: float = 0.1
    """Weight of the squared actions, as a cost."""
    contact_cost_weight: float = 5e-7
    """Weight of the squared contact forces, as a cost."""
    contact_cost_range: tuple[float, float] = open_range(-float("inf"), 10.0)
    """The weighted contact cost is cut to this range."""
    healthy_reward: float = 5.0
    """Reward for every step in which the robot is healthy."""
    healthy_z_range: tuple[float, float] = open_range(1.0, 2.0)
    """Between what the height of the trunk must be, m."""
    reset_noise_scale: float = 1e-2
    """How far first positions and velocities are from the default pose."""
    include_cinert_in_observation: bool = True
    """Whether the inertias of the bodies, as seen from the centre of mass, are observed."""
    include_cvel_in_observation: bool = True
    """Whether the velocities of the bodies, as seen from the centre of mass, are observed."""
    include_qfrc_actuator_in_observation: bool = True
    """Whether the forces of the motors are observed."""
    xml_file: str = "humanoid.xml"
    """The model: a file of Gymnasium's, or a path."""


class Humanoid(SpatialLocomotion):
    """Walk forward on two legs."""

    SAVED_NAME: ClassVar[str] = "Humanoid"

    config: HumanoidConfig

    def __init__(self, config: HumanoidConfig, *, randomize: Sequence[Randomization] = ()) -> None:
        """Build the envs."""
        super().__init__(
            config,
            model_file=config.xml_file,
            reset_noise_scale=config.reset_noise_scale,
            normal_velocities=False,
            reward_weights={
                "forward": config.forward_reward_weight,
                "survive": config.healthy_reward,
                "ctrl": -config.ctrl_cost_weight,
                "contact": -1.0 if config.contact_cost_weight else 0.0,
            },
            randomize=randomize,
        )
        self._xipos: Float = self.bind("xipos")
        self._mass: Float = self.simulation.field("body_mass")
        self._cinert: Float = self.bind("cinert")
        self._cvel: Float = self.bind("cvel")
        self._qfrc_actuator: Float = self.bind("qfrc_actuator")

    @staticmethod
    def observation_size(model: Any, config: HumanoidConfig) -> int:
        """Count positions, velocities and what else is included."""
        moving = model.nbody - 1
        size = model.nq + model.nv - 2 * config.exclude_current_positions_from_observation
        size += 10 * moving * config.include_cinert_in_observation + 6 * moving * config.include_cvel_in_observation
        size += (model.nv - 6) * config.include_qfrc_actuator_in_observation
        return int(size + 6 * moving * config.include_cfrc_ext_in_observation)

    def x_position(self) -> Float:
        """Return where the centre of mass is."""
        return np.asarray((self._mass * self._xipos[:, :, 0]).sum(axis=1) / self._mass.sum(axis=1))

    def healthy(self) -> Bool:
        """Return which robots stand."""
        return np.asarray(between(self.qpos[:, 2], self.config.healthy_z_range))

    def contact_cost(self) -> Float:
        """Return the weighted sum of squared forces, cut to the range."""
        cost = self.config.contact_cost_weight * np.square(self.contact_force).sum(axis=(1, 2))
        return np.asarray(cost.clip(*self.config.contact_cost_range))

    def observe(self, rows: Rows) -> Arrays:
        """Return positions, velocities, inertias, body velocities, motor forces and contact forces."""
        config = self.config
        choices = (
            (config.include_cinert_in_observation, self._cinert, 1),
            (config.include_cvel_in_observation, self._cvel, 1),
            (config.include_qfrc_actuator_in_observation, self._qfrc_actuator, 6),
            (config.include_cfrc_ext_in_observation, self.contact_force, 1),
        )
        return self.joined(rows, [field[rows, first:] for included, field, first in choices if included])


# -- contact forces ----------------------------------------------------------------------------------------------------


class ExternalForces:
    """Measures the forces from outside on every body, for simulations that keep one MjData per env."""

    def __init__(self, simulation: Simulation) -> None:
        if not simulation.batch.persistent:
            raise ValueError("ExternalForces reads each env's MjData, so its simulation must be persistent")
        self._simulation = simulation
        self._data = mujoco.MjData(simulation.model)
        self._contacts = simulation.bind("ncon")
        self._applied: Float = simulation.bind("xfrc_applied")

    def measure(self, out: Float) -> None:
        """Write the torque and force on each body into out, [N, bodies, 6]."""
        out[:] = 0.0
        # without contacts and applied forces they are zero, and there is nothing to compute
        busy = (self._contacts > 0) | self._applied.any(axis=(1, 2))
        model, data, batch = self._simulation.model, self._data, self._simulation.batch
        for env in np.flatnonzero(busy).tolist():
            batch.get_data(env, data)
            mujoco.mj_rnePostConstraint(model, data)
            out[env] = data.cfrc_ext
