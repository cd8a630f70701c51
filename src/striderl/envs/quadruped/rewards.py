"""Reward terms of the quadruped tasks by name: each is a function of one step's measurements, [N].

Terms are plain magnitudes (an error, a force, a share of time); the sign of the weight in the task's
config makes them a reward or a cost. Weights are per second: the env multiplies them by the length of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from striderl.envs.mujoco.simulation import Bool, Float
from striderl.envs.quadruped.commands import is_moving
from striderl.envs.quadruped.robot import RobotState


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """Constants inside the reward terms."""

    tracking_width: float = 0.25
    """Squared speed error at which a tracking reward has fallen to 1/e, (m/s)² or (rad/s)²."""
    air_time: float = 0.1
    """Seconds in the air that a step of a foot must take longer than to be rewarded."""
    base_height: float = 0.30
    """Height of the trunk above the ground that is wanted, m."""
    clearance: float = 0.06
    """Height of a swinging foot above the ground that is wanted, m."""
    soft_limit: float = 0.9
    """Share of each joint's range outside which `dof_pos_limits` counts."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the terms read. The arrays are the env's own and are refreshed in every step."""

    robot: RobotState
    command: Float
    """The command of this step, [N, 3]."""
    actions: Float
    """The policy's action, [N, 12]."""
    previous_actions: Float
    """The action one step before, [N, 12]."""
    joint_acc: Float
    """Mean joint acceleration over the step, [N, 12]."""
    landed: Float
    """Seconds that a foot which touches down now was in the air; 0 for the others, [N, 4]."""
    foot_vel: Float
    """Mean velocity of the feet over the step in the world, [N, 4, 3]."""
    foot_height: Float
    """Height of the feet's soles above the ground, [N, 4]."""
    base_height: Float
    """Height of the trunk above the ground, [N]."""
    fell: Bool
    """Which robots fell in this step, [N]."""
    default_pose: Float
    """The joint angles that action zero stands for, [12]."""
    soft_limits: tuple[Float, Float]
    """Lower and upper joint angles beyond which `dof_pos_limits` counts, [12] each."""
    config: RewardConfig
    step_dt: float


def tracking_lin_vel(now: Measured) -> Float:
    """Return 1 when the speed on the ground is as commanded, falling to 0 with the error."""
    error = np.square(now.command[:, :2] - now.robot.lin_vel[:, :2]).sum(axis=1)
    return np.asarray(np.exp(error * (-1.0 / now.config.tracking_width)))


def tracking_ang_vel(now: Measured) -> Float:
    """Return 1 when the turning rate is as commanded, falling to 0 with the error."""
    return np.exp(np.square(now.command[:, 2] - now.robot.ang_vel[:, 2]) * (-1.0 / now.config.tracking_width))


def lin_vel_z(now: Measured) -> Float:
    """Return the squared speed along the robot's z axis."""
    return np.square(now.robot.lin_vel[:, 2])


def ang_vel_xy(now: Measured) -> Float:
    """Return the squared rates of rolling and pitching."""
    return np.asarray(np.square(now.robot.ang_vel[:, :2]).sum(axis=1))


def orientation(now: Measured) -> Float:
    """Return the squared sine of the angle between the robot's z axis and the vertical."""
    return np.asarray(np.square(now.robot.gravity[:, :2]).sum(axis=1))


def base_height(now: Measured) -> Float:
    """Return the squared error of the trunk's height."""
    return np.square(now.base_height - now.config.base_height)


def torques(now: Measured) -> Float:
    """Return the sum of squared torques."""
    return np.asarray(np.square(now.robot.torque).sum(axis=1))


def energy(now: Measured) -> Float:
    """Return the mechanical power of all joints, W, counting braking like driving."""
    return np.asarray(np.abs(now.robot.torque * now.robot.joint_vel).sum(axis=1))


def dof_vel(now: Measured) -> Float:
    """Return the sum of squared joint velocities."""
    return np.asarray(np.square(now.robot.joint_vel).sum(axis=1))


def dof_acc(now: Measured) -> Float:
    """Return the sum of squared joint accelerations."""
    return np.asarray(np.square(now.joint_acc).sum(axis=1))


def action_rate(now: Measured) -> Float:
    """Return the squared change of the action since the last step."""
    return np.asarray(np.square(now.actions - now.previous_actions).sum(axis=1))


def feet_air_time(now: Measured) -> Float:
    """Return, while motion is commanded, by how much the feet that land now were longer in the air than a quick tap.

    Short taps cost nothing here, so that a policy that still trembles is not better off falling over; very long steps
    gain nothing more. It is a rate: summed over a second of walking it counts the seconds of good steps.
    """
    gained = np.clip(now.landed - now.config.air_time, 0.0, 0.15).sum(axis=1)
    return np.asarray(gained * is_moving(now.command) * (1.0 / now.step_dt))


