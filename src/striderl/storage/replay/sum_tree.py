"""Drawing in proportion to a million priorities: a few levels of sums, brought up to date only where they changed.

    leaves    float64 [1,000,000]     one per row
    level 1   float64 [62,500]        sums of 16 leaves each
    top       float64 [3,907]         sums of 16 of those, and the running sum over them

    sample u in [0, total): search the running sum, then at each level add up the 16 numbers found below

A write sets the leaves only and marks what it touched; the next sample adds up the groups concerned. Sums
are always recomputed, never adjusted, so they do not drift, and a leaf written twice counts once. Sampling walks all
draws in lock step with a handful of operations per level, on any device. Wide levels beat a binary tree: twenty levels
of small operations cost more than a search in a few thousand numbers. GPUs are faster with wider ones. Compiled loops
(numba) were tried and gained a tenth: with a million leaves the time goes into reading memory.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_from_numpy = torch.from_numpy
_BELOW_ONE = 1.0 - 2.0**-53
_SHAPES = {"cpu": (16, 4096), "cuda": (32, 32768)}
"""Device type → group size, and the largest number of sums at the top."""


class _Level(NamedTuple):
    """Numbers in groups of `width`, and one sum per group, which are the numbers of the level above."""

    groups: Tensor
    sums: Tensor


class _Arrays:
    """The same memory as numpy arrays, whose calls cost half of torch's."""

    def __init__(self, memory: Tensor, levels: list[_Level], running: Tensor) -> None:
        self.memory, self.running = memory.numpy(), running.numpy()
        self.ends = self.running[1:]
        self.levels = [(level.groups.numpy(), level.sums.numpy()) for level in levels]
        self.total = 0.0
        """The sum of all leaves, once computed."""


