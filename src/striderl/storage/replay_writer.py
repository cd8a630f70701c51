"""Taking steps into a replay: all of a step is looked at before any is written; what does not fit changes nothing.

    transition ──▶ fitted columns, flags, final observations ──▶ rows at `place`, the next observation at `place + 1`
                                                             ──▶ picker and episode table hear of it ──▶ cursor

Ordinary steps on the CPU take the short way of plain_add.py; all others come here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from striderl.data.transition import Transition
from striderl.storage.pickers import Picker
from striderl.storage.replay_layout import FLAGS
from striderl.storage.replay_reader import ReplayReader
from striderl.storage.replay_state import Mark

SMALL = 64
"""Up to this many envs, looking at flags in Python is cheaper than asking torch."""


class _Step(NamedTuple):
    """A step of some envs as it is written: one array or tensor [n, …] per column."""

    columns: list[Any]
    obs: list[Any]
    next_obs: list[Any]
    flags: Any
    """bool [n, 3], or [3] when all envs have the same."""
    finals: list[Any] | None
    state: list[Tensor] | None
    valid: Any
    """Which of the steps count, bool [n]; True when all do."""

    def rows(self, one: slice) -> _Step:
        """Return the step of some of these envs."""

        def part(values: Any) -> Any:
            return None if values is None else [value[one] for value in values]

        return _Step(
            part(self.columns),
            part(self.obs),
            part(self.next_obs),
            self.flags if self.flags.ndim == 1 else self.flags[one],
            part(self.finals),
            part(self.state),
            True if self.valid is True else self.valid[one],
        )


class StepWriter:
    """Writes any step that fits; see the top of this module."""

    def __init__(self, read: ReplayReader, picker: Picker, mark: Mark | None) -> None:
        """Write what `read` reads, tell the picker, and mark in files how far they are written."""
        self._read, self._picker, self._mark = read, picker, mark
        self._cursor = read.cursor
        self._whole = slice(0, read.num_envs)
        self._others = [column for column in read.steps.columns if column.path[0] not in FLAGS]
        flags = read.steps.arena.blocks["bool"][..., : len(FLAGS)]
        self._flags: Any = flags.numpy() if read.on_cpu else flags
        self._plain_flags = np.array([False, False, True])
        self._env_index = torch.arange(read.num_envs, device=read.device)

    def add(self, transition: Transition, envs: slice) -> None:
        """Take the next step of these envs."""
        step = self._fitted(transition, envs.stop - envs.start)
        if self._cursor.even and envs == self._whole:
            self._write(step, self._cursor.total % self._cursor.rows, self._whole)
            self._tell(transition, step.valid, self._cursor.total % self._cursor.rows, self._whole)
            self._cursor.advance(None)
            return
        totals = self._cursor.totals
        for offset, env in enumerate(range(envs.start, envs.stop)):  # they may be at different places
            one, here = slice(offset, offset + 1), slice(env, env + 1)
            place = int(totals[env]) % self._cursor.rows
            row = step.rows(one)
            self._write(row, place, here)
            self._tell(transition.rows(one), row.valid, place, here)
            self._cursor.advance(here)

    def _fitted(self, transition: Transition, count: int) -> _Step:
        """Return the step as it is written, or raise."""
        read = self._read
        step = {"act": transition.act, "rew": transition.rew, "info": transition.info, "policy": transition.policy}
        columns = read.steps.fit(step, count, self._others)
        obs = read.frames.fit(transition.obs, count)
        following = read.frames.fit(transition.next_obs, count)
        flags, valid, ended = self._fitted_flags(transition, count)
        finals: list[Any] | None = None
        if ended:
            finals = obs if transition.final_obs is None else read.finals.fit(transition.final_obs, count)
        state = None if read.states is None else read.states.fit(transition.next_state, transition.done)
        return _Step(columns, obs, following, flags, finals, state, valid)

    def _fitted_flags(self, transition: Transition, count: int) -> tuple[Any, Any, bool]:
        """Return the flags as they are written, which steps count (True: all), and whether any may end an episode."""
        terminated, truncated, valid = transition.terminated, transition.truncated, transition.valid
        if not terminated.dtype is truncated.dtype is valid.dtype is torch.bool:
            kinds = f"{terminated.dtype}, {truncated.dtype} and {valid.dtype}"
            raise ValueError(f"'terminated', 'truncated' and 'valid' want bool, found {kinds}")
        if not terminated.shape == truncated.shape == valid.shape == (count,):
            shapes = f"{list(terminated.shape)}, {list(truncated.shape)} and {list(valid.shape)}"
            raise ValueError(f"'terminated', 'truncated' and 'valid' want shape [{count}], found {shapes}")
        if self._read.on_cpu and (
            not (True in terminated.tolist() or True in truncated.tolist() or False in valid.tolist())
            if count <= SMALL
            else bool((~(terminated | truncated) & valid).all())
        ):
            return self._plain_flags, True, False
        if transition.final_obs is None:
            valid = valid & ~(truncated & ~terminated)
        flags = torch.stack([terminated, truncated, valid], dim=-1)
        return (flags.numpy() if self._read.on_cpu else flags), valid, True

    def _write(self, step: _Step, place: int, envs: slice) -> None:
        read = self._read
        if self._mark is not None:
            self._mark.written[envs] = self._cursor.totals[envs] + 1
        after = place + 1 if place + 1 < self._cursor.rows else 0
        here: Any = place if envs is self._whole else (place, envs)
        there: Any = after if envs is self._whole else (after, envs)
        for column, value in zip(self._others, step.columns):
            column.target[here] = value
        self._flags[here] = step.flags
        for column, value, next_value in zip(read.frames.columns, step.obs, step.next_obs):
            column.target[here] = value
            column.target[there] = next_value
        if step.finals is not None:
            read.finals.put(step.finals, here)
        if read.states is not None and step.state is not None:
            read.states.put(step.state, after, envs)

    def _tell(self, transition: Transition, valid: Any, place: int, envs: slice) -> None:
        """Let picker and episode table know what is new, and which row holds no step now."""
        read, count = self._read, envs.stop - envs.start
        after = place + 1 if place + 1 < self._cursor.rows else 0
        self._picker.written(read, place * read.num_envs + envs.start, count, valid)
        self._picker.opened(after * read.num_envs + envs.start, count)
        if read.episodes is not None:
            number = self._cursor.total if self._cursor.even else int(self._cursor.totals[envs.start])
            env = self._env_index[envs]
            read.episodes.add(torch.full_like(env, number), env, transition.done)
