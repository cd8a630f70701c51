"""Means over the samples of all processes, for code that was written for one.

    process 0   sum 6, count 3 ─┐                    ┌─▶ mean 10 / 4, gradient of its own 6 / 4
                                ├─▶ sum 10, count 4 ─┤
    process 1   sum 4, count 1 ─┘                    └─▶ mean 10 / 4, gradient of its own 4 / 4

Inside `pooled(all_reduce)` every mean of `striderl.ops.losses` and every running statistic counts the samples of all
processes. The value is the same everywhere; the gradient is each process's own part of it, so that the sum of the
gradients over processes is that of one process with all samples. A mean of means would weigh a sample by how many
others its process happens to have.

The sum is set for a region instead of being passed along: a loss that somebody writes tomorrow is then right by itself.
Every process must ask for the same means in the same order, as with any collective operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from striderl.ops.moments import AllReduce

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
    """Return what sums a tensor over processes in this region; None outside of one."""
    return _regions[-1] if _regions else None


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
    # the value of all, the gradient of our own part
    return own + (mean - own.detach())
