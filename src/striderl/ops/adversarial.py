"""Losses and rewards of discriminators as functions of their scores; D = sigmoid(score) where a probability is meant.

                 expert sample           policy sample
least_squares    ½ (d - 1)²              ½ (d + 1)²               Peng et al. 2021
bce              -log D                  -log(1 - D)              Ho and Ermon 2016
wasserstein      -d                      d                        Arjovsky et al. 2017

reward           log_d                   log D                    never positive: short episodes are favoured
                 minus_log_one_minus_d   -log(1 - D)              never negative: long episodes are favoured
                 difference              log D - log(1 - D) = d   Fu et al. 2018; the score itself
                 least_squares           max(0, 1 - ¼ (d - 1)²)   between 0 and 1
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

LOSSES = ("least_squares", "bce", "wasserstein")
REWARDS = ("log_d", "minus_log_one_minus_d", "difference", "least_squares")


def expert_loss(kind: str, score: Tensor) -> Tensor:
    """Return how wrong the scores of expert samples are, entry by entry."""
    if kind == "least_squares":
        return 0.5 * (score - 1.0).square()
    return functional.softplus(-score) if kind == "bce" else -score


def policy_loss(kind: str, score: Tensor) -> Tensor:
    """Return how wrong the scores of policy samples are, entry by entry."""
    if kind == "least_squares":
        return 0.5 * (score + 1.0).square()
    return functional.softplus(score) if kind == "bce" else score


def style_reward(kind: str, score: Tensor) -> Tensor:
    """Return the reward of scores, entry by entry."""
    if kind == "log_d":
        return -functional.softplus(-score)
    if kind == "minus_log_one_minus_d":
        return functional.softplus(score)
    return score if kind == "difference" else (1.0 - 0.25 * (score - 1.0).square()).clamp(min=0.0)


def squared_slope(score: Callable[[Tensor], Tensor], x: Tensor, wanted: float = 0.0) -> Tensor:
    """Return (|d score/dx| - wanted)² for each of x [B, F]; its gradient reaches the parameters of `score`."""
    slope: Tensor = torch.func.grad(lambda given: score(given).sum())(x.detach())
    return distance_from_slope(slope, wanted)


def distance_from_slope(slope: Tensor, wanted: float = 0.0) -> Tensor:
    """Return (|slope| - wanted)² for gradients [B, F]."""
    squared = slope.square().sum(dim=-1)
    if not wanted:
        return squared
    length: Tensor = (squared + 1e-12).sqrt()  # the square root itself has no gradient at 0
    return (length - wanted).square()
