"""Velocity commands: forward, sideways and turning speed, redrawn from time to time.

A curriculum of levels: each env has one, goes up when it does well and down when it does badly.

level     0    1    2    3    4    5
env 0     ·    ·    ●──▶ up: it walked far enough
env 1     ◀──● down: it did not get half as far as commanded
env 2     ·    ·    ·    ·    ·    ●──▶ beyond the last: any level, so that the easy ones are not forgotten
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from striderl.envs.mujoco.simulation import Bool, Float, Int
from striderl.envs.mujoco.streams import Range, Streams


@dataclass(frozen=True, kw_only=True)
class CommandConfig:
    """Ranges of the commanded velocities."""

    forward: Range = (-0.5, 1.0)
    """Range of the speed along the robot's x axis, m/s."""
    sideways: Range = (-0.3, 0.3)
    """Range of the speed along its y axis (left), m/s."""
    turning: Range = (-0.8, 0.8)
    """Range of the turning rate about the vertical (left), rad/s."""
    interval: int = 500
    """Steps of an episode after which a new command is drawn; 500 are 10 s."""
    standing: float = 0.1
    """Probability that a command is to stand still."""
    smallest: float = 0.1
    """Commands whose speed on the ground is below this, m/s, become no speed on the ground at all."""

    def __post_init__(self) -> None:
        for name, (low, high) in (("forward", self.forward), ("sideways", self.sideways), ("turning", self.turning)):
            if low > high:
                raise ValueError(f"CommandConfig.{name} wants (low, high) with low <= high, found {(low, high)}")
        if self.interval < 1 or not 0.0 <= self.standing <= 1.0:
            raise ValueError(
                "CommandConfig wants interval >= 1 and standing between 0 and 1, "
                f"found {self.interval} and {self.standing}"
            )


class VelocityCommands:
    """The commands of N robots; what must be saved lives in arrays of the env."""

    def __init__(self, config: CommandConfig, streams: Streams, *, current: Float, count: Int) -> None:
        """Write commands to `current` [N, 3] and how many were drawn in this episode to `count` [N]."""
        self.config, self.current = config, current
        self._streams, self._count = streams, count
        ranges = np.array([config.forward, config.sideways, config.turning])
        self._low, self._span = ranges[:, 0], ranges[:, 1] - ranges[:, 0]

    def begin(self, ids: Int) -> None:
        """Draw the first command of these robots' episodes."""
        self._count[ids] = 0
        self._give(ids, self._streams.uniform("command", ids, 4))

    def advance(self, episode_length: Int) -> None:
        """Draw new commands where it is time, after `episode_length` [N] steps."""
        due = episode_length % self.config.interval == 0
        if not np.count_nonzero(due):
            return
        ids = np.flatnonzero(due)
        self._count[ids] += 1
        # 16 bits for the commands of one episode leave the env 65,536 episodes before its occasions repeat
        occasion = (self._streams.episode[ids] << 16) + self._count[ids]
        self._give(ids, self._streams.uniform("command/next", ids, 4, occasion=occasion))

    def _give(self, ids: Int, numbers: Float) -> None:
        command = self._low + self._span * numbers[:, :3]
        command[np.hypot(command[:, 0], command[:, 1]) < self.config.smallest, :2] = 0.0
        command[numbers[:, 3] < self.config.standing] = 0.0
        self.current[ids] = command


def is_moving(command: Float, *, above: float = 0.1) -> Bool:
    """Return which commands [N, 3] are not standing: more than this many m/s or rad/s."""
    return np.asarray((np.hypot(command[:, 0], command[:, 1]) > above) | (np.abs(command[:, 2]) > above))


# -- levels ------------------------------------------------------------------------------------------------------------


class Levels:
    """The level and the column (place among places of one level) of every env."""

    def __init__(
        self, streams: Streams, *, level: Int, num_levels: int, num_columns: int, first_levels: int, rising: bool
    ) -> None:
        """Write levels to `level` [N]; envs begin on the lowest `first_levels`; they stay there unless `rising`."""
        self.level, self.num_levels, self._rising = level, num_levels, rising
        self.streams = streams
        self._first_levels = min(max(first_levels, 1), num_levels)
        self.column: Int = streams.env_index % num_columns
        """Fixed for each env, by its global index, so that all columns are visited alike."""

    def begin(self, ids: Int) -> None:
        """Give a first level to the envs among these that begin their first episode since seeding."""
        new = ids[self.streams.episode[ids] == 0]
        if len(new):
            drawn = self.streams.uniform("level/first", new, 1, high=self._first_levels)[:, 0].astype(np.int64)
            self.level[new] = np.minimum(drawn, self._first_levels - 1)

    def move(self, ids: Int, *, up: Bool, down: Bool) -> None:
        """Change the level of envs `ids` whose episode has ended, by these flags [n]."""
        if not self._rising:
            return
        level = self.level[ids] + up - (down & ~up)
        beyond = level >= self.num_levels
        if np.count_nonzero(beyond):
            drawn = self.streams.uniform("level/again", ids[beyond], 1, high=self.num_levels)[:, 0].astype(np.int64)
            level[beyond] = np.minimum(drawn, self.num_levels - 1)
        self.level[ids] = np.maximum(level, 0)
