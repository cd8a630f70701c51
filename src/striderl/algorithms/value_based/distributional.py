"""DQN that learns the distribution of returns: C51, QR-DQN, IQN, and Rainbow, which is DQN with everything.

C51      Bellemare et al. 2017    the probabilities of fixed returns
         target                   the distribution of r + discount · atom under Q'(s', a*), shared out to the
                                  nearest atoms
         loss                     cross-entropy of the network's distribution for a to it
QR-DQN   Dabney et al. 2018       returns of equal probability
         target                   r + discount · each quantile of Q'(s', a*)
         loss                     quantile Huber loss of the network's quantiles for a to them
IQN      Dabney et al. 2018       the return at any fraction
         target                   r + discount · return of Q'(s', a*) at `num_targets` random fractions
         loss                     quantile Huber loss of the returns for a at `num_fractions` other random ones
Rainbow  Hessel et al. 2018       double · dueling · noisy instead of ε · prioritized · three steps · 51 atoms
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from striderl.algorithms.value_based.dqn import DQN, DQNConfig, Judged, Seen, q_policy
from striderl.data.actions import ActionSpec, DiscreteSpec
from striderl.data.checked_fields import suggests_fields
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec
from striderl.networks.heads.base import Head
from striderl.networks.heads.value import CategoricalQHead, ImplicitQuantileHead, QuantileQHead, ReturnDistribution
from striderl.ops.ramps import Ramp, constant
from striderl.ops.td import project_categorical, quantile_huber, td_target
from striderl.policies.actor_policy import ActorConfig

# -- C51 ---------------------------------------------------------------------------------------------------------------


class Atoms:
    """Learns a distribution over fixed returns; pass it to `q_policy` and `DQN`."""

    def __init__(
        self, *, low: float, high: float, num_atoms: int = 51, dueling: bool = False, noisy: bool = False
    ) -> None:
        """Set the range of returns, and the form of the head."""
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


# -- QR-DQN ------------------------------------------------------------------------------------------------------------


class Quantiles:
    """Learns quantiles of the returns; pass it to `q_policy` and `DQN`."""

    def __init__(
        self, *, num_quantiles: int = 32, kappa: float = 1.0, dueling: bool = False, noisy: bool = False
    ) -> None:
        """Set the number of quantiles, where the Huber loss becomes linear, and the form of the head."""
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


# -- IQN ---------------------------------------------------------------------------------------------------------------


_FRACTIONS = ImplicitQuantileHead.FRACTIONS


class ImplicitQuantiles:
    """Learns the inverse distribution of the returns; pass it to `q_policy` and `DQN`."""

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
        """Set how many fractions are drawn on each side, how many the policy reads, and the form of the head."""
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
        """Return samples [B, M] of what follows; the target, if it chooses, reads the fixed fractions."""
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


# -- Rainbow -----------------------------------------------------------------------------------------------------------


def rainbow(
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    *,
    low: float,
    high: float,
    network: ActorConfig | None = None,
    config: DQNConfig | None = None,
) -> DQN:
    """Build Rainbow for returns between low and high; `config` replaces the settings of the learner."""
    kind = Atoms(low=low, high=high, dueling=True, noisy=True)
    config = config or rainbow_config()
    return DQN(q_policy(obs_spec, action_spec, network, kind), config, kind)


def rainbow_config(*, learning_rate: float = 5e-4, gamma: float = 0.99, target_every: int = 100) -> DQNConfig:
    """Return the learner's settings."""
    return DQNConfig(
        learning_rate=learning_rate,
        gamma=gamma,
        target_every=target_every,
        n_step=3,
        double=True,
        prioritized=True,
        alpha=0.5,
        beta=0.4,
        epsilon=constant(0.0),
    )


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class RainbowConfig(C51Config):
    """Settings of Rainbow: those of C51 with other defaults."""

    n_step: int = 3
    """Rewards that are summed before bootstrapping from the value."""
    prioritized: bool = True
    """Sample by TD error instead of uniformly."""
    alpha: float = 0.5
    """How much priorities matter; 0 is uniform."""
    epsilon: Ramp = field(default_factory=lambda: constant(0.0))
    """Probability of a random action, over env steps; noisy layers explore."""


class Rainbow(C51):
    """DQN with everything; its network is `q_policy(…, kind=Atoms(low=…, high=…, dueling=True, noisy=True))`."""

    Config: ClassVar[type[Any]] = RainbowConfig
    summary = "DQN with double, dueling, noisy, prioritized, three-step and distributional learning, for choices"

    @classmethod
    def kind_of(cls, config: C51Config) -> Atoms:
        """Return the distribution, dueling and noisy."""
        return Atoms(low=config.low, high=config.high, num_atoms=config.num_atoms, dueling=True, noisy=True)
