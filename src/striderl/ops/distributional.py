"""Losses of learning the distribution of returns instead of its mean, per sample."""

from __future__ import annotations

import torch
from torch import Tensor

from striderl.ops.td import huber

_AT_ONCE = 2**16
"""How many pairs of a moved and a fixed atom are compared one by one; of more than that, sums are compared."""


def project_categorical(reward: Tensor, discount: Tensor, probs: Tensor, atoms: Tensor) -> Tensor:
    """Return the probabilities [B, M] on `atoms` [M] of reward + discount · atom, where atom has `probs` [B, M].

    Each moved atom is shared between its two neighbours, the nearer one getting more (Bellemare et al. 2017); what
    falls beyond the ends goes to the ends. Means are kept inside the range.
    """
    low, high = atoms[0], atoms[-1]
    width = (high - low) / (atoms.shape[0] - 1)
    moved = (reward.unsqueeze(-1) + discount.unsqueeze(-1) * atoms).clamp(low, high)
    fused = torch.compiler.is_compiling() and moved.is_cuda
    if fused or moved.numel() * atoms.shape[0] <= _AT_ONCE:
        return _by_pairs(moved, probs, atoms, width)
    return _by_sums((moved - low) / width, probs)


def _by_pairs(moved: Tensor, probs: Tensor, atoms: Tensor, width: Tensor) -> Tensor:
    """Return what the fixed atoms get; compiled for a GPU it is one kernel that never writes [B, M, M] numbers."""
    # how near each moved atom is to each fixed one, in units of their distance: 1 on top of it, 0 one away or more
    nearness = (1.0 - (moved.unsqueeze(-1) - atoms).abs() / width).clamp(min=0.0)
    if torch.compiler.is_compiling():
        return (probs.unsqueeze(-1) * nearness).sum(dim=-2)
    return torch.einsum("bm,bmk->bk", probs, nearness)


def _by_sums(place: Tensor, probs: Tensor) -> Tensor:
    """Return the same for large batches, in about ten passes over [B, M].

    `place` [B, M] is where the atoms have moved to, 0 to M - 1 and never falling along M. With the ramps
    S(k) = Σ_m p_m max(0, place_m - k), the tent around k is S(k-1) - 2 S(k) + S(k+1); and S(k) is a difference of two
    running sums, cut where place passes k. In float64, where what cancels is far below the last digit of float32.
    """
    count = place.shape[-1]
    place, mass = place.double().clamp(0.0, count - 1.0), probs.double()
    sums = torch.stack([mass, mass * place]).cumsum(dim=-1)
    sums = torch.nn.functional.pad(sums, (1, 0))  # [2, B, M + 1]: of the first 0, 1, … M atoms
    fixed = torch.arange(-1, count + 1, dtype=place.dtype, device=place.device)
    first = torch.searchsorted(place.contiguous(), fixed.expand(place.shape[0], -1).contiguous())
    rest = sums[..., -1:] - sums.gather(-1, first.expand(2, -1, -1))
    ramp = rest[1] - fixed * rest[0]
    return (ramp[:, :-2] - 2.0 * ramp[:, 1:-1] + ramp[:, 2:]).clamp(min=0.0).to(probs.dtype)


def quantile_huber(predicted: Tensor, target: Tensor, fraction: Tensor, kappa: float = 1.0) -> Tensor:
    """Return the quantile Huber loss [B] of predicted quantiles [B, N] at `fraction` [B, N] or [N], to samples [B, M].

    Pairs whose target is below the prediction weigh 1 - fraction, those above it fraction (Dabney et al. 2018);
    summed over predictions, averaged over targets.
    """
    difference = target.unsqueeze(-2) - predicted.unsqueeze(-1)
    weight = (fraction.unsqueeze(-1) - (difference.detach() < 0.0).to(difference.dtype)).abs()
    return (weight * huber(difference, kappa) / kappa).mean(dim=-1).sum(dim=-1)
