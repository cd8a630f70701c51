"""Trajectories of one or several folders as one growing list; a frame more than a trajectory has steps is its end.

folders   a: shard_0 │ t0 t1 t3 │        b: shard_0 │ t2 │ …
numbers   0 1 2 3 …   those found together by time; new ones behind; a number stays what it is
frames    0 … T - 1, and frame T: the observation after the last step, where it was recorded

Which trajectory comes next: passes over what is known, in the order of recording or shuffled, some or all of it.

    known      0 1 2 3 4 5 6 7              in the order of recording
    newest 6       2 3 4 5 6 7              keep_latest_n_trajs=6
    share 0/2      2   4   6                those of the first of two readers
    pass 0         4 2 6                    random_shuffle_traj_order: another order in each pass
    pass 1         2 6 4 8 …                what was recorded in the meantime is in the next pass

Everything random follows from (seed, pass, trajectory) or (seed, number of the draw): there is no generator to save.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from striderl.data import tree
from striderl.data.arena import Columns
from striderl.data.noise import uniform
from striderl.data.specs import TensorSpec
from striderl.datasets.trajectories.spec import (
    TrajectoryMismatch,
    TrajectoryMissing,
    TrajectorySpec,
    TrajectoryTimeout,
    nested,
)
from striderl.datasets.trajectories.store import TrajectoryStore

KEYS = ("obs", "act", "rew", "terminated", "truncated", "valid")
"""What is read of a step; 'valid' where it was recorded."""

_PAUSE = 0.05

_log = logging.getLogger(__name__)


@runtime_checkable
class Trajectories(Protocol):
    """Interface of a folder for a dataset; `TrajectoryStore` is one."""

    @property
    def spec(self) -> TrajectorySpec:
        """What every trajectory holds; raises TrajectoryMissing while that is unknown."""
        ...

    def refresh(self) -> int:
        """Look for new trajectories."""
        ...

    def __len__(self) -> int: ...

    def lengths(self) -> list[int]:
        """Return the number of steps of each trajectory."""
        ...

    def times(self) -> list[int]:
        """Return when each trajectory was written."""
        ...

    def name(self, index: int) -> str:
        """Return 'file@place', the same in every process."""
        ...

    def read(self, index: int, start: int, stop: int, *, columns: Collection[str]) -> dict[str, Any]:
        """Read steps [start, stop) as nested columns [T, …]."""
        ...

    def read_final_obs(self, index: int) -> dict[str, Any] | None:
        """Read the observation after the last step, [1, …]."""
        ...


class TrajectoryFolders:
    """Several folders as one list of trajectories."""

    def __init__(self, folders: Sequence[str | Path | Trajectories]) -> None:
        """Take folders by path, or store objects; nothing has to be recorded yet."""
        if not folders:
            raise ValueError("a dataset wants at least one folder of trajectories")
        self.stores: list[Trajectories] = [_opened(folder) for folder in folders]
        self.place: Numbers = np.zeros((0, 2), np.int64)
        """int64 [K, 2]: the store of each trajectory, and its index there."""
        self.lengths: Numbers = np.zeros(0, np.int64)
        """Steps of each trajectory, int64 [K]."""
        self.times: Numbers = np.zeros(0, np.int64)
        """When each was written, int64 [K]."""
        self._known: list[set[int]] = [set() for _ in self.stores]
        self._seats: Numbers = np.zeros(0, np.int64)
        self._in_file: Counter[tuple[int, str]] = Counter()
        self._spec: TrajectorySpec | None = None
        self._checked: set[int] = set()

    def __len__(self) -> int:
        return len(self.lengths)

    # -- what there is -------------------------------------------------------------------------------------------------

    @property
    def spec(self) -> TrajectorySpec:
        """What every trajectory holds; folders that hold different things are an error."""
        if self._spec is None:
            filled = [number for number, store in enumerate(self.stores) if len(store)]
            if not filled:
                raise TrajectoryMissing("nothing is recorded yet")
            self._spec = self.stores[filled[0]].spec
            for number in filled:
                self._check_same(number)
        return self._spec

    def columns(self) -> Columns:
        """Return the columns that `read` gives."""
        found = {column.path: column for column in self.spec.columns if column.path[0] in KEYS}
        specs = nested({path: TensorSpec(shape=column.shape, dtype=column.dtype) for path, column in found.items()})
        return {**specs, "obs": by_component(specs["obs"])}

    def num_frames(self, first: int = 0) -> Numbers:
        """Return how many frames trajectories have, from number `first` on."""
        return self.lengths[first:] + bool(self.spec.final_obs)

    def refresh(self) -> int:
        """Look for new trajectories and return how many there are."""
        fresh: list[tuple[int, int, int, int]] = []
        for number, store in enumerate(self.stores):
            store.refresh()
            unknown = [index for index in range(len(store)) if index not in self._known[number]]
            if unknown:
                lengths, times = store.lengths(), store.times()
                fresh += [(times[index], number, index, lengths[index]) for index in unknown]
        self._append(sorted(fresh))
        return len(fresh)

    def wait(self, num: int, timeout: float) -> None:
        """Wait until there are so many trajectories; raises TrajectoryTimeout with what was found instead."""
        deadline, said = time.monotonic() + timeout, False
        while True:
            self.refresh()
            left = deadline - time.monotonic()
            if len(self) >= num:
                return
            if left <= 0:
                raise TrajectoryTimeout(
                    f"waited {timeout:g} s for {num} trajectories in {self.names()}, found {len(self)}; "
                    "is a collector running, with this folder as its save_dir?"
                )
            if not said:  # a misspelt folder shall not look like a program that hangs
                said = True
                _log.warning(
                    "waiting up to %g s for %d trajectories in %s, found %d", timeout, num, self.names(), len(self)
                )
            time.sleep(min(_PAUSE, left))

    def names(self) -> list[str]:
        """Return what the folders are called."""
        return [str(store.folder) if isinstance(store, TrajectoryStore) else repr(store) for store in self.stores]

    def newest(self, num: int) -> Numbers:
        """Return the newest `num` trajectories, all of them for 0, oldest first."""
        order: Numbers = np.lexsort((np.arange(len(self)), self.times))
        return np.asarray(order[max(0, len(order) - num) :] if num else order)

    def in_share(self, numbers: Numbers, share: Share) -> Numbers:
        """Return a reader's share; it does not depend on when trajectories are found, so that none is read twice."""
        return np.asarray(numbers[self._seats[numbers] % share.num_parts == share.part])

    # -- frames --------------------------------------------------------------------------------------------------------

    def read(self, trajectory: int, start: int, stop: int) -> dict[str, Any]:
        """Read frames [start, stop) as columns; frame T has the final observation, and zeros in other columns."""
        number, index = (int(value) for value in self.place[trajectory])
        store, length = self.stores[number], int(self.lengths[trajectory])
        if number not in self._checked:
            self._check_same(number)
        keys = [key for key in KEYS if key in {column.path[0] for column in self.spec.columns}]
        columns = store.read(index, start, min(stop, length), columns=keys)
        columns["obs"] = by_component(columns["obs"])
        done = (columns["terminated"] | columns["truncated"])[: max(0, length - 1 - start)]
        if bool(done.any()):
            where, step = f"{store.name(index)} of {self.names()[number]}", start + int(done.int().argmax())
            raise ValueError(
                f"trajectory {where} ends at step {step} of {length}; a trajectory is one episode, or its beginning"
            )
        if stop <= length:
            return columns
        final = store.read_final_obs(index)
        blank = tree.map(lambda leaf: leaf.new_zeros(1, *leaf.shape[1:]), columns)
        whole: dict[str, Any] = tree.cat(
            [columns, {**blank, "obs": blank["obs"] if final is None else by_component(final)}]
        )
        return whole

    # -- saving --------------------------------------------------------------------------------------------------------

    def known(self) -> torch.Tensor:
        """Return which trajectories are known, in order, as the bytes of a text: uint8 [n]."""
        lines = [f"{number} {self.stores[number].name(index)}" for number, index in self.place.tolist()]
        return torch.tensor(bytearray("\n".join(lines).encode()), dtype=torch.uint8)

    def restore(self, known: torch.Tensor) -> None:
        """Give trajectories the numbers that they had; one that has gone is an error."""
        self.refresh()
        found = {
            f"{number} {store.name(index)}": (number, index)
            for number, store in enumerate(self.stores)
            for index in range(len(store))
        }
        lines = bytes(known.cpu().tolist()).decode().split("\n") if len(known) else []
        missing = [line for line in lines if line not in found]
        if missing:
            raise TrajectoryMissing(f"{len(missing)} trajectories that were in use have gone, such as {missing[0]!r}")
        order = [found[line] for line in lines]
        lengths, times = [store.lengths() for store in self.stores], [store.times() for store in self.stores]
        self.place, self.lengths, self.times = np.zeros((0, 2), np.int64), self.lengths[:0], self.times[:0]
        self._seats, self._in_file, self._known = self._seats[:0], Counter(), [set() for _ in self.stores]
        self._append([(times[number][index], number, index, lengths[number][index]) for number, index in order])

    # -- inside --------------------------------------------------------------------------------------------------------

    def _append(self, fresh: Sequence[tuple[int, int, int, int]]) -> None:
        if not fresh:
            return
        times, numbers, indices, lengths = (np.array(values, np.int64) for values in zip(*fresh))
        self.place = np.concatenate([self.place, np.stack([numbers, indices], axis=1)])
        self.lengths, self.times = np.concatenate([self.lengths, lengths]), np.concatenate([self.times, times])
        for _, number, index, _ in fresh:
            self._known[number].add(index)
        seats = [self._seat(number, self.stores[number].name(index)) for _, number, index, _ in fresh]
        self._seats = np.concatenate([self._seats, np.array(seats, np.int64)])

    def _seat(self, number: int, name: str) -> int:
        """Return a number that every process gives a trajectory, with which readers share them evenly.

        The place in its own file, in which the order never changes; files begin at different seats.
        """
        file = (number, name.partition("@")[0])
        self._in_file[file] += 1
        return zlib.crc32(f"{file}".encode()) + self._in_file[file] - 1

    def _check_same(self, number: int) -> None:
        """Raise unless a folder holds what the first one that had something holds."""
        differences = self.spec.differences(self.stores[number].spec)
        if differences:
            lines = "".join(f"\n  - {line}" for line in differences)
            raise TrajectoryMismatch(f"{self.names()[number]} holds other columns than the other folders:{lines}")
        self._checked.add(number)


