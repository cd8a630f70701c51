"""DDPG (Lillicrap et al. 2016): TD3 with one critic, no smoothing, and an Ornstein-Uhlenbeck walk for exploration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from striderl.algorithms.building import BuildContext, build_critics
from striderl.algorithms.td3 import TD3, TD3Config, ddpg_config
from striderl.algorithms.terms.term import Term
from striderl.collect.actors.behaviours import Behaviour, OrnsteinUhlenbeck
from striderl.data.actions import ActionSpec
from striderl.data.checked_fields import suggests_fields
from striderl.data.specs import ObsSpec
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.q_function import QFunction, QFunctionConfig


def ddpg(
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    *,
    actor: ActorConfig | None = None,
    critic: QFunctionConfig | None = None,
    config: TD3Config | None = None,
    behaviour: Behaviour | None = None,
) -> TD3:
    """Build DDPG for these observations and actions; `behaviour` replaces the walk."""
    policy = ActorPolicy(obs_spec, action_spec, actor or ActorConfig(head="deterministic"))
    members = replace(critic or QFunctionConfig(), num_members=1)
    walk = behaviour or OrnsteinUhlenbeck(action_spec, sigma=0.2)
    return TD3(policy, QFunction(obs_spec, action_spec, members), config or ddpg_config(), behaviour=walk)


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class DDPGConfig(TD3Config):
    """Settings of DDPG: those of TD3 with other defaults."""

    actor_learning_rate: float = 1e-3
    """Of the policy."""
    critic_learning_rate: float = 1e-3
    """Of the Q-function."""
    actor_every: int = 1
    """Steps of the critic per step of the actor."""
    smoothing_std: float = 0.0
    """Noise of target actions; DDPG has none."""
    walk_std: float = 0.2
    """Strength of the Ornstein-Uhlenbeck walk that explores, as a share of half the action's range."""


class DDPG(TD3):
    """TD3 with one critic, no smoothing, and a walk that explores."""

    Config: ClassVar[type[Any]] = DDPGConfig
    summary = "deep deterministic policy gradient from replay, for real-valued actions"

    @classmethod
    def build(cls, config: DDPGConfig, context: BuildContext, terms: Sequence[Term] = ()) -> DDPG:
        """Build the learner from its config."""
        policy, critic = cls.build_policy(config, context), build_critics(context, num_members=1)
        walk = OrnsteinUhlenbeck(context.action_spec, sigma=config.walk_std)
        return cls(policy, critic, context.own_mode(config), behaviour=walk, terms=terms)
