"""From the kind of plan to the regime that fulfils it."""

from __future__ import annotations

from typing import Any

from striderl.training.plans import OfflinePlan, OffPolicyPlan, OnPolicyPlan, Plan
from striderl.training.regimes.on_policy import OnPolicyRegime
from striderl.training.regimes.regime import Regime


def regime_for(algorithm: Any, source: Any, plan: Plan, *, storage: Any, seed: int, total_envs: int = 0) -> Regime:
    """Build the regime of a plan from its parts, or say which part does not fit."""
    if isinstance(plan, OnPolicyPlan):
        return OnPolicyRegime(algorithm, source, plan, storage=storage, seed=seed, total_envs=total_envs)
    if total_envs:
        raise ValueError(f"total_envs={total_envs} has no effect: several processes share an OnPolicyPlan alone")
    # imported here: those who train on rollouts never load the replay side
    from striderl.training.regimes.off_policy import OffPolicyRegime
    from striderl.training.regimes.offline import OfflineRegime

    if isinstance(plan, OffPolicyPlan):
        return OffPolicyRegime(algorithm, source, plan, storage=storage, seed=seed)
    if isinstance(plan, OfflinePlan):
        if storage is not None:
            raise ValueError("an OfflinePlan has no storage beside the dataset; leave storage away")
        return OfflineRegime(algorithm, source, plan, seed=seed)
    raise TypeError(f"Trainer wants a plan, such as OnPolicyPlan, found {type(plan).__name__}")
