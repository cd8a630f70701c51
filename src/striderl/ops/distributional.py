"""Losses of learning the distribution of returns instead of its mean, per sample."""

from __future__ import annotations

import torch
from torch import Tensor

from striderl.ops.td import huber

_AT_ONCE = 2**24
"""About how many numbers a projection holds at once."""


def project_categorical(reward: Tensor, discount: Tensor, probs: Tensor, atoms: Tensor) -> Tensor:
    """Return the probabilities [B, M] on `atoms` [M] of reward + discount · atom, where atom has `probs` [B, M].

    Each moved atom is shared between its two neighbours, the nearer one getting more (Bellemare et al. 2017); what
    falls beyond the ends goes to the ends. Means are kept inside the range.
    """
    low, high = atoms[0], atoms[-1]
    width = (high - low) / (atoms.shape[0] - 1)
    moved = (reward.unsqueeze(-1) + discount.unsqueeze(-1) * atoms).clamp(low, high)
    # [B, M, M] numbers are too many for large batches: so many fixed atoms at a time
    each = max(1, _AT_ONCE // max(1, moved.numel()))
    return torch.cat([_shared(moved, probs, some, width) for some in torch.split(atoms, each)], dim=-1)


def _shared(moved: Tensor, probs: Tensor, atoms: Tensor, width: Tensor) -> Tensor:
    """Return what some of the fixed atoms [k] get, [B, k]."""
    # how near each moved atom is to each fixed one, in units of their distance: 1 on top of it, 0 one away or more
    nearness = (1.0 - (moved.unsqueeze(-1) - atoms).abs() / width).clamp(min=0.0)
    return torch.einsum("bm,bmk->bk", probs, nearness)


def quantile_huber(predicted: Tensor, target: Tensor, fraction: Tensor, kappa: float = 1.0) -> Tensor:
    """Return the quantile Huber loss [B] of predicted quantiles [B, N] at `fraction` [B, N] or [N], to samples [B, M].

    Pairs whose target is below the prediction weigh 1 - fraction, those above it fraction (Dabney et al. 2018);
    summed over predictions, averaged over targets.
    """
    difference = target.unsqueeze(-2) - predicted.unsqueeze(-1)
    weight = (fraction.unsqueeze(-1) - (difference.detach() < 0.0).to(difference.dtype)).abs()
    return (weight * huber(difference, kappa) / kappa).mean(dim=-1).sum(dim=-1)
