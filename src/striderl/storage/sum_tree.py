"""Drawing in proportion to a million priorities: two levels of sums, brought up to date only where they changed.

    leaves   float64 [32768 · 32]      one per row
    sums     float64 [32768]           of 32 leaves each, and the running sum over them

    pick u in [0, total): search the running sum, then add up the 32 leaves found there

A write goes to the leaves only and leaves a note of what it touched; the next pick adds up the groups concerned. Sums
are always added up anew, never adjusted, so they do not drift, and a leaf written twice counts once. Picking walks all
draws in lock step with a handful of operations, on any device. Two levels beat a binary tree here: twenty levels of
small operations cost more than one search in 32,768 numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_WIDTH = 32
_MOST_GROUPS = 32768
_BELOW_ONE = 1.0 - 2.0**-53


class _Arrays:
    """The same memory as numpy sees it."""

    def __init__(self, leaves: Tensor, groups: Tensor, sums: Tensor, running: Tensor) -> None:
        self.leaves, self.groups = leaves.numpy(), groups.numpy()
        self.sums, self.running = sums.numpy(), running.numpy()


class SumTree:
    """Non-negative numbers that can be drawn from in proportion to their size."""

    def __init__(self, count: int, *, device: torch.device | str = "cpu") -> None:
        """Start with `count` zeros."""
        if count < 1:
            raise ValueError(f"a tree has at least one leaf, found {count}")
        self.count = count
        self._on_cpu = torch.device(device).type == "cpu"
        self._width = _WIDTH
        while self._width * _MOST_GROUPS < count:
            self._width *= 2
        num_groups = -(-count // self._width)
        self._all = torch.zeros(num_groups * self._width, dtype=torch.float64, device=device)
        self._sums = torch.zeros(num_groups, dtype=torch.float64, device=device)
        self._running = torch.zeros(num_groups + 1, dtype=torch.float64, device=device)
        self._groups = self._all.view(-1, self._width)
        self._arrays = _Arrays(self._all, self._groups, self._sums, self._running) if self._on_cpu else None
        self._touched: list[Tensor] = []
        self._ranges: list[tuple[int, int]] = []
        self._num_touched = 0
        self.leaves = self._all[:count]
        """The numbers themselves; write them through `put` and `fill`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.leaves.cpu().numpy().copy(), str(self._all.device))

    def put(self, index: Tensor, values: Tensor) -> None:
        """Set some leaves; where one is named twice, either value may stay."""
        if self._arrays is not None:
            self._arrays.leaves[index.numpy()] = values.numpy()
        else:
            self._all.index_put_((index,), values)
        self._touched.append(index)
        self._num_touched += index.shape[0]

    def fill(self, first: int, count: int, value: Tensor | float) -> None:
        """Set neighbouring leaves to one number, or to one number each."""
        if self._arrays is None:
            self._all[first : first + count] = value
        else:
            self._arrays.leaves[first : first + count] = value if isinstance(value, float) else value.numpy()
        self._ranges.append((first, first + count))
        self._num_touched += count

    def load(self, leaves: Tensor) -> None:
        """Set all leaves."""
        if leaves.shape != self.leaves.shape:
            raise ValueError(f"the tree has {self.count} leaves, found {tuple(leaves.shape)}")
        self.leaves.copy_(leaves)
        self._num_touched = self._all.shape[0]

    def is_empty(self) -> bool:
        """Tell whether all leaves are 0; a GPU is waited for."""
        self._add_up()
        return not float(self._running[-1] if self._arrays is None else self._arrays.running[-1]) > 0.0

    def total(self) -> Tensor:
        """Return the sum of all leaves, 0-d."""
        self._add_up()
        return self._running[-1]

    def pick(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return (leaf numbers, their values) for uniform float64 numbers in [0, 1), [B] each.

        A leaf that is 0 is never drawn, unless all are.
        """
        self._add_up()
        if self._arrays is not None:
            return self._pick_on_cpu(numbers.numpy(), self._arrays)
        total = self._running[-1]
        # rounding may put a number on the total itself; the last group that is not empty must still catch it
        rest = torch.minimum(numbers * total, total * _BELOW_ONE)
        group = torch.searchsorted(self._running, rest, right=True).sub_(1).clamp_(max=self._sums.shape[0] - 1)
        rest = rest - self._running.index_select(0, group)
        values = self._groups.index_select(0, group)
        running = values.cumsum(1)
        rest = torch.minimum(rest, running[:, -1] * _BELOW_ONE).unsqueeze(1)
        child = (running > rest).to(torch.uint8).argmax(1, keepdim=True)
        return torch.add(child.squeeze(1), group, alpha=self._width), values.gather(1, child).squeeze(1)

    def _pick_on_cpu(self, numbers: NDArray[np.float64], arrays: _Arrays) -> tuple[Tensor, Tensor]:
        """Do the same with numpy, whose calls cost half."""
        running = arrays.running
        rest = np.minimum(numbers * running[-1], running[-1] * _BELOW_ONE)
        group = running.searchsorted(rest, side="right")
        group -= 1
        np.minimum(group, self._sums.shape[0] - 1, out=group)
        rest -= running.take(group)
        values = arrays.groups.take(group, 0)
        inside = torch.from_numpy(values).cumsum(1).numpy()  # six times as fast as numpy's
        np.minimum(rest, inside[:, -1] * _BELOW_ONE, out=rest)
        child = (inside > rest[:, None]).argmax(1)
        place = np.arange(0, values.size, self._width)
        place += child
        group *= self._width
        group += child
        return torch.from_numpy(group), torch.from_numpy(values.ravel().take(place))

    def _add_up(self) -> None:
        """Bring the sums up to date."""
        if not self._num_touched:
            return
        if self._num_touched * 8 > self._all.shape[0]:
            self._sums.copy_(_row_sums(self._groups))
        else:
            for index in self._touched:
                group = index // self._width
                if self._arrays is not None:
                    rows = group.numpy()
                    self._arrays.sums[rows] = np.einsum("ij->i", self._arrays.groups.take(rows, 0))
                else:
                    self._sums.index_put_((group,), self._groups.index_select(0, group).sum(1))
            for first, last in _merged(self._ranges, self._width):
                self._sums[first:last] = _row_sums(self._groups[first:last])
        torch.cumsum(self._sums, 0, out=self._running[1:])
        self._touched.clear()
        self._ranges.clear()
        self._num_touched = 0


def _rebuilt(leaves: NDArray[np.float64], device: str) -> SumTree:
    """Make a tree with these leaves; its parts are views of each other, which pickle would separate."""
    tree = SumTree(len(leaves), device=device)
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
