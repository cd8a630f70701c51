"""rlpyt's agents, algorithms, models, envs and runners.

    from rlpyt.x.y import Z  ─▶  from striderl.compat.rlpyt.x.y import Z, or from striderl.compat.rlpyt import Z

    build_and_train      sampler ─▶ algorithm ─▶ agent ─▶ runner ─▶ with logger_context(…): runner.train()

`from striderl.compat.rlpyt import logger` is rlpyt's logger. Where names of rlpyt's modules are the same (`OptInfo`,
`AgentInfo`, `DistInfo`), those of the policy gradients are here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy
from striderl.compat import original_paths

original_paths.install(__name__, original_paths.RLPYT)

if TYPE_CHECKING:
    from striderl.compat.rlpyt.actor_critic_agents import DdpgAgent as DdpgAgent
    from striderl.compat.rlpyt.actor_critic_agents import SacAgent as SacAgent
    from striderl.compat.rlpyt.actor_critic_agents import SacVAgent as SacVAgent
    from striderl.compat.rlpyt.actor_critic_agents import Td3Agent as Td3Agent
    from striderl.compat.rlpyt.actor_critic_algorithms import DDPG as DDPG
    from striderl.compat.rlpyt.actor_critic_algorithms import SAC as SAC
    from striderl.compat.rlpyt.actor_critic_algorithms import SAC_V as SAC_V
    from striderl.compat.rlpyt.actor_critic_algorithms import TD3 as TD3
    from striderl.compat.rlpyt.agents import AgentInputsRnn as AgentInputsRnn
    from striderl.compat.rlpyt.agents import AlternatingRecurrentAgentMixin as AlternatingRecurrentAgentMixin
    from striderl.compat.rlpyt.agents import BaseAgent as BaseAgent
    from striderl.compat.rlpyt.agents import RecurrentAgentMixin as RecurrentAgentMixin
    from striderl.compat.rlpyt.algorithms import A2C as A2C
    from striderl.compat.rlpyt.algorithms import PPO as PPO
    from striderl.compat.rlpyt.algorithms import LossInputs as LossInputs
    from striderl.compat.rlpyt.algorithms import OptInfo as OptInfo
    from striderl.compat.rlpyt.algorithms import PolicyGradientAlgo as PolicyGradientAlgo
    from striderl.compat.rlpyt.algorithms import RLAlgorithm as RLAlgorithm
    from striderl.compat.rlpyt.algorithms import RlAlgorithm as RlAlgorithm
    from striderl.compat.rlpyt.async_rl import AsyncRl as AsyncRl
    from striderl.compat.rlpyt.async_rl import AsyncRlEval as AsyncRlEval
    from striderl.compat.rlpyt.async_samplers import AsyncAlternatingSampler as AsyncAlternatingSampler
    from striderl.compat.rlpyt.async_samplers import AsyncCpuSampler as AsyncCpuSampler
    from striderl.compat.rlpyt.async_samplers import AsyncGpuSampler as AsyncGpuSampler
    from striderl.compat.rlpyt.async_samplers import AsyncSerialSampler as AsyncSerialSampler
    from striderl.compat.rlpyt.atari import AtariEnv as AtariEnv
    from striderl.compat.rlpyt.distributions import Categorical as Categorical
    from striderl.compat.rlpyt.distributions import CategoricalEpsilonGreedy as CategoricalEpsilonGreedy
    from striderl.compat.rlpyt.distributions import DiscreteMixin as DiscreteMixin
    from striderl.compat.rlpyt.distributions import DistInfo as DistInfo
    from striderl.compat.rlpyt.distributions import DistInfoStd as DistInfoStd
    from striderl.compat.rlpyt.distributions import Distribution as Distribution
    from striderl.compat.rlpyt.distributions import EpsilonGreedy as EpsilonGreedy
    from striderl.compat.rlpyt.distributions import Gaussian as Gaussian
    from striderl.compat.rlpyt.distributions import GaussianDistInfo as GaussianDistInfo
    from striderl.compat.rlpyt.envs import Composite as Composite
    from striderl.compat.rlpyt.envs import Env as Env
    from striderl.compat.rlpyt.envs import EnvInfo as EnvInfo
    from striderl.compat.rlpyt.envs import EnvInfoWrapper as EnvInfoWrapper
    from striderl.compat.rlpyt.envs import EnvSpaces as EnvSpaces
    from striderl.compat.rlpyt.envs import EnvStep as EnvStep
    from striderl.compat.rlpyt.envs import FloatBox as FloatBox
    from striderl.compat.rlpyt.envs import GymEnvWrapper as GymEnvWrapper
    from striderl.compat.rlpyt.envs import GymSpaceWrapper as GymSpaceWrapper
    from striderl.compat.rlpyt.envs import IntBox as IntBox
    from striderl.compat.rlpyt.envs import Space as Space
    from striderl.compat.rlpyt.envs import gym_make as gym_make
    from striderl.compat.rlpyt.envs import make as make
    from striderl.compat.rlpyt.launching import VariantLevel as VariantLevel
    from striderl.compat.rlpyt.launching import affinity_from_code as affinity_from_code
    from striderl.compat.rlpyt.launching import encode_affinity as encode_affinity
    from striderl.compat.rlpyt.launching import load_variant as load_variant
    from striderl.compat.rlpyt.launching import make_affinity as make_affinity
    from striderl.compat.rlpyt.launching import make_variants as make_variants
    from striderl.compat.rlpyt.launching import quick_affinity_code as quick_affinity_code
    from striderl.compat.rlpyt.launching import run_experiments as run_experiments
    from striderl.compat.rlpyt.launching import update_config as update_config
    from striderl.compat.rlpyt.logger import add_exp_param as add_exp_param
    from striderl.compat.rlpyt.logger import logger_context as logger_context
    from striderl.compat.rlpyt.models import AtariCatDqnModel as AtariCatDqnModel
    from striderl.compat.rlpyt.models import AtariDqnModel as AtariDqnModel
    from striderl.compat.rlpyt.models import AtariFfModel as AtariFfModel
    from striderl.compat.rlpyt.models import AtariLstmModel as AtariLstmModel
    from striderl.compat.rlpyt.models import AtariR2d1Model as AtariR2d1Model
    from striderl.compat.rlpyt.models import Conv2dHeadModel as Conv2dHeadModel
    from striderl.compat.rlpyt.models import Conv2dModel as Conv2dModel
    from striderl.compat.rlpyt.models import DistributionalDuelingHeadModel as DistributionalDuelingHeadModel
    from striderl.compat.rlpyt.models import DistributionalHeadModel as DistributionalHeadModel
    from striderl.compat.rlpyt.models import DuelingHeadModel as DuelingHeadModel
    from striderl.compat.rlpyt.models import MlpModel as MlpModel
    from striderl.compat.rlpyt.models import RnnState as RnnState
    from striderl.compat.rlpyt.models import RunningMeanStdModel as RunningMeanStdModel
    from striderl.compat.rlpyt.models import conv2d_output_shape as conv2d_output_shape
    from striderl.compat.rlpyt.models import scale_grad as scale_grad
    from striderl.compat.rlpyt.pg_agents import AgentInfo as AgentInfo
    from striderl.compat.rlpyt.pg_agents import AgentInfoRnn as AgentInfoRnn
    from striderl.compat.rlpyt.pg_agents import AgentTrain as AgentTrain
    from striderl.compat.rlpyt.pg_agents import AlternatingAtariLstmAgent as AlternatingAtariLstmAgent
    from striderl.compat.rlpyt.pg_agents import AlternatingMujocoLstmAgent as AlternatingMujocoLstmAgent
    from striderl.compat.rlpyt.pg_agents import (
        AlternatingRecurrentCategoricalPgAgent as AlternatingRecurrentCategoricalPgAgent,
    )
    from striderl.compat.rlpyt.pg_agents import (
        AlternatingRecurrentGaussianPgAgent as AlternatingRecurrentGaussianPgAgent,
    )
    from striderl.compat.rlpyt.pg_agents import AtariFfAgent as AtariFfAgent
    from striderl.compat.rlpyt.pg_agents import AtariLstmAgent as AtariLstmAgent
    from striderl.compat.rlpyt.pg_agents import AtariMixin as AtariMixin
    from striderl.compat.rlpyt.pg_agents import CategoricalPgAgent as CategoricalPgAgent
    from striderl.compat.rlpyt.pg_agents import GaussianPgAgent as GaussianPgAgent
    from striderl.compat.rlpyt.pg_agents import MujocoFfAgent as MujocoFfAgent
    from striderl.compat.rlpyt.pg_agents import MujocoLstmAgent as MujocoLstmAgent
    from striderl.compat.rlpyt.pg_agents import MujocoMixin as MujocoMixin
    from striderl.compat.rlpyt.pg_agents import PgAgent as PgAgent
    from striderl.compat.rlpyt.pg_agents import RecurrentCategoricalPgAgent as RecurrentCategoricalPgAgent
    from striderl.compat.rlpyt.pg_agents import RecurrentGaussianPgAgent as RecurrentGaussianPgAgent
    from striderl.compat.rlpyt.pg_agents import RecurrentPgAgent as RecurrentPgAgent
    from striderl.compat.rlpyt.q_agents import AtariCatDqnAgent as AtariCatDqnAgent
    from striderl.compat.rlpyt.q_agents import AtariDqnAgent as AtariDqnAgent
    from striderl.compat.rlpyt.q_agents import AtariR2d1Agent as AtariR2d1Agent
    from striderl.compat.rlpyt.q_agents import AtariR2d1AlternatingAgent as AtariR2d1AlternatingAgent
    from striderl.compat.rlpyt.q_agents import CatDqnAgent as CatDqnAgent
    from striderl.compat.rlpyt.q_agents import DqnAgent as DqnAgent
    from striderl.compat.rlpyt.q_agents import EpsilonGreedyAgentMixin as EpsilonGreedyAgentMixin
    from striderl.compat.rlpyt.q_agents import R2d1Agent as R2d1Agent
    from striderl.compat.rlpyt.q_agents import R2d1AgentBase as R2d1AgentBase
    from striderl.compat.rlpyt.q_agents import R2d1AlternatingAgent as R2d1AlternatingAgent
    from striderl.compat.rlpyt.q_algorithms import DQN as DQN
    from striderl.compat.rlpyt.q_algorithms import CategoricalDQN as CategoricalDQN
    from striderl.compat.rlpyt.q_algorithms import ReplayRlAlgorithm as ReplayRlAlgorithm
    from striderl.compat.rlpyt.q_algorithms import SamplesToBuffer as SamplesToBuffer
    from striderl.compat.rlpyt.q_algorithms import SamplesToBufferTl as SamplesToBufferTl
    from striderl.compat.rlpyt.r2d1 import R2D1 as R2D1
    from striderl.compat.rlpyt.r2d1 import PrioritiesSamplesToBuffer as PrioritiesSamplesToBuffer
    from striderl.compat.rlpyt.r2d1 import SamplesToBufferRnn as SamplesToBufferRnn
    from striderl.compat.rlpyt.replays import AsyncPrioritizedReplayBuffer as AsyncPrioritizedReplayBuffer
    from striderl.compat.rlpyt.replays import AsyncReplayBufferMixin as AsyncReplayBufferMixin
    from striderl.compat.rlpyt.replays import AsyncUniformReplayBuffer as AsyncUniformReplayBuffer
    from striderl.compat.rlpyt.replays import BaseReplayBuffer as BaseReplayBuffer
    from striderl.compat.rlpyt.replays import NStepReturnBuffer as NStepReturnBuffer
    from striderl.compat.rlpyt.replays import PrioritizedReplay as PrioritizedReplay
    from striderl.compat.rlpyt.replays import PrioritizedReplayBuffer as PrioritizedReplayBuffer
    from striderl.compat.rlpyt.replays import SamplesFromReplay as SamplesFromReplay
    from striderl.compat.rlpyt.replays import TlPrioritizedReplayBuffer as TlPrioritizedReplayBuffer
    from striderl.compat.rlpyt.replays import TlUniformReplayBuffer as TlUniformReplayBuffer
    from striderl.compat.rlpyt.replays import UniformReplay as UniformReplay
    from striderl.compat.rlpyt.replays import UniformReplayBuffer as UniformReplayBuffer
    from striderl.compat.rlpyt.runner import BaseRunner as BaseRunner
    from striderl.compat.rlpyt.runner import MinibatchRl as MinibatchRl
    from striderl.compat.rlpyt.runner import MinibatchRlBase as MinibatchRlBase
    from striderl.compat.rlpyt.runner import MinibatchRlEval as MinibatchRlEval
    from striderl.compat.rlpyt.samplers import AgentInputs as AgentInputs
    from striderl.compat.rlpyt.samplers import AgentSamples as AgentSamples
    from striderl.compat.rlpyt.samplers import AgentSamplesBsv as AgentSamplesBsv
    from striderl.compat.rlpyt.samplers import AgentStep as AgentStep
    from striderl.compat.rlpyt.samplers import AlternatingSampler as AlternatingSampler
    from striderl.compat.rlpyt.samplers import AtariTrajInfo as AtariTrajInfo
    from striderl.compat.rlpyt.samplers import BaseCollector as BaseCollector
    from striderl.compat.rlpyt.samplers import BaseSampler as BaseSampler
    from striderl.compat.rlpyt.samplers import BatchSpec as BatchSpec
    from striderl.compat.rlpyt.samplers import CpuEvalCollector as CpuEvalCollector
    from striderl.compat.rlpyt.samplers import CpuResetCollector as CpuResetCollector
    from striderl.compat.rlpyt.samplers import CpuSampler as CpuSampler
    from striderl.compat.rlpyt.samplers import CpuWaitResetCollector as CpuWaitResetCollector
    from striderl.compat.rlpyt.samplers import EnvSamples as EnvSamples
    from striderl.compat.rlpyt.samplers import EvalCollector as EvalCollector
    from striderl.compat.rlpyt.samplers import GpuEvalCollector as GpuEvalCollector
    from striderl.compat.rlpyt.samplers import GpuResetCollector as GpuResetCollector
    from striderl.compat.rlpyt.samplers import GpuSampler as GpuSampler
    from striderl.compat.rlpyt.samplers import GpuWaitResetCollector as GpuWaitResetCollector
    from striderl.compat.rlpyt.samplers import NamedArrayTupleSchema as NamedArrayTupleSchema
    from striderl.compat.rlpyt.samplers import NamedTupleSchema as NamedTupleSchema
    from striderl.compat.rlpyt.samplers import Samples as Samples
    from striderl.compat.rlpyt.samplers import SerialEvalCollector as SerialEvalCollector
    from striderl.compat.rlpyt.samplers import SerialSampler as SerialSampler
    from striderl.compat.rlpyt.samplers import TrajInfo as TrajInfo
    from striderl.compat.rlpyt.samplers import buffer_from_example as buffer_from_example
    from striderl.compat.rlpyt.samplers import buffer_func as buffer_func
    from striderl.compat.rlpyt.samplers import buffer_method as buffer_method
    from striderl.compat.rlpyt.samplers import buffer_to as buffer_to
    from striderl.compat.rlpyt.samplers import build_samples_buffer as build_samples_buffer
    from striderl.compat.rlpyt.samplers import get_leading_dims as get_leading_dims
    from striderl.compat.rlpyt.samplers import is_namedarraytuple as is_namedarraytuple
    from striderl.compat.rlpyt.samplers import is_namedarraytuple_class as is_namedarraytuple_class
    from striderl.compat.rlpyt.samplers import is_namedtuple as is_namedtuple
    from striderl.compat.rlpyt.samplers import is_namedtuple_class as is_namedtuple_class
    from striderl.compat.rlpyt.samplers import namedarraytuple as namedarraytuple
    from striderl.compat.rlpyt.samplers import namedarraytuple_like as namedarraytuple_like
    from striderl.compat.rlpyt.samplers import numpify_buffer as numpify_buffer
    from striderl.compat.rlpyt.samplers import torchify_buffer as torchify_buffer
    from striderl.compat.rlpyt.sequence_replays import (
        AsyncPrioritizedSequenceReplayBuffer as AsyncPrioritizedSequenceReplayBuffer,
    )
    from striderl.compat.rlpyt.sequence_replays import (
        AsyncUniformSequenceReplayBuffer as AsyncUniformSequenceReplayBuffer,
    )
    from striderl.compat.rlpyt.sequence_replays import (
        PrioritizedSequenceReplayBuffer as PrioritizedSequenceReplayBuffer,
    )
    from striderl.compat.rlpyt.sequence_replays import SequenceNStepReturnBuffer as SequenceNStepReturnBuffer
    from striderl.compat.rlpyt.sequence_replays import UniformSequenceReplayBuffer as UniformSequenceReplayBuffer
    from striderl.compat.rlpyt.sync_rl import SyncRl as SyncRl
    from striderl.compat.rlpyt.sync_rl import SyncRlEval as SyncRlEval
    from striderl.compat.rlpyt.tensors import AttrDict as AttrDict
    from striderl.compat.rlpyt.tensors import discount_return as discount_return
    from striderl.compat.rlpyt.tensors import discount_return_n_step as discount_return_n_step
    from striderl.compat.rlpyt.tensors import empty as empty
    from striderl.compat.rlpyt.tensors import extract_sequences as extract_sequences
    from striderl.compat.rlpyt.tensors import from_onehot as from_onehot
    from striderl.compat.rlpyt.tensors import generalized_advantage_estimation as generalized_advantage_estimation
    from striderl.compat.rlpyt.tensors import infer_leading_dims as infer_leading_dims
    from striderl.compat.rlpyt.tensors import iterate_mb_idxs as iterate_mb_idxs
    from striderl.compat.rlpyt.tensors import make_seed as make_seed
    from striderl.compat.rlpyt.tensors import restore_leading_dims as restore_leading_dims
    from striderl.compat.rlpyt.tensors import save__init__args as save__init__args
    from striderl.compat.rlpyt.tensors import select_at_indexes as select_at_indexes
    from striderl.compat.rlpyt.tensors import set_seed as set_seed
    from striderl.compat.rlpyt.tensors import strip_ddp_state_dict as strip_ddp_state_dict
    from striderl.compat.rlpyt.tensors import to_onehot as to_onehot
    from striderl.compat.rlpyt.tensors import update_state_dict as update_state_dict
    from striderl.compat.rlpyt.tensors import valid_from_done as valid_from_done
    from striderl.compat.rlpyt.tensors import valid_mean as valid_mean
    from striderl.compat.rlpyt.tensors import zeros as zeros
    from striderl.compat.rlpyt.vector_models import MujocoFfModel as MujocoFfModel
    from striderl.compat.rlpyt.vector_models import MujocoLstmModel as MujocoLstmModel
    from striderl.compat.rlpyt.vector_models import MuMlpModel as MuMlpModel
    from striderl.compat.rlpyt.vector_models import PiMlpModel as PiMlpModel
    from striderl.compat.rlpyt.vector_models import QofMuMlpModel as QofMuMlpModel
    from striderl.compat.rlpyt.vector_models import VMlpModel as VMlpModel

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "actor_critic_agents": ["DdpgAgent", "SacAgent", "SacVAgent", "Td3Agent"],
        "actor_critic_algorithms": ["DDPG", "SAC", "SAC_V", "TD3"],
        "agents": ["AgentInputsRnn", "AlternatingRecurrentAgentMixin", "BaseAgent", "RecurrentAgentMixin"],
        "algorithms": ["A2C", "LossInputs", "OptInfo", "PPO", "PolicyGradientAlgo", "RLAlgorithm", "RlAlgorithm"],
        "async_rl": ["AsyncRl", "AsyncRlEval"],
        "async_samplers": ["AsyncAlternatingSampler", "AsyncCpuSampler", "AsyncGpuSampler", "AsyncSerialSampler"],
        "atari": ["AtariEnv"],
        "distributions": [
            "Categorical",
            "CategoricalEpsilonGreedy",
            "DiscreteMixin",
            "DistInfo",
            "DistInfoStd",
            "Distribution",
            "EpsilonGreedy",
            "Gaussian",
            "GaussianDistInfo",
        ],
        "envs": [
            "Composite",
            "Env",
            "EnvInfo",
            "EnvInfoWrapper",
            "EnvSpaces",
            "EnvStep",
            "FloatBox",
            "GymEnvWrapper",
            "GymSpaceWrapper",
            "IntBox",
            "Space",
            "gym_make",
            "make",
        ],
        "launching": [
            "VariantLevel",
            "affinity_from_code",
            "encode_affinity",
            "load_variant",
            "make_affinity",
            "make_variants",
            "quick_affinity_code",
            "run_experiments",
            "update_config",
        ],
        "logger": ["add_exp_param", "logger_context"],
        "models": [
            "AtariCatDqnModel",
            "AtariDqnModel",
            "AtariFfModel",
            "AtariLstmModel",
            "AtariR2d1Model",
            "Conv2dHeadModel",
            "Conv2dModel",
            "DistributionalDuelingHeadModel",
            "DistributionalHeadModel",
            "DuelingHeadModel",
            "MlpModel",
            "RnnState",
            "RunningMeanStdModel",
            "conv2d_output_shape",
            "scale_grad",
        ],
        "pg_agents": [
            "AgentInfo",
            "AgentInfoRnn",
            "AgentTrain",
            "AlternatingAtariLstmAgent",
            "AlternatingMujocoLstmAgent",
            "AlternatingRecurrentCategoricalPgAgent",
            "AlternatingRecurrentGaussianPgAgent",
            "AtariFfAgent",
            "AtariLstmAgent",
            "AtariMixin",
            "CategoricalPgAgent",
            "GaussianPgAgent",
            "MujocoFfAgent",
            "MujocoLstmAgent",
            "MujocoMixin",
            "PgAgent",
            "RecurrentCategoricalPgAgent",
            "RecurrentGaussianPgAgent",
            "RecurrentPgAgent",
        ],
        "q_agents": [
            "AtariCatDqnAgent",
            "AtariDqnAgent",
            "AtariR2d1Agent",
            "AtariR2d1AlternatingAgent",
            "CatDqnAgent",
            "DqnAgent",
            "EpsilonGreedyAgentMixin",
            "R2d1Agent",
            "R2d1AgentBase",
            "R2d1AlternatingAgent",
        ],
        "q_algorithms": ["CategoricalDQN", "DQN", "ReplayRlAlgorithm", "SamplesToBuffer", "SamplesToBufferTl"],
        "r2d1": ["PrioritiesSamplesToBuffer", "R2D1", "SamplesToBufferRnn"],
        "replays": [
            "AsyncPrioritizedReplayBuffer",
            "AsyncReplayBufferMixin",
            "AsyncUniformReplayBuffer",
            "BaseReplayBuffer",
            "NStepReturnBuffer",
            "PrioritizedReplay",
            "PrioritizedReplayBuffer",
            "SamplesFromReplay",
            "TlPrioritizedReplayBuffer",
            "TlUniformReplayBuffer",
            "UniformReplay",
            "UniformReplayBuffer",
        ],
        "runner": ["BaseRunner", "MinibatchRl", "MinibatchRlBase", "MinibatchRlEval"],
        "samplers": [
            "AgentInputs",
            "AgentSamples",
            "AgentSamplesBsv",
            "AgentStep",
            "AlternatingSampler",
            "AtariTrajInfo",
            "BaseCollector",
            "BaseSampler",
            "BatchSpec",
            "CpuEvalCollector",
            "CpuResetCollector",
            "CpuSampler",
            "CpuWaitResetCollector",
            "EnvSamples",
            "EvalCollector",
            "GpuEvalCollector",
            "GpuResetCollector",
            "GpuSampler",
            "GpuWaitResetCollector",
            "NamedArrayTupleSchema",
            "NamedTupleSchema",
            "Samples",
            "SerialEvalCollector",
            "SerialSampler",
            "TrajInfo",
            "buffer_from_example",
            "buffer_func",
            "buffer_method",
            "buffer_to",
            "build_samples_buffer",
            "get_leading_dims",
            "is_namedarraytuple",
            "is_namedarraytuple_class",
            "is_namedtuple",
            "is_namedtuple_class",
            "namedarraytuple",
            "namedarraytuple_like",
            "numpify_buffer",
            "torchify_buffer",
        ],
        "sequence_replays": [
            "AsyncPrioritizedSequenceReplayBuffer",
            "AsyncUniformSequenceReplayBuffer",
            "PrioritizedSequenceReplayBuffer",
            "SequenceNStepReturnBuffer",
            "UniformSequenceReplayBuffer",
        ],
        "sync_rl": ["SyncRl", "SyncRlEval"],
        "tensors": [
            "AttrDict",
            "discount_return",
            "discount_return_n_step",
            "empty",
            "extract_sequences",
            "from_onehot",
            "generalized_advantage_estimation",
            "infer_leading_dims",
            "iterate_mb_idxs",
            "make_seed",
            "restore_leading_dims",
            "save__init__args",
            "select_at_indexes",
            "set_seed",
            "strip_ddp_state_dict",
            "to_onehot",
            "update_state_dict",
            "valid_from_done",
            "valid_mean",
            "zeros",
        ],
        "vector_models": ["MuMlpModel", "MujocoFfModel", "MujocoLstmModel", "PiMlpModel", "QofMuMlpModel", "VMlpModel"],
    },
)
