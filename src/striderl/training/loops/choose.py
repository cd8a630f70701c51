"""Choose the training loop for a plan."""

from __future__ import annotations

from typing import Any

from striderl.training.distributed import Ranks
from striderl.training.loops.loop import TrainLoop
from striderl.training.loops.on_policy import OnPolicyLoop
from striderl.training.plans import OfflinePlan, OffPolicyPlan, OnPolicyPlan, Plan


def loop_for(
    algorithm: Any, source: Any, plan: Plan, *, storage: Any, seed: int, total_envs: int = 0, ranks: Ranks | None = None
) -> TrainLoop:
    """Build the training loop of a plan from its parts, or raise naming the part that does not fit."""
    if isinstance(plan, OnPolicyPlan):
        return OnPolicyLoop(algorithm, source, plan, storage=storage, seed=seed, total_envs=total_envs)
    # imported here: on-policy training never loads the replay modules
    from striderl.training.loops.off_policy import OffPolicyLoop
    from striderl.training.loops.offline import OfflineLoop

    if isinstance(plan, OffPolicyPlan):
        return OffPolicyLoop(algorithm, source, plan, storage=storage, seed=seed, total_envs=total_envs, ranks=ranks)
    if isinstance(plan, OfflinePlan):
        if total_envs:
            raise ValueError(f"total_envs={total_envs} has no effect: an OfflinePlan steps no envs")
        if storage is not None:
            raise ValueError("an OfflinePlan has no storage beside the dataset; leave storage away")
        return OfflineLoop(algorithm, source, plan, seed=seed, ranks=ranks)
    raise TypeError(f"Trainer wants a plan, such as OnPolicyPlan, found {type(plan).__name__}")
