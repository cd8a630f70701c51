"""Windows of up to n steps from each row on, as n-step returns want them.

k            0  1  2  3          a window goes on while nothing ended before, the step is stored, and it counts
step         ·  ·  E  ·
going        1  1  1  0          num_steps 3, last is the row at k = 2, ends are its flags
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.storage.replay_reader import ReplayReader


class Window(NamedTuple):
    """Windows of B rows."""

    rows: Tensor
    """int64 [n, B]: the rows from each one on, whether they belong to the window or not."""
    going: Tensor
    """bool [n, B]: which of them belong to it; the first always does."""
    num_steps: Tensor
    """int64 [B]."""
    last: Tensor
    """int64 [B]: the row of the last step that belongs to it."""
    ends: Tensor
    """bool [B, 3]: (terminated, truncated, valid) of that step."""


class ArrayWindow(NamedTuple):
    """The same as arrays."""

    rows: NDArray[np.int64]
    whole: bool
    """Whether every window has all n steps; `going` is True everywhere then."""
    going: NDArray[np.bool_]
    num_steps: NDArray[np.int64]
    last: NDArray[np.int64]
    ends: NDArray[np.bool_]


def window(read: ReplayReader, index: Tensor, n: int) -> Window:
    """Find how far windows of up to n steps go."""
    ahead = torch.arange(n, device=index.device).unsqueeze(1)
    rows = read.shifted(index, ahead)
    flags = read.flags(rows.flatten()).view(n, -1, 3)
    going = (read.position(index) + ahead < read.size_of(index)) & flags[..., 2]
    going[0] = True
    going[1:] &= ~(flags[:-1, :, 0] | flags[:-1, :, 1])
    going = going.to(torch.uint8).cummin(0).values.bool()
    num_steps = going.sum(0)
    ends = flags.gather(0, (num_steps - 1).view(1, -1, 1).expand(1, -1, 3)).squeeze(0)
    return Window(rows, going, num_steps, read.shifted(index, num_steps - 1), ends)


def array_window(read: ReplayReader, start: NDArray[np.int64], n: int) -> ArrayWindow:
    """Do the same with numpy, where `read.fast`."""
    envs, count = read.num_envs, start.shape[0]
    rows = start + np.arange(0, n * envs, envs)[:, None]
    rows %= read.num_rows
    flags = read.flag_array.take(rows.ravel(), 0)
    by_step = flags.reshape(n, count, -1)
    # a window goes on to step k unless the step before it ended an episode or is the newest, or step k does not count
    newest = (read.cursor.total - 1) % read.cursor.rows * envs
    before = rows[:-1]
    ends = by_step[:-1, :, 0] | by_step[:-1, :, 1]
    ends |= before == newest if envs == 1 else (before >= newest) & (before < newest + envs)
    goes_on = by_step[1:, :, 2] & ~ends
    going = np.ones(rows.shape, np.bool_)
    if goes_on.all():
        return ArrayWindow(rows, True, going, np.full(count, n), rows[-1], by_step[-1])
    np.logical_and.accumulate(goes_on, 0, out=going[1:])
    num_steps = going.sum(0)
    place = (num_steps - 1) * count
    place += np.arange(count)
    return ArrayWindow(rows, False, going, num_steps, rows.ravel().take(place), flags.take(place, 0))
