"""Old calling styles as thin facades over the core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.compat.algorithm_policy import AlgorithmPolicy as AlgorithmPolicy
    from striderl.compat.base_policy import BasePolicy as BasePolicy
    from striderl.compat.functional_trainers import offpolicy_trainer as offpolicy_trainer
    from striderl.compat.functional_trainers import onpolicy_trainer as onpolicy_trainer
    from striderl.compat.generator_agent import Agent as Agent
    from striderl.compat.generator_agent import Algorithm as Algorithm
    from striderl.compat.generator_agent import Model as Model
    from striderl.compat.generator_agent import Rollout as Rollout
    from striderl.compat.generator_trainer import Trainer as Trainer
    from striderl.compat.generator_trainer import TrainerConfig as TrainerConfig
    from striderl.compat.ppo import PPO as PPO
    from striderl.compat.replay_collector import Collector as Collector
    from striderl.compat.rlpyt_agents import DqnAgent as DqnAgent
    from striderl.compat.rlpyt_agents import PgAgent as PgAgent
    from striderl.compat.rlpyt_agents import SacAgent as SacAgent
    from striderl.compat.rlpyt_algorithms import PolicyGradientAlgo as PolicyGradientAlgo
    from striderl.compat.rlpyt_algorithms import RlAlgorithm as RlAlgorithm
    from striderl.compat.rlpyt_runner import MinibatchRl as MinibatchRl
    from striderl.compat.rlpyt_runner import MinibatchRlEval as MinibatchRlEval
    from striderl.compat.rlpyt_runner import logger_context as logger_context
    from striderl.compat.user_models import dqn_from_model as dqn_from_model
    from striderl.compat.user_models import policy_from_model as policy_from_model
    from striderl.compat.user_models import ppo_from_model as ppo_from_model
    from striderl.compat.user_models import sac_from_model as sac_from_model

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "algorithm_policy": [
            "AlgorithmPolicy",
        ],
        "base_policy": [
            "BasePolicy",
        ],
        "functional_trainers": [
            "offpolicy_trainer",
            "onpolicy_trainer",
        ],
        "generator_agent": [
            "Agent",
            "Algorithm",
            "Model",
            "Rollout",
        ],
        "generator_trainer": [
            "Trainer",
            "TrainerConfig",
        ],
        "ppo": [
            "PPO",
        ],
        "replay_collector": [
            "Collector",
        ],
        "rlpyt_agents": [
            "DqnAgent",
            "PgAgent",
            "SacAgent",
        ],
        "rlpyt_algorithms": [
            "PolicyGradientAlgo",
            "RlAlgorithm",
        ],
        "rlpyt_runner": [
            "MinibatchRl",
            "MinibatchRlEval",
            "logger_context",
        ],
        "user_models": [
            "dqn_from_model",
            "policy_from_model",
            "ppo_from_model",
            "sac_from_model",
        ],
    },
)
