"""C51 (Bellemare et al. 2017): DQN that learns the probabilities of fixed returns.

target  the distribution of r + discount · atom under Q'(s', a*), shared out to the nearest atoms
loss    cross-entropy of the network's distribution for a to it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from striderl.algorithms.dqn import DQN, DQNConfig, Judged, Seen
from striderl.data.actions import DiscreteSpec
from striderl.data.checked_fields import suggests_fields
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


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class C51Config(DQNConfig):
    """Settings of C51: those of DQN, and those of the distribution."""

    low: float = -100.0
    """The smallest return; those below count as this."""
    high: float = 100.0
    """The largest return; those above count as this."""
    num_atoms: int = 51
    """Returns between them whose probabilities are learned."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low < self.high or self.num_atoms < 2:
            raise ValueError(f"low < high and num_atoms >= 2, found {self.low}, {self.high} and {self.num_atoms}")


class C51(DQN):
    """DQN that learns the probabilities of fixed returns; its network is `q_policy(…, kind=Atoms(low=…, high=…))`."""

    Config: ClassVar[type[Any]] = C51Config
    summary = "deep Q-learning of a distribution over fixed returns, for choices"

    @classmethod
    def kind_of(cls, config: C51Config) -> Atoms:
        """Return the distribution."""
        return Atoms(low=config.low, high=config.high, num_atoms=config.num_atoms)
