"""Clips out of anybody's `.npz`: arrays by name, with a rate or with times.

    fps | frame_duration | dt | times [T]      which of them there is says when the frames are
    joint_pos [T, J], root_pos [T, 3], …       or other names, by `arrays={"joint_pos": "dof_positions", …}`
    body_pos_w [T, B, 3]                       of arrays over bodies, one is taken: `body`

Frames at unequal times are brought to equal ones by interpolation. Times must increase; pickled arrays are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from striderl.data.naming import unknown
from striderl.datasets.motion_arrays import read_arrays
from striderl.datasets.motion_clip import ClipError, ClipField, MotionClip
from striderl.datasets.motion_interpolation import interpolate
from striderl.datasets.motion_mirror import STANDARD_FIELDS, JointMirror, standard_fields

_RATES = ("frame_duration", "dt", "fps")
_EQUAL = 1e-3
"""Times count as equally spaced when steps differ by less than this share."""


@dataclass(frozen=True, kw_only=True)
class NpzLayout:
    """Which arrays of a file are which fields."""

    joint_names: tuple[str, ...]
    """The joints in the order of the file."""
    foot_names: tuple[str, ...] = ()
    """The feet in the order of the file."""
    arrays: Mapping[str, str] = field(default_factory=dict)
    """Field -> array; empty takes every array that is called like a usual field."""
    quaternion: str = "wxyz"
    """How rotations are written: 'wxyz' or 'xyzw'."""
    body: int = 0
    """Which body of arrays [T, bodies, …] is meant: the root."""
    mirror: JointMirror | None = None
    """What the joints become in a mirror; None: no mirroring."""


def import_npz_clip(
    path: str | Path, layout: NpzLayout, *, loop: str = "clamp", weight: float = 1.0, name: str = ""
) -> MotionClip:
    """Read a clip out of named arrays; what is missing, damaged or senseless raises ClipError."""
    path = Path(path)
    arrays = read_arrays(path)
    try:
        chosen = dict(layout.arrays) or {each: each for each in STANDARD_FIELDS if each in arrays}
        for wanted in chosen.values():
            if wanted not in arrays:
                raise ClipError(unknown("array", wanted, arrays, where="the file"))
        fields = standard_fields(
            list(chosen), joint_names=layout.joint_names, foot_names=layout.foot_names, mirror=layout.mirror
        )
        values = {each: _value(arrays[source], fields[each], layout) for each, source in chosen.items()}
        if not values:
            raise ClipError(f"no array is called like a usual field; name them in `arrays`. It has {list(arrays)}")
        duration, values = _timed(arrays, fields, values)
        return MotionClip(
            name=name or path.stem,
            frame_duration=duration,
            fields=fields,
            values=values,
            weight=weight,
            loop=loop,
            joint_names=layout.joint_names,
            foot_names=layout.foot_names,
            about={"imported_from": path.name},
        )
    except ClipError as error:
        raise ClipError(f"cannot import {str(path)!r}: {error}") from None


def _value(array: NDArray[Any], kind: ClipField, layout: NpzLayout) -> NDArray[Any]:
    if array.dtype.kind not in "fiub":
        raise ClipError(f"an array of {array.dtype} is no motion")
    if array.ndim == 3 and array.shape[1] * array.shape[2] != kind.size:
        if not 0 <= layout.body < array.shape[1]:
            raise ClipError(f"there is no body {layout.body} in an array of shape {list(array.shape)}")
        array = array[:, layout.body]
    if array.ndim not in (1, 2, 3):
        raise ClipError(f"wanted [frames, {kind.size}], found {list(array.shape)}")
    value = array.reshape(len(array), -1).astype(array.dtype if array.dtype.itemsize in (4, 8) else np.float32)
    value = value if value.dtype in (np.float32, np.float64) else value.astype(np.float64)
    if kind.kind == "quaternion" and layout.quaternion == "xyzw":
        value = np.roll(value, 1, axis=1)
    return value


def _timed(
    arrays: Mapping[str, NDArray[Any]], fields: Mapping[str, ClipField], values: dict[str, NDArray[Any]]
) -> tuple[float, dict[str, NDArray[Any]]]:
    """Return the frame duration, and the values at equal times."""
    if "times" not in arrays:
        found = [name for name in _RATES if name in arrays]
        if not found or arrays[found[0]].size != 1 or arrays[found[0]].dtype.kind not in "fiu":
            raise ClipError(f"nothing says when its frames are: wanted 'times' or one number in one of {_RATES}")
        number = float(arrays[found[0]].reshape(()))
        if not (np.isfinite(number) and number > 0.0):
            raise ClipError(f"{found[0]!r} is {number}, which is no rate")
        return (1.0 / number if found[0] == "fps" else number), values
    times = arrays["times"].astype(np.float64).reshape(-1)
    lengths = {len(value) for value in values.values()}
    if lengths != {len(times)} or len(times) < 2:
        raise ClipError(f"it has {len(times)} times for frames of lengths {sorted(lengths)}; at least 2 are wanted")
    steps = np.diff(times)
    bad = np.flatnonzero(~(steps > 0.0) | ~np.isfinite(steps))
    if len(bad):
        raise ClipError(f"its times do not increase: {times[bad[0]]:g} is followed by {times[bad[0] + 1]:g}")
    mean = float(steps.mean())
    if np.abs(steps - mean).max() <= _EQUAL * mean:
        return mean, values
    # the finest step of the file, but not finer than sense: one odd pair of frames must not make millions of them
    count = min(round((times[-1] - times[0]) / float(np.percentile(steps, 10))), 10 * len(times))
    wanted = np.linspace(times[0], times[-1], count + 1)
    upper = np.clip(np.searchsorted(times, wanted, side="right"), 1, len(times) - 1)
    share = torch.from_numpy((wanted - times[upper - 1]) / steps[upper - 1]).unsqueeze(1)
    return float(wanted[1] - wanted[0]), {
        name: interpolate(
            fields[name].kind,
            torch.from_numpy(value[upper - 1].astype(np.float64)),
            torch.from_numpy(value[upper].astype(np.float64)),
            share,
        ).numpy()
        for name, value in values.items()
    }
