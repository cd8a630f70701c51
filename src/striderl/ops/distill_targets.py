"""How far a student's action (or latent) is from a teacher's: one number [..] for each pair [.., *event].

    y - a = (3, 4)     real        sqrt(9 + 16) = 5
                       mse_sum     9 + 16       = 25
                       l1          3 + 4        = 7
    a = 0, y = 1       tanh        2 · BCE(1/2, 1) = 2 log 2           numbers in [-1, 1] are taken as probabilities
                       scaled_tanh that, times the mean of |y - a|

'tanh' and 'scaled_tanh' are for numbers that a tanh has brought into [-1, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def real(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the length of the difference; its gradient where there is none is 0."""
    length: Tensor = torch.linalg.vector_norm(student - teacher, dim=-1)
    return length


def mse_sum(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the sum of the squared differences."""
    return (student - teacher).square().sum(dim=-1)


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
    """Return -t log p - (1 - t) log(1 - p); torch's own asks the device whether the numbers are probabilities."""
    p, t = (0.5 * (x.clamp(-1.0, 1.0) + 1.0) for x in (student, teacher))
    # the logarithm of exactly 0 is infinite, and so is its slope
    tiny = torch.finfo(p.dtype).tiny
    return -(t * p.clamp(min=tiny).log() + (1.0 - t) * (1.0 - p).clamp(min=tiny).log())


def before_tanh(x: Tensor, limit: float = 1.0 - 1e-6) -> Tensor:
    """Return what a tanh turned into x; at the ends, what it turned into ±limit."""
    return x.clamp(-limit, limit).atanh()


TARGETS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "real": real,
    "mse_sum": mse_sum,
    "l1": l1,
    "tanh": tanh,
    "scaled_tanh": scaled_tanh,
}
"""Distances between two vectors by name."""
