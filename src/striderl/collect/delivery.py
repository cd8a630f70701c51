"""Handing transitions over: exactly as many as were asked for, the surplus first next time.

steps     1  2  3  ┊ reset ┊  4  5            a seam: step 4 does not follow step 3, and neither would it after
storage   a  a  a     cut     a  a            steps that went into another storage, or into none
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from striderl.data import tree
from striderl.data.transition import Transition


@runtime_checkable
class Storage(Protocol):
    """Where transitions go."""

    balanced: bool
    """Whether every env must deliver the same number of steps."""

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Take the next step of these envs (a range; all by default)."""
        ...


@runtime_checkable
class Cuts(Protocol):
    """A storage in which steps of one env follow each other from call to call, such as a replay."""

    def cut(self) -> None:
        """End the episodes that are under way: what comes next does not follow them."""
        ...


class Delivery:
    """Stores transitions and keeps those that came with a step but were not asked for."""

    def __init__(self) -> None:
        self._carried: list[tuple[Transition, slice]] = []
        self._seam = True
        """Whether the next step does not follow the one that was stored last."""
        self._stored: Storage | None = None
        """Where that one went; None where it is not known."""

    def join(self, storage: Storage | None) -> None:
        """Go on with this storage; the episodes in it end where what comes now does not follow them."""
        elsewhere = self._stored is not None and storage is not self._stored
        kept: object = storage
        if (self._seam or elsewhere) and isinstance(kept, Cuts):
            kept.cut()
        self._seam, self._stored = storage is None, storage

    @property
    def num_waiting(self) -> int:
        """How many transitions are waiting for the next call."""
        return sum(int(rows.stop) - int(rows.start) for _, rows in self._carried)

    def check_balance(self, n_step: int, num_envs: int, *, waiting_is_kept: bool) -> None:
        """Raise when a storage that wants as many steps from each env would not get them."""
        if waiting_is_kept and self.num_waiting:
            raise ValueError(
                f"{self.num_waiting} transitions of an earlier call are waiting, and this storage wants the "
                "same number of steps from each env; call reset() first, or take them with another storage"
            )
        if n_step % num_envs:
            raise ValueError(
                f"this storage wants the same number of steps from each of {num_envs} envs, "
                f"but n_step={n_step} is not a multiple of that"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return copies of what is waiting, and whether the next step follows what was stored."""
        waiting = [
            {"rows": [int(rows.start), int(rows.stop)], "transition": tree.copy(transition._asdict())}
            for transition, rows in self._carried
        ]
        return {"waiting": waiting, "seam": self._seam}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another one stood, with whichever storage comes."""
        waiting, self._seam, self._stored = state.get("waiting", ()), bool(state.get("seam", False)), None
        self._carried = [(Transition(**tree.copy(each["transition"])), slice(*each["rows"])) for each in waiting]

    def clear(self) -> None:
        """Drop what is waiting: the envs begin anew."""
        self._carried, self._seam = [], True

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
