"""QR-DQN (Dabney et al. 2018): DQN that learns returns of equal probability.

target  r + discount · each quantile of Q'(s', a*)
loss    quantile Huber loss of the network's quantiles for a to them
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
from striderl.networks.heads.value import QuantileQHead, ReturnDistribution
from striderl.ops.td import quantile_huber, td_target


class Quantiles:
    """Learns quantiles of the returns; hand it to `q_policy` and `DQN`."""

    def __init__(
        self, *, num_quantiles: int = 32, kappa: float = 1.0, dueling: bool = False, noisy: bool = False
    ) -> None:
        """Take the number of quantiles, where the Huber loss becomes linear, and the form of the head."""
        self.num_quantiles, self.kappa, self.dueling, self.noisy = num_quantiles, kappa, dueling, noisy

    def head(self, input_size: int, action_spec: DiscreteSpec) -> Head[Any]:
        """Build the quantiles of each choice."""
        return QuantileQHead(
            input_size,
            action_spec.n,
            num_quantiles=self.num_quantiles,
            dueling=self.dueling,
            noisy=self.noisy,
            mask=action_spec.mask,
        )

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return nothing."""
        return {}

    def targets(self, seen: Seen, choice: Tensor | None, minibatch: Mapping[str, Any]) -> Tensor:
        """Return samples [B, M] of what follows."""
        slow: ReturnDistribution = seen()
        quantiles = slow.spread_of(slow.mode() if choice is None else choice)
        return td_target(minibatch["rew"].unsqueeze(-1), minibatch["discount"].unsqueeze(-1), quantiles)

    def judge(self, seen: Seen, minibatch: Mapping[str, Any]) -> Judged:
        """Return the quantile Huber loss; the priority is the error of the mean."""
        values: ReturnDistribution = seen()
        predicted, target = values.spread_of(minibatch["act"]), minibatch["target"]
        middles = (
            torch.arange(self.num_quantiles, dtype=target.dtype, device=target.device) + 0.5
        ) / self.num_quantiles
        loss = quantile_huber(predicted, target, middles, self.kappa)
        mean = predicted.detach().mean(dim=-1)
        return Judged(loss, mean, (mean - target.mean(dim=-1)).abs())


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class QRDQNConfig(DQNConfig):
    """Settings of QR-DQN: those of DQN, and those of the quantiles."""

    num_quantiles: int = 32
    """Quantiles of the return that are learned for each choice."""
    kappa: float = 1.0
    """Where the Huber loss becomes linear."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_quantiles < 1 or self.kappa <= 0.0:
            raise ValueError(f"num_quantiles >= 1 and kappa > 0, found {self.num_quantiles} and {self.kappa}")


class QRDQN(DQN):
    """DQN that learns quantiles of the return; its network is `q_policy(…, kind=Quantiles())`."""

    Config: ClassVar[type[Any]] = QRDQNConfig
    summary = "deep Q-learning of quantiles of the return, for choices"

    @classmethod
    def kind_of(cls, config: QRDQNConfig) -> Quantiles:
        """Return the quantiles."""
        return Quantiles(num_quantiles=config.num_quantiles, kappa=config.kappa)
