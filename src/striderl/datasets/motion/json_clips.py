"""The JSON clips of legged robots (motion_imitation, AMP_for_hardware): read and written.

    {"LoopMode": "Wrap", "FrameDuration": 0.021, "MotionWeight": 0.5, "Frames": [[…], …]}

    columns of a frame, for J joints and F feet (12 and 4: 19 or 61 numbers)
      0:3        root position, world                      pose only: these three, 7 + J numbers
      3:7        root rotation, x y z w
      7:7+J      joint positions
      … + 3F     feet, robot's frame                       whole: 13 + 2 J + 6 F numbers
      … + 3      root linear velocity, robot's frame
      … + 3      root angular velocity, robot's frame
      … + J      joint velocities
      … + 3F     feet velocities, robot's frame

The files do not name their joints. Those of AMP_for_hardware have the legs FR FL RR RL, which is the default here;
`MotionClip.ordered` brings them into the order of a robot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from striderl.checkpoint.errors import MAX_JSON_BYTES, FileRefused
from striderl.checkpoint.safe_files import decode_json, read_bytes, replacing
from striderl.data.naming import unknown
from striderl.datasets.motion.clip import ClipError, JointMirror, MotionClip, standard_fields
from striderl.datasets.motion.clip_files import require_folder

_LEGS = ("FR", "FL", "RR", "RL")
QUATERNIONS = ("xyzw", "wxyz")
LOOP_WORDS = {"Wrap": "wrap", "Clamp": "clamp"}
"""LoopMode in the files, and here."""


@dataclass(frozen=True, kw_only=True)
class JsonLayout:
    """What the numbers of a frame are; the defaults are those of AMP_for_hardware."""

    joint_names: tuple[str, ...] = tuple(f"{leg}_{part}_joint" for leg in _LEGS for part in ("hip", "thigh", "calf"))
    """The joints in the order of the file."""
    foot_names: tuple[str, ...] = tuple(f"{leg}_foot" for leg in _LEGS)
    """The feet in the order of the file."""
    quaternion: str = "xyzw"
    """How the root rotation is written: 'xyzw' or 'wxyz'."""
    mirror: JointMirror | None = None
    """What the joints become in a mirror; `left_right(joint_names)` for robots named like these. None: no mirroring."""

    def __post_init__(self) -> None:
        if self.quaternion not in QUATERNIONS:
            raise ClipError(unknown("quaternion", self.quaternion, QUATERNIONS, where="JsonLayout"))

    def columns(self, width: int) -> dict[str, slice]:
        """Return where each field lies in frames of this width; one that fits neither layout raises ClipError."""
        joints, feet = len(self.joint_names), 3 * len(self.foot_names)
        sizes = {"root_pos": 3, "root_rot": 4, "joint_pos": joints}
        whole = {**sizes, "feet": feet, "base_lin_vel": 3, "base_ang_vel": 3, "joint_vel": joints, "feet_vel": feet}
        if width == sum(whole.values()):
            sizes = whole
        elif width != sum(sizes.values()):
            raise ClipError(
                f"its frames have {width} numbers; {joints} joints and {feet // 3} feet make "
                f"{sum(sizes.values())} (pose) or {sum(whole.values())} (with velocities)"
            )
        ends = np.cumsum(list(sizes.values()))
        return {name: slice(int(end) - size, int(end)) for (name, size), end in zip(sizes.items(), ends, strict=True)}


def import_json_clip(
    path: str | Path, layout: JsonLayout | None = None, *, loop: str = "clamp", name: str = ""
) -> MotionClip:
    """Read a JSON clip; hostile or broken files raise ClipError with what is wrong.

    `loop` is 'clamp', 'wrap', or 'file' for the file's own: most with Wrap do not close, because their loaders
    never play across the end, so 'clamp' is what they are usually read as.
    """
    layout, path = layout or JsonLayout(), Path(path)
    try:
        content = _content(path)
        frames = _frames(content.get("Frames"))
        values = {field: frames[:, place] for field, place in layout.columns(frames.shape[1]).items()}
        if layout.quaternion == "xyzw":
            values["root_rot"] = np.roll(values["root_rot"], 1, axis=1)
        return MotionClip(
            name=name or path.stem,
            frame_duration=_number(content, "FrameDuration", None),
            fields=standard_fields(
                list(values), joint_names=layout.joint_names, foot_names=layout.foot_names, mirror=layout.mirror
            ),
            values=values,
            weight=_number(content, "MotionWeight", 1.0),
            loop=_loop(content) if loop == "file" else loop,
            joint_names=layout.joint_names,
            foot_names=layout.foot_names,
            about={"imported_from": path.name},
        )
    except ClipError as error:
        raise ClipError(f"cannot import {str(path)!r}: {error}") from None


def export_json_clip(path: str | Path, clip: MotionClip, *, quaternion: str = "xyzw") -> Path:
    """Write a clip with root_pos, root_rot and joint_pos as JSON, and with velocities if it has them all.

    Joints and feet are written in the clip's order; `clip.ordered(JsonLayout().joint_names, …)` makes it theirs.
    """
    layout = JsonLayout(joint_names=clip.joint_names, foot_names=clip.foot_names, quaternion=quaternion)
    whole = 13 + 2 * len(clip.joint_names) + 6 * len(clip.foot_names)
    names = list(layout.columns(whole))
    if any(name not in clip.fields for name in names):
        names = names[:3]
    clip.require(names)
    values = {name: clip.values[name] for name in names}
    if quaternion == "xyzw":
        values["root_rot"] = np.roll(values["root_rot"], -1, axis=1)
    content = {
        "LoopMode": {word: said for said, word in LOOP_WORDS.items()}[clip.loop],
        "FrameDuration": clip.frame_duration,
        "EnableCycleOffsetPosition": True,
        "EnableCycleOffsetRotation": False,
        "MotionWeight": clip.weight,
        "Frames": np.concatenate([values[name].astype(np.float64) for name in names], axis=1).tolist(),
    }
    path = Path(path)
    require_folder(path)
    with replacing(path, beginning=b"{") as file:
        file.write(json.dumps(content, allow_nan=False).encode())
    return path


def _content(path: Path) -> dict[str, Any]:
    try:
        text = read_bytes(path, max_bytes=MAX_JSON_BYTES)
        if text.startswith(b"PK"):
            raise ClipError("it is a .npz and not JSON; import_npz_clip reads those of others, load_clip ours")
        content = decode_json(text, path)
    except FileRefused as error:
        raise ClipError(error.reason) from None
    if not isinstance(content, dict):
        raise ClipError(f"it is a {type(content).__name__}, not a table with 'Frames' and 'FrameDuration'")
    return content


def _frames(frames: Any) -> NDArray[np.float64]:
    if not isinstance(frames, list) or not frames or not all(isinstance(frame, list) for frame in frames):
        raise ClipError("'Frames' is not a list of frames, each a list of numbers")
    widths = [len(frame) for frame in frames]
    for place, (frame, width) in enumerate(zip(frames, widths, strict=True)):
        if width != widths[0]:
            raise ClipError(f"frame {place} has {width} numbers, frame 0 has {widths[0]}")
        if any(type(number) not in (int, float) for number in frame):
            raise ClipError(f"frame {place} holds something that is not a number")
    try:
        return np.array(frames, np.float64)
    except OverflowError:
        raise ClipError("'Frames' holds a number that is too large") from None


def _number(content: Mapping[str, Any], key: str, default: float | None) -> float:
    value = content.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ClipError(f"{key!r} is not a number but {str(value)[:50]!r}")
    return float(value)


def _loop(content: Mapping[str, Any]) -> str:
    word = content.get("LoopMode", "Clamp")
    if word not in LOOP_WORDS:
        raise ClipError(unknown("LoopMode", str(word)[:50], LOOP_WORDS, where="the file"))
    return LOOP_WORDS[word]