def _opened(folder: Any) -> Trajectories:
    if isinstance(folder, (str, Path)):
        return TrajectoryStore(folder)
    # not isinstance alone: a protocol reads every property, and an empty store has no spec yet
    if not isinstance(folder, TrajectoryStore) and not isinstance(folder, Trajectories):
        raise TypeError(f"data_dir wants paths or a TrajectoryStore, found {type(folder).__name__}")
    return folder


def by_component(obs: Any, prefix: str = "") -> dict[str, Any]:
    """Return the columns of an observation by the names of its components, as `TrajectorySpec.obs_spec` has them."""
    if not isinstance(obs, Mapping):
        return {prefix or "obs": obs}
    return {
        name: leaf
        for key, part in obs.items()
        for name, leaf in by_component(part, f"{prefix}/{key}" if prefix else key).items()
    }


# -- order -------------------------------------------------------------------------------------------------------------


Numbers = np.ndarray[Any, np.dtype[np.int64]]
"""int64 [n]."""


class Share(NamedTuple):
    """The part of one reader among several: no trajectory is in two of them."""

    part: int = 0
    """Which part."""
    num_parts: int = 1
    """How many parts there are."""

    def within(self, outer: Share) -> Share:
        """Return this part of another part."""
        return Share(outer.part + outer.num_parts * self.part, outer.num_parts * self.num_parts)


