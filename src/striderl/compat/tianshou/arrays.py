"""Conversions between numpy and torch, sums over a tree, and moving averages, in the words of Tianshou.

to_numpy(x), to_torch(x, dtype, device), to_torch_as(x, like)     arrays, numbers, lists, dicts, a Batch
tree = SegmentTree(8); tree[2] = 0.5; tree.reduce(0, 4)           sums of any range in log(n) steps
stat = MovAvg(100); stat.add([1.0, 2.0]); stat.get()              the mean of the last 100 finite numbers
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.data import leaf
from striderl.data.batch import Batch
from striderl.data.batch_ops import parse
from striderl.data.naming import AssertedValueError

Array = np.ndarray[Any, Any]
_NUMBERS = (bool, int, float, complex, np.number, np.bool_)


def to_numpy(x: Any) -> Any:
    """Return arrays for tensors and numbers; dicts and batches are copied, lists that are ragged stay lists."""
    if isinstance(x, Tensor):
        return leaf.to_array(x)
    if isinstance(x, np.ndarray):
        return x
    if isinstance(x, Batch):
        return x.copy().to_numpy()
    if isinstance(x, dict):
        return {key: to_numpy(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        try:
            return to_numpy(parse(x, "the list", Batch))
        except TypeError:
            return [to_numpy(value) for value in x]
    return leaf.object_or_number(x)


def to_torch(x: Any, dtype: torch.dtype | None = None, device: Any = "cpu") -> Any:
    """Return tensors for arrays and numbers; dicts and batches are copied, lists that are ragged stay lists."""
    if isinstance(x, Tensor):
        return x.to(device=device, dtype=dtype)
    if isinstance(x, np.ndarray) and x.dtype.kind in leaf.NUMERIC:
        return leaf.to_tensor(x, dtype=dtype, device=device)
    if isinstance(x, _NUMBERS):
        return torch.as_tensor(np.asarray(x), dtype=dtype, device=device)
    if isinstance(x, Batch):
        return x.copy().to_torch(dtype, device)
    if isinstance(x, dict):
        return {key: to_torch(value, dtype, device) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        try:
            return to_torch(parse(x, "the list", Batch), dtype, device)
        except TypeError:
            return [to_torch(value, dtype, device) for value in x]
    raise TypeError(f"{type(x).__name__} {x!r} has no numbers to make a tensor of")


def to_torch_as(x: Any, y: Tensor) -> Any:
    """Return tensors of the dtype and on the device of `y`."""
    if not isinstance(y, Tensor):
        raise AssertedValueError(f"to_torch_as wants a tensor to follow, found {type(y).__name__}")
    return to_torch(x, dtype=y.dtype, device=y.device)


class SegmentTree:
    """Numbers at places 0 … size - 1, with the sum of any range in logarithmic time.

    level 0            1.5                 nodes 1
    level 1       1.0      0.5             nodes 2 3
    level 2     0.5  0.5  0.0  0.5         nodes 4 5 6 7: the numbers
    """

    def __init__(self, size: int) -> None:
        """Start with zeros."""
        self._size = size
        self._leaves = 1 << max(0, size - 1).bit_length()
        self._sums: Array = np.zeros(2 * self._leaves)

    def __len__(self) -> int:
        return self._size

    def _places(self, index: Any) -> Array:
        place = np.asarray(index)
        if place.size and (place.min() < 0 or place.max() >= self._size):
            raise IndexError(f"a SegmentTree of {self._size} has places 0 to {self._size - 1}, found {index!r}")
        return place + self._leaves

    def __getitem__(self, index: Any) -> Any:
        return self._sums[self._places(index)]

    def __setitem__(self, index: Any, value: Any) -> None:
        node = np.atleast_1d(self._places(index))
        self._sums[node] = value
        while node.size and node[0] > 1:
            node = node // 2
            self._sums[node] = self._sums[2 * node] + self._sums[2 * node + 1]

    def reduce(self, start: int = 0, end: int | None = None) -> float:
        """Return the sum of the places from `start` up to `end`, which is left out and may be negative."""
        if start == 0 and end is None:
            return float(self._sums[1])
        stop = self._size if end is None else end + self._size if end < 0 else end
        low, high, total = start + self._leaves, stop + self._leaves, 0.0
        while low < high:
            if low & 1:
                total += float(self._sums[low])
                low += 1
            if high & 1:
                high -= 1
                total += float(self._sums[high])
            low, high = low // 2, high // 2
        return total

    def get_prefix_sum_idx(self, value: Any) -> Any:
        """Return the first place up to which, with it, the numbers sum to at least `value`: a number or an array."""
        left = np.array(value, dtype=np.float64, ndmin=1)
        if (left < 0.0).any() or (left >= self._sums[1]).any():
            raise AssertedValueError(f"sums go from 0 to below {self._sums[1]}, found {value!r}")
        node = np.ones(left.shape, np.int64)
        for _ in range(self._leaves.bit_length() - 1):
            node *= 2
            below = self._sums[node]
            right = below < left
            left -= np.where(right, below, 0.0)
            node += right
        place = node - self._leaves
        return place if isinstance(value, np.ndarray) else int(place[0])


class MovAvg:
    """The mean and spread of the last `size` numbers that were finite; `size` 0 keeps all."""

    def __init__(self, size: int = 100) -> None:
        """Start without numbers."""
        self.size = size
        self.cache: deque[float] = deque(maxlen=size if size > 0 else None)

    def add(self, x: Any) -> float:
        """Add a number, or each of a list, array or tensor, and return the mean."""
        found = np.asarray(leaf.to_array(x), np.float64).ravel().tolist()
        self.cache.extend(each for each in found if math.isfinite(each))
        return self.get()

    def get(self) -> float:
        """Return the mean; 0 without numbers."""
        return float(np.mean(self.cache)) if self.cache else 0.0

    def mean(self) -> float:
        """Return the mean, as `get`."""
        return self.get()

    def std(self) -> float:
        """Return the standard deviation; 0 without numbers."""
        return float(np.std(self.cache)) if self.cache else 0.0
