"""Writing one step of a few envs into an arena on the CPU, without the cost of a torch call per column.

    transition.columns()                 plan (made once per arena)
    {"obs": {"joints": [N, 12]},   ──▶   "obs" ─ "joints"   numpy view of data["obs"]["joints"]   [T, N, 12]
     "rew": [N], …}                      "rew"              numpy view of data["rew"]             [T, N]

With eight envs a step holds a few hundred numbers in about ten columns: checking and joining them in torch takes far
longer than copying them. Only values that fit exactly are taken here. For everything else, from another dtype to a
column that is missing, the answer is False, nothing is written, and `Arena.write` converts or explains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from striderl.data.arena import Arena

Array = np.ndarray[Any, Any]


class _Column(NamedTuple):
    """One column, or a group of columns: its memory, and what a value must look like."""

    name: str
    group: list[_Column] | None
    array: Array
    dtype: torch.dtype
    shape: tuple[int, ...]
    """Of the values of all envs, [N, …]."""


_NO_ARRAY = np.zeros(0)


class RowWriter:
    """Writes steps into the arena it was last used with; a copy starts without a plan, because views are not copied."""

    def __init__(self) -> None:
        self._arena: Arena | None = None
        self._plan: list[_Column] | None = None

    def __reduce__(self) -> tuple[type[RowWriter], tuple[()]]:
        return RowWriter, ()

    def write(self, arena: Arena, step: int, envs: slice, values: Mapping[str, Any]) -> bool:
        """Write a step of these envs and return True, or return False when the values do not fit as they are."""
        if arena is not self._arena:
            self._arena, self._plan = arena, _planned(arena)
        if self._plan is None:
            return False
        count = int(envs.stop) - int(envs.start)
        pairs: list[tuple[Array, Array]] = []
        if not _match(self._plan, values, None if count == arena.leading[1] else count, pairs):
            return False
        start, stop = envs.start, envs.stop
        for target, array in pairs:
            target[step, start:stop] = array
        return True


def _planned(arena: Arena) -> list[_Column] | None:
    """Return the plan of an arena [T, N]; None where its memory cannot be seen as numpy arrays."""
    blocks = arena.blocks.values()
    if len(arena.leading) != 2 or any(not block.is_cpu or block.dtype is torch.bfloat16 for block in blocks):
        return None
    return _columns_of(arena.data)


def _columns_of(data: Mapping[str, Any]) -> list[_Column]:
    return [
        _Column(name, None, part.numpy(), part.dtype, tuple(part.shape[1:]))
        if isinstance(part, Tensor)
        else _Column(name, _columns_of(part), _NO_ARRAY, torch.float32, ())
        for name, part in data.items()
    ]


def _match(plan: list[_Column], values: Mapping[str, Any], count: int | None, pairs: list[tuple[Array, Array]]) -> bool:
    """Pair every column with its value as an array; `count` is how many envs there are, None for all."""
    if len(values) != len(plan):
        return False
    for name, group, array, dtype, shape in plan:
        value = values.get(name)
        if group is not None:
            if not isinstance(value, dict) or not _match(group, value, count, pairs):
                return False
            continue
        if type(value) is not Tensor or value.dtype is not dtype or not value.is_cpu or value.requires_grad:
            return False
        if value.shape != (shape if count is None else (count, *shape[1:])):
            return False
        pairs.append((array, value.numpy()))
    return True
