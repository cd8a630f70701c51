"""Rainbow (Hessel et al. 2018): DQN with everything, as settings; nothing here but the choice.

double · dueling · noisy instead of ε · prioritized · three steps · distribution over 51 atoms
"""

from __future__ import annotations

from striderl.algorithms.c51 import Atoms
from striderl.algorithms.dqn import DQN, DQNConfig, q_policy
from striderl.data.actions import ActionSpec
from striderl.data.specs import ObsSpec
from striderl.ops.ramps import constant
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
