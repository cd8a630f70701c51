"""`MotionClip`: a motion as named fields over equally spaced frames, with what is needed to interpolate and mirror it.

    time      0      dt      2 dt           (T - 1) dt = duration
    frames    ●──────●──────●── … ──────────●
    values    {"joint_pos": [T, 12], "root_rot": [T, 4], …}          w x y z, in the order of `fields`

    loop 'clamp'   the motion ends with its last frame
    loop 'wrap'    the last frame is the first one of the next round; only a 'position' has moved on by then

kind         between frames                         mirror table: entry i of the mirrored field
linear       straight line                          is sign[i] · x[index[i]]
position     straight line; goes on when wrapped
direction    straight line, brought to length 1
quaternion   along the shorter arc (slerp)

The usual fields of a legged robot's motion, and what each becomes in a mirror that swaps left and right.

field               size   kind         in the mirror
root_pos            3      position     y changes sign                              world
root_rot            4      quaternion   x and z change sign                         w x y z
base_height         1      linear       stays
base_lin_vel        3      linear       y changes sign                              robot's frame
base_ang_vel        3      linear       x and z change sign                         robot's frame
projected_gravity   3      direction    y changes sign                              robot's frame
joint_pos           J      linear       as `JointMirror` declares
joint_vel           J      linear       the same
feet, feet_vel      3 F    linear       left and right swap, y changes sign         robot's frame
foot_contacts       F      linear       left and right swap

Between two frames: straight lines, directions and rotations; and the few functions of quaternions that clips need.

Quaternions are w x y z. q and -q are the same rotation, so the one on the near side is gone to: never the long way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.data.naming import unknown

Floats = NDArray[Any]
LOOPS = ("clamp", "wrap")
PARTS = ("", "joints", "feet")


class ClipError(ValueError):
    """A motion is not what a clip must be; the message names the clip and field, what was wanted and what was found."""


@dataclass(frozen=True, kw_only=True)
class ClipField:
    """What one field of a clip is."""

    size: int
    """Numbers per frame."""
    kind: str = "linear"
    """'linear', 'position', 'direction' or 'quaternion' (w x y z); see the picture above."""
    of: str = ""
    """'joints' or 'feet' when the numbers belong to them in their order, as many to each; else empty."""
    mirror_index: tuple[int, ...] = ()
    """Where each entry of the mirrored field comes from; empty when the field cannot be mirrored."""
    mirror_sign: tuple[float, ...] = ()
    """+1 or -1 for each entry."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ClipError(unknown("kind", self.kind, KINDS, where="ClipField"))
        if self.of not in PARTS:
            raise ClipError(f"ClipField.of is 'joints', 'feet' or empty, found {self.of!r}")
        if self.size < 1 or (self.kind == "quaternion" and self.size != 4):
            raise ClipError(f"a field of kind {self.kind!r} cannot have {self.size} numbers")
        index, sign = self.mirror_index, self.mirror_sign
        if not index and not sign:
            return
        if sorted(index) != list(range(self.size)) or len(sign) != self.size or {abs(each) for each in sign} != {1.0}:
            raise ClipError(f"a mirror of {self.size} numbers names each once with +1 or -1, found {index} and {sign}")
        if any(index[source] != place or sign[source] != sign[place] for place, source in enumerate(index)):
            raise ClipError(f"mirrored twice, a field must come back; index {index} with signs {sign} does not")


