"""What a quadruped observes: the names, sizes, scales and groups of the components, and how they are put together.

The first seven are proprioception; joined in this order (`ObsSpec.flatten`) they are the 48 numbers of legged_gym:

    base_lin_vel  base_ang_vel  projected_gravity  command  joint_pos  joint_vel  last_action
        0:3           3:6              6:9           9:12     12:24      24:36       36:48
     × 2.0         × 0.25                          × 2.0     rel.      × 0.05

Then come what a task adds (height_scan, forward_depth, engaging_block), the privileged components of group 'critic',
and 'motion', which adversarial motion priors compare with clips:

    base height  lin vel  ang vel  gravity  joint pos  joint vel  feet
         0         1:4      4:7     7:10     10:22      22:34    34:46       unscaled, in the robot's frame

or some of these, in another order, as `motion_fields` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from striderl.data.naming import unknown
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.envs.mujoco.base import Arrays, Float, Rows
from striderl.envs.mujoco.disturbances import ObservationNoise
from striderl.envs.mujoco.quadruped_rewards import Measured

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
"""What the component 'motion' is made of unless told otherwise: absolute joint angles; feet FL FR RL RR."""

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
    """Describe the observation; `extra` are the task's own components, `lin_vel_group` sees the true velocity.

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
    """Return noise on the proprioception that the policy sees; at level 1 it has the usual widths of legged_gym."""
    if level <= 0.0:
        return []
    return [
        ObservationNoise(component=name, uniform=level * width)
        for name, width in _SENSOR_NOISE.items()
        if spec[name].group == "policy"
    ]


def proprioception(now: Measured, command: Float, rows: Rows) -> Arrays:
    """Return what the robot feels and is asked for; `command` is the one to act on next."""
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
    """Return what only a simulator knows; `friction` and `added_mass` are [N, 1]."""
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
