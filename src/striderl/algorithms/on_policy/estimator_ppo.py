"""PPO with the losses of the policy's estimators: `EstimatorPPO(policy)` is `PPO(policy, terms=[Estimation()])`.

A policy with a privilege adaptor and an estimator gets a second `Estimation`, which trains the adaptor against
its own targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from striderl.algorithms.building import BuildContext, TermsBesidePPO, build_actor_critic
from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.algorithms.terms.estimation import Estimation, EstimatorConfig
from striderl.algorithms.terms.term import Term
from striderl.data.checked_fields import suggests_fields
from striderl.data.naming import saved_name
from striderl.execution.modes import ExecutionConfig
from striderl.ops.moments import AllReduce
from striderl.policies.policy import Policy, PolicyConfig

KINDS = ("Estimate", "Adapt")
"""Kinds of stages that predict."""


def estimations(policy: PolicyConfig, estimation: Estimation | None = None) -> list[Estimation]:
    """Return one loss for each kind of predicting stage in the policy, all with the settings of the one given.

    One that names a stage is returned unchanged.
    """
    given = estimation or Estimation()
    if given.stage not in KINDS:
        return [given]
    there = {saved_name(stage) for stage in (*policy.trunk, *policy.actor, *policy.critic)}
    found = [kind for kind in KINDS if kind in there]
    # where there is none at all, the term itself raises
    return [replace(given, stage=name) for name in found] or [given]


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class EstimatorPPOConfig(PPOConfig):
    """Settings of PPO with an estimator."""

    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    """The estimator and its loss."""


def build_estimator_policy(estimator: EstimatorConfig, config: PPOConfig, context: BuildContext) -> Policy:
    """Build actor and critic with an estimator in front of the actor."""
    stages = (*context.stages, *Estimation.policy_stages(estimator, context))
    return build_actor_critic(context._replace(stages=stages), max(1, len(config.reward_groups)))


class EstimatorPPO(TermsBesidePPO):
    """PPO with the losses of estimators; what `EstimatorPPO(…)` returns is a `PPO`."""

    Config = EstimatorPPOConfig
    summary = "PPO whose policy also estimates what it cannot observe, on-policy"

    def __new__(  # type: ignore[misc]
        cls,
        policy: Policy,
        config: PPOConfig | None = None,
        terms: Sequence[Term] = (),
        *,
        estimation: Estimation | None = None,
        mode: str | ExecutionConfig = "eager",
        reduce: AllReduce | None = None,
    ) -> PPO:
        """Build PPO with the losses of the policy's estimators and adaptors."""
        return PPO(policy, config, [*estimations(policy.config, estimation), *terms], mode=mode, reduce=reduce)

    @classmethod
    def build_policy(cls, config: EstimatorPPOConfig, context: BuildContext) -> Policy:
        """Build the policy with its estimator."""
        return build_estimator_policy(config.estimator, config, context)

    @classmethod
    def build(cls, config: EstimatorPPOConfig, context: BuildContext, terms: Sequence[Term] = ()) -> PPO:
        """Build the learner from its config."""
        policy, estimation = cls.build_policy(config, context), config.estimator.term()
        return cls(policy, config, terms, estimation=estimation, mode=context.mode, reduce=context.reduce)
