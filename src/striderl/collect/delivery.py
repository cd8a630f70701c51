"""Handing transitions over: exactly as many as were asked for, the surplus first next time."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from striderl.data.transition import Transition


@runtime_checkable
class Storage(Protocol):
    """Where transitions go."""

    balanced: bool
    """Whether every env must deliver the same number of steps."""

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Take the next step of these envs (a range; all by default)."""
        ...


class Delivery:
    """Stores transitions and keeps those that came with a step but were not asked for."""

    def __init__(self) -> None:
        self._carried: list[tuple[Transition, slice]] = []

    @property
    def num_waiting(self) -> int:
        """How many transitions are waiting for the next call."""
        return sum(int(rows.stop) - int(rows.start) for _, rows in self._carried)

    def clear(self) -> None:
        """Drop what is waiting."""
        self._carried = []

    def hand_over_carried(self, wanted: int, storage: Storage | None) -> int:
        """Hand over what is waiting, oldest first; return how many are still wanted."""
        carried, self._carried = self._carried, []
        for transition, rows in carried:
            wanted = self.hand_over(transition, rows, wanted, storage)
        return wanted

    def hand_over(self, transition: Transition, rows: slice, wanted: int, storage: Storage | None) -> int:
        """Store up to `wanted` rows and keep the rest; return how many are still wanted."""
        start, stop = int(rows.start), int(rows.stop)
        taken = min(stop - start, wanted)
        if taken < stop - start:
            self._carried.append((transition.rows(slice(taken, stop - start)), slice(start + taken, stop)))
        if taken and storage is not None:
            part = transition if taken == stop - start else transition.rows(slice(0, taken))
            storage.add(part, slice(start, start + taken))
        return wanted - taken


def store_some(transition: Transition, rows: slice, wanted: list[bool], storage: Storage) -> None:
    """Store the rows that are wanted, a run of neighbours at a time."""
    start = 0
    while start < len(wanted):
        stop = start
        while stop < len(wanted) and wanted[stop]:
            stop += 1
        if stop > start:
            storage.add(transition.rows(slice(start, stop)), slice(rows.start + start, rows.start + stop))
        start = stop + 1