@dataclass(frozen=True, kw_only=True, eq=False)
class MotionClip:
    """A motion; see the picture at the top of this module. Arrays are checked, and must not be written to."""

    name: str
    """What it is called in messages."""
    frame_duration: float
    """Seconds from one frame to the next."""
    fields: Mapping[str, ClipField]
    """What there is, in order."""
    values: Mapping[str, Floats]
    """float32 or float64 [T, size] for each field."""
    weight: float = 1.0
    """How often it is drawn, compared with other clips."""
    loop: str = "clamp"
    """'clamp' or 'wrap'."""
    joint_names: tuple[str, ...] = ()
    """The order of fields of the joints."""
    foot_names: tuple[str, ...] = ()
    """The order of fields of the feet."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Plain data about its origin."""

    def __post_init__(self) -> None:
        self._check_settings()
        if set(self.fields) != set(self.values):
            raise self._error(f"has fields {list(self.fields)} but values of {list(self.values)}")
        if not self.fields:
            raise self._error("has no fields")
        object.__setattr__(self, "fields", dict(self.fields))
        values = {name: self._checked(name, self.values[name]) for name in self.fields}
        object.__setattr__(self, "values", values)
        lengths = {len(value) for value in values.values()}
        if len(lengths) != 1 or min(lengths) < 2:
            found = {name: len(value) for name, value in values.items()}
            raise self._error(f"wants the same number of frames in each field, at least 2, found {found}")
        if self.loop == "wrap":
            self._check_closed()

    # -- sizes ---------------------------------------------------------------------------------------------------------

    @property
    def num_frames(self) -> int:
        """How many frames there are."""
        return len(next(iter(self.values.values())))

    @property
    def duration(self) -> float:
        """Seconds from the first frame to the last, which is the period where it wraps."""
        return (self.num_frames - 1) * self.frame_duration

    @property
    def times(self) -> Floats:
        """The time of each frame, [T]."""
        return np.arange(self.num_frames) * self.frame_duration

    # -- reading -------------------------------------------------------------------------------------------------------

    def at(self, times: Floats | Sequence[float] | float) -> dict[str, Floats]:
        """Return every field at these times [n], each [n, size]; a clip that does not wrap holds its ends."""
        place = np.atleast_1d(np.asarray(times, np.float64)) / self.frame_duration
        last = self.num_frames - 1
        rounds = np.floor(place / last) if self.loop == "wrap" else np.zeros_like(place)
        place = np.clip(place - rounds * last, 0.0, last)
        lower = np.minimum(place.astype(np.int64), last - 1)
        found: dict[str, Floats] = {}
        for name, kind in self.fields.items():
            value = self.values[name].astype(np.float64)
            ends = torch.from_numpy(value[lower]), torch.from_numpy(value[lower + 1])
            found[name] = interpolate(kind.kind, *ends, torch.from_numpy((place - lower)[:, None])).numpy()
            if kind.kind == "position":
                found[name] = found[name] + rounds[:, None] * (value[-1] - value[0])
        return found

    def require(self, names: Sequence[str]) -> None:
        """Raise ClipError unless it has these fields."""
        for name in names:
            if name not in self.fields:
                raise ClipError(unknown("field", name, self.fields, where=f"the clip {self.name!r}"))

    # -- other clips made of this one ----------------------------------------------------------------------------------

    def select(self, names: Sequence[str]) -> MotionClip:
        """Return a clip with these fields, in this order."""
        self.require(names)
        return replace(
            self,
            fields={name: self.fields[name] for name in names},
            values={name: self.values[name] for name in names},
        )

    def mirrored(self) -> MotionClip:
        """Return the motion as seen in a mirror: what left did, right does."""
        missing = [name for name, kind in self.fields.items() if not kind.mirror_index]
        if missing:
            raise self._error(f"cannot be mirrored: the fields {missing} have no mirror table")
        values = {
            name: self.values[name][:, list(kind.mirror_index)] * np.asarray(kind.mirror_sign, self.values[name].dtype)
            for name, kind in self.fields.items()
        }
        return replace(self, name=f"{self.name} (mirrored)", values=values)

    def ordered(self, joint_names: Sequence[str] = (), foot_names: Sequence[str] = ()) -> MotionClip:
        """Return the same motion with joints and feet in another order; an empty one means as it is."""
        columns = {
            "joints": self._order("joint", self.joint_names, joint_names or self.joint_names),
            "feet": self._order("foot", self.foot_names, foot_names or self.foot_names),
        }
        fields, values = dict(self.fields), dict(self.values)
        for name, kind in self.fields.items():
            if kind.of and columns[kind.of]:
                each = kind.size // len(columns[kind.of])
                column = [each * source + offset for source in columns[kind.of] for offset in range(each)]
                fields[name], values[name] = _permuted(kind, column), self.values[name][:, column]
        return replace(
            self,
            fields=fields,
            values=values,
            joint_names=tuple(joint_names) or self.joint_names,
            foot_names=tuple(foot_names) or self.foot_names,
        )

    # -- checks --------------------------------------------------------------------------------------------------------

    def _error(self, text: str) -> ClipError:
        return ClipError(f"the clip {self.name!r} {text}")

    def _check_settings(self) -> None:
        if not (math.isfinite(self.frame_duration) and self.frame_duration > 0.0):
            raise self._error(f"wants a positive frame duration, found {self.frame_duration}")
        if not (math.isfinite(self.weight) and self.weight >= 0.0):
            raise self._error(f"wants a weight that is not negative, found {self.weight}")
        if self.loop not in LOOPS:
            raise ClipError(unknown("loop", self.loop, LOOPS, where=f"the clip {self.name!r}"))
        for names in (self.joint_names, self.foot_names):
            if len(set(names)) != len(names):
                raise self._error(f"names a joint or foot twice: {list(names)}")
        count = {"joints": len(self.joint_names), "feet": len(self.foot_names)}
        for name, kind in self.fields.items():
            if kind.of and count[kind.of] and kind.size % count[kind.of]:
                raise self._error(f"has {kind.size} numbers in {name!r} for {count[kind.of]} {kind.of}")

    def _checked(self, name: str, value: Floats) -> Floats:
        kind = self.fields[name]
        value = np.asarray(value)
        if value.dtype not in (np.float32, np.float64):
            raise self._error(f"wants float32 or float64 in {name!r}, found {value.dtype}")
        if value.ndim != 2 or value.shape[1] != kind.size:
            raise self._error(f"wants [frames, {kind.size}] in {name!r}, found {list(value.shape)}")
        bad = np.flatnonzero(~np.isfinite(value).all(axis=1))
        if len(bad):
            raise self._error(f"has numbers in {name!r} that are not finite, first in frame {bad[0]}")
        if kind.kind not in UNIT_KINDS:
            return value
        length = np.sqrt(np.square(value.astype(np.float64)).sum(axis=1, keepdims=True))
        off = np.abs(length[:, 0] - 1.0)
        if len(off) and off.max() > 0.1:
            worst = int(off.argmax())
            raise self._error(
                f"wants length 1 in {name!r}, a {kind.kind}; frame {worst} has {length[worst, 0]:.3g}. "
                "Is the order of the columns right?"
            )
        # what is as good as its dtype allows stays as it is, so that files come back bit for bit
        return np.where(np.abs(length - 1.0) > 1e-6, value / length, value).astype(value.dtype)

    def _check_closed(self) -> None:
        for name, kind in self.fields.items():
            if kind.kind == "position":
                continue
            value = self.values[name].astype(np.float64)
            last = value[-1] if kind.kind != "quaternion" or value[0] @ value[-1] >= 0.0 else -value[-1]
            gap = np.abs(last - value[0])
            allowed = 0.05 * np.ptp(value, axis=0) + 1e-3
            if (gap > allowed).any():
                raise self._error(
                    f"wraps, so its last frame is the first of the next round, but {name!r} differs by {gap.max():.3g} "
                    "between the two; append the first frame, or set loop to 'clamp'"
                )

    def _order(self, what: str, have: Sequence[str], want: Sequence[str]) -> list[int]:
        if sorted(have) != sorted(want):
            raise self._error(f"has {what} names {list(have)}, wanted {list(want)}")
        return [list(have).index(name) for name in want]


