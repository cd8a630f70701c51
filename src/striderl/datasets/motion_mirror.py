"""The usual fields of a legged robot's motion, and what each becomes in a mirror that swaps left and right.

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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from striderl.datasets.motion_clip import ClipError, ClipField

JointMirror = Mapping[str, tuple[str, float]]
"""Joint -> (the joint it trades places with, +1 or -1); declared, because no name says which way an axis points."""

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
