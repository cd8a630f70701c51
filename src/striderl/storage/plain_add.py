"""The short way into a replay: a step of all envs in which nothing ends and everything fits.

Nearly all steps are like that, and one step of one env at a time is how a replay is often filled, so each microsecond
counts. Looking at a tensor as an array costs more than copying it, so the float32 columns are not looked at one by one:
torch puts them side by side onto a stage, and numpy copies the stage to where they belong.

    stage float32 [N, 41]     │ next obs 0:17        │ obs 17:34            │ act 34:40 │ rew 40 │
                                frames[place + 1]      frames[place]          steps[place]

Other columns, and few of many envs, are written one by one. Whatever is not plain is left to `Replay.add`, which
converts what can be converted and finds the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from striderl.data.transition import Transition
from striderl.storage.packed_rows import Column, Path
from striderl.storage.pickers import Picker
from striderl.storage.replay_layout import FLAGS
from striderl.storage.replay_reader import ReplayReader

_PARTS = {"next_obs": 0, "obs": 1, "act": 2, "rew": 3, "info": 4, "policy": 5}
_FEWEST, _MOST_ENVS = 4, 16
"""Joining this many columns or more of so many envs or fewer is cheaper than looking at each."""
_bool, _column_stack = torch.bool, torch.column_stack


class PlainAdd:
    """Writes plain steps into the arrays of a replay on the CPU."""

    def __init__(self, read: ReplayReader, picker: Picker | None) -> None:
        """Work out once what is done for each column; `picker` is None where it does not want to hear of steps."""
        self._read, self._picker = read, picker
        self._cursor = cursor = read.cursor
        steps, frames = read.steps, read.frames
        self._staged: list[tuple[int, str | None]] = []
        self._shapes: list[torch.Size] = []
        self._singles: list[tuple[int, Path, np.dtype[Any], tuple[int, ...]]] = []
        """Of columns that are written one by one: where a step holds them, and what they must look like."""
        self._targets: list[tuple[Any, bool]] = []
        """Where they go, and whether that is at the place after the step's."""
        others = [column for column in steps.columns if column.path[0] not in FLAGS]
        num_staged = 2 * len(_stageable(frames.columns, 1)) + len(_stageable(others, 0))
        self._staging = num_staged >= _FEWEST and cursor.num_envs <= _MOST_ENVS
        pieces = [
            (frames, self._plan(frames.columns, ("next_obs",), True), True),
            (frames, self._plan(frames.columns, ("obs",), False), False),
            (steps, self._plan(others, (), False), False),
        ]
        stage = np.zeros((cursor.num_envs, sum(width for _, width, _ in pieces)), np.float32)
        self._stage = torch.from_numpy(stage)
        flags = steps.arena.blocks["bool"][..., : len(FLAGS)].numpy()
        self._here: list[tuple[Any, Any]] = [(flags, np.array([False, False, True]))]
        self._there: list[tuple[Any, Any]] = []
        """Target and what is copied to it, at the step's place and at the one after it."""
        start = 0
        for rows, width, later in pieces:
            if width:
                copies = self._there if later else self._here
                copies.append((rows.arena.blocks["float32"].numpy(), stage[:, start : start + width]))
            start += width
        self._no, self._yes = [False] * cursor.num_envs, [True] * cursor.num_envs

    def _plan(self, columns: Sequence[Column], prefix: Path, later: bool) -> int:
        """Decide how each of these columns is written; return how wide they are on the stage, 0 if they are not."""
        staged = _stageable(columns, len(prefix)) if self._staging else []
        width = 0
        for column in columns:
            part, *keys = prefix + column.path
            shape = (self._cursor.num_envs, *column.shape)
            if column in staged:
                self._staged.append((_PARTS[part], keys[0] if keys else None))
                self._shapes.append(torch.Size(shape))
                width += column.shape[0] if column.shape else 1
            else:
                self._singles.append((_PARTS[part], tuple(keys), column.target.dtype, shape))
                self._targets.append((column.target, later))
        return width

    def add(self, transition: Transition) -> bool:
        """Add a step of all envs, or change nothing and return False."""
        obs, act, rew, terminated, truncated, valid, info, policy, next_obs, _, _ = transition
        parts: tuple[Any, ...] = (next_obs, obs, act, rew, info, policy)
        try:
            # lists of a few flags are compared faster than tensors
            if not (
                terminated.dtype is truncated.dtype is valid.dtype is _bool
                and terminated.tolist() == self._no
                and truncated.tolist() == self._no
                and valid.tolist() == self._yes
            ):
                return False
            values = [parts[part] if key is None else parts[part][key] for part, key in self._staged]
            if [value.shape for value in values] != self._shapes:
                return False
            arrays = self._arrays(parts) if self._singles else ()
            if arrays is None:
                return False
            if values:
                _column_stack(values, out=self._stage)  # converts to float32 what can be, as `Column.fitted` does
        except (KeyError, TypeError, AttributeError, RuntimeError):
            return False
        self._write(arrays)
        return True

    def _arrays(self, parts: tuple[Any, ...]) -> list[Any] | None:
        """Return the columns that are written one by one, or None when one does not fit."""
        arrays = []
        for part, keys, dtype, shape in self._singles:
            value = parts[part]
            for key in keys:
                value = value[key]
            array = value.numpy()
            if array.dtype != dtype or array.shape != shape:
                return None
            arrays.append(array)
        return arrays

    def _write(self, arrays: Sequence[Any]) -> None:
        cursor = self._cursor
        place = cursor.total % cursor.rows
        after = place + 1 if place + 1 < cursor.rows else 0
        for target, piece in self._here:
            target[place] = piece
        for target, piece in self._there:
            target[after] = piece
        for (target, later), array in zip(self._targets, arrays):
            target[after if later else place] = array
        if self._picker is not None:
            num = cursor.num_envs
            self._picker.written(self._read, place * num, num, True)
            self._picker.opened(after * num, num)
        cursor.advance_all()


def _stageable(columns: Sequence[Column], depth: int) -> list[Column]:
    """Return the float32 columns if each is a number or a vector, at most one name below a part of the transition."""
    floats = [column for column in columns if column.dtype is torch.float32]
    fit = all(len(column.shape) < 2 and depth + len(column.path) < 3 for column in floats)
    return floats if fit else []
