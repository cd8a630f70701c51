"""Losses of learning from a dataset alone, per sample."""

from __future__ import annotations

import torch
from torch import Tensor


def expectile(difference: Tensor, fraction: float) -> Tensor:
    """Return |fraction - 1[d < 0]| · d²: least at the expectile, which is the mean for 1/2 and the largest for 1."""
    weight = torch.where(difference < 0.0, 1.0 - fraction, fraction)
    return weight * difference.square()


def advantage_weight(advantage: Tensor, temperature: float, largest: float = 100.0) -> Tensor:
    """Return exp(temperature · advantage), cut at `largest`."""
    return (temperature * advantage).exp().clamp(max=largest)


def conservative_gap(candidates: Tensor, log_density: Tensor, taken: Tensor) -> Tensor:
    """Return log Σ_j exp(Q_j - log p_j) / J - Q(a): how much more is promised for other actions than for those taken.

    `candidates` [J, ...] are values of actions that were drawn with `log_density` [J, ...]; the sum is an estimate of
    the soft maximum over all actions (Kumar et al. 2020).
    """
    count = torch.full((), float(candidates.shape[0]), dtype=taken.dtype, device=taken.device)
    return torch.logsumexp(candidates - log_density, dim=0) - count.log() - taken
