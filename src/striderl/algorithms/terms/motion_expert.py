"""The expert of a motion prior: who is to be imitated, and how samples of it come to the discriminator.

    Expert       draw(numbers [B]) ─▶ motions [B, F]        clips, tensors: everything that can be drawn from at will
    EnvExpert    info['ref_motion'] [N, F]                  the env plays the clip and tells one motion per step

A motion is a window of frames laid side by side, oldest first: [frame t-1 | frame t], so F = frames · fields, in the
raw units of the env's observation. Random numbers are handed in, so a draw is a function that can be captured and
repeated. Whatever has these four names is an `Expert`; it need not know this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from striderl.algorithms.terms.adversarial_expert import ExpertRows
from striderl.data.checked_fields import check_field_types
from striderl.data.specs import TensorSpec
from striderl.datasets.motion.amp_loader import AMPLoader, AMPLoaderConfig


@runtime_checkable
class Expert(Protocol):
    """Somebody whose motions can be drawn."""

    mean: Tensor
    """float64 [F]: of a drawn motion."""
    var: Tensor
    """float64 [F]: of a drawn motion."""

    @property
    def size(self) -> int:
        """How many numbers a motion has, F."""
        ...

    def draw(self, numbers: Tensor) -> Tensor:
        """Return raw motions float32 [B, F] for uniform numbers float64 [B] in [0, 1), on the device of `mean`."""
        ...

    def to(self, device: torch.device | str) -> Expert:
        """Return the same on a device."""
        ...


@dataclass(frozen=True, kw_only=True)
class EnvExpert:
    """The env shows the expert: in each step, one motion per env in an info column."""

    shape: tuple[int, ...]
    """Of the column for one env, [F] or [frames, fields]."""
    column: str = "ref_motion"
    """Its name in the env's `info_spec`."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.size < 1:
            raise ValueError(f"an expert's motions have at least one number, found shape {self.shape}")

    @property
    def size(self) -> int:
        """How many numbers a motion has."""
        return self.spec.size

    @property
    def spec(self) -> TensorSpec:
        """What the env must declare in `info_spec`."""
        return TensorSpec(shape=self.shape)

    def rows(self, info: Mapping[str, Tensor], lead: torch.Size) -> Tensor:
        """Return the motions [..., F] of info columns [..., *shape], in float32."""
        shown = info[self.column]
        if shown.shape[len(lead) :].numel() != self.size:
            raise ValueError(
                f"info column {self.column!r} has {list(shown.shape[len(lead) :])} numbers per step, wanted {self.size}"
            )
        return shown.reshape(*lead, self.size).float()


@dataclass(frozen=True, kw_only=True)
class ClipFiles:
    """Files of motion clips, as a config names them; called with a number of frames they are an expert."""

    files: tuple[str, ...]
    """Files that `striderl clips` or `save_clip` wrote."""
    fields: tuple[str, ...]
    """Which fields make a frame, in the env's order; empty takes the first clip's."""
    step_dt: float
    """Seconds from one frame to the next: the env's."""
    device: str = "cpu"
    """Where motions are drawn."""

    def __call__(self, num_frames: int) -> AMPLoader:
        """Load the clips as motions of so many frames."""
        config = AMPLoaderConfig(time_between_frames=self.step_dt, fields=self.fields, num_frames=num_frames)
        return AMPLoader(self.files, config, self.device)


def as_expert(given: Any) -> Expert | EnvExpert:
    """Take an expert, such as a loader of clips, or a tensor [M, F] of motions."""
    if isinstance(given, (Expert, EnvExpert)):
        return given
    if isinstance(given, Tensor):
        return ExpertRows(given)
    raise TypeError(
        "wanted an expert with size, mean, var, draw and to, such as AMPLoader; a tensor [M, F] of motions; or an "
        f"EnvExpert; found {type(given).__name__}"
    )
