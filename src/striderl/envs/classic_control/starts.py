"""Where episodes start: first states that depend only on the seed, the env's global index and its episode.

One call of the counter-based generator costs the same for one episode as for a hundred, so starts are prepared several
episodes ahead. How far ahead changes no number.

    pool [N * 4, S]     env 0 is in episode 6 and was last supplied at 5: its four rows hold the starts of 5 6 7 8
                        env 1 is in episode 2 and was last supplied at 0: its four rows hold those of 0 1 2 3

When an env asks for more than it has, every env that has used up half of its rows is supplied anew, so that envs whose
episodes are about as long share the cost of one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from striderl.data.noise import uniform

Array = np.ndarray[Any, np.dtype[Any]]


class EpisodeStarts:
    """The first states of each env's episodes, prepared several episodes ahead.

    `start` turns uniform numbers [n, count] into first states [S, n].
    """

    def __init__(self, name: str, count: int, env_index: Array, start: Callable[[Array], Array]) -> None:
        self.seed = 0
        self._name, self._count, self._env_index, self._start = name, count, env_index, start
        self._ahead = min(512, max(4, 32768 // len(env_index)))
        self._place = np.arange(len(env_index)) * self._ahead
        self._supplied = np.zeros(len(env_index), np.int64)
        self._pool: Array = np.empty((0, 0))

    def seek(self, seed: int, episode: Array) -> None:
        """Supply every env from the episode [N] in which it stands, for this seed."""
        self.seed = seed
        self._supplied[:] = episode
        self._pool = self._prepare(self._env_index, episode)

    def take(self, rows: Array, episode: Array) -> Array:
        """Return the first states [len(rows), S] of these envs; episode [N] counts those of all, one on at most."""
        slot = episode.take(rows) - self._supplied.take(rows)
        if self._ahead in slot.tolist():
            self._supply(episode)
            slot = episode.take(rows) - self._supplied.take(rows)
        taken: Array = self._pool.take(self._place.take(rows) + slot, 0)
        return taken

    def _supply(self, episode: Array) -> None:
        short = (episode - self._supplied > self._ahead // 2).nonzero()[0]
        self._supplied[short] = episode[short]
        places = (self._place[short][:, None] + np.arange(self._ahead)).reshape(-1)
        self._pool[places] = self._prepare(self._env_index[short], episode[short])

    def _prepare(self, env_index: Array, episode: Array) -> Array:
        """Draw the starts [n * ahead, S] of n envs, from these episodes on."""
        occasion = (episode[:, None] + np.arange(self._ahead)).reshape(-1)
        who = np.repeat(env_index, self._ahead)
        numbers = uniform(self._name, seed=self.seed, env_index=who, occasion=occasion, count=self._count)
        return np.ascontiguousarray(self._start(numbers).T)
