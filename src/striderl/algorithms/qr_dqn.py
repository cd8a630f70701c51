"""QR-DQN (Dabney et al. 2018): DQN that learns returns of equal probability.

target  r + discount · each quantile of Q'(s', a*)
loss    quantile Huber loss of the network's quantiles for a to them
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
