"""Where things are in a ring: pure arithmetic on positions, for one ring or many side by side.

A ring has `rows` places. Writing goes round: step number s of an env lies at place s mod rows. Of the steps written so
far the newest `size` are alive; the oldest of them is a seam, because the place before it holds something much newer.

    rows = 5, 7 steps written (numbers 0 … 6), size 4          place   0  1  2  3  4
                                                               number  5  6  ·  3  4        · is not alive
                                       newest ───────────────────────────┘     └── oldest   (the seam is between them)
    back from 4 ─▶ 3 ─▶ 3 (the oldest stays where it is)
    on from 5 ─▶ 6 ─▶ 6 (the newest stays where it is)

Episodes end in the same way as the ring does: walking stops at an end. All functions take and return ints, numpy arrays
or tensors alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def select(condition: Any, yes: Any, no: Any) -> Any:
    """Choose elementwise between two positions, whatever they are made of."""
    if isinstance(condition, (bool, np.bool_)):
        return yes if condition else no
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return _select_tensor(condition, yes, no)


def _select_tensor(condition: Any, yes: Any, no: Any) -> Any:
    import torch

    return torch.where(condition, yes, no)


def step_back(place: Any, *, oldest: Any, rows: int, ended_before: Any) -> Any:
    """Return the place before, or the place itself at the oldest step and where the step before ended an episode."""
    return select((place == oldest) | ended_before, place, (place - 1) % rows)


def step_on(place: Any, *, newest: Any, rows: int, ended: Any) -> Any:
    """Return the place after, or the place itself at the newest step and at the end of an episode."""
    return select((place == newest) | ended, place, (place + 1) % rows)


class RingCursor:
    """Counts the steps of every env and which of them are stored.

    Envs that are written together stay equally far; then one number serves all of them (`even`), which
    makes adding and sampling cheap.
    """

    def __init__(self, num_envs: int, capacity: int, rows: int) -> None:
        """Keep at most `capacity` steps of each env alive in a ring of `rows` places."""
        self.num_envs, self.capacity, self.rows = num_envs, capacity, rows
        self.even = True
        self.total = 0
        """How many steps env 0 has written; that of every env while `even`."""
        self._totals: NDArray[np.int64] = np.zeros(num_envs, np.int64)
        self._floor: NDArray[np.int64] = np.zeros(num_envs, np.int64)
        self._lowest = 0
        self.version = 0
        """Changes whenever anything here does."""

    @property
    def totals(self) -> NDArray[np.int64]:
        """How many steps each env has written, int64 [N]; a copy."""
        return np.full(self.num_envs, self.total, np.int64) if self.even else self._totals.copy()

    @property
    def first_alive(self) -> NDArray[np.int64]:
        """The number of the oldest step alive of each env, int64 [N]."""
        return np.maximum(self.totals - self.capacity, self._floor)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many steps of each env are alive, int64 [N]."""
        return self.totals - self.first_alive

    @property
    def size(self) -> int:
        """How many steps of one env are alive while `even`."""
        return self.total - max(self.total - self.capacity, self._lowest)

    def __len__(self) -> int:
        return self.size * self.num_envs if self.even else int(self.sizes.sum())

    def advance_all(self) -> None:
        """Count one more step of every env, while `even`."""
        self.version += 1
        self.total += 1

    def advance(self, envs: slice | None) -> None:
        """Count one more step of these envs; all when None."""
        self.version += 1
        if envs is None and self.even:
            self.total += 1
            return
        totals = self.totals
        totals[envs if envs is not None else slice(None)] += 1
        self._set(totals, self._floor)

    def set(self, totals: NDArray[np.int64], first_alive: NDArray[np.int64]) -> None:
        """Set the number of steps each env has written; those from `first_alive` on are stored."""
        self._set(np.asarray(totals, np.int64).copy(), np.asarray(first_alive, np.int64).copy())

    def _set(self, totals: NDArray[np.int64], floor: NDArray[np.int64]) -> None:
        self.version += 1
        self._totals, self._floor = totals, floor
        self.even = bool((totals == totals[0]).all()) and bool((floor == floor[0]).all())
        self.total, self._lowest = int(totals[0]), int(floor[0])
