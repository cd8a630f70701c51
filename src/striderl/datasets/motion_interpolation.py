"""Between two frames: straight lines, directions and rotations; and the few functions of quaternions that clips need.

Quaternions are w x y z. q and -q are the same rotation, so the one on the near side is gone to: never the long way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

KINDS = ("linear", "position", "direction", "quaternion")
UNIT_KINDS = ("direction", "quaternion")
"""Kinds whose values have length 1."""

_NEARLY_PARALLEL = 1e-4
"""Below this angle, rad, sin(angle) is too small to divide by, and a straight line differs by less than rounding."""


def interpolate(kind: str, start: Tensor, end: Tensor, fraction: Tensor) -> Tensor:
    """Return what lies at `fraction` [..., 1] of the way between start and end [..., size]."""
    if kind == "quaternion":
        return slerp(start, end, fraction)
    straight = start + fraction * (end - start)
    return unit(straight) if kind == "direction" else straight


def slerp(start: Tensor, end: Tensor, fraction: Tensor) -> Tensor:
    """Turn from one unit quaternion to another at a constant rate along the shorter arc; fraction is [..., 1]."""
    cosine = (start * end).sum(dim=-1, keepdim=True)
    end = torch.where(cosine < 0.0, -end, end)
    # the chord gives small angles exactly, where the arc cosine of a number near 1 has lost its digits
    angle = 2.0 * torch.asin((0.5 * (end - start).norm(dim=-1, keepdim=True)).clamp(max=1.0))
    near = angle < _NEARLY_PARALLEL
    safe = torch.where(near, 1.0, angle)
    first = torch.where(near, 1.0 - fraction, torch.sin((1.0 - fraction) * safe) / torch.sin(safe))
    second = torch.where(near, fraction, torch.sin(fraction * safe) / torch.sin(safe))
    return unit(first * start + second * end)


def unit(vector: Tensor) -> Tensor:
    """Bring vectors [..., size] to length 1."""
    length: Tensor = vector.norm(dim=-1, keepdim=True)
    return vector / length.clamp(min=1e-12)


def rotate_inverse(quaternion: NDArray[Any], vector: NDArray[Any]) -> NDArray[np.float64]:
    """Return vectors [..., 3] of the world in the frames that quaternions [..., 4] turn to."""
    w, axis = quaternion[..., :1], -quaternion[..., 1:]
    twice = 2.0 * np.cross(axis, vector)
    return np.asarray(vector + w * twice + np.cross(axis, twice))


def turning_between(start: NDArray[Any], end: NDArray[Any]) -> NDArray[np.float64]:
    """Return the rotation vectors [..., 3], in the frame of `start`, that turn start into end [..., 4]."""
    w = (start * end).sum(axis=-1, keepdims=True)
    # conjugate(start) · end, without its real part
    axis = start[..., :1] * end[..., 1:] - end[..., :1] * start[..., 1:] - np.cross(start[..., 1:], end[..., 1:])
    axis = np.where(w < 0.0, -axis, axis)
    sine = np.sqrt(np.square(axis).sum(axis=-1, keepdims=True))
    angle = 2.0 * np.arctan2(sine, np.abs(w))
    return np.asarray(axis * np.where(sine > 1e-12, angle / np.maximum(sine, 1e-12), 2.0))
