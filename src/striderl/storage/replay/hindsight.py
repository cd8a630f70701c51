"""Hindsight: pretend that what was reached later had been the goal (Andrychowicz et al. 2017).

    step          t     t+1   t+2   t+3 = end of the episode (so far)
    achieved      a0    a1    a2    a3    a4
    'future'      goal := what was achieved after a step drawn from t … end
    'final'       goal := what was achieved at the end
    'episode'     goal := what was achieved after any step of the episode that is still stored

Goals are put into the copies that a sample consists of; the replay itself is never changed. Rewards are worked out
anew for these samples with the user's function, in every step of a window of n under the one goal of its sample. Where
episodes end stays as it was stored: the env's word on it does not depend on the goal.

    view = Hindsight(reward, gamma=config.gamma, n=config.n_step)
    replay = Replay(collector.columns(), 100_000, env.num_envs, view=view, episodes=True)
    trainer = Trainer(algorithm, collector, plan, storage=replay)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.data.naming import unknown
from striderl.storage.replay.reader import ReplayReader
from striderl.storage.replay.samplers import Draws
from striderl.storage.replay.views import window

GoalReward = Callable[[Tensor, Tensor, dict[str, Any]], Tensor]
"""reward(achieved, desired, info) -> [B]: `achieved` is what the step led to."""

STRATEGIES = ("future", "final", "episode")


class Hindsight:
    """Shows steps with their goals replaced in a share of them; the replay must keep `episodes=True`."""

    def __init__(
        self,
        reward: GoalReward,
        *,
        gamma: float,
        n: int = 1,
        strategy: str = "future",
        ratio: float = 0.8,
        achieved: str = "achieved_goal",
        desired: str = "desired_goal",
        seed: int = 0,
    ) -> None:
        """Replace the goal of a share `ratio` of the samples; 4 relabelled for each original is 0.8.

        Targets are `rew + discount * V(obs_next)`, as those of `NStep(n, gamma=gamma)`.
        """
        if n < 1 or not 0.0 <= gamma <= 1.0:
            raise ValueError(f"n is at least 1 and gamma between 0 and 1, found {n} and {gamma}")
        if strategy not in STRATEGIES:
            raise ValueError(unknown("strategy", strategy, STRATEGIES, where="Hindsight"))
        if not 0.0 <= ratio <= 1.0:
            raise ValueError(f"ratio is between 0 and 1, found {ratio}")
        self.reward, self.strategy, self.ratio = reward, strategy, ratio
        self.gamma, self.n = gamma, n
        self.achieved, self.desired, self.seed = achieved, desired, seed
        self.draw = 0
        """The number of the next draw; all there is to save."""
        self._draws: Draws | None = None

    def __call__(self, read: ReplayReader, index: Tensor) -> dict[str, Any]:
        """Return what `NStep` would of these steps; `relabelled` bool [B] tells whose goal was replaced."""
        if self._draws is None or self._draws.device != read.device:
            self._draws = Draws("hindsight", seed=self.seed, device=read.device)
        numbers = self._draws.at(self.draw, 2 * index.shape[0]).view(2, -1)
        self.draw += 1
        found = window(read, index, self.n)
        data = read.rows(index, found.last)
        self._require(data["obs"])
        goal = read.obs_next(self._goal_rows(read, index, numbers[1]))[self.achieved]
        chosen = numbers[0] < self.ratio
        reward = self._rewards(read, found.rows, goal, chosen)
        powers = torch.pow(self.gamma, torch.arange(self.n + 1, dtype=torch.float64, device=index.device))
        powers = powers.to(reward.dtype)
        return {
            **data,
            "obs": {**data["obs"], self.desired: _where(chosen, goal, data["obs"][self.desired])},
            "obs_next": {**data["obs_next"], self.desired: _where(chosen, goal, data["obs_next"][self.desired])},
            "rew": torch.where(found.going, reward * powers[:-1, None], 0.0).sum(0),
            "terminated": found.ends[:, 0],
            "truncated": found.ends[:, 1],
            "discount": powers[found.num_steps].masked_fill(found.ends[:, 0], 0.0),
            "num_steps": found.num_steps,
            "relabelled": chosen,
        }

    def _rewards(self, read: ReplayReader, rows: Tensor, goal: Tensor, chosen: Tensor) -> Tensor:
        """Return the rewards of all steps of all windows [n, B] under the goals of their samples."""
        steps = read.rows(rows.flatten())
        achieved = steps["obs_next"][self.achieved]
        given = self.reward(achieved, goal.repeat(self.n, *[1] * (goal.dim() - 1)), steps["info"])
        stored = steps["rew"]
        return torch.where(chosen.repeat(self.n), given.to(stored.dtype), stored).view(self.n, -1)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of the next draw."""
        return {"draw": self.draw, "seed": self.seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with that draw."""
        self.draw, self.seed, self._draws = int(state["draw"]), int(state["seed"]), None

    def _goal_rows(self, read: ReplayReader, index: Tensor, numbers: Tensor) -> Tensor:
        """Return the rows whose outcome becomes the goal."""
        if read.episodes is None:
            raise ValueError("Hindsight needs the bounds of episodes; make the replay with episodes=True")
        cursor = read.cursor
        oldest = torch.from_numpy(np.asarray(cursor.first_alive)).to(index.device)[index % read.num_envs]
        number = oldest + read.position(index)
        first, last = read.episodes.bounds(index)
        if self.strategy == "final":
            target = last
        elif self.strategy == "future":
            target = number + (numbers * (last - number + 1)).long()
        else:
            first = torch.maximum(first, oldest)
            target = first + (numbers * (last - first + 1)).long()
        return read.shifted(index, target - number)

    def _require(self, obs: dict[str, Any]) -> None:
        for name in (self.achieved, self.desired):
            if name not in obs:
                raise KeyError(unknown("component", name, obs, where="the observation"))


def _where(rows: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(rows.view(-1, *[1] * (yes.ndim - 1)), yes, no)
