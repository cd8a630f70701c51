"""Priorities beside a `ReplayBuffer`: which index to draw, how much it then counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from striderl.data import leaf
from striderl.storage.sum_tree import SumTree


class Priorities:
    """One priority per index; index i is drawn with probability p_i^alpha / sum p^alpha."""

    def __init__(
        self, *, alpha: float, beta: float, beta_final: float | None = None, beta_steps: int = 0, epsilon: float = 1e-8
    ) -> None:
        """Anneal beta to `beta_final` over `beta_steps` draws, where that is given."""
        if alpha < 0.0 or not 0.0 <= beta <= 1.0:
            raise ValueError(f"wanted alpha >= 0 and beta in [0, 1], found {alpha} and {beta}")
        if (beta_final is None) != (beta_steps == 0):
            raise ValueError("beta_final and beta_steps belong together")
        self.alpha, self.beta, self.epsilon = alpha, beta, epsilon
        self.first_beta, self.beta_final, self.beta_steps = beta, beta_final, beta_steps
        self.num_draws = 0
        self.largest = 1.0
        """The largest p^alpha seen; new steps get it."""
        self.tree = SumTree(1)

    def attach(self, count: int) -> None:
        """Make room for as many indices."""
        self.tree = SumTree(count)

    def written(self, index: NDArray[np.int64]) -> None:
        """Give new steps the largest priority."""
        place = torch.from_numpy(np.asarray(index, np.int64))
        self.tree.put(place, torch.full((len(place),), self.largest, dtype=torch.float64))

    def clear(self) -> None:
        """Take all priorities away."""
        self.tree.load(torch.zeros_like(self.tree.leaves))

    def pick(self, numbers: NDArray[np.float64], hidden: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return an index for each number in [0, 1); hidden ones are never drawn."""
        place = torch.from_numpy(np.asarray(hidden, np.int64))
        kept = self.tree.leaves[place].clone()
        if len(hidden):
            self.tree.put(place, torch.zeros_like(kept))
        index, _ = self.tree.pick(torch.from_numpy(numbers))
        if len(hidden):
            self.tree.put(place, kept)
        self.num_draws += 1
        if self.beta_final is not None:
            share = min(1.0, self.num_draws / self.beta_steps)
            self.beta = self.first_beta + share * (self.beta_final - self.first_beta)
        return np.asarray(index.numpy())

    def weight(self, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (p_i / p_min)^(-beta) with both to the power alpha; the largest weight of the batch is 1."""
        priority = self.tree.leaves.numpy()[index]
        return np.asarray((priority / priority.min()) ** -self.beta)

    def update(self, index: NDArray[np.int64], error: Any) -> None:
        """Set priorities to |error| + epsilon."""
        values = np.abs(np.asarray(leaf.to_array(error), np.float64)) + self.epsilon
        if values.shape != index.shape:
            raise ValueError(f"wanted one weight per index {index.shape}, found {values.shape}")
        if not np.isfinite(values).all():
            raise ValueError("weights must be finite; the priorities are unchanged")
        raised = values**self.alpha
        self.largest = max(self.largest, float(raised.max(initial=0.0)))
        self.tree.put(torch.from_numpy(index), torch.from_numpy(raised))

    def state(self) -> dict[str, Any]:
        """Return the numbers of this object; the leaves are saved apart."""
        return {"beta": self.beta, "num_draws": self.num_draws, "largest": self.largest}

    def load(self, state: dict[str, Any], leaves: NDArray[np.float64]) -> None:
        """Go on with saved priorities."""
        self.tree.load(torch.from_numpy(np.array(leaves)))
        self.beta, self.num_draws = float(state["beta"]), int(state["num_draws"])
        self.largest = float(state["largest"])