def foot_slip(now: Measured) -> Float:
    """Return the squared speed along the ground of the feet that stand."""
    return np.asarray((np.square(now.foot_vel[:, :, :2]).sum(axis=2) * now.robot.foot_contact).sum(axis=1))


def foot_clearance(now: Measured) -> Float:
    """Return the squared error of the swing height, weighted with the foot's speed along the ground."""
    speed = np.sqrt(np.square(now.foot_vel[:, :, :2]).sum(axis=2))
    return np.asarray((np.square(now.foot_height - now.config.clearance) * speed).sum(axis=1))


def collision(now: Measured) -> Float:
    """Return how many thighs and shanks touch something."""
    return np.asarray(now.robot.limb_contact.sum(axis=1), np.float64)


def trunk_contact(now: Measured) -> Float:
    """Return 1 when the trunk or the head touches something."""
    return np.asarray(now.robot.trunk_contact, np.float64)


def stumble(now: Measured) -> Float:
    """Return how many feet hit something upright: a force along the ground four times the one upwards."""
    force = now.robot.foot_force
    along = np.square(force[:, :, :2]).sum(axis=2)
    return np.asarray((along > 16.0 * np.square(force[:, :, 2]) + 1.0).sum(axis=1), np.float64)


def dof_pos_limits(now: Measured) -> Float:
    """Return by how many radians joints are outside the soft limits, summed."""
    low, high = now.soft_limits
    angle = now.robot.joint_pos
    beyond = np.maximum(low - angle, 0.0) + np.maximum(angle - high, 0.0)
    return np.asarray(beyond.sum(axis=1))


def hip_deviation(now: Measured) -> Float:
    """Return how far the abduction joints are from the default pose, rad, summed."""
    return np.asarray(np.abs(now.robot.joint_pos[:, ::3] - now.default_pose[::3]).sum(axis=1))


def pose_deviation(now: Measured) -> Float:
    """Return the squared distance of all joints from the default pose, summed."""
    return np.asarray(np.square(now.robot.joint_pos - now.default_pose).sum(axis=1))


def stand_still(now: Measured) -> Float:
    """Return how far the joints are from the default pose, rad, summed, while standing is commanded."""
    away = np.abs(now.robot.joint_pos - now.default_pose).sum(axis=1)
    return np.asarray(away * ~is_moving(now.command))


def alive(now: Measured) -> Float:
    """Return 1 for a robot that has not fallen."""
    return np.asarray(~now.fell, np.float64)


def fall(now: Measured) -> Float:
    """Return one event per fall: the weight is what a fall costs, whatever the length of a step."""
    return np.asarray(now.fell * (1.0 / now.step_dt), np.float64)


REWARD_TERMS: dict[str, Callable[[Measured], Float]] = {
    "tracking_lin_vel": tracking_lin_vel,
    "tracking_ang_vel": tracking_ang_vel,
    "lin_vel_z": lin_vel_z,
    "ang_vel_xy": ang_vel_xy,
    "orientation": orientation,
    "base_height": base_height,
    "torques": torques,
    "energy": energy,
    "dof_vel": dof_vel,
    "dof_acc": dof_acc,
    "action_rate": action_rate,
    "feet_air_time": feet_air_time,
    "foot_slip": foot_slip,
    "foot_clearance": foot_clearance,
    "collision": collision,
    "trunk_contact": trunk_contact,
    "stumble": stumble,
    "dof_pos_limits": dof_pos_limits,
    "hip_deviation": hip_deviation,
    "pose_deviation": pose_deviation,
    "stand_still": stand_still,
    "alive": alive,
    "fall": fall,
}
"""Every term by name."""

WALKING_REWARDS: dict[str, float] = {
    "tracking_lin_vel": 2.0,
    "tracking_ang_vel": 1.0,
    "alive": 0.5,
    "feet_air_time": 0.4,
    "lin_vel_z": -2.0,
    "ang_vel_xy": -0.05,
    "orientation": -2.0,
    "torques": -2.0e-4,
    "dof_acc": -2.5e-7,
    "action_rate": -0.01,
    "foot_clearance": -30.0,
    "collision": -0.5,
    "dof_pos_limits": -5.0,
    "hip_deviation": -0.4,
    "pose_deviation": -0.05,
    "stand_still": -0.1,
    "fall": -1.0,
}
"""Weights per second with which the flat task learns to walk."""

ROUGH_REWARDS: dict[str, float] = {
    **WALKING_REWARDS,
    "lin_vel_z": -1.0,
    "orientation": -0.5,
    "collision": -0.2,
    "stumble": -0.1,
}
"""Weights for rough terrain, where a body has to pitch and heave."""
