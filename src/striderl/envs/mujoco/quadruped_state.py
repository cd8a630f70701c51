"""How every robot stands and moves, as its own sensors would say it: computed from MuJoCo's state, for all at once.

    qpos, qvel ──▶ rotation [N, 3, 3] ──▶ lin_vel, ang_vel, gravity    in the robot's frame (x ahead, y left, z up)
    12 angles  ──▶ forward kinematics ──▶ feet [N, 4, 3]               in the robot's frame
                                          feet_world [N, 4, 3]
    sensordata ──▶ foot_force [N, 4, 3], contacts

The kinematics are written out here because MuJoCo's own body positions describe the state one substep ago; computing
four legs in closed form costs less than asking MuJoCo for one more stage.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from striderl.envs.mujoco.quadruped_model import (
    FEET_SENSORS,
    FRONT,
    LEFT,
    LIMB_SENSORS,
    TRUNK_SENSOR,
    RobotDesign,
)
from striderl.envs.mujoco.simulation import Bool, Float, Int, Simulation

CONTACT_FORCE = 1.0
"""A foot stands when the ground pushes it up with more than this many newtons."""


class RobotState:
    """The motion of N robots; arrays stay the same objects and `update` refreshes rows of them."""

    def __init__(self, simulation: Simulation, design: RobotDesign) -> None:
        num_envs = simulation.num_envs
        self.position: Float = simulation.qpos[:, :3]
        """Where the trunk is in the world, [N, 3]; a live view."""
        self.quaternion: Float = simulation.qpos[:, 3:7]
        """How it is turned, w x y z; a live view."""
        self.joint_pos: Float = simulation.qpos[:, 7:]
        """Joint angles, [N, 12]; a live view."""
        self.joint_vel: Float = simulation.qvel[:, 6:]
        """Joint velocities, [N, 12]; a live view."""
        self.ang_vel: Float = simulation.qvel[:, 3:6]
        """Turning rate in the robot's frame, [N, 3]; a live view."""
        self.world_vel: Float = simulation.qvel[:, :3]
        """Velocity of the trunk in the world's frame, [N, 3]; a live view."""
        self.torque: Float = simulation.bind("actuator_force")
        """What the motors gave in the last substep, Nm, [N, 12]; live."""
        self.rotation: Float = np.zeros((num_envs, 3, 3))
        """From the robot's frame to the world's."""
        self.lin_vel: Float = np.zeros((num_envs, 3))
        """Velocity of the trunk in the robot's frame, m/s."""
        self.gravity: Float = np.zeros((num_envs, 3))
        """Which way is down, in the robot's frame: 0 0 -1 when it stands level."""
        self.feet: Float = np.zeros((num_envs, 4, 3))
        """Centres of the feet in the robot's frame."""
        self.feet_world: Float = np.zeros((num_envs, 4, 3))
        """Centres of the feet in the world."""
        self._sensors: Float = simulation.bind("sensordata")
        self._design = design
        self._hips = np.stack([FRONT * design.hip_x, LEFT * design.hip_y, np.zeros(4)], axis=1)

    def update(self, rows: slice | Int) -> None:
        """Recompute what is derived from positions and velocities, for these rows."""
        rotation = rotation_matrices(self.quaternion[rows])
        self.rotation[rows] = rotation
        self.gravity[rows] = -rotation[:, 2]
        # sums over an axis of length three add in the same order for any number of envs; a matrix product may not
        self.lin_vel[rows] = (rotation * self.world_vel[rows][:, :, None]).sum(axis=1)
        feet = self._hips + leg_vectors(self.joint_pos[rows].reshape(-1, 4, 3), self._design)
        self.feet[rows] = feet
        turned = (rotation[:, None] * feet[:, :, None, :]).sum(axis=3)
        self.feet_world[rows] = self.position[rows][:, None] + turned

    @property
    def foot_force(self) -> Float:
        """What the ground does to each foot, N in the world's frame, [N, 4, 3]; of the last substep."""
        return -self._sensors[:, FEET_SENSORS].reshape(-1, 4, 4)[:, :, 1:]

    @property
    def foot_contact(self) -> Bool:
        """Which feet carry weight, [N, 4]."""
        # the sensor's sign is the other way round: it is the foot that pushes down
        return np.asarray(self._sensors[:, 3:16:4] < -CONTACT_FORCE)

    @property
    def limb_contact(self) -> Bool:
        """Which thighs and shanks touch something, [N, 8]."""
        return np.asarray(self._sensors[:, LIMB_SENSORS] > 0.0)

    @property
    def trunk_contact(self) -> Bool:
        """Whether the trunk or the head touches something, [N]."""
        return np.asarray(self._sensors[:, TRUNK_SENSOR] > 0.0)

    @property
    def heading(self) -> Float:
        """The direction of the robot's x axis on the ground, radians, [N]."""
        return np.asarray(np.arctan2(self.rotation[:, 1, 0], self.rotation[:, 0, 0]))


def rotation_matrices(quaternion: NDArray[np.float64]) -> Float:
    """Return the matrices [n, 3, 3] of unit quaternions w x y z, [n, 4]."""
    w, x, y, z = np.ascontiguousarray(quaternion.T)
    result = np.empty((len(quaternion), 3, 3))
    result[:, 0, 0] = 1.0 - 2.0 * (y * y + z * z)
    result[:, 0, 1] = 2.0 * (x * y - w * z)
    result[:, 0, 2] = 2.0 * (x * z + w * y)
    result[:, 1, 0] = 2.0 * (x * y + w * z)
    result[:, 1, 1] = 1.0 - 2.0 * (x * x + z * z)
    result[:, 1, 2] = 2.0 * (y * z - w * x)
    result[:, 2, 0] = 2.0 * (x * z - w * y)
    result[:, 2, 1] = 2.0 * (y * z + w * x)
    result[:, 2, 2] = 1.0 - 2.0 * (x * x + y * y)
    return result


def leg_vectors(angles: NDArray[np.float64], design: RobotDesign) -> Float:
    """Return the vectors from hips to feet in the robot's frame, [n, 4, 3], for angles [n, 4, (hip, thigh, calf)].

    In its plane the foot is at (-l₁ sin b - l₂ sin(b+c), -l₁ cos b - l₂ cos(b+c)); abduction turns the plane.
    """
    hip, thigh = angles[..., 0], angles[..., 1]
    knee = thigh + angles[..., 2]
    down = -design.thigh_length * np.cos(thigh) - design.shank_length * np.cos(knee)
    side = LEFT * design.thigh_offset
    sin_hip, cos_hip = np.sin(hip), np.cos(hip)
    result = np.empty(angles.shape)
    result[..., 0] = -design.thigh_length * np.sin(thigh) - design.shank_length * np.sin(knee)
    result[..., 1] = side * cos_hip - down * sin_hip
    result[..., 2] = side * sin_hip + down * cos_hip
    return result


def quaternion_of_yaw(yaw: NDArray[np.float64]) -> Float:
    """Return the quaternions w x y z, [n, 4], that turn by these angles about the vertical."""
    zero = np.zeros_like(yaw)
    return np.stack([np.cos(0.5 * yaw), zero, zero, np.sin(0.5 * yaw)], axis=1)
