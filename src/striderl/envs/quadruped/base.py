"""What all quadruped tasks share: the robot, its servos, foot timers, observations, rewards and metrics.

    action [N, 12] ──▶ default pose + action_scale · action ──▶ servos, 4 substeps of 5 ms ──▶ one step of 20 ms (50 Hz)

A task adds a ground, a place to start, commands, and whatever else it observes, rewards and ends an episode for.

What a quadruped observes: the names, sizes, scales and groups of the components, and how they are put together.

The first seven are proprioception; joined in this order (`ObsSpec.flatten`) they are the 48 numbers of legged_gym:

    base_lin_vel  base_ang_vel  projected_gravity  command  joint_pos  joint_vel  last_action
        0:3           3:6              6:9           9:12     12:24      24:36       36:48
     × 2.0         × 0.25                          × 2.0     rel.      × 0.05

Then come what a task adds (height_scan, forward_depth, engaging_block), the privileged components of group 'critic',
and 'motion', which adversarial motion priors compare with clips:

    base height  lin vel  ang vel  gravity  joint pos  joint vel  feet
         0         1:4      4:7     7:10     10:22      22:34    34:46       unscaled, in the robot's frame

or some of these, in the order of `motion_fields`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.data.actions import ActuationSpec, BoxSpec
from striderl.data.naming import unknown
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec
from striderl.envs.mujoco.base import MujocoEnv, Rows
from striderl.envs.mujoco.disturbances import ObservationNoise, Push
from striderl.envs.mujoco.randomize import ActuatorGain, BodyMass, Friction, Randomization
from striderl.envs.mujoco.simulation import Arrays, Bool, Float, Int, MujocoConfig
from striderl.envs.quadruped.rewards import REWARD_TERMS, WALKING_REWARDS, Measured, RewardConfig
from striderl.envs.quadruped.robot import (
    FOOT_NAMES,
    JOINT_NAMES,
    TRUNK,
    RobotDesign,
    RobotState,
    build_model,
    quaternion_of_yaw,
)
from striderl.envs.quadruped.terrain import Ground
from striderl.envs.vec_env import Obs

# -- observations ------------------------------------------------------------------------------------------------------


PROPRIOCEPTION = (
    "base_lin_vel",
    "base_ang_vel",
    "projected_gravity",
    "command",
    "joint_pos",
    "joint_vel",
    "last_action",
)
"""The components that make the flat vector of 48, in its order."""
MOTION_SPEC = ObsSpec.from_segments(
    {
        "base_height": 1,
        "base_lin_vel": 3,
        "base_ang_vel": 3,
        "projected_gravity": 3,
        "joint_pos": 12,
        "joint_vel": 12,
        "feet": 12,
    },
    group="motion",
)
"""Default fields of the component 'motion': absolute joint angles; feet FL FR RL RR."""

LIN_VEL_SCALE = 2.0
ANG_VEL_SCALE = 0.25
JOINT_VEL_SCALE = 0.05
FORCE_SCALE = 0.01

# Half widths of uniform noise at level 1, in the scaled units of the component.
_SENSOR_NOISE = {
    "base_lin_vel": 0.1 * LIN_VEL_SCALE,
    "base_ang_vel": 0.2 * ANG_VEL_SCALE,
    "projected_gravity": 0.05,
    "joint_pos": 0.01,
    "joint_vel": 1.5 * JOINT_VEL_SCALE,
}


def obs_spec(extra: Mapping[str, ComponentSpec], *, lin_vel_group: str, motion: Sequence[str]) -> ObsSpec:
    """Describe the observation; `extra` are the task's own components, `lin_vel_group` gets the true velocity.

    `motion` names the fields of the component 'motion'; with none of them there is no such component.
    """
    for name in motion:
        if name not in MOTION_SPEC:
            raise KeyError(unknown("motion field", name, MOTION_SPEC, where="the quadruped"))
    motion_size = sum(MOTION_SPEC[name].size for name in motion)
    return ObsSpec(
        {
            "base_lin_vel": ComponentSpec(shape=(3,), group=lin_vel_group, scale=LIN_VEL_SCALE),
            "base_ang_vel": ComponentSpec(shape=(3,), scale=ANG_VEL_SCALE),
            "projected_gravity": ComponentSpec(shape=(3,)),
            "command": ComponentSpec(shape=(3,), scale=LIN_VEL_SCALE),
            "joint_pos": ComponentSpec(shape=(12,)),
            "joint_vel": ComponentSpec(shape=(12,), scale=JOINT_VEL_SCALE),
            "last_action": ComponentSpec(shape=(12,)),
            **extra,
            "friction": ComponentSpec(shape=(1,), group="critic"),
            "mass": ComponentSpec(shape=(1,), group="critic"),
            "contact_forces": ComponentSpec(shape=(12,), group="critic", scale=FORCE_SCALE),
            "foot_contacts": ComponentSpec(shape=(4,), group="critic"),
            "foot_height": ComponentSpec(shape=(4,), group="critic"),
            **({"motion": ComponentSpec(shape=(motion_size,), group="motion")} if motion else {}),
        }
    )


def sensor_noise(spec: ObsSpec, level: float) -> list[ObservationNoise]:
    """Return noise on the policy's proprioception; at level 1 it has the usual widths of legged_gym."""
    if level <= 0.0:
        return []
    return [
        ObservationNoise(component=name, uniform=level * width)
        for name, width in _SENSOR_NOISE.items()
        if spec[name].group == "policy"
    ]


