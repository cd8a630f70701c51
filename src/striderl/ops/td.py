"""Temporal-difference targets and errors as functions of tensors; means count valid samples only."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from striderl.ops.losses import valid_mean
from striderl.ops.pooling import current_all_reduce


def td_target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """Return reward + discount · next_value.

    `discount` is gamma to the number of steps, and 0 where the episode terminated within them; a time limit is no
    reason to bootstrap with 0, so truncated samples keep theirs. `where`, because 0 · infinity is not 0.
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
