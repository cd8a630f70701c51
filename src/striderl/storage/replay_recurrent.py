"""The memory of a recurrent actor beside a ring, stored before every k-th place.

    place    0   1   2   3   4   5   6   7        k = 3
    state    s0          s3          s6           s_i: the memory before the step at place i

A sequence starts at one of these places with the memory that was there; sequences that start elsewhere start from zero.
The memory before a step is the one after the step before it, and zero where an episode begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.data.arena import Arena, Columns, Placement
from striderl.storage.packed_rows import PackedRows


class StateRows:
    """States [ceil(R / k), N, …]."""

    def __init__(self, columns: Columns, rows: int, num_envs: int, every: int, placement: Placement) -> None:
        """Keep the state before every place that is a multiple of `every`."""
        if every < 1:
            raise ValueError(f"state_every is at least 1, found {every}")
        self.every = every
        self._num_envs = num_envs
        self._rows = rows
        self.packed = PackedRows(Arena(columns, (-(-rows // every), num_envs), placement))

    def fit(self, next_state: Any, ends: Tensor) -> list[Tensor]:
        """Return the memory after a step, zero where the episode ends; raise when it does not have the right shape."""
        if not isinstance(next_state, Mapping):
            raise TypeError(
                f"this replay stores the actor's memory, but the transition has none: next_state is {next_state!r}"
            )
        fitted = []
        for value in self.packed.fit(next_state, ends.shape[0]):
            tensor = torch.as_tensor(value)
            fitted.append(torch.where(ends.view(-1, *[1] * (tensor.ndim - 1)), torch.zeros_like(tensor), tensor))
        return fitted

    def put(self, fitted: list[Tensor], place: int, envs: slice) -> None:
        """Keep the memory before the step at this place, if it is one of those that are kept."""
        if place % self.every == 0:
            for column, value in zip(self.packed.columns, fitted):
                column.view[place // self.every, envs] = value

    def clear(self, envs: slice, place: int) -> None:
        """Let the step at this place start from zero."""
        if place % self.every == 0:
            for column in self.packed.columns:
                column.view[place // self.every, envs] = 0

    def gather(self, index: Tensor) -> dict[str, Any]:
        """Read the memory before these rows, whose places are multiples of `every`."""
        place = index // self._num_envs // self.every
        return self.packed.gather(place * self._num_envs + index % self._num_envs)
