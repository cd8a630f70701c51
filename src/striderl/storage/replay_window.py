"""Windows of up to n steps from each row on, as n-step returns want them.

k            0  1  2  3          a window goes on while nothing ended before, the step is stored, and it counts
step         ·  ·  E  ·
going        1  1  1  0          num_steps 3, last is the row at k = 2, ends are its flags
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
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


def window(read: ReplayReader, index: Tensor, n: int) -> Window:
    """Find how far windows of up to n steps go."""
    if read.on_cpu and read.cursor.even:
        return _window_on_cpu(read, index, n)
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


def _window_on_cpu(read: ReplayReader, index: Tensor, n: int) -> Window:
    """Do the same with numpy, whose calls cost half, while all envs are equally far."""
    start, envs, count = index.numpy(), read.num_envs, read.num_rows
    rows = (start + np.arange(0, n * envs, envs)[:, None]) % count
    flags = read.flag_array.take(rows, 0)
    left = read.cursor.size - 1 - read.position(index).numpy()
    going = np.empty(rows.shape, np.bool_)
    going[0] = True
    for k in range(1, n):
        before = flags[k - 1]
        np.logical_and(going[k - 1], flags[k, :, 2], out=going[k])
        going[k] &= ~(before[:, 0] | before[:, 1])
        going[k] &= left >= k
    num_steps = going.sum(0)
    last = (start + (num_steps - 1) * envs) % count
    ends = flags[num_steps - 1, np.arange(len(start))]
    found = (rows, going, num_steps, last, ends)
    return Window(*(torch.from_numpy(array) for array in found))
