"""Count, mean and sum of squared deviations, which allow two sets of samples to be pooled exactly.

    samples A ──▶ (n, mean, m2) ─┐
                                 ├─ combine ──▶ the moments of A and B together, as if they had been one set
    samples B ──▶ (n, mean, m2) ─┘

The update is Chan, Golub and LeVeque's (1979): mean += d n_B / n and m2 += d^2 n_A n_B / n, with d the difference of
the means. It never subtracts two large sums of squares, so it stays accurate far from zero; all of it is float64.

Means over the samples of all processes, for code that was written for one.

    process 0   sum 6, count 3 ─┐                    ┌─▶ mean 10 / 4, gradient of its own 6 / 4
                                ├─▶ sum 10, count 4 ─┤
    process 1   sum 4, count 1 ─┘                    └─▶ mean 10 / 4, gradient of its own 4 / 4

Inside `pooled(all_reduce)` every mean of `striderl.ops.losses` and every running statistic counts the samples of all
processes. The value is the same everywhere; the gradient is each process's own part of it, so that the sum of the
gradients over processes is that of one process with all samples. A mean of means would weigh a sample by how many
others its process happens to have.

The sum is set for a region instead of being passed along: new losses are then correct without changes.
Every process must compute the same means in the same order, as with any collective operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

AllReduce = Callable[[Tensor], Tensor]
"""Sums a tensor over all processes and returns the sum."""


class Moments(NamedTuple):
    """The first two moments of a set of samples; float64."""

    num_samples: Tensor
    """0-d: how many samples."""
    mean: Tensor
    """Their mean, of the shape of one sample; zero when there are none."""
    m2: Tensor
    """The sum of squared deviations from the mean; the variance is m2 / num_samples."""


def batch_moments(x: Tensor, shape: tuple[int, ...], valid: Tensor | None = None) -> tuple[Moments, Tensor]:
    """Return the moments of [..., *shape] over the samples where `valid` [...] holds, and how many were left out.

    A sample with a NaN or an infinity anywhere is left out and counted; it can never enter the sums.
    """
    leading = x.shape[: x.dim() - len(shape)]
    if tuple(x.shape[len(leading) :]) != shape:
        raise ValueError(f"samples must end in shape {shape}, found {tuple(x.shape)}")
    num_rows = math.prod(leading)
    rows = x.detach().reshape(num_rows, *shape).double()
    wanted = torch.ones(num_rows, dtype=torch.bool, device=x.device)
    if valid is not None:
        if valid.shape != leading:
            raise ValueError(f"valid must have shape {tuple(leading)}, found {tuple(valid.shape)}")
        wanted = valid.reshape(num_rows).bool()
    finite = rows.reshape(num_rows, math.prod(shape)).isfinite().all(1)
    keep = (wanted & finite).view(num_rows, *(1 for _ in shape))
    count = (wanted & finite).sum().double()
    mean = torch.where(keep, rows, 0.0).sum(0) / count.clamp(min=1.0)
    m2 = torch.where(keep, rows - mean, 0.0).square().sum(0)
    return Moments(count, mean, m2), (wanted & ~finite).sum()


def combine(one: Moments, other: Moments) -> Moments:
    """Return the moments of both sets together."""
    count = one.num_samples + other.num_samples
    divisor = torch.where(count > 0, count, torch.ones_like(count))
    delta = other.mean - one.mean
    mean = one.mean + delta * (other.num_samples / divisor)
    m2 = one.m2 + other.m2 + delta.square() * (one.num_samples * other.num_samples / divisor)
    return Moments(count, mean, m2)


def pool(moments: Moments, all_reduce: AllReduce) -> Moments:
    """Return the moments of the samples of all processes together; every process gets the same numbers.

    Two sums instead of one: deviations are taken from the pooled mean, so nothing cancels.
    """
    totals = all_reduce(torch.cat([moments.num_samples.reshape(1), (moments.num_samples * moments.mean).flatten()]))
    count = totals[0]
    mean = (totals[1:] / count.clamp(min=1e-300)).view_as(moments.mean)
    m2 = all_reduce(moments.m2 + moments.num_samples * (moments.mean - mean).square())
    return Moments(count, mean, m2)


# -- over all processes ------------------------------------------------------------------------------------------------


_regions: list[AllReduce] = []


@contextmanager
def pooled(all_reduce: AllReduce | None) -> Iterator[None]:
    """Count the samples of all processes within this region; None changes nothing."""
    if all_reduce is None:
        yield
        return
    _regions.append(all_reduce)
    try:
        yield
    finally:
        _regions.pop()


def current_all_reduce() -> AllReduce | None:
    """Return the all-reduce function of this region; None outside of one."""
    return _regions[-1] if _regions else None


class _Sum(torch.autograd.Function):
    """The sum over processes; every process's part gets the sum of the gradients of all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, all_reduce: AllReduce) -> Tensor:
        ctx.all_reduce = all_reduce
        return all_reduce(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.all_reduce(grads[0].contiguous()), None


def sum_of_all(x: Tensor) -> Tensor:
    """Return the sum of x over processes within a region, x itself outside of one.

    Gradients pass through it to the samples of every process: for batch statistics that samples are divided by.
    """
    all_reduce = current_all_reduce()
    if all_reduce is None:
        return x
    total: Tensor = _Sum.apply(x, all_reduce)  # type: ignore[no-untyped-call]
    return total


def any_of_all(condition: Tensor) -> Tensor:
    """Return whether a condition holds for any sample of any process, bool []."""
    all_reduce = current_all_reduce()
    found = condition.any()
    return found if all_reduce is None else all_reduce(found.to(torch.float32)) > 0.0


def mean_of_all(total: Tensor, count: Tensor, all_reduce: AllReduce | None = None) -> Tensor:
    """Return the sum of `total` over processes divided by that of `count`, 0-d both; 0 where the count is 0."""
    all_reduce = all_reduce or current_all_reduce()
    if all_reduce is None:
        return total / count.clamp(min=1.0)
    sums = all_reduce(torch.stack([total.detach(), count]))
    mean, divisor = sums[0] / sums[1].clamp(min=1.0), sums[1].clamp(min=1.0)
    if not total.requires_grad:
        return mean
    own = total / divisor
    # the pooled value, the gradient of this process's part
    return own + (mean - own.detach())
