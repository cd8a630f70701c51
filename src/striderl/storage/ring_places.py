"""Where the steps of a `ReplayBuffer` lie: rings of one length, one behind the other.

    2 rings of 4        ring 0              ring 1
    index            0   1   2   3       4   5   6   7
    number of step   4   5   2   3       0   1   ·   ·        pointer 2 and 2, size 4 and 2
                         ▲   ▲               ▲
                    newest   oldest          newest

Which steps follow each other is the buffer's business; here are places alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from striderl.data import leaf


class RingPlaces:
    """The places of `num_rings` rings of `capacity` steps; see the picture at the top of this module."""

    def __init__(self, num_rings: int, capacity: int) -> None:
        """Begin empty."""
        self.num_rings, self.capacity = num_rings, capacity
        self.pointer: NDArray[np.int64] = np.zeros(num_rings, np.int64)
        """Where each ring is written next."""
        self.size: NDArray[np.int64] = np.zeros(num_rings, np.int64)
        """How many steps each ring holds."""

    def __len__(self) -> int:
        return int(self.size.sum())

    def open(self, rings: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices that are written next."""
        return rings * self.capacity + self.pointer[rings]

    def advance(self, rings: NDArray[np.int64], count: int = 1) -> None:
        """Count this many new steps in each of these rings."""
        self.pointer[rings] = (self.pointer[rings] + count) % self.capacity
        self.size[rings] = np.minimum(self.size[rings] + count, self.capacity)

    def clear(self) -> None:
        """Hold nothing."""
        self.pointer[:] = 0
        self.size[:] = 0

    def oldest(self, ring: Any) -> Any:
        """Return the index of the oldest step of rings that are not empty."""
        return ring * self.capacity + np.where(self.size[ring] == self.capacity, self.pointer[ring], 0)

    def newest(self, ring: Any) -> Any:
        """Return the index of the newest step of rings that are not empty."""
        return ring * self.capacity + (self.pointer[ring] - 1) % self.capacity

    def filled(self) -> NDArray[np.int64]:
        """Return the rings that are not empty."""
        return self.size.nonzero()[0]

    def chronological(self) -> NDArray[np.int64]:
        """Return the indices of all steps, ring by ring in the order of time."""
        parts = [
            ring * self.capacity + (self.oldest(ring) - ring * self.capacity + np.arange(size)) % self.capacity
            for ring, size in enumerate(self.size.tolist())
        ]
        return np.concatenate(parts).astype(np.int64)

    def alive(self) -> NDArray[np.int64]:
        """Return the indices of all steps in the order of storage."""
        parts = [ring * self.capacity + np.arange(size) for ring, size in enumerate(self.size.tolist())]
        return np.concatenate(parts).astype(np.int64)

    def resolve(self, index: Any, who: str) -> NDArray[np.int64]:
        """Return what a user's index stands for: a slice, a mask, numbers that may be negative."""
        if isinstance(index, slice):
            return self.alive()[index]
        array = np.asarray(leaf.to_array(index))
        if array.dtype.kind == "b":
            array = np.arange(self.num_rings * self.capacity)[array]
        if array.size == 0:
            return array.astype(np.int64)
        if array.dtype.kind not in "iu":
            raise IndexError(f"{who} is indexed by whole numbers and slices, found {array.dtype}")
        array = np.where(array < 0, array + len(self), array).astype(np.int64)
        ring = np.clip(array // self.capacity, 0, self.num_rings - 1)
        outside = (array < 0) | (array >= self.num_rings * self.capacity)
        bad = outside | (array - ring * self.capacity >= self.size[ring])
        if bad.any():
            raise IndexError(
                f"index {np.atleast_1d(array)[np.atleast_1d(bad)][0]} holds no step; there are {len(self)}"
            )
        return array