def _permuted(kind: ClipField, column: Sequence[int]) -> ClipField:
    """Return the field with entry i taken from column[i]; its mirror table follows."""
    if not kind.mirror_index:
        return kind
    back = {source: place for place, source in enumerate(column)}
    return replace(
        kind,
        mirror_index=tuple(back[kind.mirror_index[source]] for source in column),
        mirror_sign=tuple(kind.mirror_sign[source] for source in column),
    )


# -- usual fields, and the mirror --------------------------------------------------------------------------------------


JointMirror = Mapping[str, tuple[str, float]]
"""Joint -> (the joint it trades places with, +1 or -1); declared: a name does not give an axis's direction."""

_FIXED: dict[str, tuple[str, tuple[float, ...]]] = {
    "root_pos": ("position", (1.0, -1.0, 1.0)),
    "root_rot": ("quaternion", (1.0, -1.0, 1.0, -1.0)),
    "base_height": ("linear", (1.0,)),
    "base_lin_vel": ("linear", (1.0, -1.0, 1.0)),
    "base_ang_vel": ("linear", (-1.0, 1.0, -1.0)),
    "projected_gravity": ("direction", (1.0, -1.0, 1.0)),
}
_OF_FEET = {"feet": 3, "feet_vel": 3, "foot_contacts": 1}
_OF_JOINTS = ("joint_pos", "joint_vel")
STANDARD_FIELDS = (*_FIXED, *_OF_JOINTS, *_OF_FEET)
"""Every name in the table above."""

