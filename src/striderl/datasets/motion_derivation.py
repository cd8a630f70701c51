"""Fields that follow from others: heights, gravity and velocities, by differences between neighbouring frames.

    root_pos ──▶ base_height                      joint_pos ──▶ joint_vel
    root_rot ──▶ projected_gravity                feet      ──▶ feet_vel
    root_rot ──▶ base_ang_vel
    root_pos, root_rot ──▶ base_lin_vel

A velocity at a frame is the difference of its two neighbours; at the ends of a clip that does not wrap, of the two
nearest frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from striderl.datasets.motion_clip import ClipError, MotionClip
from striderl.datasets.motion_interpolation import rotate_inverse, turning_between
from striderl.datasets.motion_mirror import JointMirror, standard_fields

Floats = NDArray[Any]


def with_fields(clip: MotionClip, names: Sequence[str], *, mirror: JointMirror | None = None) -> MotionClip:
    """Return the clip with exactly these fields, in this order, making those it lacks where they follow from others.

    What is made can be mirrored if the clip's joints can, or if `mirror` says how.
    """
    fields, values = dict(clip.fields), dict(clip.values)
    for name in names:
        if name not in fields:
            if name not in _RULES:
                clip.require([name])
            sources, rule = _RULES[name]
            if any(source not in clip.fields for source in sources):
                raise ClipError(
                    f"the clip {clip.name!r} has no {name!r}, and lacks one of {list(sources)} to make it of"
                )
            made = rule(clip, *[clip.values[source].astype(np.float64) for source in sources])
            values[name] = made.astype(clip.values[sources[-1]].dtype)
            kind = standard_fields([name], joint_names=clip.joint_names, foot_names=clip.foot_names, mirror=mirror)[
                name
            ]
            if kind.of and not mirror:  # a velocity is mirrored like what it is the velocity of
                like = fields[sources[0]]
                kind = replace(kind, mirror_index=like.mirror_index, mirror_sign=like.mirror_sign)
            fields[name] = kind
    return replace(clip, fields=fields, values=values).select(names)


def rate(clip: MotionClip, value: Floats, difference: Callable[[Floats, Floats], Floats] | None = None) -> Floats:
    """Return the rate of change of [T, …] per second; `difference(earlier, later)` is subtraction unless given."""
    between = difference or (lambda earlier, later: later - earlier)
    steps = between(value[:-1], value[1:]) / clip.frame_duration
    if clip.loop == "wrap":
        before, after = np.concatenate([steps[-1:], steps]), np.concatenate([steps, steps[:1]])
    else:
        before, after = np.concatenate([steps[:1], steps]), np.concatenate([steps, steps[-1:]])
    return np.asarray(0.5 * (before + after))


def gravity_of(quaternion: Floats) -> Floats:
    """Return which way is down in frames turned by quaternions [T, 4]."""
    return rotate_inverse(quaternion, np.broadcast_to([0.0, 0.0, -1.0], (len(quaternion), 3)))


_Rule = Callable[..., Floats]
_RULES: dict[str, tuple[tuple[str, ...], _Rule]] = {
    "base_height": (("root_pos",), lambda clip, position: position[:, 2:3]),
    "projected_gravity": (("root_rot",), lambda clip, rotation: gravity_of(rotation)),
    "base_ang_vel": (("root_rot",), lambda clip, rotation: rate(clip, rotation, turning_between)),
    "base_lin_vel": (
        ("root_pos", "root_rot"),
        lambda clip, position, rotation: rotate_inverse(rotation, rate(clip, position)),
    ),
    "joint_vel": (("joint_pos",), rate),
    "feet_vel": (("feet",), rate),
}
"""Field -> (what it is made of, how)."""
