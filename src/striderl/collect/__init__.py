"""Collection: env times actor gives experience."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.collect.acting_part import ActingPart as ActingPart
    from striderl.collect.actors import Acted as Acted
    from striderl.collect.actors import Actor as Actor
    from striderl.collect.actors import RandomActor as RandomActor
    from striderl.collect.actors import ScriptedActor as ScriptedActor
    from striderl.collect.behaviour_actor import BehaviourActor as BehaviourActor
    from striderl.collect.behaviours import Behaviour as Behaviour
    from striderl.collect.behaviours import EpsilonGreedy as EpsilonGreedy
    from striderl.collect.behaviours import GaussianNoise as GaussianNoise
    from striderl.collect.behaviours import Greedy as Greedy
    from striderl.collect.behaviours import OrnsteinUhlenbeck as OrnsteinUhlenbeck
    from striderl.collect.behaviours import Sample as Sample
    from striderl.collect.behaviours import SpreadNoise as SpreadNoise
    from striderl.collect.collector import Collected as Collected
    from striderl.collect.collector import Collector as Collector
    from striderl.collect.collector import CollectorConfig as CollectorConfig
    from striderl.collect.dagger_saver import DaggerSaver as DaggerSaver
    from striderl.collect.delivery import Storage as Storage
    from striderl.collect.demonstration_saver import DemonstrationSaver as DemonstrationSaver
    from striderl.collect.motion_recorder import MotionRecorder as MotionRecorder
    from striderl.collect.motion_recorder import MotionRecorderConfig as MotionRecorderConfig
    from striderl.collect.motion_recorder import record_motion as record_motion
    from striderl.collect.parameter_noise import ParameterNoiseActor as ParameterNoiseActor
    from striderl.collect.policy_actor import GreedyActor as GreedyActor
    from striderl.collect.policy_actor import PolicyActor as PolicyActor
    from striderl.collect.quadruped_clips import quadruped_fields as quadruped_fields
    from striderl.collect.quadruped_clips import quadruped_loader_config as quadruped_loader_config
    from striderl.collect.quadruped_clips import quadruped_recorder_config as quadruped_recorder_config
    from striderl.collect.quadruped_clips import trot_clip as trot_clip
    from striderl.collect.quadruped_clips import trot_clips as trot_clips
    from striderl.collect.quarantine import Fault as Fault
    from striderl.collect.quarantine import Quarantine as Quarantine
    from striderl.collect.recorded_teacher import RecordedTeacher as RecordedTeacher
    from striderl.collect.samplers import AgentActor as AgentActor
    from striderl.collect.samplers import AgentInputs as AgentInputs
    from striderl.collect.samplers import AgentSamples as AgentSamples
    from striderl.collect.samplers import AgentSamplesBsv as AgentSamplesBsv
    from striderl.collect.samplers import AgentStep as AgentStep
    from striderl.collect.samplers import AlternatingSampler as AlternatingSampler
    from striderl.collect.samplers import BaseCollector as BaseCollector
    from striderl.collect.samplers import BaseSampler as BaseSampler
    from striderl.collect.samplers import BatchSpec as BatchSpec
    from striderl.collect.samplers import CpuSampler as CpuSampler
    from striderl.collect.samplers import EnvSamples as EnvSamples
    from striderl.collect.samplers import EnvSpaces as EnvSpaces
    from striderl.collect.samplers import EvalCollector as EvalCollector
    from striderl.collect.samplers import GpuSampler as GpuSampler
    from striderl.collect.samplers import ResetCollector as ResetCollector
    from striderl.collect.samplers import Samples as Samples
    from striderl.collect.samplers import SerialSampler as SerialSampler
    from striderl.collect.samplers import TrajInfo as TrajInfo
    from striderl.collect.samplers import WaitResetCollector as WaitResetCollector
    from striderl.collect.samplers import seen_by_agent as seen_by_agent
    from striderl.collect.samplers import valid_from_done as valid_from_done
    from striderl.collect.saver_student import LoadStudent as LoadStudent
    from striderl.collect.saver_student import Student as Student
    from striderl.collect.saver_summary import Progress as Progress
    from striderl.collect.statistics import EpisodeStatistics as EpisodeStatistics
    from striderl.collect.teacher import Teacher as Teacher
    from striderl.collect.teacher_router import TeacherRouter as TeacherRouter

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "acting_part": [
            "ActingPart",
        ],
        "actors": [
            "Acted",
            "Actor",
            "RandomActor",
            "ScriptedActor",
        ],
        "behaviour_actor": [
            "BehaviourActor",
        ],
        "behaviours": [
            "Behaviour",
            "EpsilonGreedy",
            "GaussianNoise",
            "Greedy",
            "OrnsteinUhlenbeck",
            "Sample",
            "SpreadNoise",
        ],
        "collector": [
            "Collected",
            "Collector",
            "CollectorConfig",
        ],
        "dagger_saver": [
            "DaggerSaver",
        ],
        "delivery": [
            "Storage",
        ],
        "demonstration_saver": [
            "DemonstrationSaver",
        ],
        "motion_recorder": [
            "MotionRecorder",
            "MotionRecorderConfig",
            "record_motion",
        ],
        "parameter_noise": [
            "ParameterNoiseActor",
        ],
        "policy_actor": [
            "GreedyActor",
            "PolicyActor",
        ],
        "quadruped_clips": [
            "quadruped_fields",
            "quadruped_loader_config",
            "quadruped_recorder_config",
            "trot_clip",
            "trot_clips",
        ],
        "quarantine": [
            "Fault",
            "Quarantine",
        ],
        "recorded_teacher": [
            "RecordedTeacher",
        ],
        "samplers": [
            "AgentActor",
            "AgentInputs",
            "AgentSamples",
            "AgentSamplesBsv",
            "AgentStep",
            "AlternatingSampler",
            "BaseCollector",
            "BaseSampler",
            "BatchSpec",
            "CpuSampler",
            "EnvSamples",
            "EnvSpaces",
            "EvalCollector",
            "GpuSampler",
            "ResetCollector",
            "Samples",
            "SerialSampler",
            "TrajInfo",
            "WaitResetCollector",
            "seen_by_agent",
            "valid_from_done",
        ],
        "saver_student": [
            "LoadStudent",
            "Student",
        ],
        "saver_summary": [
            "Progress",
        ],
        "statistics": [
            "EpisodeStatistics",
        ],
        "teacher": [
            "Teacher",
        ],
        "teacher_router": [
            "TeacherRouter",
        ],
    },
)
