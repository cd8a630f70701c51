"""Pack the trajectories of a [T, B] window for one call of a recurrent library, without any padding.

A library call runs whole sequences: it cannot zero its state in the middle. So every trajectory becomes a sequence of
its own, the longest first, and the steps lie in memory as the library wants them: all first steps, all second steps, …
T = 4, B = 2, env 0 resets at t = 2:

    steps [T, B]        trajectories             packed                  batch_sizes
      a e                 e a c                    e a c │ f b d │ g │ h   3 3 1 1
      b f     ─────▶      f b d      ─────▶
      c g                 g                        order = their flat positions t * B + b
      d h                 h

How many trajectories there are depends on the data, so this reads values on the host: it is for the CPU, where that
costs nothing. `trajectory_slots` is the static-shape form for graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

_static: list[bool] = []


@contextmanager
def static_shapes() -> Iterator[None]:
    """Forbid shapes that depend on values within this region, as a captured graph does."""
    _static.append(True)
    try:
        yield
    finally:
        _static.pop()


def shapes_are_static() -> bool:
    """Tell whether this is a region of `static_shapes`, in which everything is run as it will be traced."""
    return bool(_static)


def shapes_may_depend_on_values(x: Tensor) -> bool:
    """Tell whether code may read values of x on the host: on the CPU, when nothing is traced or captured."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        return False
    return not _static and x.device.type == "cpu"


class PackedTrajectories(NamedTuple):
    """Where the valid steps of a window lie in the packed order; n trajectories, M valid steps."""

    order: Tensor
    """[M] int64: the flat position t * B + b of each packed step."""
    batch_sizes: Tensor
    """[K] int64, on the CPU: how many trajectories have a k-th step."""
    env: Tensor
    """[n] int64: whose trajectory it is, the longest first."""
    continues: Tensor
    """[n] bool: whether it goes on from the state before the window."""
    last: Tensor
    """[B] int64: the trajectory that env b is in after the last step; n where its last step is not valid."""


def pack_trajectories(resets: Tensor, valid: Tensor) -> PackedTrajectories:
    """Find the trajectories; one begins at a reset [T, B], at t = 0, and at a valid step after an invalid one."""
    num_steps, num_envs = resets.shape
    resets, valid = resets.bool(), valid.bool()
    alone = resets.clone()
    alone[0] = True
    alone[1:] |= ~valid[:-1]
    begins = alone & valid
    step = torch.arange(num_steps).unsqueeze(1).expand(num_steps, num_envs)
    start = torch.where(begins, step, 0).cummax(0).values
    # trajectories are numbered env by env, so that a running count is the number of the latest beginning
    number = begins.t().flatten().long().cumsum(0).view(num_envs, num_steps).t() - 1
    position = valid.flatten().nonzero().flatten()
    owner, age = number.flatten()[position], (step - start).flatten()[position]
    where = begins.t().nonzero()
    count = where.shape[0]
    lengths = torch.bincount(owner, minlength=count)
    by_length = lengths.argsort(descending=True, stable=True)
    rank = torch.empty_like(by_length).scatter_(0, by_length, torch.arange(count))
    env, first = where[by_length].unbind(1)
    return PackedTrajectories(
        order=position[(age * count + rank[owner]).argsort()],
        batch_sizes=torch.bincount(age),
        env=env,
        continues=(first == 0) & ~resets[0, env],
        last=torch.where(valid[-1], rank[number[-1].clamp(min=0)], count) if count else torch.zeros_like(number[-1]),
    )