class TrajectoryOrder:
    """Yield the numbers of trajectories, each once per pass."""

    def __init__(
        self,
        eligible: Callable[[], Numbers],
        *,
        num_passes: int,
        shuffle: bool,
        seed: int,
    ) -> None:
        """Call `eligible` for the trajectories of a pass when it begins; num_passes < 1 means without end."""
        self._eligible, self.num_passes, self.shuffle, self.seed = eligible, num_passes, shuffle, seed
        self.num_begun = 0
        """How many passes have begun."""
        self.num_taken = 0
        """How many trajectories were handed out."""
        self._queue: Numbers = np.zeros(0, np.int64)
        self._is_dry = False

    @property
    def num_finished(self) -> int:
        """How many passes were handed out to the end."""
        return self.num_begun - bool(len(self._queue))

    def take(self, count: int) -> Numbers:
        """Return the next trajectories, int64 [count]; -1 where there are none left."""
        taken = [np.zeros(0, np.int64)]
        missing = count
        while missing and self._replenish():
            piece, self._queue = self._queue[:missing], self._queue[missing:]
            taken.append(piece)
            missing -= len(piece)
        self.num_taken += count - missing
        return np.concatenate([*taken, np.full(missing, -1, np.int64)])

    def start_frames(self, lengths: Numbers, frames: tuple[int, int]) -> Numbers:
        """Return where the last `len(lengths)` trajectories begin: uniform in [low, high), as far as they reach."""
        low = np.minimum(frames[0], lengths - 1)
        high = np.maximum(np.minimum(frames[1], lengths), low + 1)
        if frames[1] - frames[0] <= 1:
            return np.asarray(low, np.int64)
        draw = np.arange(self.num_taken - len(lengths), self.num_taken)
        number = uniform("start frame", seed=self.seed, env_index=draw, occasion=draw >> 32, count=1)[:, 0]
        return np.asarray(low + (number * (high - low)).astype(np.int64))

    def _replenish(self) -> bool:
        """Begin the next pass where this one is at its end; return whether a trajectory is left."""
        if len(self._queue):
            return True
        if self._is_dry or 0 < self.num_passes <= self.num_begun:
            return False
        found = self._eligible()
        if not len(found):
            self._is_dry = True  # an empty share stays empty: retrying would never end
            return False
        if self.shuffle:
            keys = uniform("trajectory order", seed=self.seed, env_index=found, occasion=self.num_begun, count=1)[:, 0]
            found = found[np.argsort(keys, kind="stable")]
        self._queue = found
        self.num_begun += 1
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        return {
            "seed": self.seed,
            "num_begun": self.num_begun,
            "num_taken": self.num_taken,
            "is_dry": self._is_dry,
            "queue": torch.from_numpy(self._queue.copy()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved position."""
        self.seed = int(state["seed"])
        self.num_begun, self.num_taken = int(state["num_begun"]), int(state["num_taken"])
        self._is_dry = bool(state["is_dry"])
        self._queue = state["queue"].cpu().numpy().astype(np.int64)
