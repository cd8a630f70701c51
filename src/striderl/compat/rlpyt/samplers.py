"""rlpyt's samplers, collectors and trajectory infos under rlpyt's names; they live in `striderl.collect.samplers`."""

from __future__ import annotations

from typing import Any

from striderl.collect.samplers.collectors import CpuResetCollector as CpuResetCollector
from striderl.collect.samplers.collectors import CpuWaitResetCollector as CpuWaitResetCollector
from striderl.collect.samplers.collectors import EvalCollector as EvalCollector
from striderl.collect.samplers.collectors import GpuResetCollector as GpuResetCollector
from striderl.collect.samplers.collectors import GpuWaitResetCollector as GpuWaitResetCollector
from striderl.collect.samplers.samplers import AgentInputs as AgentInputs
from striderl.collect.samplers.samplers import AgentSamples as AgentSamples
from striderl.collect.samplers.samplers import AgentSamplesBsv as AgentSamplesBsv
from striderl.collect.samplers.samplers import AgentStep as AgentStep
from striderl.collect.samplers.samplers import AlternatingSampler as AlternatingSampler
from striderl.collect.samplers.samplers import BaseCollector as BaseCollector
from striderl.collect.samplers.samplers import BaseSampler as BaseSampler
from striderl.collect.samplers.samplers import BatchSpec as BatchSpec
from striderl.collect.samplers.samplers import CpuSampler as CpuSampler
from striderl.collect.samplers.samplers import EnvSamples as EnvSamples
from striderl.collect.samplers.samplers import GpuSampler as GpuSampler
from striderl.collect.samplers.samplers import Samples as Samples
from striderl.collect.samplers.samplers import SerialSampler as SerialSampler
from striderl.collect.samplers.samplers import TrajInfo as TrajInfo
from striderl.data.buffers import buffer_from_example as buffer_from_example
from striderl.data.buffers import buffer_func as buffer_func
from striderl.data.buffers import buffer_method as buffer_method
from striderl.data.buffers import buffer_to as buffer_to
from striderl.data.buffers import get_leading_dims as get_leading_dims
from striderl.data.buffers import numpify_buffer as numpify_buffer
from striderl.data.buffers import torchify_buffer as torchify_buffer
from striderl.data.named_tuples import NamedArrayTupleSchema as NamedArrayTupleSchema
from striderl.data.named_tuples import NamedTupleSchema as NamedTupleSchema
from striderl.data.named_tuples import is_namedarraytuple as is_namedarraytuple
from striderl.data.named_tuples import is_namedarraytuple_class as is_namedarraytuple_class
from striderl.data.named_tuples import is_namedtuple as is_namedtuple
from striderl.data.named_tuples import is_namedtuple_class as is_namedtuple_class
from striderl.data.named_tuples import namedarraytuple as namedarraytuple
from striderl.data.named_tuples import namedarraytuple_like as namedarraytuple_like

SerialEvalCollector = CpuEvalCollector = GpuEvalCollector = EvalCollector


class AtariTrajInfo(TrajInfo):
    """Counts the score of the whole game, of which rewards are clipped and episodes single lives."""

    GameScore: float

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.GameScore = 0

    def step(self, observation: Any, action: Any, reward: float, done: bool, agent_info: Any, env_info: Any) -> None:
        """Update with one step; `env_info.game_score` is the score of the step."""
        super().step(observation, action, reward, done, agent_info, env_info)
        self.GameScore += float(getattr(env_info, "game_score", 0))
