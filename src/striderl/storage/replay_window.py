"""Windows of up to n steps from each row on, as n-step returns want them.

k            0  1  2  3          a window goes on while nothing ended before, the step is stored, and it counts
step         ·  ·  E  ·
going        1  1  1  0          num_steps 3, last is the row at k = 2, ends are its flags
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.storage.replay_layout import ENDS, SEEN, VALID
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


class Cut(NamedTuple):
    """Where windows end, when some of them end early or with an episode."""

    going: NDArray[np.bool_]
    """[n, B]."""
    num_steps: NDArray[np.int64]
    words: NDArray[np.uint32]
    """The flags of the last steps; see replay_layout.py."""


class ArrayWindow(NamedTuple):
    """Windows as arrays."""

    rows: NDArray[np.int64]
    last: NDArray[np.int64]
    cut: Cut | None
    """None where all windows have n steps that count, and no episode ends in them."""


def window(read: ReplayReader, index: Tensor, n: int) -> Window:
    """Find how far windows of up to n steps go."""
    ahead = torch.arange(n, device=index.device).unsqueeze(1)
    rows = read.shifted(index, ahead)
    flags = read.flags(rows.flatten()).view(n, -1, 3)
    ended = flags[:-1, :, 0] | flags[:-1, :, 1]
    goes_on = (read.position(index) + ahead[1:] < read.size_of(index)) & flags[1:, :, 2] & ~ended
    going = torch.cat([torch.ones_like(rows[:1], dtype=torch.bool), goes_on])
    going = going.to(torch.uint8).cummin(0).values.bool()
    num_steps = going.sum(0)
    ends = flags.gather(0, (num_steps - 1).view(1, -1, 1).expand(1, -1, 3)).squeeze(0)
    return Window(rows, going, num_steps, read.shifted(index, num_steps - 1), ends)


def array_window(read: ReplayReader, start: NDArray[np.int64], n: int) -> ArrayWindow:
    """Do the same with numpy, where `read.fast`."""
    envs = read.num_envs
    rows = start + _ahead(n, envs)
    newest = (read.cursor.total - 1) % read.cursor.rows * envs
    round_the_end = np.maximum.reduce(rows[-1]) >= read.num_rows
    if round_the_end:
        rows %= read.num_rows
    words = read.steps.words_at(rows)
    if not (round_the_end and newest < n * envs):  # such windows are found by looking at each of their steps
        # rows before this one are huge as unsigned numbers
        near = (start - (newest - (n - 2) * envs)).view(np.uint64) < (n - 1) * envs
        seen = words if read.steps.lone_flags else words & SEEN
        if not np.count_nonzero(near) and np.count_nonzero(seen == VALID) == words.size:
            return ArrayWindow(rows, rows[-1], None)
    return _cut_short(rows, words, newest, envs)


def _cut_short(rows: NDArray[np.int64], words: NDArray[np.uint32], newest: int, envs: int) -> ArrayWindow:
    """Find where each window ends: some end early."""
    n, count = rows.shape
    # a window goes on to step k unless the step before it ended an episode or is the newest, or step k does not count
    going = np.ones((n, count), np.bool_)
    goes_on = going[1:]
    np.equal(words[:-1] & ENDS, 0, out=goes_on)
    goes_on &= (words[1:] & VALID) != 0
    goes_on &= (rows[:-1] - newest).view(np.uint64) >= envs  # rows before the newest are huge as unsigned numbers
    num_steps = np.ones(count, np.int64)
    for k in range(1, n):  # numpy's accumulate takes ten times as long
        going[k] &= going[k - 1]
        num_steps += going[k]
    place = (num_steps - 1) * count
    place += np.arange(count)
    return ArrayWindow(rows, rows.ravel().take(place), Cut(going, num_steps, words.ravel().take(place)))


@lru_cache(maxsize=16)
def _ahead(n: int, envs: int) -> NDArray[np.int64]:
    """Return how many rows on the steps of a window are, int64 [n, 1]; read only."""
    ahead = np.arange(0, n * envs, envs)[:, None]
    ahead.flags.writeable = False
    return ahead
