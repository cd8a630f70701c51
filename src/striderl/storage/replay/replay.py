"""A ring of experience on tensors: what to store, how to sample, how to view it.

               env 0   env 1   env 2         capacity 12 = 4 steps of 3 envs; a ring of 4 + 1 rows
    row 0    │ s a r │ s a r │ s a r │       row index = row · 3 + env
    row 1    │ s a r │ s a E │ s a r │ ──▶   E ended an episode: `finals` holds where it really ended
    row 2    │ s ·  ·│ s ·  ·│ s ·  ·│ open: only the observation after row 1, so the newest step has a next one too
    row 3    │ s a r │ s a r │ s a r │ oldest
    row 4    │ s a r │ s a r │ s a r │

An observation is stored once: what follows a step is the observation one row on, and `finals` where an episode ended.
`finals` is as large as the observations but is written at ends only; in ordinary memory and in files, pages that are
never written take no room (on a GPU it takes its full size). So the next observation is never wrong, and every step can
be sampled as soon as it is in.

    replay = Replay(collector.columns(), 1_000_000, num_envs, sampler=Prioritized(seed=0), view=NStep(3, gamma=0.99))
    collector.collect(n_step=8, storage=replay)                replay.add(transition, envs)
    sample = replay.sample(256)                                ReplaySample(data, index, weight, handle)
    replay.update_priorities(sample.handle, td_error)          rows that were overwritten since then are left alone
    replay.cut()                                               after env.reset() from outside: episodes do not go on

`sample.data` is a dict of [B, …] tensors, the columns of a step plus what the view adds:

    obs, act, rew, terminated, truncated, valid, info, policy, obs_next     always (`OneStep`, the default)
    discount                       `NStep(n, gamma)`: target = rew + discount · V(obs_next); 0 where terminated
    obs, obs_next [B, k, …]        `FrameStack(k)`
    [T, B, …], resets, valid, learn, state    `SequenceView(length, burn_in=…)`; needs Replay(state=…, state_every=k)
    relabelled goals and rewards   `Hindsight(reward, …)`; needs Replay(episodes=True)

Invalid samples have `valid` false; they are in a uniform batch (weight means by it) and never in a
prioritized one. An algorithm that needs other targets walks along episodes itself:

    read = replay.read
    later = read.next(index)       one step on, staying at the newest step and at the end of an episode
    earlier = read.prev(index)     one step back, staying at the oldest step and at the start of an episode
    read.rows(index)               the columns of these steps with obs_next; read.columns(index): without observations

Random numbers depend on (seed, number of the draw) only and are the same on every device. Nothing here syncs
with a GPU. `state_dict` holds tensors and numbers; a replay in files saves its position, the files keep the rest.

Saving and restoring a replay, without pickle.

In memory, the state holds the rows in use. In files, the data stays where it is: the files are flushed, and the state
holds the ring's position and how often it was saved. A mark next to the files stores how far they were written, so
that after a crash the rows that were overwritten since the last save are dropped:

    saved at step 100, capacity 60, files written up to step 130     steps 40 … 99 were alive, 40 … 70 are overwritten
                                                                     alive after loading: 71 … 99
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from striderl._moved import renamed_arguments
from striderl.data.arena import Arena, Columns, Placement
from striderl.data.transition import Transition
from striderl.storage.replay.reader import EpisodeTable, ReplayReader, StateRows
from striderl.storage.replay.ring import RingCursor
from striderl.storage.replay.rows import PackedRows, part_of, sparse, split_columns, step_arena
from striderl.storage.replay.samplers import SampledRows, SampleHandle, Sampler, Uniform
from striderl.storage.replay.writer import SMALL, Mark, PlainAdd, StepWriter


@dataclass(frozen=True, slots=True)
class ReplaySample:
    """The result of `Replay.sample`."""

    data: dict[str, Any]
    """The columns of a step, and what the view adds; see the top of this module."""
    index: Tensor
    """The sampled rows, int64 [B]; for `Replay.read`."""
    weight: Tensor | None
    """Importance weights of prioritized sampling, float32 [B], the largest of them 1; None for a uniform one."""
    handle: SampleHandle
    """Pass it to `Replay.update_priorities`."""


class View(Protocol):
    """Turns sampled rows into columns."""

    def __call__(self, read: ReplayReader, index: Tensor) -> dict[str, Any]:
        """Return columns for these rows."""
        ...


class Replay:
    """Experience of N envs in a ring; see the picture at the top of this module."""

    balanced = False
    """Whether envs must have the same number of steps."""

    @renamed_arguments({"picker": "sampler"})
    def __init__(
        self,
        columns: Columns,
        capacity: int,
        num_envs: int,
        *,
        placement: Placement | None = None,
        sampler: Sampler | None = None,
        view: View | None = None,
        state: Columns | None = None,
        state_every: int = 1,
        episodes: bool = False,
    ) -> None:
        """Allocate `capacity` steps, the same number of each env, with the columns of `transition_columns`.

        `sampler` is `Uniform()` and `view` is `OneStep()` by default. With `state` (such as `policy.state_spec()`) the
        actor's memory is kept before every `state_every`-th place; with `episodes` the bounds of episodes are kept.
        """
        if num_envs < 1 or capacity < num_envs:
            raise ValueError(f"wanted num_envs >= 1 and capacity >= num_envs, found {num_envs} and {capacity}")
        placement = placement or Placement()
        self.num_envs, self.placement = num_envs, placement
        self.steps_per_env = capacity // num_envs
        rows = self.steps_per_env + 1
        self.cursor = RingCursor(num_envs, self.steps_per_env, rows)
        frame_columns, step_columns = split_columns(columns)
        self.steps = PackedRows(step_arena(step_columns, (rows, num_envs), placement))
        self.frames = PackedRows(Arena(frame_columns, (rows, num_envs), part_of(placement, "frames")))
        self.finals = PackedRows(Arena(frame_columns, (rows, num_envs), sparse(placement, frame_columns)))
        device = next(iter(self.steps.arena.blocks.values())).device
        self.episodes = EpisodeTable(rows, num_envs, device) if episodes else None
        self.states = (
            None if state is None else StateRows(state, rows, num_envs, state_every, part_of(placement, "states"))
        )
        self.read = ReplayReader(self.cursor, self.steps, self.frames, self.finals, self.episodes, self.states)
        """Walks along episodes and reads rows by number."""
        self.sampler = sampler or Uniform()
        self.sampler.attach(self.cursor, device)
        self.view = view
        self._whole = slice(0, num_envs)
        self._env_index = torch.arange(num_envs, device=device)
        self.generation = 0
        """How often this replay was saved."""
        self.mark = None if placement.folder is None else Mark(placement.folder, num_envs)
        """How far the files have been written; None in memory."""
        self.writer = StepWriter(self.read, self.sampler, self.mark)
        self.plain_writer = self._short_way()
        """Stores usual steps in fewer operations; None where the columns do not allow it."""

    @property
    def capacity(self) -> int:
        """Number of steps that fit."""
        return self.steps_per_env * self.num_envs

    def __len__(self) -> int:
        return len(self.cursor)

    # -- writing -------------------------------------------------------------------------------------------------------

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Add the next step of these envs (a range; all by default). A step that does not fit changes nothing.

        On the CPU its leaves may be arrays, all of them or none: numpy's envs need no conversion.

        Without a final observation from the env, a terminated step is followed by its own observation, which no target
        uses, and a truncated one is invalid (`valid` false), because its next observation is unknown.
        """
        if envs is None or (envs.start == 0 and envs.stop == self.num_envs):
            if self.plain_writer is not None and self.cursor.even and self.plain_writer.add(transition):
                return
            envs = self._whole
        self.writer.add(transition, envs)

    def _short_way(self) -> PlainAdd | None:
        """Return the short way for ordinary steps, where there is one."""
        extras = self.mark is not None or self.states is not None or self.episodes is not None
        if extras or not (self.steps.fast and self.frames.fast) or self.num_envs > SMALL:
            return None
        return PlainAdd(self.read, None if isinstance(self.sampler, Uniform) else self.sampler)

    # -- writing inside a CUDA graph: the place is a tensor on the device -------------------------------------------

    def first_place(self) -> int:
        """Return the row of the next step of all envs."""
        return self.cursor.total % self.cursor.rows

    def room(self) -> int:
        """Return how many steps of each env a CUDA graph may write; 0 where the host must write something too.

        Recurrent memory, bounds of episodes and files are written by the host, and so are envs that are
        not equally far.
        """
        extras = self.mark is not None or self.states is not None or self.episodes is not None
        return 0 if extras or not self.cursor.even else self.steps_per_env

    def pack(self, transition: Transition) -> dict[str, Any]:
        """Return a step of all envs as `put` takes it; a pure function that does what `add` does."""
        valid, ends = transition.valid, transition.final_obs
        if ends is None:
            valid = valid & ~(transition.truncated & ~transition.terminated)
        columns = transition._replace(valid=valid).columns()
        obs, steps = columns.pop("obs"), columns
        return {
            "steps": self.steps.arena.pack({name: steps[name] for name in self.steps.arena.columns}),
            "obs": self.frames.arena.pack(obs),
            "next_obs": self.frames.arena.pack(transition.next_obs),
            "finals": self.finals.arena.pack(obs if ends is None else ends),
        }

    def put(self, packed: Mapping[str, Any], place: Tensor) -> None:
        """Write a packed step into the row `place`, int64 [1]; the host must count it with `count_steps`."""
        self.steps.arena.put(packed["steps"], place)
        self.frames.arena.put(packed["obs"], place)
        self.frames.arena.put(packed["next_obs"], self.next_place(place))
        self.finals.arena.put(packed["finals"], place)

    def next_place(self, place: Tensor) -> Tensor:
        """Return the row after this one."""
        return (place + 1) % self.cursor.rows

    def count_steps(self, num_steps: int) -> None:
        """Count steps of all envs that a graph has written, and update the sampler."""
        for _ in range(num_steps):
            place = self.first_place()
            valid = self.steps.arena.data["valid"][place]
            self.sampler.written(self.read, place * self.num_envs, self.num_envs, valid)
            self.sampler.opened((place + 1) % self.cursor.rows * self.num_envs, self.num_envs)
            self.cursor.advance(None)

    def __getstate__(self) -> dict[str, Any]:
        """Raise when copied or pickled: arrays and tensors that share memory here would not in the copy."""
        raise TypeError("a Replay is not copied or pickled; make another one and load this one's state_dict() into it")

    def cut(self, envs: slice | None = None) -> None:
        """End the running episodes of these envs: the next step does not follow them.

        Call it when envs were reset from outside. The newest step becomes truncated, with the observation that followed
        it as its final one.
        """
        envs = self._whole if envs is None else envs
        totals = self.cursor.totals
        for env in range(envs.start, envs.stop):
            if self.cursor.sizes[env] == 0:
                continue
            place, after = (int(totals[env]) - 1) % self.cursor.rows, int(totals[env]) % self.cursor.rows
            flags = self.steps.arena.blocks["bool"][place, env]
            finals, frames = self.finals.columns, self.frames.columns
            going = ~(flags[0] | flags[1])
            for final, frame in zip(finals, frames):
                final.view[place, env] = torch.where(going, frame.view[after, env], final.view[place, env])
            flags[1] |= going
            if self.states is not None:
                self.states.clear(slice(env, env + 1), after)
        if self.episodes is not None:
            self.episodes.cut(self._env_index[envs])

    def clear(self) -> None:
        """Drop all steps; the memory stays allocated, and the random stream continues."""
        zeros = np.zeros(self.num_envs, np.int64)
        self.cursor.set(zeros, zeros)
        self.sampler.keep(torch.zeros(self.read.num_rows, dtype=torch.bool, device=self.read.device))
        if self.states is not None:
            self.states.clear(self._whole, 0)
        if self.episodes is not None:
            self.episodes.cut(self._env_index)

    # -- reading -------------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int) -> ReplaySample:
        """Sample steps with replacement and read them through the view."""
        if batch_size < 1:
            raise ValueError(f"batch_size is at least 1, found {batch_size}")
        if not len(self.cursor):
            raise ValueError("the replay is empty: add steps before sampling")
        sample_index: SampledRows = self.sampler.sample_index(self.read, batch_size)
        data = self.read.rows(sample_index.index) if self.view is None else self.view(self.read, sample_index.index)
        return ReplaySample(data, sample_index.index, sample_index.weight, self.handle_of(sample_index.index))

    def handle_of(self, index: Tensor) -> SampleHandle:
        """Return what `update_priorities` needs to find these steps again, and to see which were overwritten."""
        if self.cursor.even:
            return SampleHandle(index, None, self.cursor.total)
        return SampleHandle(index, self._numbers(index), -1)

    def _numbers(self, index: Tensor) -> Tensor:
        """Return the number of each step in its env."""
        first = torch.from_numpy(self.cursor.first_alive).to(index.device)
        return first.index_select(0, index % self.num_envs) + self.read.position(index)

    def update_priorities(self, handle: SampleHandle, error: Tensor) -> None:
        """Set the priorities of the sampled steps from their errors [B]; overwritten steps are skipped."""
        if error.shape != handle.index.shape:
            raise ValueError(f"wanted one error per picked step {list(handle.index.shape)}, found {list(error.shape)}")
        self.sampler.update(handle.index, self.still_there(handle), error)

    def still_there(self, handle: SampleHandle) -> Tensor | None:
        """Return which sampled steps have not been overwritten, bool [B]; None when none can have been."""
        if handle.number is None and self.cursor.even:
            if handle.total == self.cursor.total:
                return None
            # places that were written since then, and the open one, begin at the place that was open then
            since = self.cursor.total - handle.total + 1
            ahead = (handle.index // self.num_envs - handle.total) % self.cursor.rows
            return ahead >= since if since <= self.cursor.rows else torch.zeros_like(ahead, dtype=torch.bool)
        number = handle.number
        if number is None:
            newest = (handle.total - 1) % self.cursor.rows
            number = handle.total - 1 - (newest - handle.index // self.num_envs) % self.cursor.rows
        return (self._numbers(handle.index) == number) & self.read.alive(handle.index)

    # -- saving --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything exact resume needs as tensors, numbers and strings, without code.

        A replay in files flushes them and returns its position; it resumes with the same folder.
        """
        self.generation += 1
        return save_replay(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state of a replay of the same size and columns; one that does not fit changes nothing."""
        load_replay(self, state)


# -- saving ------------------------------------------------------------------------------------------------------------


_FORMAT = 1


@runtime_checkable
class StatefulView(Protocol):
    """A view that draws random numbers of its own, such as `Hindsight`."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of its draws."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore that state."""
        ...


def save_replay(replay: Replay) -> dict[str, Any]:
    """Return the state of a replay; its files are flushed first."""
    cursor, view = replay.cursor, _stateful(replay)
    used = min(cursor.rows, int(cursor.totals.max()) + 1)
    state: dict[str, Any] = {
        "format": _FORMAT,
        "num_envs": replay.num_envs,
        "steps_per_env": replay.steps_per_env,
        "generation": replay.generation,
        "totals": torch.from_numpy(cursor.totals),
        "first_alive": torch.from_numpy(cursor.first_alive),
        "picker": replay.sampler.state_dict(),
        "view": None if view is None else view.state_dict(),
        "episodes": None if replay.episodes is None else replay.episodes.state_dict(),
        "states": None if replay.states is None else _blocks(replay.states.packed, None),
    }
    if replay.placement.folder is not None:
        _mark(replay).commit(replay.generation, cursor.totals)
        return {**state, "steps": None, "frames": None, "finals": None}
    steps = _blocks(replay.steps, used)
    ended = (steps["bool"][..., 0] | steps["bool"][..., 1]).flatten().nonzero().squeeze(1)
    finals = {dtype: block.flatten(0, 1).index_select(0, ended) for dtype, block in replay.finals.arena.blocks.items()}
    return {
        **state,
        "steps": steps,
        "frames": _blocks(replay.frames, used),
        "finals": {"rows": ended, "blocks": finals},
    }


def load_replay(replay: Replay, state: Mapping[str, Any]) -> None:
    """Restore a saved state of a replay; everything is checked before anything is changed."""
    _check(replay, state)
    totals, first = state["totals"].numpy(), state["first_alive"].numpy()
    if state["steps"] is None:
        first = _mark(replay).still_alive(replay.cursor.rows, totals, first)
    else:
        for name, packed in (("steps", replay.steps), ("frames", replay.frames)):
            _check_blocks(name, packed, state[name])
        for packed, saved in ((replay.steps, state["steps"]), (replay.frames, state["frames"])):
            for dtype, block in packed.arena.blocks.items():
                block[: saved[dtype].shape[0]].copy_(saved[dtype])
        rows = state["finals"]["rows"].to(replay.read.device)
        for dtype, block in replay.finals.arena.blocks.items():
            block.view(-1, block.shape[-1])[rows] = state["finals"]["blocks"][dtype].to(replay.read.device)
    if replay.states is not None:
        for dtype, block in replay.states.packed.arena.blocks.items():
            block.copy_(state["states"][dtype])
    if replay.episodes is not None:
        replay.episodes.load_state_dict(state["episodes"])
    replay.cursor.set(totals, first)
    replay.sampler.load_state_dict(state["picker"])
    replay.sampler.keep(replay.read.alive(torch.arange(replay.read.num_rows, device=replay.read.device)))
    if (view := _stateful(replay)) is not None:
        view.load_state_dict(state["view"])
    replay.generation = int(state["generation"])


def _stateful(replay: Replay) -> StatefulView | None:
    view: object = replay.view
    return view if isinstance(view, StatefulView) else None


def _mark(replay: Replay) -> Mark:
    if replay.mark is None:
        raise ValueError("this replay is not in files")
    return replay.mark


def _check(replay: Replay, state: Mapping[str, Any]) -> None:
    wanted = {"num_envs": replay.num_envs, "steps_per_env": replay.steps_per_env, "format": _FORMAT}
    for name, value in wanted.items():
        if state.get(name) != value:
            raise ValueError(f"the saved replay has {name} {state.get(name)}, this one {value}")
    if (state["steps"] is None) != (replay.placement.folder is not None):
        raise ValueError("one of the two replays is in files and the other is not; load it into the same placement")
    if (state["episodes"] is None) != (replay.episodes is None):
        raise ValueError("one of the two replays keeps the bounds of episodes and the other does not")
    if (state["view"] is None) != (_stateful(replay) is None):
        raise ValueError("the views of the two replays differ: one draws random numbers of its own, the other does not")
    if (state["states"] is None) != (replay.states is None):
        raise ValueError("one of the two replays keeps the actor's memory and the other does not")


def _blocks(packed: PackedRows, rows: int | None) -> dict[str, Tensor]:
    return {dtype: block[:rows].clone() for dtype, block in packed.arena.blocks.items()}


def _check_blocks(name: str, packed: PackedRows, saved: Mapping[str, Tensor]) -> None:
    blocks = packed.arena.blocks
    if saved.keys() != blocks.keys():
        raise ValueError(f"the saved {name} have dtypes {sorted(saved)}, these {sorted(blocks)}")
    for dtype, block in blocks.items():
        if saved[dtype].shape[1:] != block.shape[1:] or saved[dtype].shape[0] > block.shape[0]:
            raise ValueError(f"saved {name} {dtype}: shape {list(saved[dtype].shape)}, wanted {list(block.shape)}")
