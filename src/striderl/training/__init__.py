"""The loop as an iterator, its callbacks, evaluation and the Agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.training.agent import Agent as Agent
    from striderl.training.demonstrations import RunStudents as RunStudents
    from striderl.training.distributed import RankLostError as RankLostError
    from striderl.training.distributed import Ranks as Ranks
    from striderl.training.distributed import setup as setup
    from striderl.training.evaluation import EvaluationResult as EvaluationResult
    from striderl.training.evaluation import evaluate as evaluate
    from striderl.training.experiment.loading import LoadedRun as LoadedRun
    from striderl.training.experiment.loading import load_run as load_run
    from striderl.training.experiment.loading import load_sub_policy as load_sub_policy
    from striderl.training.experiment.run import Run as Run
    from striderl.training.experiment.run_config import CheckpointSettings as CheckpointSettings
    from striderl.training.experiment.run_config import EnvSettings as EnvSettings
    from striderl.training.experiment.run_config import EvaluationSettings as EvaluationSettings
    from striderl.training.experiment.run_config import ExpertSettings as ExpertSettings
    from striderl.training.experiment.run_config import LoggingSettings as LoggingSettings
    from striderl.training.experiment.run_config import RunConfig as RunConfig
    from striderl.training.experiment.run_config import StopSettings as StopSettings
    from striderl.training.experiment.run_config import TeacherRun as TeacherRun
    from striderl.training.experiment.run_config import read_run_config as read_run_config
    from striderl.training.experiment.run_folder import RunFolder as RunFolder
    from striderl.training.experiment.run_folder import new_run_folder as new_run_folder
    from striderl.training.experiment.runner_config import MotionSettings as MotionSettings
    from striderl.training.experiment.runner_config import PretrainSettings as PretrainSettings
    from striderl.training.experiment.runner_config import RunnerConfig as RunnerConfig
    from striderl.training.guard import DivergedError as DivergedError
    from striderl.training.guard import read_faults as read_faults
    from striderl.training.plans import OfflinePlan as OfflinePlan
    from striderl.training.plans import OffPolicyPlan as OffPolicyPlan
    from striderl.training.plans import OnPolicyPlan as OnPolicyPlan
    from striderl.training.record import Record as Record
    from striderl.training.rsl_rl.build import build_runner as build_runner
    from striderl.training.rsl_rl.build import resume_runner as resume_runner
    from striderl.training.rsl_rl.distillation import DistillationRunner as DistillationRunner
    from striderl.training.rsl_rl.live_objects import load_teacher as load_teacher
    from striderl.training.rsl_rl.on_policy_runner import AmpPolicyRunner as AmpPolicyRunner
    from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner as OnPolicyRunner
    from striderl.training.rsl_rl.stepping import InferencePolicy as InferencePolicy
    from striderl.training.rsl_rl.two_stage_runner import TwoStageRunner as TwoStageRunner
    from striderl.training.trainer import Trainer as Trainer
    from striderl.training.video import record_video as record_video

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "agent": ["Agent"],
        "demonstrations": ["RunStudents"],
        "distributed": ["RankLostError", "Ranks", "setup"],
        "evaluation": ["EvaluationResult", "evaluate"],
        "experiment.loading": ["LoadedRun", "load_run", "load_sub_policy"],
        "experiment.run": ["Run"],
        "experiment.run_config": [
            "CheckpointSettings",
            "EnvSettings",
            "EvaluationSettings",
            "ExpertSettings",
            "LoggingSettings",
            "RunConfig",
            "StopSettings",
            "TeacherRun",
            "read_run_config",
        ],
        "experiment.run_folder": ["RunFolder", "new_run_folder"],
        "experiment.runner_config": ["MotionSettings", "PretrainSettings", "RunnerConfig"],
        "guard": ["DivergedError", "read_faults"],
        "plans": ["OffPolicyPlan", "OfflinePlan", "OnPolicyPlan"],
        "record": ["Record"],
        "rsl_rl.build": ["build_runner", "resume_runner"],
        "rsl_rl.distillation": ["DistillationRunner"],
        "rsl_rl.live_objects": ["load_teacher"],
        "rsl_rl.on_policy_runner": ["AmpPolicyRunner", "OnPolicyRunner"],
        "rsl_rl.stepping": ["InferencePolicy"],
        "rsl_rl.two_stage_runner": ["TwoStageRunner"],
        "trainer": ["Trainer"],
        "video": ["record_video"],
    },
    unlisted={
        "experiment.run": ["RunOutcome"],
        "guard": ["FaultReport", "Guard"],
        "rsl_rl.build": ["build_actor_critic"],
        "rsl_rl.live_objects": ["build_teacher"],
        "signals": ["StopSignals"],
        "video": ["RecordedVideo"],
    },
)
