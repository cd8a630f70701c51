"""PPO with the losses of the policy's estimators: `EstimatorPPO(policy)` is `PPO(policy, terms=[Estimation()])`.

A policy that has a privilege adaptor beside the estimator gets a second `Estimation`, which trains the adaptor against
its own targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from striderl.algorithms.ppo import PPO
from striderl.algorithms.ppo_config import PPOConfig
from striderl.algorithms.terms.estimation import Estimation
from striderl.algorithms.terms.term import Term
from striderl.execution.modes import ExecutionConfig
from striderl.ops.moments import AllReduce
from striderl.policies.estimate import PredictStage
from striderl.policies.policy import Policy

KINDS = ("Estimate", "Adapt")
"""Kinds of stages that predict."""


def estimations(policy: Policy, estimation: Estimation | None = None) -> list[Estimation]:
    """Return one loss for each kind of predicting stage in the policy, all with the settings of the one given.

    One that names a stage of its own is taken as it is.
    """
    given = estimation or Estimation()
    if given.stage not in KINDS:
        return [given]
    stages = [each for part in (policy.trunk, policy.actor, policy.critic) for each in part.named_stages()]
    there = {name.rpartition("_")[2] for name, stage in stages if isinstance(stage, PredictStage)}
    found = [kind for kind in KINDS if kind in there]
    # where there is none at all, the term itself says what is missing
    return [replace(given, stage=name) for name in found] or [given]


def EstimatorPPO(  # noqa: N802  (the name is public API of the seeds)
    policy: Policy,
    config: PPOConfig | None = None,
    terms: Sequence[Term] = (),
    *,
    estimation: Estimation | None = None,
    mode: str | ExecutionConfig = "eager",
    reduce: AllReduce | None = None,
) -> PPO:
    """Build PPO with the losses of the policy's estimators and adaptors."""
    return PPO(policy, config, [*estimations(policy, estimation), *terms], mode=mode, reduce=reduce)
