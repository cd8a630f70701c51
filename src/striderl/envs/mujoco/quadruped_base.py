"""What all quadruped tasks share: the robot, its servos, its feet's memory, observations, rewards and metrics.

    action [N, 12] ──▶ default pose + action_scale · action ──▶ servos, 4 substeps of 5 ms ──▶ one step of 20 ms (50 Hz)

A task adds a ground, a place to start, commands, and whatever else it observes, rewards and ends an episode for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.data.actions import ActuationSpec, BoxSpec
from striderl.data.naming import unknown
from striderl.data.specs import ComponentSpec, TensorSpec
from striderl.envs.mujoco.base import Arrays, Bool, Float, Int, MujocoConfig, MujocoEnv, Rows
from striderl.envs.mujoco.disturbances import Push
from striderl.envs.mujoco.quadruped_components import (
    MOTION_SPEC,
    motion_features,
    obs_spec,
    privileged,
    proprioception,
    sensor_noise,
)
from striderl.envs.mujoco.quadruped_model import FOOT_NAMES, JOINT_NAMES, TRUNK, RobotDesign, build_model
from striderl.envs.mujoco.quadruped_rewards import REWARD_TERMS, WALKING_REWARDS, Measured, RewardConfig
from striderl.envs.mujoco.quadruped_state import RobotState, quaternion_of_yaw
from striderl.envs.mujoco.randomize import ActuatorGain, BodyMass, Friction, Randomization
from striderl.envs.mujoco.terrain import Ground
from striderl.envs.vec_env import Obs

_ALL = slice(None)
_GRAVITY = 9.81


def default_randomization() -> tuple[Randomization, ...]:
    """Return mild randomisation: grip, payload, gains, and a push about every ten seconds."""
    return (
        Friction(geoms=FOOT_NAMES, sliding=(0.4, 1.25)),
        BodyMass(bodies=(TRUNK,), add=(-1.0, 2.0)),
        ActuatorGain(kp=(0.9, 1.1), kd=(0.9, 1.1)),
        Push(interval=(300, 700), velocity=(0.5, 0.5)),
    )


@dataclass(frozen=True, kw_only=True)
class QuadrupedConfig(MujocoConfig):
    """What every quadruped task can be told."""

    frame_skip: int = 4
    """Physics substeps of 5 ms per step; 4 make a controller of 50 Hz."""
    robot: RobotDesign = field(default_factory=RobotDesign)
    """Sizes, masses and gains."""
    action_scale: float = 0.25
    """Radians of joint target per unit of action; 0.2 to 0.5 is usual."""
    action_limit: float = 5.0
    """Actions are clipped to plus and minus this."""
    observe_lin_vel: bool = True
    """Whether the policy sees the true velocity of the trunk, which a real robot must estimate, or only the critic."""
    observe_motion: bool = True
    """Whether the component 'motion' for adversarial motion priors is part of the observation."""
    motion_fields: tuple[str, ...] = MOTION_SPEC.names
    """Which fields of `MOTION_SPEC` that component has, in order; a discriminator sees nothing else."""
    reward_weights: dict[str, float] = field(default_factory=lambda: dict(WALKING_REWARDS))
    """Weight per second of each reward term, by its name in `REWARD_TERMS` or among the task's own."""
    rewards: RewardConfig = field(default_factory=RewardConfig)
    """Constants inside the reward terms."""
    max_tilt: float = 1.2
    """Angle from the vertical at which the robot has fallen, rad."""
    randomize: tuple[Randomization, ...] = field(default_factory=default_randomization)
    """What differs between envs and episodes."""
    noise_level: float = 0.0
    """Strength of sensor noise on what the policy sees; 0 for none, 1 for the usual widths."""


