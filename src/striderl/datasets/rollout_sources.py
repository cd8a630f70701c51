"""Trajectories of one or several folders as one growing list; a frame more than a trajectory has steps is its end.

folders   a: shard_0 │ t0 t1 t3 │        b: shard_0 │ t2 │ …
numbers   0 1 2 3 …   those found together by time; new ones behind; a number stays what it is
frames    0 … T - 1, and frame T: what was seen after the last step, where that was recorded
"""

from __future__ import annotations

import logging
import time
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from striderl.data import tree
from striderl.data.arena import Columns
from striderl.data.specs import TensorSpec
from striderl.datasets.rollout_order import Numbers, Share
from striderl.datasets.trajectory_errors import TrajectoryMismatch, TrajectoryMissing, TrajectoryTimeout
from striderl.datasets.trajectory_spec import TrajectorySpec, nested
from striderl.datasets.trajectory_store import TrajectoryStore

KEYS = ("obs", "act", "rew", "terminated", "truncated", "valid")
"""What is read of a step; 'valid' where it was recorded."""

_PAUSE = 0.05

_log = logging.getLogger(__name__)


@runtime_checkable
class Trajectories(Protocol):
    """What a dataset asks of a folder; `TrajectoryStore` is one."""

    @property
    def spec(self) -> TrajectorySpec:
        """What every trajectory holds; raises TrajectoryMissing while nobody knows."""
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
        """Take folders by path, or objects that know theirs; nothing has to be recorded yet."""
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
        """Return those that belong to a reader; who sees them when makes no difference, so that none is read twice."""
        return np.asarray(numbers[self._seats[numbers] % share.num_parts == share.part])

    # -- frames --------------------------------------------------------------------------------------------------------

    def read(self, trajectory: int, start: int, stop: int) -> dict[str, Any]:
        """Read frames [start, stop) as columns; frame T has the final observation, and zeros beside it."""
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
    # not isinstance alone: a protocol looks at every property, and a store of nothing cannot tell its spec yet
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
