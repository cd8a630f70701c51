"""Rainbow (Hessel et al. 2018): DQN with everything, as settings; nothing here but the choice.

double · dueling · noisy instead of ε · prioritized · three steps · distribution over 51 atoms
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from striderl.algorithms.c51 import C51, Atoms, C51Config
from striderl.algorithms.dqn import DQN, DQNConfig, q_policy
from striderl.data.actions import ActionSpec
from striderl.data.checked_fields import suggests_fields
from striderl.data.specs import ObsSpec
from striderl.ops.ramps import Ramp, constant
from striderl.policies.actor_policy import ActorConfig


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
    """Rewards that are summed before the value is trusted."""
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
