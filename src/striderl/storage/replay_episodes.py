"""Which episode each step of a ring belongs to, and where it begins and ends; for hindsight.

    row        0  1  2  3  4  5        one env; E ends an episode
    step       ·  ·  E  ·  ·  ·
    episode    0  0  0  1  1  1        a column [R, N]
    first[0] = 0   last[0] = 2         tables [R, N]: the numbers of the first and the newest step of an episode
    first[1] = 3   last[1] = 5         episode e uses place e mod R; as many cannot be alive at once

Everything is updated with each step by scatters over the envs, so no GPU is asked whether an episode ended.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class EpisodeTable:
    """The bounds of all episodes alive."""

    def __init__(self, rows: int, num_envs: int, device: torch.device) -> None:
        """Make room for a ring [rows, num_envs]."""
        self._rows, self._num_envs = rows, num_envs
        self._episode = torch.zeros(rows * num_envs, dtype=torch.int64, device=device)
        self._first = torch.zeros(rows * num_envs, dtype=torch.int64, device=device)
        self._last = torch.zeros(rows * num_envs, dtype=torch.int64, device=device)
        self._current = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._fresh = torch.ones(num_envs, dtype=torch.bool, device=device)

    def add(self, number: Tensor, env: Tensor, ends: Tensor) -> None:
        """Count step `number` [n] of these envs [n]; `ends` [n] tells whether the episode ends with it."""
        current = self._current.index_select(0, env)
        place = current % self._rows * self._num_envs + env
        fresh = self._fresh.index_select(0, env)
        self._first[place] = torch.where(fresh, number, self._first.index_select(0, place))
        self._last[place] = number
        self._episode[number % self._rows * self._num_envs + env] = current
        self._current[env] = current + ends
        self._fresh[env] = ends

    def cut(self, env: Tensor) -> None:
        """Let the next step of these envs begin an episode."""
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
        """Hold saved tables."""
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
