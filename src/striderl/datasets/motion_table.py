"""Clips as one table of frames on a device, and windows of them as a function of random numbers.

rows   │ clip 0: T0 frames │ clip 1: T1 frames │ …      float32 [R, F], fields side by side
first    0                   T0

number ──▶ clip (by share), time in [0, span) ──▶ frame positions [B, k] ──▶ two rows each ──▶ interpolate, per kind

span = duration - (k - 1) · dt, so that the last frame of a window is still inside; a clip that wraps has its period
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from striderl.datasets.motion_clip import ClipError, MotionClip
from striderl.datasets.motion_interpolation import UNIT_KINDS, interpolate


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
