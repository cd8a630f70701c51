"""`AMPLoader`: windows of motion clips for a discriminator, drawn by numbers that are handed in.

    number in [0, 1)   0 ───────────── trot ─────────────┬───────── pace ────────┬── trot, mirrored … 1
                                  ▲                        a clip's share is its part of all weights
                                  └─ how far inside: the time at which the window begins, uniform over the clip

    clip       ●────●────●────●────●────●            frames of the clip, one frame_duration apart
    window          │  t     t+dt  │                 num_frames of them, time_between_frames apart (the env's step)
    row        [ fields at t | fields at t + dt ]    [B, num_frames · fields]

A window never reaches across the end of a clip, unless the clip wraps. Everything is one table on the device; a draw is
a few tensor operations without a host value. With `num_preload_transitions` the windows are made beforehand.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.datasets.motion_clip import ClipError, MotionClip
from striderl.datasets.motion_clip_file import load_clip
from striderl.datasets.motion_derivation import with_fields
from striderl.datasets.motion_table import clip_table
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
    """Decides what `sample` and `feed_forward_generator` give; `draw` is handed its numbers."""

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

    def frame_at(self, motion: int, time: float) -> dict[str, Tensor]:
        """Return the fields of one clip at a time, [size] each: to place a robot in the middle of a motion."""
        found = self.clips[motion].at(time)
        return {name: torch.from_numpy(value[0]).float().to(self.device) for name, value in found.items()}

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
        """Go on where another loader of the same clips and settings stood."""
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
