"""The expert of an adversarial reward: the data to imitate, and how it is sampled.

    Expert       draw(numbers [B]) ─▶ motions [B, F]        clips, tensors: everything that can be sampled freely
    ExpertRows   the same, of rows of features that are in memory
    EnvExpert    info['ref_motion'] [N, F]                  the env runs the clip and gives one motion per step

A motion is a window of frames laid side by side, oldest first: [frame t-1 | frame t], so F = frames · fields, in the
raw units of the env's observation. Random numbers are passed in, so a draw is a function that can be captured and
repeated. Any object with these four attributes is an `Expert`; it need not import this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from striderl.algorithms.terms.discriminator import Features, Steps, minibatch_steps
from striderl.data import tree
from striderl.data.checked_fields import check_field_types
from striderl.data.noise import philox, positions
from striderl.data.specs import TensorSpec
from striderl.datasets.motion.amp_loader import AMPLoader, AMPLoaderConfig
from striderl.storage.replay.replay import Replay


@runtime_checkable
class Expert(Protocol):
    """A source of motions to sample from."""

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
    """The env provides the expert: in each step, one motion per env in an info column."""

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
    """Return an expert, such as a loader of clips, as it is, and a tensor [M, F] of motions as one."""
    if isinstance(given, (Expert, EnvExpert)):
        return given
    if isinstance(given, Tensor):
        return ExpertRows(given)
    raise TypeError(
        "wanted an expert with size, mean, var, draw and to, such as AMPLoader; a tensor [M, F] of motions; or an "
        f"EnvExpert; found {type(given).__name__}"
    )


# -- rows of features --------------------------------------------------------------------------------------------------


class ExpertRows:
    """Features of expert steps [M, F], each drawn in proportion to its weight; not saved."""

    def __init__(self, features: Tensor, weight: Tensor | None = None, *, num_ends: int = 0) -> None:
        """Store raw features, weights [M] (equal when None), and how many of these steps ended the task."""
        if features.dim() != 2 or not len(features):
            raise ValueError(f"expert features are [M, F] with at least one row, found {list(features.shape)}")
        if not bool(features.isfinite().all()):
            raise ValueError("expert features are not finite")
        self.features = features.float()
        weight = torch.ones(len(features)) if weight is None else weight
        weight = weight.to(self.features.device, torch.float64)
        if weight.shape != (len(features),) or bool((weight < 0.0).any()) or not float(weight.sum()) > 0.0:
            raise ValueError(f"expert weights are one per row, not negative and not all 0, found {list(weight.shape)}")
        self.weight, self.num_ends = weight, num_ends
        share = weight / weight.sum()
        self._ends = share.cumsum(0)
        wide = self.features.double()
        self.mean = (share.unsqueeze(1) * wide).sum(0)
        """float64 [F]: of a drawn row."""
        self.var = (share.unsqueeze(1) * (wide - self.mean).square()).sum(0)
        """float64 [F]: of a drawn row."""

    @property
    def size(self) -> int:
        """How many features a row has."""
        return self.features.shape[1]

    def draw(self, numbers: Tensor) -> Tensor:
        """Return rows [B, F] for uniform numbers [B] in [0, 1), float64."""
        index = torch.searchsorted(self._ends, numbers, right=True).clamp(max=len(self.features) - 1)
        return self.features.index_select(0, index)

    def to(self, device: torch.device | str) -> ExpertRows:
        """Return the same rows on a device."""
        return ExpertRows(self.features.to(device), self.weight, num_ends=self.num_ends)


def expert_rows(replay: Replay, features: Features) -> ExpertRows:
    """Make expert rows of all valid steps of a dataset."""
    every = replay.read.chronological()
    rows = replay.read.rows(every.index_select(0, replay.read.valid(every).nonzero().squeeze(1)))
    steps: Steps = minibatch_steps(rows)
    assert steps.terminated is not None
    return ExpertRows(features(tree.copy(steps)), num_ends=int(steps.terminated.sum()))


def fingerprint(minibatch: Mapping[str, Any]) -> Tensor:
    """Return a whole number, 0-d, that is a hash of observations, actions and the order of samples.

    Of the observation, the smallest component is enough: hashing every pixel would cost more than the update.
    """
    valid: Tensor = minibatch["valid"]
    total = torch.zeros((), dtype=torch.int64, device=valid.device)
    smallest = sorted(tree.leaves(dict(minibatch["obs"])), key=lambda leaf: leaf.numel())[:1]
    for leaf in tree.leaves([minibatch["act"], *smallest]):
        counted = torch.where(valid.view(*valid.shape, *[1] * (leaf.dim() - valid.dim())), leaf, 0)
        # float32 is exact for usual inputs; smaller differences do not matter here
        total = total * 31 + _mixed(counted.float().view(torch.int32).flatten().long())
    return total


def places(like: Tensor) -> Tensor:
    """Return a number for each step of a rollout [T, N], int64, from 1 on; other numbers in every process."""
    rank = (
        torch.distributed.get_rank() if torch.distributed.is_available() and torch.distributed.is_initialized() else 0
    )
    return torch.arange(1, like.numel() + 1, device=like.device).view_as(like) + rank * like.numel()


def order_fingerprint(place: Tensor) -> Tensor:
    """Return a whole number, 0-d, that is a hash of steps and their order; no step has the place 0.

    Unlike observations, places are whole numbers: eager and compiled runs, whose last bits differ, agree on them.
    """
    return _mixed(place.flatten())


def _mixed(bits: Tensor) -> Tensor:
    position = torch.arange(1, bits.numel() + 1, device=bits.device)
    return ((bits ^ (bits >> 15)) * (2 * position + 1) * 0x9E3779B1).sum()


def uniform_numbers(stream: int, number: Tensor, count: int, seed: int) -> Tensor:
    """Return float64 [count] in [0, 1) that depend on (stream, seed, the 0-d tensor `number`) alone."""
    position = positions(count, number)
    word = torch.full_like(position, stream)
    low, high = number.expand(count) & 0xFFFFFFFF, (number >> 32) & 0xFFFFFFFF
    bits, other, _, _ = philox((position, high, low, word), seed)
    # 53 random bits make a double
    numbers: Tensor = ((bits >> 5).double() * 67108864.0 + (other >> 6)) * (1.0 / 9007199254740992.0)
    return numbers
