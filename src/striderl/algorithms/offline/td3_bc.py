"""TD3+BC (Fujimoto and Gu 2021): TD3 on a dataset, with a policy that stays near its actions.

    actor   -mean_B λ Q_0(s, π(s)) + mean_B |π(s) - a|²,      λ = bc_alpha / mean_B |Q_0(s, π(s))|

Critics and targets are TD3's. Actions are compared in units of half their range; the paper normalises observations
too, which is the stage `NormalizeObs` here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from striderl.algorithms.actor_critic.critic_kinds import CriticKind
from striderl.algorithms.actor_critic.td3 import TD3, TD3Config
from striderl.algorithms.building import OFFLINE, BuildContext, build_critics, refuse_terms
from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.terms.term import Term
from striderl.data.checked_fields import suggests_fields
from striderl.ops.losses import valid_mean
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.value_functions import QFunction


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class TD3BCConfig(TD3Config):
    """Settings of TD3+BC: those of TD3, with the paper's learning rates, and one."""

    actor_learning_rate: float = 3e-4
    """Of the policy."""
    critic_learning_rate: float = 3e-4
    """Of the Q-functions."""
    bc_alpha: float = 2.5
    """Weight of the value against the distance from the data; 0 is behaviour cloning."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bc_alpha < 0.0:
            raise ValueError(f"bc_alpha is not negative, found {self.bc_alpha}")


class TD3BC(TD3):
    """TD3 with the distance from the data in its actor loss."""

    Config: ClassVar[type[Any]] = TD3BCConfig
    summary = "TD3 that stays near a dataset, for real-valued actions"
    loop = OFFLINE
    takes_terms = False

    @classmethod
    def build(cls, config: TD3BCConfig, context: BuildContext, terms: Sequence[Term] = ()) -> TD3BC:
        """Build the learner from its config; nothing explores, and it takes no terms."""
        refuse_terms(context, terms)
        if config.exploration_std != TD3Config.exploration_std:
            raise ValueError("algorithm.exploration_std has no effect: nothing is collected")
        return cls(cls.build_policy(config, context), build_critics(context), context.own_mode(config))

    def __init__(
        self,
        policy: ActorPolicy,
        critic: QFunction,
        config: TD3BCConfig | None = None,
        *,
        kind: CriticKind | None = None,
        terms: Sequence[Term] = (),
    ) -> None:
        """Create TD3 with the distance in its actor loss."""
        config = config or TD3BCConfig()
        super().__init__(policy, critic, config, kind=kind, terms=terms)
        self.bc_alpha = config.bc_alpha

    def actor_losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Compute minus the value, scaled to bc_alpha, plus the distance."""
        distribution, _, _ = self.policy.act(minibatch["obs"], {}, {})
        valid = minibatch["valid"]
        action = distribution.mode()
        value = self.kind.means(self.critic(minibatch["obs"], action))[0]
        size = valid_mean(value.detach().abs(), valid).clamp(min=1e-6)
        distance = ((action - minibatch["act"]) / self._scale).square().flatten(1).mean(dim=-1)
        return {
            "actor_loss": (self.bc_alpha, -valid_mean(value, valid) / size),
            "imitation_loss": (1.0, valid_mean(distance, valid)),
        }, {}
