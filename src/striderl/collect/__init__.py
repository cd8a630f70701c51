"""Collection: env times actor gives experience."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.collect.actors.base import Actor as Actor
    from striderl.collect.actors.base import ActorOutput as ActorOutput
    from striderl.collect.actors.base import RandomActor as RandomActor
    from striderl.collect.actors.base import ScriptedActor as ScriptedActor
    from striderl.collect.actors.behaviours import Behaviour as Behaviour
    from striderl.collect.actors.behaviours import BehaviourActor as BehaviourActor
    from striderl.collect.actors.behaviours import EpsilonGreedy as EpsilonGreedy
    from striderl.collect.actors.behaviours import GaussianNoise as GaussianNoise
    from striderl.collect.actors.behaviours import Greedy as Greedy
    from striderl.collect.actors.behaviours import OrnsteinUhlenbeck as OrnsteinUhlenbeck
    from striderl.collect.actors.behaviours import Sample as Sample
    from striderl.collect.actors.behaviours import SpreadNoise as SpreadNoise
    from striderl.collect.actors.parameter_noise import ParameterNoiseActor as ParameterNoiseActor
    from striderl.collect.actors.policy_actor import GreedyActor as GreedyActor
    from striderl.collect.actors.policy_actor import PolicyActor as PolicyActor
    from striderl.collect.collector import Collector as Collector
    from striderl.collect.collector import CollectorConfig as CollectorConfig
    from striderl.collect.samplers.samplers import Samples as Samples
    from striderl.collect.samplers.samplers import SerialSampler as SerialSampler
    from striderl.collect.samplers.samplers import TrajInfo as TrajInfo
    from striderl.collect.statistics import EpisodeStatistics as EpisodeStatistics
    from striderl.collect.teacher import RecordedTeacher as RecordedTeacher
    from striderl.collect.teacher import Teacher as Teacher
    from striderl.collect.teacher import TeacherRouter as TeacherRouter

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "actors.base": ["Actor", "ActorOutput", "RandomActor", "ScriptedActor"],
        "actors.behaviours": [
            "Behaviour",
            "BehaviourActor",
            "EpsilonGreedy",
            "GaussianNoise",
            "Greedy",
            "OrnsteinUhlenbeck",
            "Sample",
            "SpreadNoise",
        ],
        "actors.parameter_noise": ["ParameterNoiseActor"],
        "actors.policy_actor": ["GreedyActor", "PolicyActor"],
        "collector": ["Collector", "CollectorConfig"],
        "samplers.samplers": ["Samples", "SerialSampler", "TrajInfo"],
        "statistics": ["EpisodeStatistics"],
        "teacher": ["RecordedTeacher", "Teacher", "TeacherRouter"],
    },
    unlisted={
        "actors.base": ["ActingPart"],
        "collector": ["Collected"],
        "quarantine": ["Fault", "Quarantine"],
        "samplers.samplers": [
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
            "WaitResetCollector",
            "seen_by_agent",
            "valid_from_done",
        ],
        "surplus": ["Storage"],
    },
)
