"""Where episodes start: first states that depend only on the seed, the env's global index and its episode.

One call of the counter-based generator costs the same for one episode as for a hundred, so starts are prepared a block
of episodes ahead. How long the block is changes no number.

    pool [N * 4, S]     env 0 is in episode 6: its four rows hold the starts of episodes 4 5 6 7; at 8 they are redrawn
                        env 1 is in episode 2: its four rows hold those of 0 1 2 3
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
        self._ahead = np.array(min(512, max(1, 16384 // len(env_index))))
        self._first = np.arange(len(env_index)) * self._ahead
        self._pool: Array = np.empty((0, 0))

    def seek(self, seed: int, episode: Array) -> None:
        """Prepare the block of episodes in which each env stands, for this seed."""
        self.seed = seed
        self._pool = self._prepare(self._env_index, episode)

    def take(self, rows: Array, episode: Array) -> Array:
        """Return the first states [len(rows), S] of these envs; `episode` is what they were in last, or one more."""
        slot = episode % self._ahead
        if 0 in slot.tolist():
            fresh = slot == 0
            places = (self._first[rows[fresh]][:, None] + np.arange(int(self._ahead))).reshape(-1)
            self._pool[places] = self._prepare(self._env_index[rows[fresh]], episode[fresh])
        taken: Array = self._pool.take(self._first.take(rows) + slot, 0)
        return taken

    def _prepare(self, env_index: Array, episode: Array) -> Array:
        """Draw the starts [n * ahead, S] of the blocks that these episodes of n envs lie in."""
        first = episode - episode % self._ahead
        occasion = (first[:, None] + np.arange(int(self._ahead))).reshape(-1)
        who = np.repeat(env_index, int(self._ahead))
        numbers = uniform(self._name, seed=self.seed, env_index=who, occasion=occasion, count=self._count)
        return np.ascontiguousarray(self._start(numbers).T)
