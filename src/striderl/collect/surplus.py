"""Storing transitions: exactly as many as were requested, the surplus first next time.

steps     1  2  3  ┊ reset ┊  4  5            a seam: step 4 does not follow step 3, and neither would it after
storage   a  a  a     cut     a  a            steps that went into another storage, or into none

Counting whole episodes: the quota of each env, and returns and lengths of finished ones.

An episode that quarantine cut or in which a sample was not valid does not count, and its env runs another. An env that
never gets one to its end is an error, not an endless wait.

The result of one call of `Collector.collect`.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from striderl.collect.quarantine import Fault
from striderl.data import tree
from striderl.data.transition import Transition
from striderl.envs.workers.errors import EnvError


@runtime_checkable
class Storage(Protocol):
    """A storage for transitions."""

    balanced: bool
    """Whether every env must give the same number of steps."""

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Add the next step of these envs (a range; all by default)."""
        ...


@runtime_checkable
class Cuts(Protocol):
    """A storage in which steps of one env follow each other from call to call, such as a replay."""

    def cut(self) -> None:
        """End the episodes in progress: the next step does not follow them."""
        ...


@dataclass
class StepsCall:
    """The progress of a call of `collect(n_step=…)`."""

    n_step: int
    """Number of transitions requested."""
    storage: Storage | None
    """The storage they go to."""
    remaining: int = 0
    """Number of them not stored yet."""
    unlaunched: int = 0
    """Number of them for which no step was started yet."""
    rounds: list[int] = field(default_factory=list)
    """Number of steps each group may still start."""
    whole: bool = True
    """Whether every step is either stored or not begun; false while one is being stored."""


