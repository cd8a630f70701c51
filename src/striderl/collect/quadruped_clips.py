"""Clips of the built-in quadruped: the procedural trot, for one velocity or for all that are asked for.

loader = AMPLoader([trot_clip()], quadruped_loader_config(env.step_dt))
loader = AMPLoader(trot_clips(env.config.commands), quadruped_loader_config(env.step_dt))
clips  = record_motion(env, actor, 500, quadruped_recorder_config())
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from striderl.collect.motion_recorder import MotionRecorderConfig
from striderl.datasets.motion.amp_loader import AMPLoaderConfig
from striderl.datasets.motion.clip import ClipField, MotionClip, standard_fields
from striderl.envs.quadruped.base import MOTION_SPEC
from striderl.envs.quadruped.commands import CommandConfig
from striderl.envs.quadruped.robot import FOOT_NAMES, JOINT_NAMES
from striderl.envs.quadruped.trot import JOINT_MIRROR, TrotConfig, trot


def quadruped_fields(names: Sequence[str] = MOTION_SPEC.names) -> dict[str, ClipField]:
    """Describe fields of the quadruped's motion, with their mirror images; those of its observation unless named."""
    return standard_fields(names, joint_names=JOINT_NAMES, foot_names=FOOT_NAMES, mirror=JOINT_MIRROR)


def trot_clip(config: TrotConfig | None = None, *, name: str = "trot", weight: float = 1.0) -> MotionClip:
    """Make the procedural trot as a clip; one that does not turn wraps."""
    config = config or TrotConfig()
    motion = trot(config)
    settings: dict[str, Any] = {key: value for key, value in asdict(config).items() if key != "robot"}
    return MotionClip(
        name=name,
        frame_duration=motion.frame_duration,
        fields=quadruped_fields(tuple(motion.values)),
        values=motion.values,
        weight=weight,
        loop="wrap" if motion.closed else "clamp",
        joint_names=JOINT_NAMES,
        foot_names=FOOT_NAMES,
        about={"made_by": "striderl trot", **settings},
    )


def trot_clips(
    commands: CommandConfig | None = None, count: int = 32, config: TrotConfig | None = None
) -> list[MotionClip]:
    """Make trots whose velocities fill the ranges of the commands evenly, so that style and task do not contradict.

    A discriminator sees how fast a robot is; with one clip, every other velocity that is asked for would look wrong.
    """
    commands = commands or CommandConfig()
    ranges = np.array([commands.forward, commands.sideways, commands.turning])
    # Halton's points fill a cube more evenly than random ones
    points = np.array([[_reversed_digits(place, base) for base in (2, 3, 5)] for place in range(1, count + 1)])
    found = []
    for forward, sideways, turning in ranges[:, 0] + points * (ranges[:, 1] - ranges[:, 0]):
        one = replace(config or TrotConfig(), forward=float(forward), sideways=float(sideways), turning=float(turning))
        found.append(trot_clip(one, name=f"trot {forward:.2f} {sideways:.2f} {turning:.2f}"))
    return found


def _reversed_digits(number: int, base: int) -> float:
    """Return 0.cba for the number abc in a base, between 0 and 1."""
    result, share = 0.0, 1.0 / base
    while number:
        number, digit = divmod(number, base)
        result, share = result + digit * share, share / base
    return result


def quadruped_loader_config(
    step_dt: float,
    *,
    fields: Sequence[str] = MOTION_SPEC.names,
    mirror: bool = True,
    num_preload_transitions: int = 0,
    seed: int = 0,
) -> AMPLoaderConfig:
    """Return settings whose windows are two frames of the env's component 'motion', side by side.

    fields: the env's `motion_fields`.
    """
    return AMPLoaderConfig(
        time_between_frames=step_dt,
        fields=tuple(fields),
        mirror=mirror,
        joint_names=JOINT_NAMES,
        foot_names=FOOT_NAMES,
        num_preload_transitions=num_preload_transitions,
        seed=seed,
    )


def quadruped_recorder_config(
    *,
    fields: Sequence[str] = MOTION_SPEC.names,
    skip_seconds: float = 1.0,
    min_seconds: float = 2.0,
    seed: int = 0,
) -> MotionRecorderConfig:
    """Return settings that record the motion observation, of the env's `motion_fields`, and the feet's contacts."""
    return MotionRecorderConfig(
        fields=quadruped_fields(fields),
        also=quadruped_fields(["foot_contacts"]),
        joint_names=JOINT_NAMES,
        foot_names=FOOT_NAMES,
        skip_seconds=skip_seconds,
        min_seconds=min_seconds,
        seed=seed,
    )
