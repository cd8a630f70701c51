"""IQN (Dabney et al. 2018): DQN that learns the return at any fraction.

target  r + discount · return of Q'(s', a*) at `num_targets` random fractions
loss    quantile Huber loss of the returns for a at `num_fractions` other random ones
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from striderl.algorithms.dqn import DQN, DQNConfig, Judged, Seen
from striderl.data.actions import DiscreteSpec
from striderl.data.checked_fields import suggests_fields
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


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class IQNConfig(DQNConfig):
    """Settings of IQN: those of DQN, and those of the fractions."""

    num_fractions: int = 8
    """Fractions drawn for the state in each gradient step."""
    num_targets: int = 8
    """Fractions drawn for the next state."""
    num_quantiles: int = 32
    """Fractions at which the policy reads the return."""
    embedding_size: int = 64
    """Cosines that describe a fraction to the network."""
    kappa: float = 1.0
    """Where the Huber loss becomes linear."""

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = (self.num_fractions, self.num_targets, self.num_quantiles, self.embedding_size)
        if min(counts) < 1 or self.kappa <= 0.0:
            raise ValueError(f"counts are at least 1 and kappa is positive, found {counts} and {self.kappa}")


class IQN(DQN):
    """DQN that learns the return at drawn fractions; its network is `q_policy(…, kind=ImplicitQuantiles())`."""

    Config: ClassVar[type[Any]] = IQNConfig
    summary = "deep Q-learning of the return at drawn fractions (implicit quantiles), for choices"

    @classmethod
    def kind_of(cls, config: IQNConfig) -> ImplicitQuantiles:
        """Return the implicit quantiles."""
        return ImplicitQuantiles(
            num_fractions=config.num_fractions,
            num_targets=config.num_targets,
            num_quantiles=config.num_quantiles,
            embedding_size=config.embedding_size,
            kappa=config.kappa,
        )