class SurplusBuffer:
    """Stores transitions and keeps those that exceed the requested number."""

    def __init__(self) -> None:
        self.carried: list[tuple[Transition, slice]] = []
        """What waits, with the rows of its envs."""
        self._seam = True
        """Whether the next step does not follow the one that was stored last."""
        self._stored: Storage | None = None
        """The storage of that one; None if unknown."""

    def join(self, storage: Storage | None) -> None:
        """Switch to this storage; its episodes are ended if the next step does not follow them."""
        elsewhere = self._stored is not None and storage is not self._stored
        kept: object = storage
        if (self._seam or elsewhere) and isinstance(kept, Cuts):
            kept.cut()
        self._seam, self._stored = storage is None, storage

    @property
    def num_waiting(self) -> int:
        """Number of transitions waiting for the next call."""
        return sum(int(rows.stop) - int(rows.start) for _, rows in self.carried)

    def check_balance(self, n_step: int, num_envs: int, *, waiting_is_kept: bool) -> None:
        """Raise when a balanced storage would not get the same number of steps from each env."""
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
            for transition, rows in self.carried
        ]
        return {"waiting": waiting, "seam": self._seam}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another one, with any storage."""
        waiting, self._seam, self._stored = state.get("waiting", ()), bool(state.get("seam", False)), None
        self.carried = [(Transition(**tree.copy(each["transition"])), slice(*each["rows"])) for each in waiting]

    def clear(self) -> None:
        """Drop what is waiting: the envs are reset."""
        self.carried, self._seam = [], True

    def hand_over_carried(self, wanted: int, storage: Storage | None) -> int:
        """Store what is waiting, oldest first; return how many are still wanted."""
        carried, self.carried = self.carried, []
        for transition, rows in carried:
            wanted = self.hand_over(transition, rows, wanted, storage)
        return wanted

    def hand_over(self, transition: Transition, rows: slice, wanted: int, storage: Storage | None) -> int:
        """Store up to `wanted` rows and keep the rest; return how many are still wanted."""
        start, stop = int(rows.start), int(rows.stop)
        taken = min(stop - start, wanted)
        if taken < stop - start:
            self.carried.append((transition.rows(slice(taken, stop - start)), slice(start + taken, stop)))
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


# -- whole episodes ----------------------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)

MAX_SPOILED = 20
"""Largest number of invalid episodes in a row of one env."""
LONG = 100_000
"""Steps without an end after which a warning is logged that an env may never end."""


class EpisodeQuota:
    """Returns and lengths of finished episodes, env by env, until every env has its quota."""

    def __init__(self, quotas: list[int], max_steps: int) -> None:
        """Require `quotas[i]` episodes of env i, each env within `max_steps` steps (0: however long it takes)."""
        self._quotas, self._max_steps = quotas, max_steps
        self._finished: list[list[tuple[float, int]]] = [[] for _ in quotas]
        self._running = [(0.0, 0) for _ in quotas]
        self._steps = [0] * len(quotas)
        self._spoiled = [False] * len(quotas)
        self._spoiled_in_a_row = [0] * len(quotas)
        self.num_steps = 0
        """Steps of envs that were still wanted."""

    def wanted(self, rows: slice) -> list[bool]:
        """Return which of these envs have not reached their quota."""
        return [len(self._finished[row]) < self._quotas[row] for row in range(rows.start, rows.stop)]

    def wants(self, rows: slice) -> bool:
        """Return whether any of these envs has not reached its quota."""
        return any(self.wanted(rows))

    def add(self, rows: slice, transition: Transition, cut: Tensor, faults: Callable[[], list[Fault]]) -> None:
        """Update with one step of these envs."""
        wanted = self.wanted(rows)
        self.num_steps += sum(wanted)
        columns = (transition.rew, transition.done, transition.valid, cut)
        for row, owes, (reward, done, valid, stopped) in zip(
            range(rows.start, rows.stop), wanted, zip(*(column.tolist() for column in columns))
        ):
            total, length = self._running[row]
            self._running[row] = (total + reward, length + 1)
            self._steps[row] += 1
            self._spoiled[row] = self._spoiled[row] or not valid or stopped
            if done:
                self._end(row, owes, faults)
            elif owes:
                self._check_length(row)

    def episodes(self) -> list[tuple[float, int]]:
        """Return (return, length) of every episode, env by env."""
        return [episode for row in self._finished for episode in row]

    def _end(self, row: int, owes: bool, faults: Callable[[], list[Fault]]) -> None:
        if owes and self._spoiled[row]:
            self._spoiled_in_a_row[row] += 1
            if self._spoiled_in_a_row[row] > MAX_SPOILED:
                found = "; ".join(str(fault) for fault in faults()[:3]) or "samples were marked not valid"
                raise EnvError(f"env {row} spoiled {MAX_SPOILED} episodes in a row, none can be counted: {found}")
        elif owes:
            self._finished[row].append(self._running[row])
            self._spoiled_in_a_row[row] = 0
        self._running[row], self._spoiled[row] = (0.0, 0), False

    def _check_length(self, row: int) -> None:
        length = self._running[row][1]
        if self._max_steps and self._steps[row] >= self._max_steps:
            found, quota = len(self._finished[row]), self._quotas[row]
            raise RuntimeError(f"env {row} ended {found} of {quota} episodes within max_steps={self._max_steps}")
        if length == LONG:
            _log.warning("env %d has taken %d steps without an end; has it a time limit?", row, length)


def quotas_of(n_episode: int | Sequence[int], num_envs: int) -> list[int]:
    """Return the number of episodes for each env, of a total or a number for each."""
    if isinstance(n_episode, Sequence) or bool(getattr(n_episode, "ndim", False)):
        quotas = [whole_number("n_episode", count, lowest=0) for count in n_episode]  # type: ignore[union-attr]
        if len(quotas) != num_envs:
            raise ValueError(f"n_episode has {len(quotas)} numbers for {num_envs} envs")
    else:
        each, rest = divmod(whole_number("n_episode", n_episode), num_envs)
        quotas = [each + (row < rest) for row in range(num_envs)]
    if sum(quotas) < 1:
        raise ValueError(f"n_episode must ask for at least one episode, found {n_episode}")
    return quotas


def whole_number(name: str, number: Any, lowest: int = 1) -> int:
    """Return a whole number, or raise: 2.5 steps or True episodes are mistakes."""
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise TypeError(f"{name} is a whole number, found {number!r}")
    if operator.index(number) < lowest:
        raise ValueError(f"{name} must be at least {lowest}, found {number}")
    return operator.index(number)


# -- what was collected ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Collected:
    """The result of one call of `collect`."""

    num_steps: int
    """Number of transitions stored."""
    seconds: float
    """Wall-clock time of the call."""
    returns: list[float] = field(default_factory=list)
    """With n_episode: each episode's undiscounted return, env by env in order."""
    lengths: list[int] = field(default_factory=list)
    """With n_episode: each episode's length."""
    faults: list[Fault] = field(default_factory=list)
    """The first bad number of each component, if there were any."""
