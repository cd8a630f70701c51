"""The short way into a replay: a step of all envs in which nothing ends and everything fits.

Nearly all steps are like that, and one step of one env at a time is how a replay is often filled, so each microsecond
counts. Whatever is not plain is left to `Replay.add`, which converts what can be converted and finds the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from striderl.data.transition import Transition
from striderl.storage.packed_rows import Column
from striderl.storage.pickers import Picker
from striderl.storage.replay_reader import ReplayReader
from striderl.storage.ring_index import RingCursor

_PARTS = {"act": 0, "rew": 1, "info": 2, "policy": 3}
_bool = torch.bool


class PlainAdd:
    """Writes plain steps into the arrays of a replay on the CPU."""

    def __init__(
        self,
        cursor: RingCursor,
        steps: Sequence[Column],
        frames: Sequence[Column],
        flags: Any,
        picker: Picker | None,
        read: ReplayReader,
    ) -> None:
        """Work out once what is done for each column; `picker` is None where it does not want to hear of steps."""
        num = cursor.num_envs
        self._cursor, self._flags, self._picker, self._read = cursor, flags, picker, read
        self._steps = [(_PARTS[c.path[0]], c.path[1:], c.target.dtype, (num, *c.shape)) for c in steps]
        self._frames = [(c.path, c.target.dtype, (num, *c.shape)) for c in frames]
        self._step_targets = [c.target for c in steps]
        self._frame_targets = [c.target for c in frames]
        self._alive = np.array([False, False, True])
        self._no, self._yes = [False] * num, [True] * num

    def add(self, transition: Transition) -> bool:
        """Add a step of all envs, or change nothing and return False."""
        try:
            found = self._values(transition) if self._is_plain(transition) else None
        except (KeyError, TypeError, AttributeError, RuntimeError):
            return False
        if found is None:
            return False
        self._write(*found)
        return True

    def _is_plain(self, transition: Transition) -> bool:
        """Tell whether no episode ends and all steps count; lists of a few flags are compared faster than tensors."""
        terminated, truncated, valid = transition.terminated, transition.truncated, transition.valid
        return (
            terminated.dtype is truncated.dtype is valid.dtype is _bool
            and terminated.tolist() == self._no
            and truncated.tolist() == self._no
            and valid.tolist() == self._yes
        )

    def _values(self, transition: Transition) -> tuple[list[Any], list[Any], list[Any]] | None:
        """Return the arrays of the step, of the observations and of the next ones, or None when one does not fit."""
        parts = (transition.act, transition.rew, transition.info, transition.policy)
        steps, obs, following = [], [], []
        for part, keys, dtype, shape in self._steps:
            value: Any = parts[part]
            for key in keys:
                value = value[key]
            value = value.numpy()
            if value.dtype != dtype or value.shape != shape:
                return None
            steps.append(value)
        for path, dtype, shape in self._frames:
            after: Any = transition.next_obs
            value = transition.obs
            for key in path:
                value, after = value[key], after[key]
            value, after = value.numpy(), after.numpy()
            if value.dtype != dtype or after.dtype != dtype or value.shape != shape or after.shape != shape:
                return None
            obs.append(value)
            following.append(after)
        return steps, obs, following

    def _write(self, steps: list[Any], obs: list[Any], following: list[Any]) -> None:
        cursor = self._cursor
        place = cursor.total % cursor.rows
        after = place + 1 if place + 1 < cursor.rows else 0
        for target, value in zip(self._step_targets, steps):
            target[place] = value
        for target, value, next_value in zip(self._frame_targets, obs, following):
            target[place] = value
            target[after] = next_value
        self._flags[place] = self._alive
        if self._picker is not None:
            num = cursor.num_envs
            self._picker.written(self._read, place * num, num, True)
            self._picker.opened(after * num, num)
        cursor.advance(None)
