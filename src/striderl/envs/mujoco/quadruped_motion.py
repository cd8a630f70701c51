"""What the component 'motion' of the quadruped becomes in a mirror, and the leg kinematics that make motions for it.

    entry i of the mirrored field = sign[i] · x[index[i]]      legs FL FR RL RR trade places in pairs: FR FL RR RL

The component itself is described by `MOTION_SPEC` in `quadruped_components`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from striderl.envs.mujoco.quadruped_model import JOINT_NAMES, LEFT, RobotDesign
from striderl.envs.mujoco.simulation import Float

_OTHER_SIDE = {"FL": "FR", "FR": "FL", "RL": "RR", "RR": "RL"}

JOINT_MIRROR: dict[str, tuple[str, float]] = {
    name: (_OTHER_SIDE[name[:2]] + name[2:], -1.0 if "hip" in name else 1.0) for name in JOINT_NAMES
}
"""Joint -> (the joint it trades places with, its sign): abduction turns about the axis ahead, so it changes sign."""


def leg_angles(vectors: NDArray[np.float64], design: RobotDesign) -> Float:
    """Return the angles [n, 4, (hip, thigh, calf)] that bring feet to vectors [n, 4, 3] from hips; the knee bends back.

    The inverse of `leg_vectors`. A foot out of reach raises ValueError.
    """
    x, y, z = (vectors[..., axis] for axis in range(3))
    side = LEFT * design.thigh_offset
    across = y * y + z * z - side * side
    reach = x * x + across
    upper, lower = design.thigh_length, design.shank_length
    knee_cosine = (reach - upper * upper - lower * lower) / (2.0 * upper * lower)
    if (across <= 0.0).any() or (np.abs(knee_cosine) > 1.0).any():
        raise ValueError(
            f"a foot is out of reach: legs of {upper} and {lower} m cannot span {np.sqrt(np.abs(reach)).max():.3f} m"
        )
    down = -np.sqrt(across)
    hip = np.arctan2(z, y) - np.arctan2(down, side)
    calf = -np.arccos(knee_cosine)
    thigh = np.arctan2(-x, -down) - np.arctan2(lower * np.sin(calf), upper + lower * np.cos(calf))
    return np.stack([(hip + np.pi) % (2.0 * np.pi) - np.pi, thigh, calf], axis=-1)


def leg_jacobians(angles: NDArray[np.float64], design: RobotDesign) -> Float:
    """Return how feet move when angles do: d(x y z)/d(hip thigh calf), [n, 4, 3, 3], of the legs in `leg_vectors`."""
    hip, thigh = angles[..., 0], angles[..., 1]
    knee = thigh + angles[..., 2]
    upper, lower = design.thigh_length, design.shank_length
    down = -upper * np.cos(thigh) - lower * np.cos(knee)
    side = LEFT * design.thigh_offset
    sin_hip, cos_hip = np.sin(hip), np.cos(hip)
    ahead_by = (-upper * np.cos(thigh) - lower * np.cos(knee), -lower * np.cos(knee))
    down_by = (upper * np.sin(thigh) + lower * np.sin(knee), lower * np.sin(knee))
    result = np.zeros((*angles.shape, 3))
    result[..., 1, 0] = -side * sin_hip - down * cos_hip
    result[..., 2, 0] = side * cos_hip - down * sin_hip
    for joint in (1, 2):
        result[..., 0, joint] = ahead_by[joint - 1]
        result[..., 1, joint] = -down_by[joint - 1] * sin_hip
        result[..., 2, joint] = down_by[joint - 1] * cos_hip
    return result
