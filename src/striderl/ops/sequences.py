"""Sequences [T, B] of replayed steps for recurrent networks: bootstrapping from where episodes really ended.

    time                0    1    2    3                   an episode is truncated at 1; its final observation is f
    seen                o0   o1   o2   o3
    woven          o0   o1   f    o2   o3   n3             n3 is what followed the last step
    here [t]       0    1         3    4                   where the value of o_t is read
    here [t] + 1        1    2         4    5              where the value of what followed step t is read

A memory that reads the woven sequence (resets at 3, as the new episode begins there) has seen the whole past at f, so
that one pass gives all values. How many observations are woven in depends on the sequence; the shape is that of the
sequence with most of them, or 2 T where values may not be looked at.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from striderl.ops.trajectories import shapes_may_depend_on_values


class Weaving(NamedTuple):
    """How observations and what followed them are put into one order of time, L steps long."""

    source: Tensor
    """int64 [L, B]: row of the observations [T] followed by the next observations [T]."""
    resets: Tensor
    """bool [L, B]: an episode begins here."""
    valid: Tensor
    """bool [L, B]: something is here."""
    here: Tensor
    """int64 [T, B]: where step t is; what followed it is one place on."""

    def woven(self, obs: Tensor, obs_next: Tensor) -> Tensor:
        """Return a component [L, B, …] from its values [T, B, …] in the steps and after them."""
        both = torch.cat([obs, obs_next])
        index = self.source.view(*self.source.shape, *[1] * (obs.dim() - 2)).expand(*self.source.shape, *obs.shape[2:])
        return both.gather(0, index)


def weave(ended: Tensor, resets: Tensor, valid: Tensor) -> Weaving:
    """Return the order for steps [T, B]: `ended` where an episode ends with the step, `resets` where one begins."""
    ended = ended & valid
    num_steps, count = ended.shape
    time = torch.arange(num_steps, device=ended.device).unsqueeze(1).expand(-1, count)
    before = ended.cumsum(0) - ended.long()
    here = time + before
    extra = int(before[-1].max()) if shapes_may_depend_on_values(ended) else num_steps - 1
    length = num_steps + 1 + extra
    source = torch.zeros(length, count, dtype=torch.int64, device=ended.device).scatter(0, here, time)
    alive = torch.zeros(length, count, dtype=torch.bool, device=ended.device).scatter(0, here, valid)
    begins = torch.zeros_like(alive).scatter(0, here, resets)
    # what followed a valid step is known, even where the next step itself is not
    after = here + 1
    source = source.scatter(0, after, torch.where(valid, num_steps + time, source.gather(0, after)))
    alive = alive.scatter(0, after, valid | alive.gather(0, after))
    return Weaving(source, begins, alive, here)


class Window(NamedTuple):
    """The n-step windows of all steps of a sequence, [T, B] each."""

    reward: Tensor
    """The discounted sum of the rewards."""
    discount: Tensor
    """What the value after the window is multiplied with; 0 where it ends with a termination."""
    last: Tensor
    """int64: the last step of the window."""


def sequence_windows(
    reward: Tensor, terminated: Tensor, truncated: Tensor, valid: Tensor, *, gamma: float, n: int
) -> Window:
    """Return windows of up to n steps that stay within their episode, the valid steps and the sequence."""
    num_steps, count = reward.shape
    time = torch.arange(num_steps, device=reward.device).unsqueeze(1)
    last = time.expand(-1, count)
    ended = terminated | truncated
    going, total, factor = torch.ones_like(ended), reward, torch.full_like(reward, gamma)
    for ahead in range(1, min(n, num_steps)):
        going = going & ~ended.roll(1 - ahead, 0) & valid.roll(-ahead, 0) & (time + ahead < num_steps)
        total = total + torch.where(going, gamma**ahead * reward.roll(-ahead, 0), torch.zeros_like(reward))
        factor = torch.where(going, factor * gamma, factor)
        last = last + going
    return Window(total, factor * ~terminated.gather(0, last), last)


def sequence_priority(error: Tensor, counts: Tensor, eta: float) -> Tensor:
    """Return eta · max + (1 - eta) · mean of |error| [T, B] over the steps that count, one number per sequence [B]."""
    size = torch.where(counts, error.abs(), torch.zeros_like(error))
    mean = size.sum(dim=0) / counts.sum(dim=0).clamp(min=1)
    return eta * size.amax(dim=0) + (1.0 - eta) * mean
