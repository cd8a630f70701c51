"""The expert's side of a discriminator: rows of features, drawn by random numbers that are handed in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.terms.adversarial_features import Features, Steps, minibatch_steps
from striderl.data import tree
from striderl.data.noise import philox, positions
from striderl.storage.replay.replay import Replay


class ExpertRows:
    """Features of expert steps [M, F], each drawn in proportion to its weight; not part of what is saved."""

    def __init__(self, features: Tensor, weight: Tensor | None = None, *, num_ends: int = 0) -> None:
        """Take raw features, weights [M] (equal when None), and how many of these steps ended the task."""
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
    """Make expert rows of all steps of a dataset that count."""
    every = replay.read.chronological()
    rows = replay.read.rows(every.index_select(0, replay.read.valid(every).nonzero().squeeze(1)))
    steps: Steps = minibatch_steps(rows)
    assert steps.terminated is not None
    return ExpertRows(features(tree.copy(steps)), num_ends=int(steps.terminated.sum()))


def fingerprint(minibatch: Mapping[str, Any]) -> Tensor:
    """Return a whole number, 0-d, that is another for other observations, other actions or another order of samples.

    Of the observation, the smallest component is enough: looking at every pixel would cost more than what is learned.
    """
    valid: Tensor = minibatch["valid"]
    total = torch.zeros((), dtype=torch.int64, device=valid.device)
    smallest = sorted(tree.leaves(dict(minibatch["obs"])), key=lambda leaf: leaf.numel())[:1]
    for leaf in tree.leaves([minibatch["act"], *smallest]):
        counted = torch.where(valid.view(*valid.shape, *[1] * (leaf.dim() - valid.dim())), leaf, 0)
        # float32 keeps every bit of what is usual; numbers that differ beyond it do not matter here
        total = total * 31 + _mixed(counted.float().view(torch.int32).flatten().long())
    return total


def places(like: Tensor) -> Tensor:
    """Return a number for each step of a rollout [T, N], int64, from 1 on; other numbers in every process."""
    rank = (
        torch.distributed.get_rank() if torch.distributed.is_available() and torch.distributed.is_initialized() else 0
    )
    return torch.arange(1, like.numel() + 1, device=like.device).view_as(like) + rank * like.numel()


def order_fingerprint(place: Tensor) -> Tensor:
    """Return a whole number, 0-d, that is another for other steps or another order of them; 0 is nobody's place.

    Unlike what was observed, places are whole numbers: eager and compiled runs, whose last bits differ, agree on them.
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