_SIDES = {"FL": "FR", "RL": "RR", "HL": "HR", "left": "right", "Left": "Right", "L": "R", "l": "r"}


def standard_fields(
    names: Sequence[str], *, joint_names: Sequence[str], foot_names: Sequence[str], mirror: JointMirror | None = None
) -> dict[str, ClipField]:
    """Describe usual fields; without a declared `mirror` those of the joints and feet cannot be mirrored."""
    found: dict[str, ClipField] = {}
    for name in names:
        if name in _FIXED:
            kind, sign = _FIXED[name]
            found[name] = ClipField(size=len(sign), kind=kind, mirror_index=tuple(range(len(sign))), mirror_sign=sign)
        elif name in _OF_JOINTS:
            index, signs = _joint_table(joint_names, mirror) if mirror else ((), ())
            found[name] = ClipField(size=len(joint_names), of="joints", mirror_index=index, mirror_sign=signs)
        elif name in _OF_FEET:
            index, signs = _foot_table(foot_names, _OF_FEET[name]) if mirror else ((), ())
            size = len(foot_names) * _OF_FEET[name]
            found[name] = ClipField(size=size, of="feet", mirror_index=index, mirror_sign=signs)
        else:
            raise ClipError(f"{name!r} is not a usual field; describe it with a ClipField. Usual: {STANDARD_FIELDS}")
    return found


def left_right(joint_names: Sequence[str], flipped: Sequence[str] = ("hip",)) -> dict[str, tuple[str, float]]:
    """Declare the mirror of joints by their names: sides swap, and joints with a word of `flipped` change sign.

    A side is the first of FL/FR, RL/RR, HL/HR, left/right, L/R among the words of a name; a joint without one is its
    own. Abduction about an axis that points ahead changes sign; look at the robot's model before trusting this.
    """
    return {name: (other_side(name), -1.0 if any(word in name for word in flipped) else 1.0) for name in joint_names}


def other_side(name: str) -> str:
    """Return the name of the same part on the other side."""
    both = {**_SIDES, **{right: left for left, right in _SIDES.items()}}
    words = name.split("_")
    for place, word in enumerate(words):
        if word in both:
            return "_".join([*words[:place], both[word], *words[place + 1 :]])
    return name


def _joint_table(names: Sequence[str], mirror: JointMirror) -> tuple[tuple[int, ...], tuple[float, ...]]:
    for name in names:
        if name not in mirror or mirror[name][0] not in names:
            raise ClipError(f"the mirror map has no place for the joint {name!r}, or sends it to one that is not there")
    return tuple(list(names).index(mirror[name][0]) for name in names), tuple(mirror[name][1] for name in names)


def _foot_table(names: Sequence[str], each: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    for name in names:
        if other_side(name) not in names:
            raise ClipError(f"the foot {name!r} has no other side among {list(names)}")
    places = [list(names).index(other_side(name)) for name in names]
    sign = (1.0, -1.0, 1.0) if each == 3 else (1.0,)
    return tuple(each * place + offset for place in places for offset in range(each)), sign * len(names)


# -- between frames ----------------------------------------------------------------------------------------------------


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
