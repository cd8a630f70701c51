"""TQC (Kuznetsov et al. 2020): SAC whose critics say quantiles, the largest of which are left out of the target."""

from __future__ import annotations

from dataclasses import replace

from striderl.algorithms.critic_kinds import TruncatedQuantiles
from striderl.algorithms.sac import SAC, SACConfig
from striderl.data.actions import ActionSpec
from striderl.data.specs import ObsSpec
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.q_function import QFunction, QFunctionConfig


def tqc(
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    *,
    num_critics: int = 2,
    num_quantiles: int = 25,
    num_dropped: int = 2,
    actor: ActorConfig | None = None,
    critic: QFunctionConfig | None = None,
    config: SACConfig | None = None,
) -> SAC:
    """Build TQC for these observations and actions; `num_dropped` quantiles are left out per critic."""
    policy = ActorPolicy(obs_spec, action_spec, actor or ActorConfig(head="squashed_gaussian"))
    members = replace(critic or QFunctionConfig(), num_members=num_critics, num_outputs=num_quantiles)
    return SAC(policy, QFunction(obs_spec, action_spec, members), config, TruncatedQuantiles(num_dropped))
