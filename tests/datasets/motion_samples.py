"""Small clips with numbers that a reader can redo."""

from __future__ import annotations

from typing import Any

import numpy as np

from striderl.datasets.motion.clip import ClipField, MotionClip

HALF = np.sqrt(0.5)


def ramp(name: str = "ramp", num_frames: int = 5, frame_duration: float = 0.1, start: float = 0.0, **more: Any) -> Any:
    """One field 'x' that grows by 1 per frame, so its value tells the time: x = start + time / frame_duration."""
    values = {"x": (start + np.arange(num_frames, dtype=np.float64))[:, None]}
    return MotionClip(name=name, frame_duration=frame_duration, fields={"x": ClipField(size=1)}, values=values, **more)


def turning(*, degrees: float = 90.0) -> MotionClip:
    """Two frames a second apart: level, then turned about z."""
    half = np.deg2rad(degrees) / 2.0
    rotation = np.array([[1.0, 0.0, 0.0, 0.0], [np.cos(half), 0.0, 0.0, np.sin(half)]])
    fields = {"root_rot": ClipField(size=4, kind="quaternion")}
    return MotionClip(name="turning", frame_duration=1.0, fields=fields, values={"root_rot": rotation})
