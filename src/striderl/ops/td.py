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
