"""rlpyt's samplers, collectors and trajectory infos under rlpyt's names; they live in `striderl.collect.samplers`."""

from __future__ import annotations

from typing import Any

import numpy as np

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
from striderl.data.named_tuples import NamedArrayTuple as NamedArrayTuple
from striderl.data.named_tuples import NamedArrayTupleSchema as NamedArrayTupleSchema
from striderl.data.named_tuples import NamedArrayTupleSchema_like as NamedArrayTupleSchema_like
from striderl.data.named_tuples import NamedTuple as NamedTuple
from striderl.data.named_tuples import NamedTupleSchema as NamedTupleSchema
from striderl.data.named_tuples import is_namedarraytuple as is_namedarraytuple
from striderl.data.named_tuples import is_namedarraytuple_class as is_namedarraytuple_class
from striderl.data.named_tuples import is_namedtuple as is_namedtuple
from striderl.data.named_tuples import is_namedtuple_class as is_namedtuple_class
from striderl.data.named_tuples import namedarraytuple as namedarraytuple
from striderl.data.named_tuples import namedarraytuple_like as namedarraytuple_like

__path__: list[str] = []  # rlpyt's modules samplers.… are below, see compat/original_paths.py

SerialEvalCollector = CpuEvalCollector = GpuEvalCollector = BaseEvalCollector = EvalCollector
DecorrelatingStartCollector = BaseCollector
ParallelSamplerBase, GpuSamplerBase = CpuSampler, GpuSampler
AlternatingSamplerBase = NoOverlapAlternatingSampler = AlternatingSampler


def build_array(example: Any, leading_dims: Any, share_memory: bool = False) -> Any:
    """Return zeros with leading dimensions before the shape of an example, in its dtype."""
    lead = (leading_dims,) if isinstance(leading_dims, int) else tuple(leading_dims)
    return buffer_from_example(np.asarray(example), lead, share_memory)


def np_mp_array(shape: Any, dtype: Any) -> Any:
    """Return zeros in memory that forked processes share."""
    return build_array(np.zeros((), dtype), shape, share_memory=True)


def get_example_outputs(agent: Any, env: Any, examples: dict[str, Any], subprocess: bool = False) -> None:
    """Put one step of an env of rlpyt's kind and of the agent into `examples`."""
    env.reset()
    action = env.action_space.sample()
    observation, reward, done, env_info = env.step(action)
    reward = np.asarray(reward, np.float32)
    agent.reset()
    action, agent_info = agent.step(*torchify_buffer(AgentInputs(observation, action, reward)))
    if "prev_rnn_state" in agent_info:  # [B, N, H] of one env
        agent_info = agent_info._replace(prev_rnn_state=agent_info.prev_rnn_state[0])
    examples.update(observation=observation, reward=reward, done=done, env_info=env_info)
    examples.update(action=action, agent_info=agent_info)


def build_samples_buffer(
    agent: Any,
    env: Any,
    batch_spec: BatchSpec,
    bootstrap_value: bool = False,
    agent_shared: bool = True,
    env_shared: bool = True,
    subprocess: bool = True,
    examples: dict[str, Any] | None = None,
) -> tuple[Any, Any, dict[str, Any]]:
    """Return memory for a batch as tensors and as arrays, for a sampler of one's own, and examples of all data.

    What is written to `action` and `reward` is in `prev_action` and `prev_reward` one row later. The one step for the
    examples is taken in this process; `subprocess` is for rlpyt's threads and has no use here.
    """
    if examples is None:
        examples = {}
        get_example_outputs(agent, env, examples)
    (T, B), info = batch_spec, examples["agent_info"]
    action = buffer_from_example(examples["action"], (T + 1, B), agent_shared)
    agent_part: Any = AgentSamples(action[1:], action[:-1], buffer_from_example(info, (T, B), agent_shared))
    if bootstrap_value:
        agent_part = AgentSamplesBsv(*agent_part, buffer_from_example(info.value, (1, B), agent_shared))
    reward = buffer_from_example(examples["reward"], (T + 1, B), env_shared)
    observation, done, env_info = (
        buffer_from_example(examples[name], (T, B), env_shared) for name in ("observation", "done", "env_info")
    )
    env_part = EnvSamples(observation, reward[1:], reward[:-1], done, env_info)
    samples = Samples(agent_part, env_part)
    return torchify_buffer(samples), samples, examples


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
