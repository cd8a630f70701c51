"""From the kind of plan to the regime that fulfils it."""

from __future__ import annotations

from typing import Any

from striderl.training.plans import OnPolicyPlan, Plan
from striderl.training.regimes.on_policy import OnPolicyRegime
from striderl.training.regimes.regime import Regime


def regime_for(algorithm: Any, source: Any, plan: Plan, *, storage: Any, seed: int) -> Regime:
    """Build the regime of a plan from its parts, or say which part does not fit."""
    if isinstance(plan, OnPolicyPlan):
        return OnPolicyRegime(algorithm, source, plan, storage=storage, seed=seed)
    raise TypeError(f"Trainer wants a plan, such as OnPolicyPlan, found {type(plan).__name__}")
