"""Losses and rewards of discriminators as functions of their scores; D = sigmoid(score) where a probability is meant.

                 expert sample           policy sample
least_squares    ½ (d - 1)²              ½ (d + 1)²               Peng et al. 2021
bce              -log D                  -log(1 - D)              Ho and Ermon 2016
wasserstein      -d                      d                        Arjovsky et al. 2017

reward           log_d                   log D                    never positive: short episodes are favoured
                 minus_log_one_minus_d   -log(1 - D)              never negative: long episodes are favoured
                 difference              log D - log(1 - D) = d   Fu et al. 2018; the score itself
                 least_squares           max(0, 1 - ¼ (d - 1)²)   between 0 and 1

How far a student's action (or latent) is from a teacher's: one number [..] for each pair [.., *event].

    y - a = (3, 4)     real        sqrt(9 + 16) = 5
                       mse_sum     9 + 16       = 25
                       l1          3 + 4        = 7
                       huber       2.5 + 3.5    = 6                    |d| - ½ beyond a difference of 1
    a = 0, y = 1       tanh        2 · BCE(1/2, 1) = 2 log 2           numbers in [-1, 1] are taken as probabilities
                       scaled_tanh that, times the mean of |y - a|

'tanh' and 'scaled_tanh' are for numbers that a tanh has brought into [-1, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

LOSSES = ("least_squares", "bce", "wasserstein")
REWARDS = ("log_d", "minus_log_one_minus_d", "difference", "least_squares")


def expert_loss(kind: str, score: Tensor) -> Tensor:
    """Return the loss of expert samples' scores, entry by entry."""
    if kind == "least_squares":
        return 0.5 * (score - 1.0).square()
    return functional.softplus(-score) if kind == "bce" else -score


def policy_loss(kind: str, score: Tensor) -> Tensor:
    """Return the loss of policy samples' scores, entry by entry."""
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


# -- distances from a teacher ------------------------------------------------------------------------------------------


def real(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the length of the difference; its gradient where there is none is 0."""
    length: Tensor = torch.linalg.vector_norm(student - teacher, dim=-1)
    return length


def mse_sum(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the sum of the squared differences."""
    return (student - teacher).square().sum(dim=-1)


def huber(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the sum of the Huber losses: half the square up to a difference of 1, linear beyond."""
    return functional.huber_loss(student, teacher, reduction="none").sum(dim=-1)


def l1(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the sum of the absolute differences."""
    return (student - teacher).abs().sum(dim=-1)


def tanh(student: Tensor, teacher: Tensor) -> Tensor:
    """Return twice the mean cross-entropy between both as probabilities (x + 1) / 2."""
    return 2.0 * _cross_entropy(student, teacher).mean(dim=-1)


def scaled_tanh(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the cross-entropy of `tanh`, times the mean absolute difference: less where both are near."""
    return tanh(student, teacher) * (student - teacher).abs().mean(dim=-1)


def _cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """Return -t log p - (1 - t) log(1 - p); torch's own synchronises to check that the numbers are probabilities."""
    p, t = (0.5 * (x.clamp(-1.0, 1.0) + 1.0) for x in (student, teacher))
    # the logarithm of exactly 0 is infinite, and so is its slope
    tiny = torch.finfo(p.dtype).tiny
    return -(t * p.clamp(min=tiny).log() + (1.0 - t) * (1.0 - p).clamp(min=tiny).log())


def before_tanh(x: Tensor, limit: float = 1.0 - 1e-6) -> Tensor:
    """Return the inverse tanh of x, within ±limit."""
    return x.clamp(-limit, limit).atanh()


TARGETS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "real": real,
    "mse_sum": mse_sum,
    "huber": huber,
    "l1": l1,
    "tanh": tanh,
    "scaled_tanh": scaled_tanh,
}
"""Distances between two vectors by name."""
