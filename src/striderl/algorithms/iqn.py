"""IQN (Dabney et al. 2018): DQN that learns the return at any fraction.

target  r + discount · return of Q'(s', a*) at `num_targets` random fractions
loss    quantile Huber loss of the returns for a at `num_fractions` other random ones
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from striderl.algorithms.dqn import Judged, Seen
from striderl.data.actions import DiscreteSpec
from striderl.data.noise import NoiseSpec
from striderl.networks.heads.base import Head
from striderl.networks.heads.value import ImplicitQuantileHead, ReturnDistribution
from striderl.ops.td import quantile_huber, td_target

_FRACTIONS = ImplicitQuantileHead.FRACTIONS


class ImplicitQuantiles:
    """Learns the inverse distribution of the returns; hand it to `q_policy` and `DQN`."""

    def __init__(
        self,
        *,
        num_fractions: int = 8,
        num_targets: int = 8,
        num_quantiles: int = 32,
        embedding_size: int = 64,
        kappa: float = 1.0,
        dueling: bool = False,
        noisy: bool = False,
    ) -> None:
        """Take how many fractions are drawn on each side, at how many the policy looks, and the form of the head."""
        self.num_fractions, self.num_targets = num_fractions, num_targets
        self.num_quantiles, self.embedding_size = num_quantiles, embedding_size
        self.kappa, self.dueling, self.noisy = kappa, dueling, noisy

    def head(self, input_size: int, action_spec: DiscreteSpec) -> Head[Any]:
        """Build the head that reads fractions."""
        return ImplicitQuantileHead(
            input_size,
            action_spec.n,
            num_quantiles=self.num_quantiles,
            embedding_size=self.embedding_size,
            dueling=self.dueling,
            noisy=self.noisy,
            mask=action_spec.mask,
        )

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the fractions of both sides."""
        return {
            "fractions": NoiseSpec(shape=(self.num_fractions,), kind="uniform"),
            "target_fractions": NoiseSpec(shape=(self.num_targets,), kind="uniform"),
        }

    def targets(self, seen: Seen, choice: Tensor | None, minibatch: Mapping[str, Any]) -> Tensor:
        """Return samples [B, M] of what follows; the target, if it chooses, looks at the fixed fractions."""
        drawn: ReturnDistribution = seen({_FRACTIONS: minibatch["noise"]["target_fractions"]})
        quantiles = drawn.spread_of(seen().mode() if choice is None else choice)
        return td_target(minibatch["rew"].unsqueeze(-1), minibatch["discount"].unsqueeze(-1), quantiles)

    def judge(self, seen: Seen, minibatch: Mapping[str, Any]) -> Judged:
        """Return the quantile Huber loss; the priority is the error of the mean."""
        fractions, target = minibatch["noise"]["fractions"], minibatch["target"]
        values: ReturnDistribution = seen({_FRACTIONS: fractions})
        predicted = values.spread_of(minibatch["act"])
        loss = quantile_huber(predicted, target, fractions, self.kappa)
        mean = predicted.detach().mean(dim=-1)
        return Judged(loss, mean, (mean - target.mean(dim=-1)).abs())
