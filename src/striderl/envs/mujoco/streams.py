"""Random numbers per env: they depend on (seed, global env index, stream name, occasion) and on nothing else.

The occasion is the env's episode number unless the caller counts something else, so env 5 draws the same numbers with
1 thread or 16, alone or among 4,096 envs, here or in another process. Numbers for episodes are drawn several episodes
ahead, because one call of the generator costs the same for one episode as for many; the numbers are the same.

    pool of one stream    env 0   episodes 8 … 15   [8, count]      env 0 is in episode 11
                          env 1   episodes 2 … 9    [8, count]      env 1 will be refilled when it reaches episode 10
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from striderl.data import noise

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Range = tuple[float, float]

_AHEAD = 64
_POOLED_EPISODES = 4096


class Streams:
    """The random streams of one set of envs."""

    def __init__(self, num_envs: int, first_env_index: int = 0) -> None:
        self.seed = 0
        self.env_index: Int = np.arange(first_env_index, first_env_index + num_envs, dtype=np.int64)
        self.episode: Int = np.zeros(num_envs, np.int64)
        """How many episodes each env has begun since the streams were seeded, without the first."""
        self._pools: dict[tuple[Any, ...], _Pool] = {}

    def restart(self, seed: int) -> None:
        """Restart all streams from this seed."""
        self.seed = int(seed)
        self.episode[:] = 0
        self._pools.clear()

    def uniform(
        self, name: str, ids: Int, count: int, *, low: Any = 0.0, high: Any = 1.0, occasion: Int | int | None = None
    ) -> Float:
        """Draw [len(ids), count] numbers in [low, high); low and high may be arrays that broadcast."""
        return np.asarray(low + (np.asarray(high) - low) * self._draw(noise.uniform, name, ids, count, occasion))

    def normal(self, name: str, ids: Int, count: int, *, occasion: Int | int | None = None) -> Float:
        """Draw [len(ids), count] standard normal numbers."""
        return self._draw(noise.normal, name, ids, count, occasion)

    def _draw(self, kind: Callable[..., Float], name: str, ids: Int, count: int, occasion: Int | int | None) -> Float:
        if not len(ids):
            return np.zeros((0, count))
        if occasion is not None:
            return kind(name, seed=self.seed, env_index=self.env_index[ids], occasion=occasion, count=count)
        key = (kind, name, count)
        if key not in self._pools:
            self._pools[key] = _Pool(kind, name, count, self.seed, self.env_index)
        return self._pools[key].take(ids, self.episode[ids])


class _Pool:
    """Numbers of one stream for the episodes to come."""

    def __init__(self, kind: Callable[..., Float], name: str, count: int, seed: int, env_index: Int) -> None:
        self._kind, self._name, self._count, self._seed, self._env_index = kind, name, count, seed, env_index
        self._ahead = min(_AHEAD, max(1, _POOLED_EPISODES // len(env_index)))
        self._first = np.full(len(env_index), -self._ahead, np.int64)
        self._numbers = np.zeros((len(env_index), self._ahead, count))

    def take(self, ids: Int, episode: Int) -> Float:
        """Return [len(ids), count] numbers of these envs for these episodes."""
        place = episode - self._first[ids]
        stale = (place < 0) | (place >= self._ahead)
        if np.count_nonzero(stale):
            self._refill(ids[stale], episode[stale])
            place = episode - self._first[ids]
        return np.asarray(self._numbers[ids, place])

    def _refill(self, ids: Int, episode: Int) -> None:
        occasion = (episode[:, None] + np.arange(self._ahead)).reshape(-1)
        env_index = np.repeat(self._env_index[ids], self._ahead)
        numbers = self._kind(self._name, seed=self._seed, env_index=env_index, occasion=occasion, count=self._count)
        self._numbers[ids] = numbers.reshape(len(ids), self._ahead, self._count)
        self._first[ids] = episode
