"""Temporal-difference targets and errors as functions of tensors; means count valid samples only."""

from __future__ import annotations

import torch
from torch import Tensor

from striderl.ops.losses import valid_mean


def td_target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """Return reward + discount · next_value.

    `discount` is gamma to the number of steps, and 0 where the episode terminated within them; a time limit is no
    reason to bootstrap with 0, so truncated samples keep theirs. `where`, because 0 · infinity is not 0.
    """
    return reward + torch.where(discount == 0.0, torch.zeros_like(next_value), discount * next_value)


def weighted_mean(error: Tensor, valid: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean of importance weight times error over valid samples; [K, B] is summed over K first."""
    per_sample = error.sum(dim=0) if error.dim() > valid.dim() else error
    return valid_mean(per_sample if weight is None else weight * per_sample, valid)


def huber(difference: Tensor, delta: float = 1.0) -> Tensor:
    """Return d²/2 within ±delta and delta · (|d| - delta/2) beyond, entry by entry."""
    size = difference.abs()
    near = size.clamp(max=delta)
    return 0.5 * near.square() + delta * (size - near)
