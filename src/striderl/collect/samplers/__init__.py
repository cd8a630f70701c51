"""rlpyt's samplers, collectors and trajectory infos as presets over `Collector`."""

from __future__ import annotations

from striderl._lazy import lazy

__getattr__ = lazy(
    __name__,
    {
        "samplers": [
            "SamplerAgent",
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
)[0]
