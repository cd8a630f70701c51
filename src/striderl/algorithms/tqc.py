"""TQC (Kuznetsov et al. 2020): SAC whose critics say quantiles, the largest of which are left out of the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from striderl.algorithms.building import BuildContext, build_critics
from striderl.algorithms.critic_kinds import TruncatedQuantiles
from striderl.algorithms.sac import SAC, SACConfig
from striderl.algorithms.terms.term import Term
from striderl.data.actions import ActionSpec
from striderl.data.checked_fields import suggests_fields
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


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class TQCConfig(SACConfig):
    """Settings of TQC: those of SAC, and those of the quantiles."""

    num_critics: int = 2
    """How many critics learn."""
    num_quantiles: int = 25
    """Quantiles of the return that each predicts."""
    num_dropped: int = 2
    """The largest so many per critic are left out of the target."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_critics < 1 or not 0 <= self.num_dropped < self.num_quantiles:
            raise ValueError(
                "num_critics >= 1 and 0 <= num_dropped < num_quantiles, found "
                f"{self.num_critics}, {self.num_dropped} and {self.num_quantiles}"
            )


class TQC(SAC):
    """SAC with quantiles of the return, the largest left out of targets."""

    Config: ClassVar[type[Any]] = TQCConfig
    summary = "SAC with truncated quantiles of the return, for real-valued actions"

    @classmethod
    def build(cls, config: TQCConfig, context: BuildContext, terms: Sequence[Term] = ()) -> TQC:
        """Build the learner from its config."""
        policy = cls.build_policy(config, context)
        critic = build_critics(context, num_members=config.num_critics, num_outputs=config.num_quantiles)
        return cls(policy, critic, context.own_mode(config), TruncatedQuantiles(config.num_dropped), terms=terms)
