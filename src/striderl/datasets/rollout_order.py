"""Which trajectory comes next: passes over what is known, in the order of recording or shuffled, some or all of it.

    known      0 1 2 3 4 5 6 7              in the order of recording
    newest 6       2 3 4 5 6 7              keep_latest_n_trajs=6
    share 0/2      2   4   6                those of the first of two readers
    pass 0         4 2 6                    random_shuffle_traj_order: another order in each pass
    pass 1         2 6 4 8 …                what was recorded in the meantime is in the next pass

Everything random follows from (seed, pass, trajectory) or (seed, number of the draw): there is no generator to save.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from striderl.data.noise import uniform

Numbers = np.ndarray[Any, np.dtype[np.int64]]
"""int64 [n]."""


class Share(NamedTuple):
    """The part of one reader among several: no trajectory is in two of them."""

    part: int = 0
    """Which part."""
    num_parts: int = 1
    """How many parts there are."""

    def within(self, outer: Share) -> Share:
        """Return this part of another part."""
        return Share(outer.part + outer.num_parts * self.part, outer.num_parts * self.num_parts)


class TrajectoryOrder:
    """Hands out the numbers of trajectories, each once per pass."""

    def __init__(
        self,
        eligible: Callable[[], Numbers],
        *,
        num_passes: int,
        shuffle: bool,
        seed: int,
    ) -> None:
        """Ask `eligible` for the trajectories of a pass when it begins; num_passes < 1 means without end."""
        self._eligible, self.num_passes, self.shuffle, self.seed = eligible, num_passes, shuffle, seed
        self.num_begun = 0
        """How many passes have begun."""
        self.num_taken = 0
        """How many trajectories were handed out."""
        self._queue: Numbers = np.zeros(0, np.int64)
        self._is_dry = False

    @property
    def num_finished(self) -> int:
        """How many passes were handed out to the end."""
        return self.num_begun - bool(len(self._queue))

    def take(self, count: int) -> Numbers:
        """Return the next trajectories, int64 [count]; -1 where there are none left."""
        taken = [np.zeros(0, np.int64)]
        missing = count
        while missing and self._replenish():
            piece, self._queue = self._queue[:missing], self._queue[missing:]
            taken.append(piece)
            missing -= len(piece)
        self.num_taken += count - missing
        return np.concatenate([*taken, np.full(missing, -1, np.int64)])

    def start_frames(self, lengths: Numbers, frames: tuple[int, int]) -> Numbers:
        """Return where the last `len(lengths)` trajectories begin: uniform in [low, high), as far as they reach."""
        low = np.minimum(frames[0], lengths - 1)
        high = np.maximum(np.minimum(frames[1], lengths), low + 1)
        if frames[1] - frames[0] <= 1:
            return np.asarray(low, np.int64)
        draw = np.arange(self.num_taken - len(lengths), self.num_taken)
        number = uniform("start frame", seed=self.seed, env_index=draw, occasion=draw >> 32, count=1)[:, 0]
        return np.asarray(low + (number * (high - low)).astype(np.int64))

    def _replenish(self) -> bool:
        """Begin the next pass where this one is at its end; tell whether there is something to hand out."""
        if len(self._queue):
            return True
        if self._is_dry or 0 < self.num_passes <= self.num_begun:
            return False
        found = self._eligible()
        if not len(found):
            self._is_dry = True  # a share of nothing stays empty: asking again and again would never end
            return False
        if self.shuffle:
            keys = uniform("trajectory order", seed=self.seed, env_index=found, occasion=self.num_begun, count=1)[:, 0]
            found = found[np.argsort(keys, kind="stable")]
        self._queue = found
        self.num_begun += 1
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return where the order stands."""
        return {
            "seed": self.seed,
            "num_begun": self.num_begun,
            "num_taken": self.num_taken,
            "is_dry": self._is_dry,
            "queue": torch.from_numpy(self._queue.copy()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another order stood."""
        self.seed = int(state["seed"])
        self.num_begun, self.num_taken = int(state["num_begun"]), int(state["num_taken"])
        self._is_dry = bool(state["is_dry"])
        self._queue = state["queue"].cpu().numpy().astype(np.int64)
