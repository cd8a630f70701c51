"""rlpyt's samplers, collectors and trajectory infos as presets over `Collector`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.collect.samplers.samplers import Agent as Agent
    from striderl.collect.samplers.samplers import AgentActor as AgentActor
    from striderl.collect.samplers.samplers import AgentInputs as AgentInputs
    from striderl.collect.samplers.samplers import AgentSamples as AgentSamples
    from striderl.collect.samplers.samplers import AgentSamplesBsv as AgentSamplesBsv
    from striderl.collect.samplers.samplers import AgentStep as AgentStep
    from striderl.collect.samplers.samplers import AlternatingSampler as AlternatingSampler
    from striderl.collect.samplers.samplers import BaseCollector as BaseCollector
    from striderl.collect.samplers.samplers import BaseSampler as BaseSampler
    from striderl.collect.samplers.samplers import BatchSpec as BatchSpec
    from striderl.collect.samplers.samplers import CpuResetCollector as CpuResetCollector
    from striderl.collect.samplers.samplers import CpuSampler as CpuSampler
    from striderl.collect.samplers.samplers import CpuWaitResetCollector as CpuWaitResetCollector
    from striderl.collect.samplers.samplers import EnvSamples as EnvSamples
    from striderl.collect.samplers.samplers import EnvSpaces as EnvSpaces
    from striderl.collect.samplers.samplers import EvalCollector as EvalCollector
    from striderl.collect.samplers.samplers import GpuResetCollector as GpuResetCollector
    from striderl.collect.samplers.samplers import GpuSampler as GpuSampler
    from striderl.collect.samplers.samplers import GpuWaitResetCollector as GpuWaitResetCollector
    from striderl.collect.samplers.samplers import ResetCollector as ResetCollector
    from striderl.collect.samplers.samplers import Samples as Samples
    from striderl.collect.samplers.samplers import SerialSampler as SerialSampler
    from striderl.collect.samplers.samplers import TrajInfo as TrajInfo
    from striderl.collect.samplers.samplers import WaitResetCollector as WaitResetCollector
    from striderl.collect.samplers.samplers import seen_by_agent as seen_by_agent
    from striderl.collect.samplers.samplers import valid_from_done as valid_from_done

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "samplers": [
            "Agent",
            "AgentActor",
            "AgentInputs",
            "AgentSamples",
            "AgentSamplesBsv",
            "AgentStep",
            "AlternatingSampler",
            "BaseCollector",
            "BaseSampler",
            "BatchSpec",
            "CpuResetCollector",
            "CpuSampler",
            "CpuWaitResetCollector",
            "EnvSamples",
            "EnvSpaces",
            "EvalCollector",
            "GpuResetCollector",
            "GpuSampler",
            "GpuWaitResetCollector",
            "ResetCollector",
            "Samples",
            "SerialSampler",
            "TrajInfo",
            "WaitResetCollector",
            "seen_by_agent",
            "valid_from_done",
        ]
    },
)
