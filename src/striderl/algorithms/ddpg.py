"""DDPG (Lillicrap et al. 2016): TD3 with one critic, no smoothing, and an Ornstein-Uhlenbeck walk for exploration."""

from __future__ import annotations

from dataclasses import replace

from striderl.algorithms.td3 import TD3, TD3Config, ddpg_config
from striderl.collect.actors.behaviours import Behaviour, OrnsteinUhlenbeck
from striderl.data.actions import ActionSpec
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
