"""REDQ (Chen et al. 2021): SAC with many critics, a random few in each target, and many gradient steps per env step.

Plan it with `OffPolicyPlan(num_updates_per_round=20)`; the policy may step every 20th time (`actor_every`).
"""

from __future__ import annotations

from dataclasses import replace

from striderl.algorithms.critic_kinds import SubsetMeans
from striderl.algorithms.sac import SAC, SACConfig
from striderl.data.actions import ActionSpec
from striderl.data.specs import ObsSpec
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.q_function import QFunction, QFunctionConfig


def redq(
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    *,
    num_critics: int = 10,
    subset: int = 2,
    actor: ActorConfig | None = None,
    critic: QFunctionConfig | None = None,
    config: SACConfig | None = None,
) -> SAC:
    """Build REDQ for these observations and actions."""
    policy = ActorPolicy(obs_spec, action_spec, actor or ActorConfig(head="squashed_gaussian"))
    members = replace(critic or QFunctionConfig(), num_members=num_critics)
    return SAC(policy, QFunction(obs_spec, action_spec, members), config, SubsetMeans(subset))
