"""The loop as an iterator, its consumers, evaluation and the Agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.training.agent import Agent as Agent
    from striderl.training.distributed import RankLostError as RankLostError
    from striderl.training.distributed import Ranks as Ranks
    from striderl.training.distributed import setup as setup
    from striderl.training.evaluation import EvaluationResult as EvaluationResult
    from striderl.training.evaluation import evaluate as evaluate
    from striderl.training.plans import OfflinePlan as OfflinePlan
    from striderl.training.plans import OffPolicyPlan as OffPolicyPlan
    from striderl.training.plans import OnPolicyPlan as OnPolicyPlan
    from striderl.training.record import Record as Record
    from striderl.training.runners.build import build_actor_critic as build_actor_critic
    from striderl.training.runners.build import build_runner as build_runner
    from striderl.training.runners.inference import InferencePolicy as InferencePolicy
    from striderl.training.runners.on_policy_runner import OnPolicyRunner as OnPolicyRunner
    from striderl.training.runners.runner_config import RunnerConfig as RunnerConfig
    from striderl.training.trainer import Trainer as Trainer
    from striderl.training.video import RecordedVideo as RecordedVideo
    from striderl.training.video import record_video as record_video

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "agent": [
            "Agent",
        ],
        "distributed": [
            "RankLostError",
            "Ranks",
            "setup",
        ],
        "evaluation": [
            "EvaluationResult",
            "evaluate",
        ],
        "plans": [
            "OffPolicyPlan",
            "OfflinePlan",
            "OnPolicyPlan",
        ],
        "record": [
            "Record",
        ],
        "runners.build": [
            "build_actor_critic",
            "build_runner",
        ],
        "runners.inference": [
            "InferencePolicy",
        ],
        "runners.on_policy_runner": [
            "OnPolicyRunner",
        ],
        "runners.runner_config": [
            "RunnerConfig",
        ],
        "trainer": [
            "Trainer",
        ],
        "video": [
            "RecordedVideo",
            "record_video",
        ],
    },
)
