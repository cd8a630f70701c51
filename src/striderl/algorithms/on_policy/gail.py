"""Generative adversarial imitation (Ho & Ermon 2016): PPO with a discriminator's score of its steps as reward.

    expert's (s, a) ─┐
                     ├─▶ discriminator ─▶ reward of the policy's steps ─▶ PPO
    policy's (s, a) ─┘

`GAIL(policy, rows)` is `PPO(policy, terms=[AdversarialReward(StateAction(…), rows)])`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from striderl.algorithms.building import DISCRIMINATOR_SEED, BuildContext, TermsBesidePPO
from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.algorithms.terms.adversarial import AdversarialReward, AdversarialTermConfig
from striderl.algorithms.terms.discriminator import StateAction
from striderl.algorithms.terms.expert import ExpertRows
from striderl.algorithms.terms.term import Term
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.execution.modes import ExecutionConfig
from striderl.ops.moments import AllReduce
from striderl.policies.policy import Policy


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class GAILConfig:
    """Settings of GAIL."""

    ppo: PPOConfig = field(default_factory=PPOConfig)
    """Settings of PPO."""
    adversarial: AdversarialTermConfig = field(default_factory=AdversarialTermConfig)
    """Settings of the discriminator and its reward."""

    def __post_init__(self) -> None:
        check_field_types(self)


class GAIL(TermsBesidePPO):
    """PPO that learns from a discriminator between its own steps and an expert's; `GAIL(…)` returns a `PPO`."""

    Config = GAILConfig
    summary = "PPO that learns to be taken for an expert by a discriminator (adversarial imitation), on-policy"
    objects = ("expert",)

    def __new__(  # type: ignore[misc]
        cls,
        policy: Policy,
        expert: ExpertRows,
        config: GAILConfig | None = None,
        terms: Sequence[Term] = (),
        *,
        mode: str | ExecutionConfig = "eager",
        reduce: AllReduce | None = None,
    ) -> PPO:
        """Build PPO with the adversarial reward, which comes before further terms.

        expert: steps of the expert, of the features `StateAction` (`expert_rows(dataset, features)`).
        """
        config = config or GAILConfig()
        features = StateAction(policy.obs_spec, policy.action_spec, config.adversarial.components)
        device = next(policy.parameters()).device
        reward = AdversarialReward(features, expert, config.adversarial, device=device)
        return PPO(policy, config.ppo, [reward, *terms], mode=mode, reduce=reduce)

    @classmethod
    def build_policy(cls, config: GAILConfig, context: BuildContext) -> Policy:
        """Build the policy alone."""
        return PPO.build_policy(config.ppo, context)

    @classmethod
    def build(cls, config: GAILConfig, context: BuildContext, terms: Sequence[Term] = ()) -> PPO:
        """Build the learner from its config and the run's expert."""
        policy = cls.build_policy(config, context)
        with context.seeded(DISCRIMINATOR_SEED):
            reward = AdversarialReward.build(config.adversarial, context)
        return PPO(policy, config.ppo, [reward, *terms], mode=context.mode, reduce=context.reduce)
