"""`AMPLoader`: sample windows of motion clips for a discriminator, from uniform numbers that are passed in.

    number in [0, 1)   0 ───────────── trot ─────────────┬───────── pace ────────┬── trot, mirrored … 1
                                  ▲                        a clip's share is its part of all weights
                                  └─ how far inside: the time at which the window begins, uniform over the clip

    clip       ●────●────●────●────●────●            frames of the clip, one frame_duration apart
    window          │  t     t+dt  │                 num_frames of them, time_between_frames apart (the env's step)
    row        [ fields at t | fields at t + dt ]    [B, num_frames · fields]

A window never reaches across the end of a clip, unless the clip wraps. Everything is one table on the device; a draw is
a few tensor operations without a host value. With `num_preload_transitions` the windows are made beforehand.

Clips as one table of frames on a device, and windows of them as a function of random numbers.

rows   │ clip 0: T0 frames │ clip 1: T1 frames │ …      float32 [R, F], fields side by side
first    0                   T0

number ──▶ clip (by share), time in [0, span) ──▶ frame positions [B, k] ──▶ two rows each ──▶ interpolate, per kind

span = duration - (k - 1) · dt, so that the last frame of a window is still inside; a clip that wraps has its period

Fields that follow from others: heights, gravity and velocities, by differences between neighbouring frames.

    root_pos ──▶ base_height                      joint_pos ──▶ joint_vel
    root_rot ──▶ projected_gravity                feet      ──▶ feet_vel
    root_rot ──▶ base_ang_vel
    root_pos, root_rot ──▶ base_lin_vel

A velocity at a frame is the difference of its two neighbours; at the ends of a clip that does not wrap, of the two
nearest frames.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.datasets.motion.clip import (
    UNIT_KINDS,
    ClipError,
    JointMirror,
    MotionClip,
    interpolate,
    rotate_inverse,
    standard_fields,
    turning_between,
)
from striderl.datasets.motion.clip_files import load_clip
from striderl.storage.replay.samplers import Draws

_MOMENT_SAMPLES = 8192
"""Windows that mean and variance are taken over, evenly over everything that can be drawn."""
_STREAM = "motion clips"


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class AMPLoaderConfig:
    """How windows are made of clips."""

    time_between_frames: float
    """Seconds from one frame of a window to the next: the `step_dt` of the env that is compared."""
    fields: tuple[str, ...] = ()
    """Which fields a frame has, in order, as the env's motion observation has them; empty takes the first clip's."""
    num_frames: int = 2
    """Frames in a window; 2 are a transition."""
    mirror: bool = False
    """Draw each clip as it is and mirrored, as often each."""
    joint_names: tuple[str, ...] = ()
    """The robot's order of joints, to which clips are brought; empty takes the first clip's."""
    foot_names: tuple[str, ...] = ()
    """The robot's order of feet; empty takes the first clip's."""
    num_preload_transitions: int = 0
    """Make so many windows beforehand and draw from them; 0 interpolates in every draw."""
    seed: int = 0
    """Seed of `sample` and `feed_forward_generator`; `draw` takes its numbers as an argument."""

    def __post_init__(self) -> None:
        given: dict[str, Any] = {"fields": self.fields, "joint_names": self.joint_names, "foot_names": self.foot_names}
        for name, value in given.items():
            if isinstance(value, list):  # settings that come from JSON have lists
                object.__setattr__(self, name, tuple(value))
        check_field_types(self)
        if not self.time_between_frames > 0.0:
            raise ValueError(f"time_between_frames is positive, found {self.time_between_frames}")
        if self.num_frames < 1 or self.num_preload_transitions < 0 or self.seed < 0:
            raise ValueError("num_frames is at least 1, num_preload_transitions and seed are not negative")


class AMPLoader:
    """Windows of clips by weight and time; see the picture at the top of this module."""

    def __init__(
        self,
        motion_files: Sequence[MotionClip | str | Path],
        config: AMPLoaderConfig,
        device: torch.device | str = "cpu",
    ) -> None:
        """Take clips, or files that `save_clip` wrote; fields that a clip lacks are made where they can be."""
        if isinstance(motion_files, (str, Path)) or not motion_files:
            raise ClipError(f"AMPLoader wants a list of clips or files with at least one, found {motion_files!r}")
        given = [clip if isinstance(clip, MotionClip) else load_clip(clip) for clip in motion_files]
        self.config = config = _completed(config, given[0])
        clips = [_prepared(clip, config) for clip in given if clip.weight > 0.0]
        if not clips:
            raise ClipError(f"all clips have weight 0: {[clip.name for clip in given]}")
        if config.mirror:
            clips = [*clips, *(clip.mirrored() for clip in clips)]
        self.clips = tuple(clips)
        """What is drawn from, mirror images included, which weigh as much as what they mirror."""
        self._table = clip_table(clips, config.time_between_frames, config.num_frames).to(device)
        self._draws = Draws(_STREAM, seed=config.seed, device=device)
        self._draw_number = 0
        self.transitions: Tensor = self._windows(config.num_preload_transitions)
        """float32 [num_preload_transitions, F]: windows made beforehand, evenly over all that can be drawn."""
        wide = self._windows(_MOMENT_SAMPLES).double()
        self.mean: Tensor = wide.mean(dim=0)
        """float64 [F]: of a drawn window."""
        self.var: Tensor = wide.var(dim=0, correction=0)
        """float64 [F]: of a drawn window."""

    # -- sizes ---------------------------------------------------------------------------------------------------------

    @property
    def observation_dim(self) -> int:
        """How many numbers a frame has."""
        return self._table.rows.shape[1]

    @property
    def size(self) -> int:
        """How many numbers a window has, F = num_frames · observation_dim."""
        return self.config.num_frames * self.observation_dim

    @property
    def num_motions(self) -> int:
        """How many clips there are, mirror images included."""
        return len(self.clips)

    @property
    def device(self) -> torch.device:
        """Where windows are made."""
        return self._table.rows.device

    # -- drawing -------------------------------------------------------------------------------------------------------

    def draw(self, numbers: Tensor) -> Tensor:
        """Return windows float32 [B, F] for uniform numbers float64 [B] in [0, 1), on the loader's device."""
        count = len(self.transitions)
        if count:
            return self.transitions.index_select(0, (numbers * count).long().clamp(max=count - 1))
        return self._table.windows(numbers).flatten(1)

    def sample(self, num: int, generator: torch.Generator | None = None) -> Tensor:
        """Return windows [num, F]: by the generator if one is given, else the next of the loader's own stream."""
        if generator is not None:
            numbers = torch.rand(num, dtype=torch.float64, generator=generator, device=generator.device)
            return self.draw(numbers.to(self.device))
        numbers = self._draws.at(self._draw_number, num)
        self._draw_number += 1
        return self.draw(numbers)

    def feed_forward_generator(self, num_mini_batch: int, mini_batch_size: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield minibatches frame by frame: (states, next_states), [mini_batch_size, observation_dim] each."""
        for _ in range(num_mini_batch):
            yield torch.split(self.sample(mini_batch_size), self.observation_dim, dim=1)

    def _windows(self, count: int) -> Tensor:
        """Return `count` windows [count, F], spread evenly over everything that can be drawn."""
        even = (torch.arange(count, dtype=torch.float64, device=self.device) + 0.5) / max(count, 1)
        return self._table.windows(even).flatten(1)

    # -- moving and saving ---------------------------------------------------------------------------------------------

    def to(self, device: torch.device | str) -> AMPLoader:
        """Return the same loader, at the same place of its stream, on a device."""
        moved = copy.copy(self)
        moved._table = self._table.to(device)
        moved.transitions, moved.mean, moved.var = (each.to(device) for each in (self.transitions, self.mean, self.var))
        moved._draws = Draws(_STREAM, seed=self.config.seed, device=device)
        return moved

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream of `sample` is, and which clips and settings it belongs to."""
        return {"draw_number": self._draw_number, "clips": self.fingerprint()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of a loader with the same clips and settings."""
        if state["clips"] != self.fingerprint():
            raise ValueError(
                "the saved loader had other clips or other settings; "
                f"this one has {[clip.name for clip in self.clips]} with {self.config}"
            )
        self._draw_number = int(state["draw_number"])

    def fingerprint(self) -> str:
        """Return a text that differs for other clips or settings."""
        found = hashlib.sha256(repr(sorted(asdict(self.config).items())).encode())
        for part in (self._table.rows, self._table.first, self._table.rate, self._table.share, self._table.wraps):
            found.update(part.cpu().numpy().tobytes())
        return found.hexdigest()


def _completed(config: AMPLoaderConfig, clip: MotionClip) -> AMPLoaderConfig:
    """Fill in what is left to the first clip."""
    return replace(
        config,
        fields=config.fields or tuple(clip.fields),
        joint_names=config.joint_names or clip.joint_names,
        foot_names=config.foot_names or clip.foot_names,
    )


def _prepared(clip: MotionClip, config: AMPLoaderConfig) -> MotionClip:
    """Bring a clip to the wanted fields and orders."""
    clip = with_fields(clip, config.fields)
    uses = {kind.of for kind in clip.fields.values()}
    return clip.ordered(config.joint_names if "joints" in uses else (), config.foot_names if "feet" in uses else ())


# -- the table of frames -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class ClipTable:
    """The frames of C clips with the same fields, and when windows of them begin and end."""

    segments: tuple[tuple[str, int, int], ...]
    """(kind, first column, end): columns that are interpolated in one go; neighbours on straight lines are one."""
    rows: Tensor
    """float32 [R, F]: all frames."""
    first: Tensor
    """int64 [C]: the row of each clip's first frame."""
    last: Tensor
    """float64 [C]: number of frames less one."""
    rate: Tensor
    """float64 [C]: frames per second."""
    span: Tensor
    """float64 [C]: seconds over which windows begin."""
    begin: Tensor
    """float64 [C]: where each clip's numbers begin in [0, 1)."""
    share: Tensor
    """float64 [C]: how much of [0, 1) it has."""
    wraps: Tensor
    """bool [C]."""
    advance: Tensor
    """float32 [C, F]: how far positions move on in a round; 0 elsewhere."""
    offsets: Tensor
    """float64 [k]: seconds from the beginning of a window to each of its frames."""

    def windows(self, numbers: Tensor) -> Tensor:
        """Return windows float32 [B, k, F] for uniform numbers float64 [B] in [0, 1)."""
        clip = (torch.searchsorted(self.begin, numbers, right=True) - 1).clamp(min=0)
        inside = ((numbers - self.begin[clip]) / self.share[clip]).clamp(0.0, 1.0)
        return self.at(clip, inside * self.span[clip])

    def at(self, clip: Tensor, start: Tensor) -> Tensor:
        """Return the windows float32 [B, k, F] of clips [B] that begin at these seconds [B]."""
        place = (start.unsqueeze(1) + self.offsets) * self.rate[clip].unsqueeze(1)
        last = self.last[clip].unsqueeze(1)
        rounds = torch.where(self.wraps[clip].unsqueeze(1), (place / last).floor(), 0.0)
        # rounding may put the end of a window a hair behind the last frame
        place = torch.minimum((place - rounds * last).clamp(min=0.0), last)
        lower = torch.minimum(place.floor(), last - 1.0)
        fraction = (place - lower).unsqueeze(-1).to(self.rows.dtype)
        row = self.first[clip].unsqueeze(1) + lower.long()
        start_row, end_row = self.rows[row], self.rows[row + 1]
        parts = [
            interpolate(kind, start_row[..., low:high], end_row[..., low:high], fraction)
            for kind, low, high in self.segments
        ]
        return torch.cat(parts, dim=-1) + rounds.unsqueeze(-1).to(self.rows.dtype) * self.advance[clip].unsqueeze(1)

    def to(self, device: torch.device | str) -> ClipTable:
        """Return the same table on a device."""
        return replace(
            self,
            rows=self.rows.to(device),
            first=self.first.to(device),
            last=self.last.to(device),
            rate=self.rate.to(device),
            span=self.span.to(device),
            begin=self.begin.to(device),
            share=self.share.to(device),
            wraps=self.wraps.to(device),
            advance=self.advance.to(device),
            offsets=self.offsets.to(device),
        )


def clip_table(clips: Sequence[MotionClip], time_between_frames: float, num_frames: int) -> ClipTable:
    """Put clips with weight and the same fields into one table; one too short for a window raises ClipError."""
    widths = [kind.size for kind in clips[0].fields.values()]
    kinds = [kind.kind for kind in clips[0].fields.values()]
    for clip in clips:
        if [(name, kind.size) for name, kind in clip.fields.items()] != list(zip(clips[0].fields, widths, strict=True)):
            raise ClipError(f"the clips {clips[0].name!r} and {clip.name!r} have different fields")
    tables = [np.concatenate(list(clip.values.values()), axis=1).astype(np.float32) for clip in clips]
    weight = np.array([clip.weight for clip in clips])
    share = weight / weight.sum()
    is_position = np.repeat([kind == "position" for kind in kinds], widths)
    wraps = np.array([clip.loop == "wrap" for clip in clips])
    advance = np.stack([(table[-1] - table[0]) * is_position for table in tables]) * wraps[:, None]
    return ClipTable(
        segments=_segments(kinds, widths),
        rows=torch.from_numpy(np.concatenate(tables)),
        first=torch.from_numpy(np.cumsum([0, *[len(table) for table in tables[:-1]]])),
        last=torch.tensor([len(table) - 1.0 for table in tables], dtype=torch.float64),
        rate=torch.tensor([1.0 / clip.frame_duration for clip in clips], dtype=torch.float64),
        span=torch.tensor([_span(clip, (num_frames - 1) * time_between_frames) for clip in clips], dtype=torch.float64),
        begin=torch.from_numpy(np.concatenate([[0.0], np.cumsum(share)[:-1]])),
        share=torch.from_numpy(share),
        wraps=torch.from_numpy(wraps),
        advance=torch.from_numpy(advance.astype(np.float32)),
        offsets=torch.arange(num_frames, dtype=torch.float64) * time_between_frames,
    )


def _segments(kinds: Sequence[str], widths: Sequence[int]) -> tuple[tuple[str, int, int], ...]:
    found: list[tuple[str, int, int]] = []
    start = 0
    for kind, width in zip(kinds, widths, strict=True):
        kind = kind if kind in UNIT_KINDS else "linear"
        if found and kind == "linear" == found[-1][0]:
            found[-1] = (kind, found[-1][1], start + width)
        else:
            found.append((kind, start, start + width))
        start += width
    return tuple(found)


def _span(clip: MotionClip, length: float) -> float:
    if clip.loop == "wrap":
        return clip.duration
    if clip.duration < length * (1.0 - 1e-9):
        raise ClipError(f"the clip {clip.name!r} is {clip.duration:g} s long, too short for a window of {length:g} s")
    return max(clip.duration - length, 0.0)


# -- fields that follow from others ------------------------------------------------------------------------------------


Floats = NDArray[Any]


def with_fields(clip: MotionClip, names: Sequence[str], *, mirror: JointMirror | None = None) -> MotionClip:
    """Return the clip with exactly these fields, in this order, making those it lacks where they follow from others.

    Derived fields can be mirrored if the clip's joints can, or with `mirror`.
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
    """Return the gravity direction in frames turned by quaternions [T, 4]."""
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
