"""C51 (Bellemare et al. 2017): DQN that learns the probabilities of fixed returns.

target  the distribution of r + discount · atom under Q'(s', a*), shared out to the nearest atoms
loss    cross-entropy of the network's distribution for a to it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.dqn import Judged, Seen
from striderl.data.actions import DiscreteSpec
from striderl.data.noise import NoiseSpec
from striderl.networks.heads.base import Head
from striderl.networks.heads.value import CategoricalQHead, ReturnDistribution
from striderl.ops.td import project_categorical


class Atoms:
    """Learns a distribution over fixed returns; hand it to `q_policy` and `DQN`."""

    def __init__(
        self, *, low: float, high: float, num_atoms: int = 51, dueling: bool = False, noisy: bool = False
    ) -> None:
        """Take the range of returns, and the form of the head."""
        self.low, self.high, self.num_atoms = low, high, num_atoms
        self.dueling, self.noisy = dueling, noisy

    def head(self, input_size: int, action_spec: DiscreteSpec) -> Head[Any]:
        """Build the probabilities of the atoms for each choice."""
        return CategoricalQHead(
            input_size,
            action_spec.n,
            low=self.low,
            high=self.high,
            num_atoms=self.num_atoms,
            dueling=self.dueling,
            noisy=self.noisy,
            mask=action_spec.mask,
        )

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return nothing."""
        return {}

    def targets(self, seen: Seen, choice: Tensor | None, minibatch: Mapping[str, Any]) -> Tensor:
        """Return the probabilities [B, M] of what follows."""
        slow: ReturnDistribution = seen()
        probs = slow.spread_of(slow.mode() if choice is None else choice).exp()
        atoms = torch.linspace(self.low, self.high, self.num_atoms, dtype=probs.dtype, device=probs.device)
        return project_categorical(minibatch["rew"], minibatch["discount"], probs, atoms)

    def judge(self, seen: Seen, minibatch: Mapping[str, Any]) -> Judged:
        """Return the cross-entropy; it is the priority too."""
        values: ReturnDistribution = seen()
        entropy = -(minibatch["target"] * values.spread_of(minibatch["act"])).sum(dim=-1)
        return Judged(entropy, values.value_of(minibatch["act"]).detach(), entropy.detach())
