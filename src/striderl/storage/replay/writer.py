"""Writing steps into a replay: a step is checked as a whole first; one that does not fit changes nothing.

    transition ──▶ fitted columns, flags, final observations ──▶ rows at `place`, the next observation at `place + 1`
                                                             ──▶ sampler and episode table are updated ──▶ cursor

Ordinary steps on the CPU take the short way, `PlainAdd`; all others come here.

The short way into a replay: a step of all envs in which nothing ends and everything fits.

Nearly all steps are like that, and one step of one env at a time is how a replay is often filled, so each microsecond
counts. Looking at a tensor as an array costs more than copying it, so the float32 columns are not looked at one by one:
torch puts them side by side onto a stage, and numpy copies the stage to where they belong.

    stage float32 [N, 41]     │ obs 0:17             │ next obs 17:34       │ act 34:40 │ rew 40 │
                                frames[place]          frames[place + 1]      steps[place]

Other columns, few of many envs, and steps made of arrays are written one by one. Whatever is not plain is left to
`Replay.add`, which converts what can be converted and raises otherwise.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.checkpoint.safe_files import open_read, write_json
from striderl.data.memory import mapped_file
from striderl.data.transition import Transition
from striderl.storage.replay.reader import ReplayReader
from striderl.storage.replay.rows import FLAGS, Column, KeyPath
from striderl.storage.replay.samplers import Sampler

_log = logging.getLogger(__name__)

SMALL = 64
"""Up to this many envs, checking flags in Python is cheaper than in torch."""


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
    """Which of the steps are valid, bool [n]; True when all are."""

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

    def __init__(self, read: ReplayReader, sampler: Sampler, mark: Mark | None) -> None:
        """Write the rows of `read`, update the sampler, and mark in files how far they are written."""
        self._read, self._sampler, self._mark = read, sampler, mark
        self._cursor = read.cursor
        self._whole = slice(0, read.num_envs)
        self._others = [column for column in read.steps.columns if column.path[0] not in FLAGS]
        flags = read.steps.arena.blocks["bool"][..., : len(FLAGS)]
        self._flags: Any = flags.numpy() if read.on_cpu else flags
        self._env_index = torch.arange(read.num_envs, device=read.device)

    def add(self, transition: Transition, envs: slice) -> None:
        """Add the next step of these envs."""
        flags: tuple[Any, ...] = (transition.terminated, transition.truncated, transition.valid)
        if isinstance(flags[0], np.ndarray):
            terminated, truncated, valid = map(torch.as_tensor, flags)
            transition = transition._replace(terminated=terminated, truncated=truncated, valid=valid)
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
        """Return the step converted for writing, or raise."""
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
            return _PLAIN, True, False
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
        """Update the sampler and the episode table for new rows, and for the row that holds no step now."""
        read, count = self._read, envs.stop - envs.start
        after = place + 1 if place + 1 < self._cursor.rows else 0
        self._sampler.written(read, place * read.num_envs + envs.start, count, valid)
        self._sampler.opened(after * read.num_envs + envs.start, count)
        if read.episodes is not None:
            number = self._cursor.total if self._cursor.even else int(self._cursor.totals[envs.start])
            env = self._env_index[envs]
            read.episodes.add(torch.full_like(env, number), env, transition.done)


class Mark:
    """How far the files of a replay have been written: int64 [N] in a file of its own, written before the rows are."""

    def __init__(self, folder: Path, num_envs: int) -> None:
        """Open the mark of a folder, or make one."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.written: NDArray[np.int64] = mapped_file(folder / "written.bin", (num_envs,), np.int64, keep=True)

    def commit(self, generation: int, totals: NDArray[np.int64]) -> None:
        """Flush the files, then store their generation atomically."""
        for path in self._folder.rglob("*.bin"):
            with open_read(path) as file:
                os.fsync(file.fileno())  # pages that were written through a mapping included
        content = {"generation": generation, "totals": totals.tolist()}
        write_json(self._folder / "commit.json", content, indent=None)

    def still_alive(self, rows: int, totals: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the oldest step of each env that is still in the files, a ring of `rows` rows."""
        if (self.written < totals).any():
            raise ValueError(
                f"the files in {self._folder} were written up to step {self.written.tolist()}, the saved replay stood "
                f"at {totals.tolist()}: they belong to another run"
            )
        alive = np.minimum(np.maximum(first, self.written - rows + 1), totals)
        lost = int((alive - first).sum())
        if lost:
            saved = int((totals - first).sum())
            _log.warning("%d of %d saved steps were overwritten after the save and are dropped", lost, saved)
        return alive


# -- the short way -----------------------------------------------------------------------------------------------------


_PARTS = {"next_obs": 0, "obs": 1, "act": 2, "rew": 3, "info": 4, "policy": 5}
_FEWEST, _MOST_ENVS = 4, 16
"""Joining this many columns or more of so many envs or fewer is cheaper than looking at each."""
_bool: Any = torch.bool
_array_bool: Any = np.dtype(np.bool_)
_column_stack = torch.column_stack
_PLAIN = np.array([False, False, True])
"""The flags of a plain step."""


class _Single(NamedTuple):
    """A column that is written alone: where a step holds it, what it must look like, and where it goes."""

    part: int
    keys: KeyPath
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    target: Any
    later: bool
    """Whether it goes to the place after the step's."""


class PlainAdd:
    """Writes plain steps into the arrays of a replay on the CPU."""

    def __init__(self, read: ReplayReader, sampler: Sampler | None) -> None:
        """Compute once what is done for each column; `sampler` is None where it needs no updates."""
        self._read, self._sampler = read, sampler
        self._cursor = cursor = read.cursor
        steps, frames = read.steps, read.frames
        self._staged: list[tuple[int, str | None]] = []
        self._shapes: list[torch.Size] = []
        self._all: list[_Single] = []
        """Every column: steps of arrays are written one by one."""
        self._singles: list[_Single] = []
        """Those that are not on the stage."""
        others = [column for column in steps.columns if column.path[0] not in FLAGS]
        num_staged = 2 * len(_stageable(frames.columns, 1)) + len(_stageable(others, 0))
        self._staging = num_staged >= _FEWEST and cursor.num_envs <= _MOST_ENVS
        pieces = [
            (frames, self._plan(frames.columns, ("obs",), False), False),
            (frames, self._plan(frames.columns, ("next_obs",), True), True),
            (steps, self._plan(others, (), False), False),
        ]
        stage = np.zeros((cursor.num_envs, sum(width for _, width, _ in pieces)), np.float32)
        self._stage = torch.from_numpy(stage)
        self._flags = steps.arena.blocks["bool"][..., : len(FLAGS)].numpy()
        self._here: list[tuple[Any, Any]] = []
        self._there: list[tuple[Any, Any]] = []
        """Target and the part of the stage that is copied to it, at the step's place and at the one after it."""
        start = 0
        for rows, width, later in pieces:
            if width:
                copies = self._there if later else self._here
                copies.append((rows.arena.blocks["float32"].numpy(), stage[:, start : start + width]))
            start += width
        self._no, self._yes = [False] * cursor.num_envs, [True] * cursor.num_envs
        self._name = self._only_name()

    def _only_name(self) -> str | None:
        """Return the name of the observation where a step is one vector of it, an action and a reward: most are."""
        parts = [part for part, _ in self._staged]
        flat = parts == [_PARTS[name] for name in ("obs", "next_obs", "act", "rew")] and not self._singles
        return self._staged[0][1] if flat else None

    def _plan(self, columns: Sequence[Column], prefix: KeyPath, later: bool) -> int:
        """Decide how each of these columns is written; return how wide they are on the stage, 0 if they are not."""
        staged = _stageable(columns, len(prefix)) if self._staging else []
        width = 0
        for column in columns:
            part, *keys = prefix + column.path
            shape = (self._cursor.num_envs, *column.shape)
            single = _Single(_PARTS[part], tuple(keys), column.target.dtype, shape, column.target, later)
            self._all.append(single)
            if column in staged:
                self._staged.append((_PARTS[part], keys[0] if keys else None))
                self._shapes.append(torch.Size(shape))
                width += column.shape[0] if column.shape else 1
            else:
                self._singles.append(single)
        return width

    def add(self, transition: Transition) -> bool:
        """Add a step of all envs, or change nothing and return False."""
        obs, act, rew, terminated, truncated, valid, info, policy, next_obs, _, _ = transition
        singles, arrays = self._singles, None
        try:
            kind: Any = terminated.dtype
            # lists of a few flags are compared faster than tensors
            if not (
                truncated.dtype is valid.dtype is kind
                and terminated.tolist() == self._no
                and truncated.tolist() == self._no
                and valid.tolist() == self._yes
            ):
                return False
            if kind is not _bool:
                if kind is not _array_bool:
                    return False
                singles = self._all
            elif self._name is not None:
                now, after_it = obs[self._name], next_obs[self._name]
                shape, _, act_shape, rew_shape = self._shapes
                if now.shape != shape or after_it.shape != shape or act.shape != act_shape or rew.shape != rew_shape:
                    return False
                _column_stack((now, after_it, act, rew), out=self._stage)
            elif self._staged:
                parts: tuple[Any, ...] = (next_obs, obs, act, rew, info, policy)
                values = [parts[part] if key is None else parts[part][key] for part, key in self._staged]
                if [value.shape for value in values] != self._shapes:
                    return False
                _column_stack(values, out=self._stage)  # converts to float32 what can be, as `Column.fitted` does
            if singles:
                arrays = _fitting(singles, (next_obs, obs, act, rew, info, policy))
                if arrays is None:
                    return False
        except (KeyError, TypeError, AttributeError, RuntimeError):
            return False
        cursor = self._cursor
        place = cursor.total % cursor.rows
        after = place + 1 if place + 1 < cursor.rows else 0
        self._flags[place] = _PLAIN
        if kind is _bool:
            for target, piece in self._here:
                target[place] = piece
            for target, piece in self._there:
                target[after] = piece
        if arrays is not None:
            for single, array in zip(singles, arrays):
                single.target[after if single.later else place] = array
        if self._sampler is not None:
            num = cursor.num_envs
            self._sampler.written(self._read, place * num, num, True)
            self._sampler.opened(after * num, num)
        cursor.advance_all()
        return True


def _fitting(columns: Sequence[_Single], parts: tuple[Any, ...]) -> list[Any] | None:
    """Return what is written to these columns as arrays, or None where one does not fit."""
    arrays = []
    for part, keys, dtype, shape, _, _ in columns:
        array = parts[part]
        for key in keys:
            array = array[key]
        if type(array) is not np.ndarray:
            array = array.numpy()
        if array.dtype is not dtype or array.shape != shape:
            return None
        arrays.append(array)
    return arrays


def _stageable(columns: Sequence[Column], depth: int) -> list[Column]:
    """Return the float32 columns if each is a number or a vector, at most one name below a part of the transition."""
    floats = [column for column in columns if column.dtype is torch.float32]
    fit = all(len(column.shape) < 2 and depth + len(column.path) < 3 for column in floats)
    return floats if fit else []
