"""Reading a replay by row number: columns, the next observation, and walking along episodes.

    row number = place · N + env        places go round, see ring.py
    next: + N, stays at the newest step and where an episode ended
    prev: - N, stays at the oldest step, at the start of an episode and after an invalid step

While all envs are equally far, the oldest and newest places are plain numbers; otherwise they are looked up per env.

Which episode each step of a ring belongs to, and where it begins and ends; for hindsight.

    row        0  1  2  3  4  5        one env; E ends an episode
    step       ·  ·  E  ·  ·  ·
    episode    0  0  0  1  1  1        a column [R, N]
    first[0] = 0   last[0] = 2         tables [R, N]: the numbers of the first and the newest step of an episode
    first[1] = 3   last[1] = 5         episode e uses place e mod R; as many cannot be alive at once

Everything is updated with each step by scatters over the envs, without a GPU sync.

The memory of a recurrent actor in a second ring, stored before every k-th place.

    place    0   1   2   3   4   5   6   7        k = 3
    state    s0          s3          s6           s_i: the memory before the step at place i

A sequence starts at one of these places with the memory that was there; sequences that start elsewhere start from zero.
The memory before a step is the one after the step before it, and zero where an episode begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from striderl.data.arena import Arena, Columns, Placement
from striderl.storage.replay.ring import RingCursor
from striderl.storage.replay.rows import ENDS, PackedRows


class ReplayReader:
    """What a view and an algorithm's `prepare` may do with a replay."""

    def __init__(
        self,
        cursor: RingCursor,
        steps: PackedRows,
        frames: PackedRows,
        finals: PackedRows,
        episodes: EpisodeTable | None,
        states: StateRows | None,
    ) -> None:
        """Read from these parts, which the replay owns."""
        self.cursor = cursor
        self.episodes, self.states = episodes, states
        self.steps = steps
        """The columns of all steps but their observations."""
        self.frames, self.finals = frames, finals
        """Observations, and where episodes really ended."""
        self.num_envs = cursor.num_envs
        self.num_rows = cursor.rows * cursor.num_envs
        block = next(iter(steps.arena.blocks.values()))
        self.device = block.device
        self.on_cpu = block.device.type == "cpu"
        flags = steps.arena.blocks["bool"].view(self.num_rows, -1)
        self._flags = flags[:, :3]
        self._arrays = steps.fast and frames.fast
        self.reward_array = steps.flat(("rew",)).numpy() if self._arrays else np.zeros(0, np.float32)
        """The rewards of all rows, where numpy reads them (`fast`)."""
        self._terminated, self._truncated, self._valid = flags[:, 0], flags[:, 1], flags[:, 2]
        self._version = -1
        self._per_env: tuple[Tensor, Tensor] = (torch.zeros(0), torch.zeros(0))

    # -- walking -------------------------------------------------------------------------------------------------------

    def position(self, index: Tensor) -> Tensor:
        """Return the number of older stored steps of the same env, int64 like index; `size` or more in unused rows."""
        if self.cursor.even:
            base = (self.cursor.total - self.cursor.size) % self.cursor.rows * self.num_envs
            position = (index - base) % self.num_rows
            return position if self.num_envs == 1 else position // self.num_envs
        first, _ = self._env_tensors()
        return (index // self.num_envs - first.index_select(0, index % self.num_envs)) % self.cursor.rows

    def size_of(self, index: Tensor) -> Tensor | int:
        """Return the number of stored steps of these rows' envs."""
        if self.cursor.even:
            return self.cursor.size
        return self._env_tensors()[1].index_select(0, index % self.num_envs)

    def alive(self, index: Tensor) -> Tensor:
        """Return which rows hold a step, bool like index."""
        return self.position(index) < self.size_of(index)

    def newest(self, index: Tensor) -> Tensor:
        """Return which rows are the newest step of their env, bool like index."""
        return self.position(index) == self.size_of(index) - 1

    def done(self, index: Tensor) -> Tensor:
        """Return at which of these steps an episode ended, bool like index."""
        return self._terminated.index_select(0, index) | self._truncated.index_select(0, index)

    def valid(self, index: Tensor) -> Tensor:
        """Return which of these steps count, bool like index."""
        return self._valid.index_select(0, index)

    def next(self, index: Tensor) -> Tensor:
        """Return the rows one step on; the newest step and the end of an episode stay where they are."""
        return torch.where(self.done(index) | self.newest(index), index, (index + self.num_envs) % self.num_rows)

    def prev(self, index: Tensor) -> Tensor:
        """Return the rows one step back; the oldest step and the start of an episode stay where they are."""
        before = (index - self.num_envs) % self.num_rows
        stays = (self.position(index) == 0) | self.done(before) | ~self.valid(before)
        return torch.where(stays, index, before)

    def shifted(self, index: Tensor, steps: int | Tensor) -> Tensor:
        """Return the rows so many places on, whatever lies between."""
        return (index + steps * self.num_envs) % self.num_rows

    # -- columns -------------------------------------------------------------------------------------------------------

    def columns(self, index: Tensor) -> dict[str, Any]:
        """Read all columns but the observations, [B, …] each."""
        return self.steps.gather(index)

    def column(self, path: tuple[str, ...], index: Tensor) -> Tensor:
        """Read one column, [B, …]; the path starts with 'obs' for an observation component."""
        return self.frames.one(path[1:], index) if path[0] == "obs" else self.steps.one(path, index)

    def obs(self, index: Tensor) -> dict[str, Any]:
        """Read the observations of these steps, [B, …] each."""
        return self.frames.gather(index)

    def obs_next(self, index: Tensor) -> dict[str, Any]:
        """Read the true next observations of these steps, [B, …] each: the final one where an episode ended."""
        return self._mended(self.frames.gather(index + self.num_envs, "wrap"), index, self.done(index))

    def flags(self, index: Tensor) -> Tensor:
        """Return (terminated, truncated, valid) of these steps, bool [B, 3]."""
        return self._flags.index_select(0, index)

    @property
    def fast(self) -> bool:
        """Whether numpy reads the rows, while all envs are equally far: on the CPU it takes half of torch's time."""
        return self._arrays and self.cursor.even

    def rows(self, index: Tensor, last: Tensor | None = None) -> dict[str, Any]:
        """Read all columns of these steps with `obs` and `obs_next`, [B, …] each.

        `obs_next` is what followed `last`, which is `index` by default.
        """
        if self._arrays:
            rows = index.numpy()
            steps = self.steps.take(rows)
            if last is None:
                return self.joined(steps, rows, rows, self.steps.words(steps))
            ends = last.numpy()
            return self.joined(steps, rows, ends, self.steps.words_at(ends))
        data = self.steps.gather(index)
        data["obs"] = self.frames.gather(index)
        data["obs_next"] = self.obs_next(index if last is None else last)
        return data

    def joined(
        self,
        steps: Mapping[str, NDArray[Any]],
        rows: NDArray[np.int64],
        last: NDArray[np.int64],
        words: NDArray[np.uint32] | None,
        leave_out: frozenset[str] = frozenset(),
    ) -> dict[str, Any]:
        """Return `steps`, which were taken at `rows`, with `obs`, and `obs_next` from after `last`; only if `fast`.

        `words` are the flags of `last`, None where no episode ends there. The columns in `leave_out` are None.
        """
        obs = self.frames.take(rows)
        following = self.frames.take(last + self.num_envs, "wrap")
        if words is not None and np.count_nonzero(ends := words & ENDS):
            ended = ends.nonzero()[0]
            for dtype, finals in self.finals.take(last.take(ended)).items():
                following[dtype][ended] = finals
        data = self.steps.named(steps, leave_out)
        data["obs"], data["obs_next"] = self.frames.named(obs), self.frames.named(following)
        return data

    def _mended(self, following: dict[str, Any], index: Tensor, done: Tensor) -> dict[str, Any]:
        """Insert final observations where an episode ended."""
        return _where(done, self.finals.gather(index), following)

    # -- drawing -------------------------------------------------------------------------------------------------------

    def row_of(self, numbers: NDArray[np.float64] | Tensor) -> Tensor:
        """Map uniform numbers in [0, 1) to stored rows, each equally likely; int64 [B]."""
        cursor = self.cursor
        if not cursor.even:
            return self._uneven_row_of(torch.as_tensor(numbers), len(cursor))
        size = cursor.size
        count = size * self.num_envs
        base = (cursor.total - size) % cursor.rows * self.num_envs
        if isinstance(numbers, np.ndarray):
            chosen = (numbers * count).astype(np.int64)
            chosen += base
            if base + count > self.num_rows:
                chosen %= self.num_rows
            return torch.from_numpy(chosen)
        return ((numbers * count).long() + base) % self.num_rows

    def _uneven_row_of(self, numbers: Tensor, count: int) -> Tensor:
        first, sizes = self._env_tensors()
        chosen = (numbers * count).long()
        ends = sizes.cumsum(0)
        env = torch.searchsorted(ends, chosen, right=True)
        step = chosen - (ends - sizes).index_select(0, env)
        return (first.index_select(0, env) + step) % self.cursor.rows * self.num_envs + env

    def chronological(self) -> Tensor:
        """Return all stored rows, env by env, each in the order of time, int64 [n]."""
        first, sizes = self.cursor.first_alive, self.cursor.sizes
        parts = [
            (start + np.arange(size)) % self.cursor.rows * self.num_envs + env
            for env, (start, size) in enumerate(zip(first, sizes))
        ]
        return torch.from_numpy(np.concatenate(parts)).to(self.device)

    def _env_tensors(self) -> tuple[Tensor, Tensor]:
        """Return the place of the oldest step and the number of stored steps of each env, on the device."""
        if self._version != self.cursor.version:
            first = torch.from_numpy(self.cursor.first_alive % self.cursor.rows).to(self.device)
            self._per_env = (first, torch.from_numpy(self.cursor.sizes).to(self.device))
            self._version = self.cursor.version
        return self._per_env


def _where(condition: Tensor, yes: dict[str, Any], no: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in yes.items():
        if isinstance(value, dict):
            out[name] = _where(condition, value, no[name])
        else:
            out[name] = torch.where(condition.view(-1, *[1] * (value.ndim - 1)), value, no[name])
    return out


# -- episodes ----------------------------------------------------------------------------------------------------------


class EpisodeTable:
    """The bounds of all stored episodes."""

    def __init__(self, rows: int, num_envs: int, device: torch.device) -> None:
        """Allocate a ring [rows, num_envs]."""
        self._rows, self._num_envs = rows, num_envs
        self._episode = torch.zeros(rows * num_envs, dtype=torch.int64, device=device)
        self._first = torch.zeros(rows * num_envs, dtype=torch.int64, device=device)
        self._last = torch.zeros(rows * num_envs, dtype=torch.int64, device=device)
        self._current = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._fresh = torch.ones(num_envs, dtype=torch.bool, device=device)

    def add(self, number: Tensor, env: Tensor, ends: Tensor) -> None:
        """Count step `number` [n] of these envs [n]; `ends` [n]: the episode ends with it."""
        current = self._current.index_select(0, env)
        place = current % self._rows * self._num_envs + env
        fresh = self._fresh.index_select(0, env)
        self._first[place] = torch.where(fresh, number, self._first.index_select(0, place))
        self._last[place] = number
        self._episode[number % self._rows * self._num_envs + env] = current
        self._current[env] = current + ends
        self._fresh[env] = ends

    def cut(self, env: Tensor) -> None:
        """Start a new episode with the next step of these envs."""
        open_ = ~self._fresh.index_select(0, env)
        self._current[env] = self._current.index_select(0, env) + open_
        self._fresh[env] = True

    def bounds(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of the first and newest step of the episodes of these rows, int64 [B] each."""
        place = self._episode.index_select(0, index) % self._rows * self._num_envs + index % self._num_envs
        return self._first.index_select(0, place), self._last.index_select(0, place)

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the tables."""
        return {name: value.clone() for name, value in self._tables().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore saved tables."""
        for name, value in self._tables().items():
            value.copy_(state[name])

    def _tables(self) -> dict[str, Tensor]:
        return {
            "episode": self._episode,
            "first": self._first,
            "last": self._last,
            "current": self._current,
            "fresh": self._fresh,
        }


# -- memory ------------------------------------------------------------------------------------------------------------


class StateRows:
    """States [ceil(R / k), N, …]."""

    def __init__(self, columns: Columns, rows: int, num_envs: int, every: int, placement: Placement) -> None:
        """Store the state before every place that is a multiple of `every`."""
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
        """Store the memory before the step at this place, if it is a multiple of `every`."""
        if place % self.every == 0:
            for column, value in zip(self.packed.columns, fitted):
                column.view[place // self.every, envs] = value

    def clear(self, envs: slice, place: int) -> None:
        """Set the memory before the step at this place to zero."""
        if place % self.every == 0:
            for column in self.packed.columns:
                column.view[place // self.every, envs] = 0

    def gather(self, index: Tensor) -> dict[str, Any]:
        """Read the memory before these rows, whose places are multiples of `every`."""
        place = index // self._num_envs // self.every
        return self.packed.gather(place * self._num_envs + index % self._num_envs)
