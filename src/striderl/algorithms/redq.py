"""REDQ (Chen et al. 2021): SAC with many critics, a random few in each target, and many gradient steps per env step.

Plan it with `OffPolicyPlan(num_updates_per_round=20)`; the policy may step every 20th time (`actor_every`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from striderl.algorithms.building import BuildContext, build_critics
from striderl.algorithms.critic_kinds import SubsetMeans
from striderl.algorithms.sac import SAC, SACConfig
from striderl.algorithms.terms.term import Term
from striderl.data.actions import ActionSpec
from striderl.data.checked_fields import suggests_fields
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


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class REDQConfig(SACConfig):
    """Settings of REDQ: those of SAC, and those of the ensemble."""

    num_critics: int = 10
    """How many critics learn."""
    subset: int = 2
    """How many of them, drawn anew each time, make a target."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.subset <= self.num_critics:
            raise ValueError(f"1 <= subset <= num_critics, found {self.subset} of {self.num_critics}")


class REDQ(SAC):
    """SAC with many critics, a random few in each target; its critics have `num_members=num_critics`."""

    Config: ClassVar[type[Any]] = REDQConfig
    summary = "SAC with many critics, a random few in each target, for real-valued actions"

    @classmethod
    def build(cls, config: REDQConfig, context: BuildContext, terms: Sequence[Term] = ()) -> REDQ:
        """Build the learner from its config."""
        policy, critic = cls.build_policy(config, context), build_critics(context, num_members=config.num_critics)
        return cls(policy, critic, context.own_mode(config), SubsetMeans(config.subset), terms=terms)
