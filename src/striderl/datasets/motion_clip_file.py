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

A reader refuses a version it does not know; what a key means never changes within one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from striderl.checkpoint.errors import CheckpointCorrupt
from striderl.checkpoint.strict_json import decode, encode
from striderl.datasets.motion_arrays import read_arrays, write_arrays
from striderl.datasets.motion_clip import ClipError, ClipField, MotionClip

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