class SumTree:
    """Non-negative numbers that can be drawn from in proportion to their size."""

    def __init__(self, count: int, *, device: torch.device | str = "cpu", shape: tuple[int, int] | None = None) -> None:
        """Start with `count` zeros; `shape` is the group size and the largest number of sums at the top."""
        if count < 1:
            raise ValueError(f"a tree has at least one leaf, found {count}")
        self.count = count
        kind = torch.device(device).type
        self._shape = shape or _SHAPES.get(kind, _SHAPES["cuda"])
        self._width, most = self._shape
        starts, sizes = _layout(count, self._width, most)
        self._memory = torch.zeros(starts[-1] + sizes[-1], dtype=torch.float64, device=device)
        parts = [self._memory[start : start + size] for start, size in zip(starts, sizes)]
        self._levels = [
            _Level(lower.view(-1, self._width), upper[: lower.shape[0] // self._width])
            for lower, upper in pairwise(parts)
        ]
        self._top = parts[-1]
        self._running = torch.zeros(sizes[-1] + 1, dtype=torch.float64, device=device)
        self.arrays = _Arrays(self._memory, self._levels, self._running) if kind == "cpu" else None
        self._ends = self._running[1:]
        self._touched: list[Tensor] = []
        self._written: list[NDArray[np.int64]] = []
        """What `_touched` is on a GPU: the leaves that were written one by one."""
        self._ranges: list[tuple[int, int]] = []
        self._num_touched = 0
        self.leaves = self._memory[:count]
        """The leaves; write them through `put` and `fill`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.leaves.cpu().numpy().copy(), str(self._memory.device), self._shape)

    # -- writing -------------------------------------------------------------------------------------------------------

    def put(self, index: Tensor, values: Tensor) -> None:
        """Set some leaves; where one is named twice, either value may stay."""
        if self.arrays is not None:
            self.put_on_cpu(index.numpy(), values.numpy())
            return
        self._memory.index_put_((index,), values)
        self._touched.append(index)
        self._num_touched += index.shape[0]

    def put_on_cpu(self, index: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Do the same with arrays."""
        self._on_cpu().memory[index] = values
        self._written.append(index)
        self._num_touched += index.shape[0]

    def fill(self, first: int, count: int, value: Tensor | float) -> None:
        """Set neighbouring leaves to one number, or to one number each."""
        if self.arrays is None:
            self._memory[first : first + count] = value
        else:
            self.arrays.memory[first : first + count] = value if isinstance(value, float) else value.numpy()
        self._ranges.append((first, first + count))
        self._num_touched += count

    def load(self, leaves: Tensor) -> None:
        """Set all leaves."""
        if leaves.shape != self.leaves.shape:
            raise ValueError(f"the tree has {self.count} leaves, found {tuple(leaves.shape)}")
        self.leaves.copy_(leaves)
        self._num_touched = self.count

    # -- reading -------------------------------------------------------------------------------------------------------

    def is_empty(self) -> bool:
        """Return whether all leaves are 0; syncs with a GPU."""
        self._add_up()
        return not (float(self._running[-1]) if self.arrays is None else self.arrays.total) > 0.0

    def total(self) -> Tensor:
        """Return the sum of all leaves, 0-d."""
        self._add_up()
        return self._running[-1]

    def sample_index(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return (leaf numbers, their values) for uniform float64 numbers in [0, 1), [B] each.

        A leaf that is 0 is never drawn, unless all are.
        """
        if self.arrays is not None:
            leaves, found = self.pick_on_cpu(numbers.numpy())
            return torch.from_numpy(leaves), torch.from_numpy(found)
        self._add_up()
        # a little less than the total: rounding must not put a number beyond the last leaf that is not 0
        rest = numbers * (self._running[-1] * _BELOW_ONE)
        place = torch.searchsorted(self._running, rest, right=True).sub_(1).clamp_(max=self._top.shape[0] - 1)
        rest = rest - self._running.index_select(0, place)
        for groups, _ in reversed(self._levels):
            values = groups.index_select(0, place)
            running = values.cumsum(1)
            rest = torch.minimum(rest, running[:, -1] * _BELOW_ONE)
            child = (running > rest.unsqueeze(1)).to(torch.uint8).argmax(1, keepdim=True)
            place = torch.add(child.squeeze(1), place, alpha=self._width)
            if groups is not self._levels[0].groups:
                rest = (rest - (running.gather(1, child) - values.gather(1, child)).squeeze(1)).clamp_(min=0.0)
        return place, self._memory.index_select(0, place)

    def pick_on_cpu(self, numbers: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Do the same with arrays; in ascending order, because neighbours share the way down."""
        self._add_up()
        arrays, width = self._on_cpu(), self._width
        order = numbers.argsort()
        rest = numbers.take(order)
        rest *= arrays.total * _BELOW_ONE
        place = arrays.ends.searchsorted(rest, "right")
        if not arrays.total > 0.0:
            np.minimum(place, self._top.shape[0] - 1, out=place)
        rest -= arrays.running.take(place)
        for groups, _ in reversed(arrays.levels):
            values = groups.take(place, 0)
            inside = _from_numpy(values).cumsum(1).numpy()  # six times as fast as numpy's
            np.minimum(rest, inside[:, -1] * _BELOW_ONE, out=rest)
            child = (inside > rest[:, None]).argmax(1)
            place *= width
            place += child
            if groups is not arrays.levels[0][0]:
                child += _firsts(len(numbers), width)
                rest -= inside.ravel().take(child) - values.ravel().take(child)
                np.maximum(rest, 0.0, out=rest)
        index = np.empty_like(place)
        index[order] = place
        return index, arrays.memory.take(index)

    def _on_cpu(self) -> _Arrays:
        if self.arrays is None:
            raise TypeError(f"this tree is on {self._memory.device}; write and pick with tensors")
        return self.arrays

    # -- sums ----------------------------------------------------------------------------------------------------------

    def _add_up(self) -> None:
        """Update the sums."""
        if not self._num_touched:
            return
        if self._num_touched * 8 > self.count:
            for groups, sums in self._levels:
                sums.copy_(_row_sums(groups))
        else:
            for first, last in _merged(self._ranges, self._width):
                self._add_up_between(first, last)
            if self._written:
                self._add_up_on_cpu(self._written[0] if len(self._written) == 1 else np.concatenate(self._written))
            if self._touched:
                self._add_up_at(self._touched[0] if len(self._touched) == 1 else torch.cat(self._touched))
        torch.cumsum(self._top, 0, out=self._ends)
        if self.arrays is not None:
            self.arrays.total = float(self.arrays.running[-1])
        self._touched.clear()
        self._written.clear()
        self._ranges.clear()
        self._num_touched = 0

    def _add_up_at(self, index: Tensor) -> None:
        """Add up the groups above some leaves."""
        for groups, sums in self._levels:
            index = index // self._width
            sums.index_put_((index,), _row_sums(groups.index_select(0, index)))

    def _add_up_on_cpu(self, rows: NDArray[np.int64]) -> None:
        """Do the same with arrays."""
        for groups, sums in self._on_cpu().levels:
            rows = rows // self._width
            sums[rows] = np.einsum("ij->i", groups.take(rows, 0))

    def _add_up_between(self, first: int, last: int) -> None:
        """Add up groups of leaves, and what is above them."""
        for groups, sums in self._levels:
            sums[first:last] = _row_sums(groups[first:last])
            first, last = first // self._width, -(-last // self._width)


@lru_cache(maxsize=16)
def _firsts(count: int, width: int) -> NDArray[np.int64]:
    """Return where each of `count` groups begins; read only."""
    firsts = np.arange(0, width * count, width)
    firsts.flags.writeable = False
    return firsts


def _layout(count: int, width: int, most: int) -> tuple[list[int], list[int]]:
    """Return where in memory the leaves and each level of sums begin and how long they are, the top last."""
    starts, sizes = [0], [count]
    while count > most:
        count = -(-count // width)
        sizes[-1] = count * width  # whole groups
        starts.append(starts[-1] + sizes[-1])
        sizes.append(count)
    return starts, sizes


def _rebuilt(leaves: NDArray[np.float64], device: str, shape: tuple[int, int]) -> SumTree:
    """Make a tree with these leaves; its parts are views of each other, which pickle would separate."""
    tree = SumTree(len(leaves), device=device, shape=shape)
    tree.load(torch.from_numpy(leaves).to(device))
    return tree


def _row_sums(groups: Tensor) -> Tensor:
    """Add up the rows, each in the same order of additions wherever it stands: sums are reproducible."""
    if groups.device.type == "cpu":
        return torch.from_numpy(np.einsum("ij->i", groups.numpy()))
    return groups.sum(1)


def _merged(ranges: list[tuple[int, int]], width: int) -> list[tuple[int, int]]:
    """Return the groups that ranges of leaves touch, neighbouring ranges joined."""
    merged: list[tuple[int, int]] = []
    for start, stop in ranges:
        first, last = start // width, -(-stop // width)
        if merged and merged[-1][0] <= first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged
