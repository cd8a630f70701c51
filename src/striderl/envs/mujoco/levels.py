"""A curriculum of levels: each env has one, goes up when it does well and down when it does badly.

level     0    1    2    3    4    5
env 0     ·    ·    ●──▶ up: it walked far enough
env 1     ◀──● down: it did not get half as far as it was asked to
env 2     ·    ·    ·    ·    ·    ●──▶ beyond the last: any level, so that the easy ones are not forgotten
"""

from __future__ import annotations

import numpy as np

from striderl.envs.mujoco.simulation import Bool, Int
from striderl.envs.mujoco.streams import Streams


class Levels:
    """The level and the column (place among places of one level) of every env."""

    def __init__(
        self, streams: Streams, *, level: Int, num_levels: int, num_columns: int, first_levels: int, rising: bool
    ) -> None:
        """Write levels to `level` [N]; envs begin on the lowest `first_levels`; they stay there unless `rising`."""
        self.level, self.num_levels, self._rising = level, num_levels, rising
        self._streams = streams
        self._first_levels = min(max(first_levels, 1), num_levels)
        self.column: Int = streams.env_index % num_columns
        """Fixed for each env, by its global index, so that all columns are visited alike."""

    def begin(self, ids: Int) -> None:
        """Give a first level to the envs among these that begin their first episode since seeding."""
        new = ids[self._streams.episode[ids] == 0]
        if len(new):
            drawn = self._streams.uniform("level/first", new, 1, high=self._first_levels)[:, 0].astype(np.int64)
            self.level[new] = np.minimum(drawn, self._first_levels - 1)

    def move(self, ids: Int, *, up: Bool, down: Bool) -> None:
        """Change the level of envs `ids` whose episode has ended, as these flags [n] say."""
        if not self._rising:
            return
        level = self.level[ids] + up - (down & ~up)
        beyond = level >= self.num_levels
        if np.count_nonzero(beyond):
            drawn = self._streams.uniform("level/again", ids[beyond], 1, high=self.num_levels)[:, 0].astype(np.int64)
            level[beyond] = np.minimum(drawn, self.num_levels - 1)
        self.level[ids] = np.maximum(level, 0)
