"""Old calling styles as thin facades over the core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.compat.generator.agent import Agent as Agent
    from striderl.compat.generator.algorithm import Algorithm as Algorithm
    from striderl.compat.generator.algorithm import Model as Model
    from striderl.compat.generator.algorithm import Rollout as Rollout
    from striderl.compat.generator.samples import BufferSamples as BufferSamples
    from striderl.compat.generator.trainer import Trainer as Trainer
    from striderl.compat.generator.trainer import TrainerConfig as TrainerConfig
    from striderl.compat.rlpyt.actor_critic_agents import SacAgent as SacAgent
    from striderl.compat.rlpyt.algorithms import PolicyGradientAlgo as PolicyGradientAlgo
    from striderl.compat.rlpyt.algorithms import RlAlgorithm as RlAlgorithm
    from striderl.compat.rlpyt.pg_agents import PgAgent as PgAgent
    from striderl.compat.rlpyt.q_agents import DqnAgent as DqnAgent
    from striderl.compat.rlpyt.runner import MinibatchRl as MinibatchRl
    from striderl.compat.rlpyt.runner import MinibatchRlEval as MinibatchRlEval
    from striderl.compat.rlpyt.runner import logger_context as logger_context
    from striderl.compat.st_rl.ppo import PPO as PPO
    from striderl.compat.tianshou.algorithm_policy import AlgorithmPolicy as AlgorithmPolicy
    from striderl.compat.tianshou.base_policy import BasePolicy as BasePolicy
    from striderl.compat.tianshou.collector import Collector as Collector
    from striderl.compat.tianshou.trainers import offpolicy_trainer as offpolicy_trainer
    from striderl.compat.tianshou.trainers import onpolicy_trainer as onpolicy_trainer
    from striderl.compat.user_models import dqn_from_model as dqn_from_model
    from striderl.compat.user_models import policy_from_model as policy_from_model
    from striderl.compat.user_models import ppo_from_model as ppo_from_model
    from striderl.compat.user_models import sac_from_model as sac_from_model

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "generator.agent": ["Agent"],
        "generator.algorithm": ["Algorithm", "Model", "Rollout"],
        "generator.samples": ["BufferSamples"],
        "generator.trainer": ["Trainer", "TrainerConfig"],
        "rlpyt.pg_agents": ["PgAgent"],
        "rlpyt.actor_critic_agents": ["SacAgent"],
        "rlpyt.algorithms": ["PolicyGradientAlgo", "RlAlgorithm"],
        "rlpyt.q_agents": ["DqnAgent"],
        "rlpyt.runner": ["MinibatchRl", "MinibatchRlEval", "logger_context"],
        "st_rl.ppo": ["PPO"],
        "tianshou.algorithm_policy": ["AlgorithmPolicy"],
        "tianshou.base_policy": ["BasePolicy"],
        "tianshou.collector": ["Collector"],
        "tianshou.trainers": ["offpolicy_trainer", "onpolicy_trainer"],
        "user_models": ["dqn_from_model", "policy_from_model", "ppo_from_model", "sac_from_model"],
    },
)
