"""TD targets and errors as functions of tensors; means count valid samples only.

Also here, per sample: losses of distributional and of offline RL.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from striderl.ops.losses import valid_mean
from striderl.ops.moments import current_all_reduce


def td_target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """Return reward + discount · next_value.

    `discount` is gamma to the number of steps, and 0 where the episode terminated within them; truncated
    samples keep theirs, because a time limit still bootstraps. `where`, because 0 · infinity is not 0.
    """
    return reward + torch.where(discount == 0.0, torch.zeros_like(next_value), discount * next_value)


def weighted_mean(error: Tensor, valid: Tensor | None, weight: Tensor | None = None) -> Tensor:
    """Return the mean of importance weight times error [B] over valid samples; None means that all are."""
    return counted_mean(error if weight is None else weight * error, valid)


def counted_mean(x: Tensor, valid: Tensor | None) -> Tensor:
    """Return the mean of x over valid samples; None means that all are, which takes one operation instead of five."""
    return x.mean() if valid is None and current_all_reduce() is None else valid_mean(x, valid)


def huber(difference: Tensor, delta: float = 1.0) -> Tensor:
    """Return d²/2 within ±delta and delta · (|d| - delta/2) beyond, entry by entry."""
    return functional.huber_loss(difference, torch.zeros_like(difference), reduction="none", delta=delta)


_SLOPE = 1e-3
"""How much of a value is kept linearly, so that the rescaling can be undone."""


def rescaled(value: Tensor) -> Tensor:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x, which brings returns of all sizes together (R2D2)."""
    return value.sign() * ((value.abs() + 1.0).sqrt() - 1.0) + _SLOPE * value


def unscaled(value: Tensor) -> Tensor:
    """Return the x whose h(x) this is."""
    # with u = sqrt(|x| + 1), |h| = u - 1 + e (u² - 1): the positive root of e u² + u - (1 + e + |h|). Written so that
    # nothing is subtracted from a number of nearly the same size
    rest = value.abs() + 1.0 + _SLOPE
    root = 2.0 * rest / (1.0 + (1.0 + 4.0 * _SLOPE * rest).sqrt())
    return value.sign() * (root.square() - 1.0)


# -- distributions of returns ------------------------------------------------------------------------------------------


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
    """Return the projected probabilities; compiled for a GPU it is one kernel that never writes [B, M, M] numbers."""
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


# -- offline RL --------------------------------------------------------------------------------------------------------


def expectile(difference: Tensor, fraction: float) -> Tensor:
    """Return |fraction - 1[d < 0]| · d²: least at the expectile, which is the mean for 1/2 and the largest for 1."""
    weight = torch.where(difference < 0.0, 1.0 - fraction, fraction)
    return weight * difference.square()


def advantage_weight(advantage: Tensor, temperature: float, largest: float = 100.0) -> Tensor:
    """Return exp(temperature · advantage), cut at `largest`."""
    return (temperature * advantage).exp().clamp(max=largest)


def conservative_gap(candidates: Tensor, log_density: Tensor, taken: Tensor) -> Tensor:
    """Return log Σ_j exp(Q_j - log p_j) / J - Q(a): the overestimation of other actions over those taken.

    `candidates` [J, ...] are values of actions that were drawn with `log_density` [J, ...]; the sum is an estimate of
    the soft maximum over all actions (Kumar et al. 2020).
    """
    count = torch.full((), float(candidates.shape[0]), dtype=taken.dtype, device=taken.device)
    return torch.logsumexp(candidates - log_density, dim=0) - count.log() - taken