def proprioception(now: Measured, command: Float, rows: Rows) -> Arrays:
    """Return proprioception and command; `command` is the one to act on next."""
    robot = now.robot
    return {
        "base_lin_vel": LIN_VEL_SCALE * robot.lin_vel[rows],
        "base_ang_vel": ANG_VEL_SCALE * robot.ang_vel[rows],
        "projected_gravity": robot.gravity[rows],
        "command": LIN_VEL_SCALE * command[rows],
        "joint_pos": robot.joint_pos[rows] - now.default_pose,
        "joint_vel": JOINT_VEL_SCALE * robot.joint_vel[rows],
        "last_action": now.actions[rows],
    }


def privileged(now: Measured, friction: Float, added_mass: Float, rows: Rows) -> Arrays:
    """Return the privileged components; `friction` and `added_mass` are [N, 1]."""
    robot = now.robot
    force = FORCE_SCALE * robot.foot_force[rows]
    return {
        "friction": friction[rows],
        "mass": added_mass[rows],
        "contact_forces": force.reshape(len(force), 12),
        "foot_contacts": robot.foot_contact[rows],
        "foot_height": now.foot_height[rows],
    }


def motion_features(now: Measured, rows: Rows, names: Sequence[str] = MOTION_SPEC.names) -> Float:
    """Return these fields of `MOTION_SPEC` side by side, [n, 46] for all."""
    robot = now.robot
    feet = robot.feet[rows]
    fields = {
        "base_height": now.base_height[rows, None],
        "base_lin_vel": robot.lin_vel[rows],
        "base_ang_vel": robot.ang_vel[rows],
        "projected_gravity": robot.gravity[rows],
        "joint_pos": robot.joint_pos[rows],
        "joint_vel": robot.joint_vel[rows],
        "feet": feet.reshape(len(feet), 12),
    }
    return np.concatenate([fields[name] for name in names], axis=1)


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
    """Settings of every quadruped task."""

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
    """Which fields of `MOTION_SPEC` that component has, in order; a discriminator gets nothing else."""
    reward_weights: dict[str, float] = field(default_factory=lambda: dict(WALKING_REWARDS))
    """Weight per second of each reward term, by its name in `REWARD_TERMS` or among the task's own."""
    rewards: RewardConfig = field(default_factory=RewardConfig)
    """Constants inside the reward terms."""
    max_tilt: float = 1.2
    """Angle from the vertical at which the robot has fallen, rad."""
    randomize: tuple[Randomization, ...] = field(default_factory=default_randomization)
    """What differs between envs and episodes."""
    noise_level: float = 0.0
    """Strength of sensor noise on the policy's observations; 0 for none, 1 for the usual widths."""


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
        """Refresh the task's exteroception (depth images), after a step or when episodes begin."""

    # -- the functions of MujocoEnv ------------------------------------------------------------------------------------

    def reset_state(self, ids: Int) -> None:
        """Start near the default pose, at the task's start position."""
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
        self.refresh(ids)
        # let the lowest foot just not touch the ground, whatever that is like here
        self.qpos[ids, 2] -= self.now.foot_height[ids].min(axis=1) - 0.002
        self.refresh(ids)
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
        self.refresh(_ALL)
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
        """Return which robots have tipped over or fallen by the task's rule."""
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
        self.refresh(_ALL)
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
        """Add this step to the totals of the episode; the first step of an episode resets them."""
        self._totals[self._totals_closed] = 0.0
        self._totals_closed[:] = False
        velocity = self.robot.lin_vel[:, :2]
        self._totals[:, 0] += 1.0
        self._totals[:, 1] += np.sqrt(np.square(velocity - self.now.command[:, :2]).sum(axis=1))
        self._totals[:, 2] += np.abs(self.robot.torque * self.robot.joint_vel).sum(axis=1) * self.step_dt
        self._totals[:, 3] += np.sqrt(np.square(velocity).sum(axis=1)) * self.step_dt

    def refresh(self, rows: Rows) -> None:
        """Recompute derived quantities of positions and velocities, for these rows."""
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
