"""Clips on disk: one `.npz` per clip, which `numpy.load` opens too, with a JSON header in it and without pickle.

    trot.npz
      header.npy      uint8 [n]: JSON text, below
      joint_pos.npy   float32 or float64 [T, 12]          one array for each field
      root_rot.npy    [T, 4]                              w x y z
      …

    {"format": "striderl motion clip", "version": 1,
     "name": "trot", "frame_duration": 0.01, "weight": 1.0, "loop": "wrap",
     "joint_names": ["FL_hip_joint", …], "foot_names": ["FL_foot", …],
     "fields": [{"name": "joint_pos", "size": 12, "kind": "linear", "of": "joints",
                 "mirror_index": [3, 4, 5, 0, …], "mirror_sign": [-1.0, 1.0, 1.0, -1.0, …]}, …],
     "about": {…}}

An unknown version raises; the meaning of a key never changes within one.

Clips from any `.npz`: arrays by name, with a rate or with times.

    fps | frame_duration | dt | times [T]      the one that is present gives the times of frames
    joint_pos [T, J], root_pos [T, 3], …       or other names, by `arrays={"joint_pos": "dof_positions", …}`
    body_pos_w [T, B, 3]                       of arrays over bodies, one is taken: `body`

Frames at unequal times are brought to equal ones by interpolation. Times must increase; pickled arrays are refused.

Named arrays of a motion in a `.npz` file, read by `checkpoint/array_archive.py` without pickle and within limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from striderl.checkpoint.array_archive import read_archive, write_archive
from striderl.checkpoint.errors import CheckpointCorrupt, FileRefused
from striderl.checkpoint.strict_json import decode, encode
from striderl.data.naming import unknown
from striderl.datasets.motion.clip import (
    STANDARD_FIELDS,
    ClipError,
    ClipField,
    JointMirror,
    MotionClip,
    interpolate,
    standard_fields,
)

FORMAT = "striderl motion clip"
VERSION = 1
HEADER = "header"
"""The array that holds the JSON text; no field may be called so."""
_MAX_HEADER_BYTES = 1 << 20


def save_clip(path: str | Path, clip: MotionClip) -> Path:
    """Write a clip, whole or not at all; the name should end in `.npz`."""
    taken = [name for name in clip.fields if name == HEADER or not name or "/" in name or "\\" in name]
    if taken:
        raise ClipError(f"the clip {clip.name!r} has a field called {taken[0]!r}, which a file cannot have")
    header = {
        "format": FORMAT,
        "version": VERSION,
        "name": clip.name,
        "frame_duration": clip.frame_duration,
        "weight": clip.weight,
        "loop": clip.loop,
        "joint_names": list(clip.joint_names),
        "foot_names": list(clip.foot_names),
        "fields": [{"name": name, **asdict(kind)} for name, kind in clip.fields.items()],
        "about": dict(clip.about),
    }
    text: NDArray[Any] = np.frombuffer(encode(header), np.uint8)
    return write_arrays(path, {HEADER: text, **clip.values})


def load_clip(path: str | Path) -> MotionClip:
    """Read a clip; a file that is damaged, of another kind or of a newer version raises ClipError."""
    if Path(path).suffix in (".json", ".txt"):
        raise ClipError(f"{str(path)!r} looks like a JSON clip; 'striderl clips import' or import_json_clip reads it")
    arrays = read_arrays(path)
    header = _header(arrays, path)
    try:
        fields = {_text(line["name"]): _field(line) for line in header["fields"]}
        about = header["about"]
        if len(fields) != len(header["fields"]) or not isinstance(about, dict):
            raise ClipError("its header names a field twice, or what it says about itself is not a table")
        return MotionClip(
            name=_text(header["name"]),
            frame_duration=_number(header["frame_duration"]),
            fields=fields,
            values={name: array for name, array in arrays.items() if name != HEADER},
            weight=_number(header["weight"]),
            loop=_text(header["loop"]),
            joint_names=tuple(_text(name) for name in header["joint_names"]),
            foot_names=tuple(_text(name) for name in header["foot_names"]),
            about=about,
        )
    except ClipError as error:
        raise ClipError(f"cannot read {str(path)!r}: {error}") from None
    except (KeyError, TypeError) as error:
        raise ClipError(f"cannot read {str(path)!r}: its header is not complete ({error!r})") from None


def _header(arrays: Mapping[str, NDArray[Any]], path: str | Path) -> dict[str, Any]:
    text = arrays.get(HEADER)
    if text is None or text.dtype != np.uint8 or text.ndim != 1:
        raise ClipError(
            f"cannot read {str(path)!r}: it has no header of a motion clip; import_npz_clip reads other .npz files"
        )
    try:
        header = decode(text.tobytes(), path, max_bytes=_MAX_HEADER_BYTES)
    except CheckpointCorrupt as error:
        raise ClipError(str(error)) from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ClipError(f"cannot read {str(path)!r}: its header is not one of a motion clip")
    if header.get("version") != VERSION:
        raise ClipError(
            f"{str(path)!r} has version {header.get('version')!r} of the format, this reader knows {VERSION}"
        )
    return header


def _field(line: Mapping[str, Any]) -> ClipField:
    if type(line["size"]) is not int:
        raise ClipError(f"the size of a field is a whole number, found {line['size']!r}")
    return ClipField(
        size=line["size"],
        kind=_text(line["kind"]),
        of=_text(line["of"]),
        mirror_index=tuple(line["mirror_index"]),
        mirror_sign=tuple(_number(sign) for sign in line["mirror_sign"]),
    )


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ClipError(f"its header has {value!r} where a number belongs")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ClipError(f"its header has {value!r} where a text belongs")
    return value


# -- any .npz ----------------------------------------------------------------------------------------------------------


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


# -- arrays ------------------------------------------------------------------------------------------------------------


MAX_BYTES = 1 << 30
"""All arrays of a file together; an hour of 50 Hz with a thousand numbers per frame is 720 MB."""
MAX_ARRAYS = 256
_READABLE = "fiubU"
"""Kinds of dtype: real, whole, unsigned, bool, text; an object would be a pickle."""


def write_arrays(path: str | Path, arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Write a compressed `.npz`, whole or not at all; the same arrays give the same bytes."""
    require_folder(Path(path))
    return write_archive(path, arrays, compress=True)


def require_folder(path: Path) -> None:
    """Raise FileNotFoundError where the folder of a file that is to be written is not there."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}")


def read_arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    """Read every array of a `.npz`; what is damaged, too large or holds Python objects raises ClipError."""
    try:
        return read_archive(path, what="clip", max_bytes=MAX_BYTES, max_members=MAX_ARRAYS, kinds=_READABLE)[0]
    except FileRefused as error:
        raise ClipError(f"cannot read {str(path)!r}: {error.reason}") from None
