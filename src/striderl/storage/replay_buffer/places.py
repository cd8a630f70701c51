"""Where the steps of a `ReplayBuffer` lie: rings of one length, one behind the other.

    2 rings of 4        ring 0              ring 1
    index            0   1   2   3       4   5   6   7
    number of step   4   5   2   3       0   1   ·   ·        pointer 2 and 2, size 4 and 2
                         ▲   ▲               ▲
                    newest   oldest          newest

Which steps follow each other is decided by the buffer; this module has places alone.

Priorities of a `ReplayBuffer`: sampling an index, and its importance weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from striderl.data import leaf
from striderl.storage.replay.sum_tree import SumTree


class RingPlaces:
    """The places of `num_rings` rings of `capacity` steps; see the picture at the top of this module."""

    def __init__(self, num_rings: int, capacity: int) -> None:
        """Start empty."""
        self.num_rings, self.capacity = num_rings, capacity
        self.pointer: NDArray[np.int64] = np.zeros(num_rings, np.int64)
        """Where each ring is written next."""
        self.size: NDArray[np.int64] = np.zeros(num_rings, np.int64)
        """How many steps each ring holds."""

    def __len__(self) -> int:
        return int(self.size[0] if self.num_rings == 1 else self.size.sum())

    def open(self, rings: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices that are written next."""
        return rings * self.capacity + self.pointer[rings]

    def advance(self, rings: NDArray[np.int64], count: int = 1) -> None:
        """Count this many new steps in each of these rings."""
        self.pointer[rings] = (self.pointer[rings] + count) % self.capacity
        self.size[rings] = np.minimum(self.size[rings] + count, self.capacity)

    def advance_one(self, count: int) -> None:
        """Count this many new steps in the first ring."""
        self.pointer[0] = (int(self.pointer[0]) + count) % self.capacity
        self.size[0] = min(int(self.size[0]) + count, self.capacity)

    def clear(self) -> None:
        """Drop all steps."""
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
        """Resolve a user's index: a slice, a mask, numbers that may be negative."""
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


# -- priorities --------------------------------------------------------------------------------------------------------


class Priorities:
    """One priority per index; index i is drawn with probability p_i^alpha / sum p^alpha."""

    def __init__(
        self, *, alpha: float, beta: float, beta_final: float | None = None, beta_steps: int = 0, epsilon: float = 1e-8
    ) -> None:
        """Anneal beta to `beta_final` over `beta_steps` draws, where that is given."""
        if alpha < 0.0 or not 0.0 <= beta <= 1.0:
            raise ValueError(f"wanted alpha >= 0 and beta in [0, 1], found {alpha} and {beta}")
        if (beta_final is None) != (beta_steps == 0):
            raise ValueError("beta_final and beta_steps belong together")
        self.alpha, self.beta, self.epsilon = alpha, beta, epsilon
        self.first_beta, self.beta_final, self.beta_steps = beta, beta_final, beta_steps
        self.num_draws = 0
        self.largest = 1.0
        """The largest p^alpha seen; new steps get it."""
        self.tree = SumTree(1)

    def attach(self, count: int) -> None:
        """Allocate `count` indices."""
        self.tree = SumTree(count)

    def written(self, index: NDArray[np.int64]) -> None:
        """Give new steps the largest priority."""
        place = torch.from_numpy(np.asarray(index, np.int64))
        self.tree.put(place, torch.full((len(place),), self.largest, dtype=torch.float64))

    def clear(self) -> None:
        """Set all priorities to 0."""
        self.tree.load(torch.zeros_like(self.tree.leaves))

    def sample_index(self, numbers: NDArray[np.float64], hidden: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return an index for each number in [0, 1); hidden ones are never drawn."""
        place = torch.from_numpy(np.asarray(hidden, np.int64))
        kept = self.tree.leaves[place].clone()
        if len(hidden):
            self.tree.put(place, torch.zeros_like(kept))
        index, _ = self.tree.sample_index(torch.from_numpy(numbers))
        if len(hidden):
            self.tree.put(place, kept)
        self.num_draws += 1
        if self.beta_final is not None:
            share = min(1.0, self.num_draws / self.beta_steps)
            self.beta = self.first_beta + share * (self.beta_final - self.first_beta)
        return np.asarray(index.numpy())

    def weight(self, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (p_i / p_min)^(-beta) with both to the power alpha; the largest weight of the batch is 1."""
        priority = self.tree.leaves.numpy()[index]
        return np.asarray((priority / priority.min()) ** -self.beta)

    def update(self, index: NDArray[np.int64], error: Any) -> None:
        """Set priorities to |error| + epsilon."""
        values = np.abs(np.asarray(leaf.to_array(error), np.float64)) + self.epsilon
        if values.shape != index.shape:
            raise ValueError(f"wanted one weight per index {index.shape}, found {values.shape}")
        if not np.isfinite(values).all():
            raise ValueError("weights must be finite; the priorities are unchanged")
        raised = values**self.alpha
        self.largest = max(self.largest, float(raised.max(initial=0.0)))
        self.tree.put(torch.from_numpy(index), torch.from_numpy(raised))

    def state(self) -> dict[str, Any]:
        """Return the numbers of this object; the leaves are saved apart."""
        return {"beta": self.beta, "num_draws": self.num_draws, "largest": self.largest}

    def load(self, state: dict[str, Any], leaves: NDArray[np.float64]) -> None:
        """Restore saved priorities."""
        self.tree.load(torch.from_numpy(np.array(leaves)))
        self.beta, self.num_draws = float(state["beta"]), int(state["num_draws"])
        self.largest = float(state["largest"])