class QuadrupedEnv(MujocoEnv):
    """N quadrupeds; a task fills in `start`, `command_next`, `has_fallen`, and may add components and reward terms."""

    config: QuadrupedConfig
    task_rewards: Mapping[str, Callable[[Any], Float]] = {}
    """Reward terms that only this task has: name -> function of the env; they join those of `REWARD_TERMS`."""

    def __init__(
        self,
        config: QuadrupedConfig,
        ground: Ground,
        *,
        components: Mapping[str, ComponentSpec],
        info_spec: Mapping[str, TensorSpec] | None = None,
    ) -> None:
        """Build the envs on this ground; `components` are the task's own, besides those that every task has."""
        known = [*REWARD_TERMS, *self.task_rewards]
        for name in config.reward_weights:
            if name not in known:
                raise KeyError(unknown("reward term", name, known, where=type(self).__name__))
        model = build_model(config.robot, ground.xml)
        ground.finish(model)
        step_dt = float(model.opt.timestep) * config.frame_skip
        lin_vel_group = "policy" if config.observe_lin_vel else "critic"
        spec = obs_spec(
            components, lin_vel_group=lin_vel_group, motion=config.motion_fields if config.observe_motion else ()
        )
        limit = config.action_limit
        super().__init__(
            model,
            config,
            obs_spec=spec,
            action_spec=BoxSpec(shape=(12,), low=-limit, high=limit, names=JOINT_NAMES),
            reward_weights={name: weight * step_dt for name, weight in config.reward_weights.items()},
            info_spec=info_spec,
            randomize=[*config.randomize, *sensor_noise(spec, config.noise_level)],
        )
        self.actuation = _actuation(config)
        self.ground = ground
        self.robot = RobotState(self.simulation, config.robot)
        self._default_pose, self._target_limits = config.robot.default_pose, config.robot.joint_limits.T
        self._fall_gravity = -float(np.cos(config.max_tilt))
        self._make_memory()
        self._make_privileged()

    def _make_memory(self) -> None:
        """Make the arrays that the task keeps between steps, and those that each step fills anew."""
        self.command: Float = self.state_array("command", (3,))
        """The velocity to track next, [N, 3]: forward, left, turning left."""
        self._previous_actions: Float = self.state_array("previous_actions", (12,))
        self._newest_actions: Float = self.state_array("newest_actions", (12,))
        self._air_time: Float = self.state_array("air_time", (4,))
        self._totals: Float = self.state_array("totals", (4,))  # steps, speed error, energy, distance of the episode
        self._totals_closed: Bool = self.state_array("totals_closed", dtype=np.bool_)
        self._joint_vel_before, self._feet_before = np.zeros((self.num_envs, 12)), np.zeros((self.num_envs, 4, 3))
        self.now = Measured(
            robot=self.robot,
            command=np.zeros((self.num_envs, 3)),
            actions=self.actions,
            previous_actions=self._previous_actions,
            joint_acc=np.zeros((self.num_envs, 12)),
            landed=np.zeros((self.num_envs, 4)),
            foot_vel=np.zeros((self.num_envs, 4, 3)),
            foot_height=np.zeros((self.num_envs, 4)),
            base_height=np.zeros(self.num_envs),
            fell=self.fell,
            default_pose=self._default_pose,
            soft_limits=_soft_limits(self.config),
            config=self.config.rewards,
            step_dt=self.step_dt,
        )
        """What was measured in this step."""

    def _make_privileged(self) -> None:
        foot, trunk = self.model.geom(FOOT_NAMES[0]).id, self.model.body(TRUNK).id
        self._friction = self.simulation.field("geom_friction")[:, foot, :1]
        self._body_mass = self.simulation.field("body_mass")
        self._trunk = slice(trunk, trunk + 1)
        self._nominal_trunk_mass = float(self.model.body_mass[trunk])

    # -- what a task fills in ------------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, ids: Int) -> tuple[Float, Float]:
        """Give these robots their first command and return where they begin: x and y [n, 2], and heading [n]."""

    @abstractmethod
    def command_next(self) -> None:
        """Update the command of every robot after a step has been measured."""

    @abstractmethod
    def has_fallen(self) -> Bool:
        """Return which robots have fallen, besides those that have tipped over, [N]."""

    def observe_task(self, rows: Rows) -> Arrays:
        """Return the task's own components."""
        return {}

    def look(self, rows: Rows) -> None:
        """Refresh what the task remembers of its surroundings (pictures), after a step or when episodes begin."""

    # -- the functions of MujocoEnv ------------------------------------------------------------------------------------

    def reset_state(self, ids: Int) -> None:
        """Stand up near the default pose, where the task says."""
        place, heading = self.start(ids)
        self.qpos[ids, :2] = place
        self.qpos[ids, 2] = self.config.robot.standing_height
        self.qpos[ids, 3:7] = quaternion_of_yaw(heading)
        self.qpos[ids, 7:] = self._default_pose + self.uniform("start/joints", ids, 12, low=-0.1, high=0.1)
        self.qvel[ids, :6] = self.uniform("start/velocity", ids, 6, low=-0.2, high=0.2)
        self.ctrl[ids] = self._default_pose
        for memory in (self._previous_actions, self._newest_actions, self._air_time):
            memory[ids] = 0.0
        self._totals_closed[ids] = True
        self._refresh(ids)
        # let the lowest foot just not touch the ground, whatever that is like here
        self.qpos[ids, 2] -= self.now.foot_height[ids].min(axis=1) - 0.002
        self._refresh(ids)
        self.look(ids)

    def apply_action(self, actions: Float) -> None:
        """Set the servos' targets."""
        self._previous_actions[:] = self._newest_actions
        limit = self.config.action_limit
        np.clip(self.actions, -limit, limit, out=self.actions)
        self._newest_actions[:] = self.actions
        self._joint_vel_before[:] = self.robot.joint_vel
        self._feet_before[:] = self.robot.feet_world
        targets = self._default_pose + self.config.action_scale * np.clip(actions, -limit, limit)
        np.clip(targets, *self._target_limits, out=self.ctrl)

    def after_physics(self) -> None:
        """Measure the step, then decide about the next command."""
        self._refresh(_ALL)
        now, dt = self.now, self.step_dt
        np.subtract(self.robot.joint_vel, self._joint_vel_before, out=now.joint_acc)
        np.subtract(self.robot.feet_world, self._feet_before, out=now.foot_vel)
        now.joint_acc[:] *= 1.0 / dt
        now.foot_vel[:] *= 1.0 / dt
        now.command[:] = self.command
        contact = self.robot.foot_contact
        self._air_time += dt
        # a foot that never left the ground has been "in the air" for this one step only
        now.landed[:] = np.where(contact & (self._air_time > 1.5 * dt), self._air_time, 0.0)
        self._air_time[contact] = 0.0
        self._count_up()
        self.command_next()
        self.look(_ALL)

    def terminated(self) -> Bool:
        """Return which robots have tipped over or fallen in the way the task says."""
        return np.asarray((self.robot.gravity[:, 2] > self._fall_gravity) | self.has_fallen())

    def rewards(self) -> Mapping[str, NDArray[Any]]:
        """Return every term that has a weight."""
        return {
            name: self.task_rewards[name](self) if name in self.task_rewards else REWARD_TERMS[name](self.now)
            for name in self.config.reward_weights
        }

    def observe(self, rows: Rows) -> Arrays:
        """Return proprioception, the task's components, privileged ones and motion features."""
        found = proprioception(self.now, self.command, rows)
        found.update(self.observe_task(rows))
        added_mass = self._body_mass[:, self._trunk] - self._nominal_trunk_mass
        found.update(privileged(self.now, self._friction, added_mass, rows))
        if self.config.observe_motion and self.config.motion_fields:
            found["motion"] = motion_features(self.now, rows, self.config.motion_fields)
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> Obs:
        """Continue bit for bit from the state of an env that was built alike."""
        obs = super().load_state_dict(state)
        self._refresh(_ALL)
        return obs

    # -- metrics -------------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, Tensor]:
        """Return the running tracking error, m/s, and cost of transport of each env's episode.

        Right after a reset they are still those of the episode before; zero until an env has made its first step.
        """
        steps, error, energy, distance = self._totals.T
        weight = self._body_mass.sum(axis=1) * _GRAVITY
        values = {
            "tracking_error": error / np.maximum(steps, 1.0),
            # a robot that stands has no distance to divide by; a centimetre keeps the number finite
            "cost_of_transport": energy / (weight * np.maximum(distance, 0.01)),
        }
        return {name: torch.from_numpy(value.astype(np.float32)).to(self.device) for name, value in values.items()}

    def episode_ended(self, ids: Int) -> Mapping[str, float]:
        """Log the metrics of the episodes that have just ended."""
        found = self.metrics()
        return {f"episode/{name}": float(value[torch.from_numpy(ids)].mean()) for name, value in found.items()}

    def _count_up(self) -> None:
        """Add this step to the totals of the episode; the first step of an episode begins them anew."""
        self._totals[self._totals_closed] = 0.0
        self._totals_closed[:] = False
        velocity = self.robot.lin_vel[:, :2]
        self._totals[:, 0] += 1.0
        self._totals[:, 1] += np.sqrt(np.square(velocity - self.now.command[:, :2]).sum(axis=1))
        self._totals[:, 2] += np.abs(self.robot.torque * self.robot.joint_vel).sum(axis=1) * self.step_dt
        self._totals[:, 3] += np.sqrt(np.square(velocity).sum(axis=1)) * self.step_dt

    def _refresh(self, rows: Rows) -> None:
        """Recompute what follows from positions and velocities, for these rows."""
        self.robot.update(rows)
        feet, trunk = self.robot.feet_world[rows], self.robot.position[rows]
        self.now.foot_height[rows] = feet[:, :, 2] - self.ground.height(feet[:, :, 0], feet[:, :, 1])
        self.now.foot_height[rows] -= self.config.robot.foot_radius
        self.now.base_height[rows] = trunk[:, 2] - self.ground.height(trunk[:, 0], trunk[:, 1])


def _actuation(config: QuadrupedConfig) -> ActuationSpec:
    """Describe `apply_action`: the servos' targets, their limits and their gains."""
    robot = config.robot
    low, high = robot.joint_limits.T
    return ActuationSpec(
        target="joint_position",
        scale=(config.action_scale,) * 12,
        offset=tuple(robot.default_pose),
        target_low=tuple(low),
        target_high=tuple(high),
        joint_names=JOINT_NAMES,
        default_joint_pos=tuple(robot.default_pose),
        joint_stiffness=(robot.stiffness,) * 12,
        joint_damping=(robot.damping,) * 12,
        command_names=("command",),
    )


def _soft_limits(config: QuadrupedConfig) -> tuple[Float, Float]:
    low, high = config.robot.joint_limits.T
    margin = 0.5 * (1.0 - config.rewards.soft_limit) * (high - low)
    return low + margin, high - margin
