"""Reward terms by name: weighted, summed per env, and logged as means per step and sums per episode.

weights = {"forward": 1.0, "ctrl": -0.1}

values  [terms, N]   forward   1.2   0.8        ──▶ reward [N]           sum down the column
                     ctrl     -0.1  -0.3        ──▶ log "reward/ctrl"    mean along the row
sums    [terms, N]   the same, added up since the episode began
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from striderl.data.naming import unknown

Float = NDArray[np.float64]


class RewardTerms:
    """The weights of a task's reward terms and their values in this step and episode."""

    def __init__(self, weights: Mapping[str, float], num_envs: int) -> None:
        if not weights:
            raise ValueError("a task wants at least one reward term in reward_weights")
        self.weights = dict(weights)
        self.values: Float = np.zeros((len(weights), num_envs))
        """Weighted terms of the last step, [terms, N], in the order of the weights."""
        self.sums: Float = np.zeros((len(weights), num_envs))
        """Weighted terms added up since each env's episode began, [terms, N]."""
        self._step_names = [f"reward/{name}" for name in weights]
        self._episode_names = [f"episode/reward/{name}" for name in weights]

    def add(self, terms: Mapping[str, NDArray[Any]]) -> Float:
        """Weight this step's terms and return the reward, float64 [N]."""
        if len(terms) != len(self.weights):
            self._complain(terms)
        for row, (name, weight) in enumerate(self.weights.items()):
            if name not in terms:
                self._complain(terms)
            np.multiply(terms[name], weight, out=self.values[row])
        # adding whole rows, not a matrix product: the rounding of one env does not depend on how many there are
        return np.asarray(np.add.reduce(self.values, axis=0))

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Take this step's terms of these envs back."""
        self.values[:, rows] = 0.0

    def settle(self) -> dict[str, float]:
        """Add this step's terms to the episodes and return the mean of each over the envs."""
        self.sums += self.values
        means = np.add.reduce(self.values, axis=1) / self.values.shape[1]
        return dict(zip(self._step_names, means.tolist()))

    def episode_log(self, ids: NDArray[np.int64]) -> dict[str, float]:
        """Return the mean over these envs of each term's sum over the episode, and of the whole return."""
        means = self.sums[:, ids].mean(axis=1).tolist()
        return {**dict(zip(self._episode_names, means)), "episode/return": sum(means)}

    def _complain(self, terms: Mapping[str, Any]) -> None:
        for name in terms:
            if name not in self.weights:
                raise KeyError(unknown("weight", name, self.weights, where="reward_weights"))
        for name in self.weights:
            if name not in terms:
                raise KeyError(unknown("term", name, terms, where="rewards()"))
