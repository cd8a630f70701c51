"""Where each env is in its trajectory, and where it will be in the next steps.

    lengths 3, 2, 5; two envs, four steps ahead:

               step 0   step 1   step 2   step 3   then
    env 0      0/0      0/1      0/2 ⏹    2/0      2/1          trajectory / frame, ⏹: the last one
    env 1      1/0      1/1 ⏹    -        -        -            '-': nothing is left, these rows are not valid

Frames between two ends are counted up for all envs at once; Python only looks at envs whose trajectory has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from striderl.datasets.rollout_order import Numbers

NOTHING = -1
"""In place of a trajectory where none is left."""

_FAR = np.iinfo(np.int64).max

Begin = Callable[[int], tuple[Numbers, Numbers, Numbers]]
"""(count) → the next trajectories, their first frames and their lengths, int64 [count] each; -1: there is none."""


class Ahead(NamedTuple):
    """The next T steps of n envs, and where they are afterwards."""

    trajectory: Numbers
    """int64 [T + 1, n]; -1 where nothing is left."""
    frame: Numbers
    """int64 [T + 1, n]."""
    last: np.ndarray[Any, np.dtype[np.bool_]]
    """bool [T, n]: the last frame of a trajectory."""


class Cursors:
    """One cursor per env."""

    def __init__(self, num_envs: int, begin: Begin) -> None:
        """Stand nowhere; `restart` begins trajectories."""
        self._begin = begin
        self.trajectory: Numbers = np.full(num_envs, NOTHING, np.int64)
        self.frame: Numbers = np.zeros(num_envs, np.int64)
        self.length: Numbers = np.zeros(num_envs, np.int64)

    @property
    def is_over(self) -> bool:
        """Whether no env has anything left."""
        return bool((self.trajectory == NOTHING).all())

    def restart(self, envs: Numbers) -> None:
        """Abandon the trajectories of these envs and begin the next ones, in the order of the envs."""
        self.trajectory[envs], self.frame[envs], self.length[envs] = self._begin(len(envs))

    def advance(self, num_steps: int, envs: Numbers) -> Ahead:
        """Move these envs on by so many steps, and tell which frames they pass."""
        trajectory = np.empty((num_steps + 1, len(envs)), np.int64)
        frame = np.empty_like(trajectory)
        last = np.zeros((num_steps, len(envs)), np.bool_)
        step = 0
        while step < num_steps:
            alive = self.trajectory[envs] != NOTHING
            left = np.where(alive, self.length[envs] - self.frame[envs], _FAR)
            run = int(min(num_steps - step, left.min(initial=_FAR)))
            trajectory[step : step + run] = self.trajectory[envs]
            frame[step : step + run] = self.frame[envs] + np.arange(run)[:, None] * alive
            self.frame[envs] += run * alive
            step += run
            ended = left == run
            if ended.any():
                last[step - 1, ended] = True
                self.restart(envs[ended])
        trajectory[num_steps], frame[num_steps] = self.trajectory[envs], self.frame[envs]
        return Ahead(trajectory, frame, last)

    def state_dict(self) -> dict[str, Any]:
        """Return all cursors."""
        return {
            "trajectory": torch.from_numpy(self.trajectory.copy()),
            "frame": torch.from_numpy(self.frame.copy()),
            "length": torch.from_numpy(self.length.copy()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where others stood; another number of envs is an error."""
        if len(state["trajectory"]) != len(self.trajectory):
            raise ValueError(f"{len(state['trajectory'])} cursors were saved, this dataset has {len(self.trajectory)}")
        self.trajectory, self.frame, self.length = (
            state[name].cpu().numpy().astype(np.int64) for name in ("trajectory", "frame", "length")
        )
