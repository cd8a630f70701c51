"""The loop as an iterator, its consumers, evaluation and the Agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.training.agent import Agent as Agent
    from striderl.training.evaluation import EvaluationResult as EvaluationResult
    from striderl.training.evaluation import evaluate as evaluate
    from striderl.training.plans import OnPolicyPlan as OnPolicyPlan
    from striderl.training.record import Record as Record
    from striderl.training.trainer import Trainer as Trainer

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "agent": [
            "Agent",
        ],
        "evaluation": [
            "EvaluationResult",
            "evaluate",
        ],
        "plans": [
            "OnPolicyPlan",
        ],
        "record": [
            "Record",
        ],
        "trainer": [
            "Trainer",
        ],
    },
)
