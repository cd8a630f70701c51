"""`ReplayBuffer`: steps of any nested data in a ring, indexed like an array.

    buf = ReplayBuffer(size=9, stack_num=4, ignore_obs_next=True)
    buf.add(obs={"id": 7}, act=0, rew=1.0, done=False)         16 steps with ids 0 … 15, an episode ends at 0, 5, 10, 15

    index      0   1   2   3   4   5   6   7   8
    obs.id     9  10  11  12  13  14  15   7   8                oldest is 7, newest is 6
    done       ·   E   ·   ·   ·   ·   E   ·   ·

    buf[0].obs.id        [7 7 8 9]             the frames before the oldest are gone: it is repeated
    buf[2].obs.id        [11 11 11 11]         an episode starts there
    buf[0].obs_next.id   [7 8 9 10]            found one place on; where an episode was truncated, its own final one

`done` alone means terminated, or truncated where `info["TimeLimit.truncated"]` is true (data/episode_ends.py). When
next observations are not stored, the newest step of an unfinished episode has none yet: it is not sampled. All
arithmetic on places is that of ring_index.py; several rings lie one behind the other (`VectorReplayBuffer`), and ring r
holds indices r · capacity … (r + 1) · capacity - 1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from striderl.data import leaf, tree
from striderl.data.batch import Batch
from striderl.data.batch_ops import is_gap
from striderl.data.naming import AssertedValueError, unknown
from striderl.storage.replay.ring import step_back, step_on
from striderl.storage.replay.samplers import Draws
from striderl.storage.replay_buffer.file import load_buffer, save_buffer
from striderl.storage.replay_buffer.places import Priorities, RingPlaces
from striderl.storage.replay_buffer.rows import (
    KEYS,
    as_rows,
    following,
    given_step,
    last_frame,
    last_frames,
    like_index,
    plan_rows,
    stacked,
    step_of,
    take_rows,
)

_STACKED = ("obs", "obs_next", "info", "policy")


class ReplayBuffer:
    """A ring of steps; see the picture at the top of this module."""

    def __init__(
        self,
        size: int,
        stack_num: int = 1,
        ignore_obs_next: bool = False,
        save_only_last_obs: bool = False,
        sample_avail: bool = False,
        *,
        seed: int = 0,
        folder: Path | None = None,
        priorities: Priorities | None = None,
        num_rings: int = 1,
    ) -> None:
        """Allocate `size` steps.

        `stack_num` frames are stacked when reading. `ignore_obs_next` stores no next observations; `save_only_last_obs`
        stores the last frame of observations that come in stacked. With `sample_avail`, only steps with `stack_num`
        frames of their own episode are sampled. Numpy columns are kept in files of `folder`, if given.
        """
        if size != int(size):
            raise ValueError(f"size is a whole number of steps, found {size}")
        size = int(size)  # 1e5 is one too
        if size < num_rings or num_rings < 1:
            raise ValueError(f"wanted a size of at least {max(1, num_rings)}, found {size}")
        if stack_num < 1:
            raise AssertedValueError(f"stack_num is at least 1, found {stack_num}")
        if sample_avail and stack_num == 1:
            raise ValueError("sample_avail has no effect without stacking; set stack_num, or leave it out")
        self.maxsize = size // num_rings * num_rings
        self._stack_num, self.ignore_obs_next = stack_num, ignore_obs_next
        self.save_only_last_obs, self.sample_avail = save_only_last_obs, sample_avail
        self.seed, self.folder = seed, folder
        self._data = Batch()
        self._places = RingPlaces(num_rings, size // num_rings)
        self._cut: NDArray[np.bool_] = np.zeros(self.maxsize, np.bool_)
        self._finals: dict[int, Any] = {}
        self._draw = 0
        self._draws: Draws | None = None
        self.priorities = priorities
        """The priorities of `PrioritizedReplayBuffer`; None when all steps are equally likely."""
        if priorities is not None:
            priorities.attach(self.maxsize)

    # -- columns -------------------------------------------------------------------------------------------------------

    def __getattr__(self, key: str) -> Any:
        data = self.__dict__.get("_data")
        if key == "update_weight":
            raise AttributeError(f"{type(self).__name__} has no priorities; use PrioritizedReplayBuffer")
        if key.startswith("_") or data is None or key not in data:
            known = [] if data is None else list(data.keys())
            raise AttributeError(unknown("key", key, known, where=type(self).__name__))
        return data[key]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_draws": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "stack_num" in state:  # pickled when it was a plain attribute
            self._stack_num = self.__dict__.pop("stack_num")

    @property
    def stack_num(self) -> int:
        """How many frames are stacked when reading."""
        return self._stack_num

    @stack_num.setter
    def stack_num(self, num: int) -> None:
        if num < 1:
            raise AssertedValueError(f"stack_num is at least 1, found {num}")
        self._stack_num = num

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return f"{type(self).__name__}{repr(self._data)[len('Batch') :]}"

    @property
    def stores_obs_next(self) -> bool:
        """Whether next observations are stored, or found one place on."""
        return "obs_next" in self._data

    # -- writing -------------------------------------------------------------------------------------------------------

    def add(
        self,
        obs: Any,
        act: Any = None,
        rew: Any = None,
        done: Any = None,
        obs_next: Any = None,
        info: Any = None,
        policy: Any = None,
        *,
        terminated: Any = None,
        truncated: Any = None,
    ) -> int:
        """Add one step and return its index; `obs` may be a Batch or mapping with all of these keys instead.

        A step that does not fit raises and changes nothing.
        """
        given = given_step(obs, act, rew, done, obs_next, info, policy, terminated, truncated)
        if self.save_only_last_obs:
            given |= {key: last_frame(given[key]) for key in ("obs", "obs_next") if given.get(key) is not None}
        return int(self._append(as_rows(step_of(given), "step"), np.zeros(1, np.int64))[0])

    def _append(self, rows: Batch, rings: NDArray[np.int64]) -> NDArray[np.int64]:
        """Write one row to each of these rings, which are all different, and return the indices."""
        index = self._places.open(rings)
        finals = self._check_next(rows, rows.get("obs_next"), index)
        plan = plan_rows(self._data, rows, len(rings), self.maxsize, self.folder)
        plan.run(index)
        for place in index.tolist():
            self._finals.pop(place, None)
        self._finals.update(finals)
        self._cut[index] = False
        self._places.advance(rings)
        if self.priorities is not None:
            self.priorities.written(index)
        return index

    def _check_next(self, rows: Batch, after: Any, index: NDArray[np.int64]) -> dict[int, Any]:
        """Check next observations; return those of truncated steps, by index, which are stored separately."""
        if after is not None and not self.ignore_obs_next and (self.stores_obs_next or not len(self)):
            return {}
        if self.stores_obs_next:
            raise ValueError("earlier steps came with obs_next, this one without; give it, or set ignore_obs_next=True")
        rows.pop("obs_next", None)
        ends = np.atleast_1d(leaf.to_array(rows.truncated)) & ~np.atleast_1d(leaf.to_array(rows.terminated))
        if ends.any() and after is None:
            raise ValueError(
                "a truncated step wants obs_next, where the episode stopped; without it no target is right"
            )
        return {int(index[i]): tree.copy(tree.index(after, int(i))) for i in ends.nonzero()[0]}

    def update(self, buffer: Any) -> NDArray[np.int64]:
        """Append the steps of another buffer in the order of time; return the indices of those that are there now.

        Of more steps than there is room for, the newest stay.
        """
        places = self._places
        if places.num_rings > 1:
            raise TypeError("a vector buffer takes the steps of each env; call add, or update a plain ReplayBuffer")
        order, rows, finals, cut = buffer.export_rows()
        kept = order[-places.capacity :]
        if not len(kept):
            return np.zeros(0, np.int64)
        if self._has_own_add():
            return self._add_rows(rows(order))
        part = rows(kept)
        if self.save_only_last_obs and not getattr(buffer, "save_only_last_obs", False):
            part = last_frames(part)
            finals = {place: last_frame(final) for place, final in finals.items()}
        if part.get("obs_next") is None and self.stores_obs_next:
            raise ValueError("this buffer stores obs_next, the other one does not; set ignore_obs_next=True here")
        ends = {row: finals[origin] for row, origin in enumerate(kept.tolist()) if origin in finals} if finals else {}
        return self._append_rows(part, len(order) - len(kept), ends, cut(kept))

    def extend(self, rows: Batch) -> NDArray[np.int64]:
        """Append steps [T, …] in the order of time, which follow each other, and return the indices that hold them now.

        `rows` has what `buf[…]` has: obs, act, rew, done, terminated, truncated, obs_next, info and policy. What was
        under way before does not go on in them; what comes after them does not, either, where the last is not done.
        """
        if self._places.num_rings > 1:
            raise TypeError("a vector buffer takes the steps of each env; call add, or extend a plain ReplayBuffer")
        count, capacity = len(rows.done), self._places.capacity
        if self._has_own_add():
            return self._add_rows(rows)
        if self.save_only_last_obs:
            rows = last_frames(rows)
        skipped = max(0, count - capacity)
        part = rows[skipped:] if skipped else Batch(rows)
        ends: dict[int, Any] = {}
        late = np.asarray(leaf.to_array(part.truncated)) & ~np.asarray(leaf.to_array(part.terminated))
        if late.any() and (self.ignore_obs_next or (len(self) and not self.stores_obs_next)):
            ends = {row: tree.copy(tree.index(part.obs_next, row)) for row in late.nonzero()[0].tolist()}
        stops = np.zeros(count - skipped, np.bool_)
        stops[-1] = not part.done[-1]
        return self._append_rows(part, skipped, ends, stops)

    def _has_own_add(self) -> bool:
        """Return whether a class of a user's program overrides `add`: then it is called for every step."""
        return not type(self).add.__module__.startswith("striderl.")

    def _add_rows(self, rows: Batch) -> NDArray[np.int64]:
        self.cut()
        keys = [key for key in ("obs", "act", "rew", "done", "obs_next", "info", "policy") if key in rows]
        before = int(self._places.pointer[0])
        for row in range(len(rows.done)):
            self.add(**{key: tree.index(rows[key], row) if not is_gap(rows[key], Batch) else {} for key in keys})
        if not bool(rows.done[-1]):
            self.cut()
        count = min(len(rows.done), self._places.capacity)
        return (before + len(rows.done) - count + np.arange(count)) % self._places.capacity

    def _append_rows(
        self, part: Batch, skipped: int, ends: dict[int, Any], stops: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Write rows after those that are there; `ends` are final observations, after `stops` nothing follows."""
        places, count = self._places, len(stops)
        if self.ignore_obs_next or (len(self) and not self.stores_obs_next):
            part.pop("obs_next", None)
        start = (int(places.pointer[0]) + skipped) % places.capacity
        index = (start + np.arange(count)) % places.capacity
        place: Any = slice(start, start + count) if start + count <= places.capacity else index
        plan = plan_rows(self._data, part, count, self.maxsize, self.folder)
        if len(self):
            newest = int(places.newest(0))
            # what comes now does not follow what was there
            self._cut[newest] |= not bool(self._data.done[newest])
        plan.run(place)
        if self._finals or (ends and not self.stores_obs_next):
            for row, each in enumerate(index.tolist()):
                self._finals.pop(each, None)
                if row in ends and not self.stores_obs_next:
                    self._finals[each] = ends[row]
        self._cut[place] = stops
        places.advance_one(skipped + count)
        if self.priorities is not None:
            self.priorities.written(index)
        return index

    def export_rows(self) -> tuple[NDArray[np.int64], Any, dict[int, Any], Any]:
        """Return (indices in order of time, rows by indices, final observations, which rows nothing follows)."""
        order = self._places.chronological()

        def cut(index: NDArray[np.int64]) -> NDArray[np.bool_]:
            return self._cut[index] | np.isin(index, self.unfinished_index())

        return order, lambda index: self._data[index], self._finals, cut

    def cut(self, envs: Any = None) -> None:
        """End the running episodes of these envs (all by default): the next step does not follow them.

        Call it when envs were reset from outside. Where next observations are not stored, the newest step of such an
        episode has none and is not sampled. A buffer that is not a vector has one env, number 0.
        """
        if not len(self):
            return
        unfinished, rings = self.unfinished_index(), self._places.num_rings
        if envs is not None:
            wanted = np.atleast_1d(np.asarray(envs, np.int64))
            if wanted.size and (int(wanted.min()) < 0 or int(wanted.max()) >= rings):
                raise IndexError(f"envs are numbered from 0 to {rings - 1}, found {wanted.tolist()}")
            unfinished = unfinished[np.isin(unfinished // self._places.capacity, wanted)]
        self._cut[unfinished] = True

    def reset(self) -> None:
        """Drop all steps; the memory stays allocated."""
        self._places.clear()
        self._cut[:] = False
        self._finals = {}
        if self.priorities is not None:
            self.priorities.clear()

    # -- places --------------------------------------------------------------------------------------------------------

    def _ends(self, index: Any) -> Any:
        return np.asarray(leaf.to_array(self._data["done"]))[index] | self._cut[index]

    def prev(self, index: Any) -> Any:
        """Return the indices one step back; the oldest step and the start of an episode stay where they are."""
        array = self._as_index(index)
        capacity = self._places.capacity
        ring = array // capacity
        base = ring * capacity
        before = base + (array - base - 1) % capacity
        place = step_back(
            array - base, oldest=self._places.oldest(ring) - base, rows=capacity, ended_before=self._ends(before)
        )
        return like_index(place + base, index)

    def next(self, index: Any) -> Any:
        """Return the indices one step on; the newest step and the end of an episode stay where they are."""
        array = self._as_index(index)
        capacity = self._places.capacity
        ring = array // capacity
        base = ring * capacity
        place = step_on(array - base, newest=self._places.newest(ring) - base, rows=capacity, ended=self._ends(array))
        return like_index(place + base, index)

    def unfinished_index(self) -> NDArray[np.int64]:
        """Return the newest step of every ring with a running episode."""
        rings = self._places.filled()
        newest: NDArray[np.int64] = self._places.newest(rings)
        return newest[~self._ends(newest)] if len(rings) else newest

    def _as_index(self, index: Any) -> NDArray[np.int64]:
        return self._places.resolve(index, type(self).__name__)

    # -- reading -------------------------------------------------------------------------------------------------------

    def get(self, index: Any, key: str, stack_num: int | None = None) -> Any:
        """Return one part of these steps, `stack_num` frames stacked right after the index dimensions (None: the own).

        Frames before the start of an episode, and before the oldest step, repeat the first one.
        """
        array = self._as_index(index)
        count = self.stack_num if stack_num is None else stack_num
        if key == "obs_next":
            return following(self, array, count)
        if key not in self._data:
            raise KeyError(unknown("key", key, self._data.keys(), where=type(self).__name__))
        column = self._data[key]
        if count == 1 or (isinstance(column, Batch) and column.is_empty()):
            return take_rows(column, array)
        return stacked(self, column, array, count)

    def __getitem__(self, index: Any) -> Batch:
        """Return steps as a Batch; a slice goes by storage order: buf[s] is buf[np.arange(len(buf))[s]]."""
        array = self._as_index(index)
        out = Batch()
        for key in KEYS:
            if key in _STACKED and (key in self._data or key == "obs_next"):
                out[key] = self.get(array, key)
            elif key in self._data:
                out[key] = take_rows(self._data[key], array)
        return out

    def sample(self, batch_size: int) -> tuple[Batch, NDArray[np.int64]]:
        """Return (steps, indices): drawn with replacement, or all of them in the order of time for 0."""
        if batch_size < 0:
            raise ValueError(f"batch_size is 0 (all) or more, found {batch_size}")
        index = self.sample_index(batch_size)
        batch = self[index]
        if self.priorities is not None:
            batch.weight = self.priorities.weight(index)
        return batch, index

    def sample_index(self, batch_size: int) -> NDArray[np.int64]:
        """Return the indices that `sample` would read."""
        if not len(self):
            raise ValueError(f"the {type(self).__name__} is empty: add steps before sampling")
        hidden = self._hidden()
        if batch_size == 0:
            order = self._places.chronological()
            return order[~np.isin(order, hidden)] if len(hidden) else order
        if len(hidden) >= len(self):
            raise ValueError(
                "there is nothing to sample: the next observations of all steps are unknown yet, or no step has "
                f"{self.stack_num} frames of its own"
            )
        if self._draws is None:
            self._draws = Draws("replay buffer", seed=self.seed)
        numbers = self._draws.host(self._draw, batch_size)
        self._draw += 1
        if self.priorities is not None:
            return self.priorities.sample_index(numbers, hidden)
        if len(hidden) or self._places.num_rings > 1:
            alive = self._places.alive()
            alive = alive[~np.isin(alive, hidden)] if len(hidden) else alive
            return alive[(numbers * len(alive)).astype(np.int64)]
        return (numbers * len(self)).astype(np.int64)

    def _hidden(self) -> NDArray[np.int64]:
        """Return the steps that are not sampled."""
        hidden = np.zeros(0, np.int64)
        if not self.stores_obs_next:
            alive = self._cut.nonzero()[0]
            alive = alive[~np.asarray(leaf.to_array(self._data["done"]))[alive]]
            hidden = np.union1d(self.unfinished_index(), alive)
        if self.sample_avail:
            hidden = np.union1d(hidden, self._short_of_frames())
        return hidden

    def _short_of_frames(self) -> NDArray[np.int64]:
        """Return the steps with fewer than `stack_num` frames of their own episode."""
        place = alive = self._places.alive()
        whole = np.ones(len(alive), np.bool_)
        for _ in range(self.stack_num - 1):
            before = self.prev(place)
            whole &= before != place
            place = before
        return alive[~whole]

    @property
    def update_weight(self) -> Callable[[Any, Any], None]:
        """`update_weight(index, errors)` sets the priorities of these steps; a buffer without priorities has it not."""
        if self.priorities is None:
            raise AttributeError  # `__getattr__` has the text
        return self._set_priorities

    def _set_priorities(self, index: Any, new_weight: Any) -> None:
        assert self.priorities is not None
        self.priorities.update(self._as_index(index), new_weight)

    def with_rew(self, rew: Any) -> ReplayBuffer:
        """Return this buffer with other rewards, one for each place: a view, all else is shared."""
        if leaf.shape_of(rew)[:1] != (self.maxsize,):
            raise ValueError(f"rew wants a row for each of {self.maxsize} places, found {leaf.shape_of(rew)}")
        view = copy.copy(self)
        view._data = Batch(self._data, rew=rew)
        return view

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write everything to one file, atomically and without pickle."""
        save_buffer(self, Path(path))

    def restore(self, path: str | Path) -> None:
        """Load a file; one that is damaged or does not fit raises and changes nothing."""
        load_buffer(self, Path(path))
