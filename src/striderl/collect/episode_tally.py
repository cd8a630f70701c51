"""Counting whole episodes: which env still owes some, and what those that ended gave.

An episode that quarantine cut or in which a sample was not valid does not count, and its env plays another. An env that
never gets one to its end is an error, not an endless wait.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from striderl.collect.quarantine import Fault
from striderl.data.transition import Transition

_log = logging.getLogger(__name__)

MAX_SPOILED = 20
"""How many episodes in a row an env may spoil."""
LONG = 100_000
"""Steps without an end after which the log says that an env may never end."""


class EpisodeTally:
    """Returns and lengths of finished episodes, env by env, until every env has its quota."""

    def __init__(self, quotas: list[int], max_steps: int) -> None:
        """Want `quotas[i]` episodes of env i, each env within `max_steps` steps (0: however long it takes)."""
        self._quotas, self._max_steps = quotas, max_steps
        self._finished: list[list[tuple[float, int]]] = [[] for _ in quotas]
        self._running = [(0.0, 0) for _ in quotas]
        self._steps = [0] * len(quotas)
        self._spoiled = [False] * len(quotas)
        self._spoiled_in_a_row = [0] * len(quotas)
        self.num_steps = 0
        """Steps of envs that were still wanted."""

    def wanted(self, rows: slice) -> list[bool]:
        """Tell for each of these envs whether it still owes an episode."""
        return [len(self._finished[row]) < self._quotas[row] for row in range(rows.start, rows.stop)]

    def wants(self, rows: slice) -> bool:
        """Tell whether any of these envs still owes an episode."""
        return any(self.wanted(rows))

    def add(self, rows: slice, transition: Transition, cut: Tensor, faults: Callable[[], list[Fault]]) -> None:
        """Take in one step of these envs."""
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
                raise RuntimeError(f"env {row} spoiled {MAX_SPOILED} episodes in a row, none can be counted: {found}")
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
    """Return how many episodes each env has to give, of a total or a number for each."""
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
