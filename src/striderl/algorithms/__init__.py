"""Algorithms: pure losses and targets, and the terms that are passed to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.algorithms.actor_critic.crossq import CrossQ as CrossQ
    from striderl.algorithms.actor_critic.crossq import CrossQConfig as CrossQConfig
    from striderl.algorithms.actor_critic.crossq import crossq as crossq
    from striderl.algorithms.actor_critic.fast_td3 import FastSAC as FastSAC
    from striderl.algorithms.actor_critic.fast_td3 import FastSACConfig as FastSACConfig
    from striderl.algorithms.actor_critic.fast_td3 import FastTD3 as FastTD3
    from striderl.algorithms.actor_critic.fast_td3 import FastTD3Config as FastTD3Config
    from striderl.algorithms.actor_critic.fast_td3 import fast_sac as fast_sac
    from striderl.algorithms.actor_critic.fast_td3 import fast_td3 as fast_td3
    from striderl.algorithms.actor_critic.recurrent_sac import RecurrentSAC as RecurrentSAC
    from striderl.algorithms.actor_critic.recurrent_sac import RecurrentSACConfig as RecurrentSACConfig
    from striderl.algorithms.actor_critic.sac import REDQ as REDQ
    from striderl.algorithms.actor_critic.sac import SAC as SAC
    from striderl.algorithms.actor_critic.sac import TQC as TQC
    from striderl.algorithms.actor_critic.sac import REDQConfig as REDQConfig
    from striderl.algorithms.actor_critic.sac import SACConfig as SACConfig
    from striderl.algorithms.actor_critic.sac import TQCConfig as TQCConfig
    from striderl.algorithms.actor_critic.sac import redq as redq
    from striderl.algorithms.actor_critic.sac import tqc as tqc
    from striderl.algorithms.actor_critic.sac_discrete import DiscreteSAC as DiscreteSAC
    from striderl.algorithms.actor_critic.sac_discrete import DiscreteSACConfig as DiscreteSACConfig
    from striderl.algorithms.actor_critic.sac_discrete import discrete_sac as discrete_sac
    from striderl.algorithms.actor_critic.td3 import DDPG as DDPG
    from striderl.algorithms.actor_critic.td3 import TD3 as TD3
    from striderl.algorithms.actor_critic.td3 import DDPGConfig as DDPGConfig
    from striderl.algorithms.actor_critic.td3 import TD3Config as TD3Config
    from striderl.algorithms.actor_critic.td3 import ddpg as ddpg
    from striderl.algorithms.building import BuildContext as BuildContext
    from striderl.algorithms.building import build_actor as build_actor
    from striderl.algorithms.building import build_actor_critic as build_actor_critic
    from striderl.algorithms.building import build_critics as build_critics
    from striderl.algorithms.offline.bcq import BCQ as BCQ
    from striderl.algorithms.offline.bcq import BCQConfig as BCQConfig
    from striderl.algorithms.offline.bcq import Imitated as Imitated
    from striderl.algorithms.offline.behaviour_cloning import BC as BC
    from striderl.algorithms.offline.behaviour_cloning import BehaviourCloning as BehaviourCloning
    from striderl.algorithms.offline.behaviour_cloning import BehaviourCloningConfig as BehaviourCloningConfig
    from striderl.algorithms.offline.cql import CQL as CQL
    from striderl.algorithms.offline.cql import Conservative as Conservative
    from striderl.algorithms.offline.cql import CQLConfig as CQLConfig
    from striderl.algorithms.offline.iql import IQL as IQL
    from striderl.algorithms.offline.iql import IQLConfig as IQLConfig
    from striderl.algorithms.offline.td3_bc import TD3BC as TD3BC
    from striderl.algorithms.offline.td3_bc import TD3BCConfig as TD3BCConfig
    from striderl.algorithms.on_policy.a2c import A2C as A2C
    from striderl.algorithms.on_policy.a2c import A2CConfig as A2CConfig
    from striderl.algorithms.on_policy.appo import APPO as APPO
    from striderl.algorithms.on_policy.appo import ATPPO as ATPPO
    from striderl.algorithms.on_policy.appo import APPOConfig as APPOConfig
    from striderl.algorithms.on_policy.appo import ATPPOConfig as ATPPOConfig
    from striderl.algorithms.on_policy.dagger import DAgger as DAgger
    from striderl.algorithms.on_policy.dagger import DAggerConfig as DAggerConfig
    from striderl.algorithms.on_policy.estimator_ppo import EstimatorPPO as EstimatorPPO
    from striderl.algorithms.on_policy.estimator_ppo import EstimatorPPOConfig as EstimatorPPOConfig
    from striderl.algorithms.on_policy.gail import GAIL as GAIL
    from striderl.algorithms.on_policy.gail import GAILConfig as GAILConfig
    from striderl.algorithms.on_policy.impala import IMPALA as IMPALA
    from striderl.algorithms.on_policy.impala import IMPALAConfig as IMPALAConfig
    from striderl.algorithms.on_policy.ppo import PPO as PPO
    from striderl.algorithms.on_policy.ppo import PPOConfig as PPOConfig
    from striderl.algorithms.on_policy.reinforce import REINFORCE as REINFORCE
    from striderl.algorithms.on_policy.reinforce import REINFORCEConfig as REINFORCEConfig
    from striderl.algorithms.on_policy.tppo import TPPO as TPPO
    from striderl.algorithms.on_policy.tppo import EstimatorTPPO as EstimatorTPPO
    from striderl.algorithms.on_policy.tppo import EstimatorTPPOConfig as EstimatorTPPOConfig
    from striderl.algorithms.on_policy.tppo import TPPOConfig as TPPOConfig
    from striderl.algorithms.sequence_learning import SequenceConfig as SequenceConfig
    from striderl.algorithms.terms.adversarial import AdversarialConfig as AdversarialConfig
    from striderl.algorithms.terms.adversarial import AdversarialReward as AdversarialReward
    from striderl.algorithms.terms.adversarial import AdversarialTermConfig as AdversarialTermConfig
    from striderl.algorithms.terms.discriminator import InfoVector as InfoVector
    from striderl.algorithms.terms.discriminator import StateAction as StateAction
    from striderl.algorithms.terms.discriminator import StatePair as StatePair
    from striderl.algorithms.terms.distill import Distill as Distill
    from striderl.algorithms.terms.distill import DistillConfig as DistillConfig
    from striderl.algorithms.terms.estimation import Estimation as Estimation
    from striderl.algorithms.terms.estimation import EstimatorConfig as EstimatorConfig
    from striderl.algorithms.terms.expert import EnvExpert as EnvExpert
    from striderl.algorithms.terms.expert import Expert as Expert
    from striderl.algorithms.terms.expert import ExpertRows as ExpertRows
    from striderl.algorithms.terms.expert import expert_rows as expert_rows
    from striderl.algorithms.terms.mimic import Mimic as Mimic
    from striderl.algorithms.terms.mimic import MimicConfig as MimicConfig
    from striderl.algorithms.terms.motion_prior import MotionPrior as MotionPrior
    from striderl.algorithms.terms.motion_prior import MotionPriorConfig as MotionPriorConfig
    from striderl.algorithms.terms.rnd import RandomNetworkDistillation as RandomNetworkDistillation
    from striderl.algorithms.terms.rnd import RNDConfig as RNDConfig
    from striderl.algorithms.terms.symmetry import Symmetry as Symmetry
    from striderl.algorithms.terms.symmetry import SymmetryConfig as SymmetryConfig
    from striderl.algorithms.terms.term import Term as Term
    from striderl.algorithms.value_based.distributional import C51 as C51
    from striderl.algorithms.value_based.distributional import IQN as IQN
    from striderl.algorithms.value_based.distributional import QRDQN as QRDQN
    from striderl.algorithms.value_based.distributional import Atoms as Atoms
    from striderl.algorithms.value_based.distributional import C51Config as C51Config
    from striderl.algorithms.value_based.distributional import ImplicitQuantiles as ImplicitQuantiles
    from striderl.algorithms.value_based.distributional import IQNConfig as IQNConfig
    from striderl.algorithms.value_based.distributional import QRDQNConfig as QRDQNConfig
    from striderl.algorithms.value_based.distributional import Quantiles as Quantiles
    from striderl.algorithms.value_based.distributional import Rainbow as Rainbow
    from striderl.algorithms.value_based.distributional import RainbowConfig as RainbowConfig
    from striderl.algorithms.value_based.distributional import rainbow as rainbow
    from striderl.algorithms.value_based.dqn import DQN as DQN
    from striderl.algorithms.value_based.dqn import DQNConfig as DQNConfig
    from striderl.algorithms.value_based.dqn import Means as Means
    from striderl.algorithms.value_based.dqn import q_policy as q_policy
    from striderl.algorithms.value_based.recurrent_dqn import R2D2 as R2D2
    from striderl.algorithms.value_based.recurrent_dqn import R2D2Config as R2D2Config
    from striderl.algorithms.value_based.recurrent_dqn import RecurrentDQN as RecurrentDQN

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "actor_critic.crossq": ["CrossQ", "CrossQConfig", "crossq"],
        "actor_critic.fast_td3": ["FastSAC", "FastSACConfig", "FastTD3", "FastTD3Config", "fast_sac", "fast_td3"],
        "actor_critic.recurrent_sac": ["RecurrentSAC", "RecurrentSACConfig"],
        "actor_critic.sac": ["REDQ", "REDQConfig", "SAC", "SACConfig", "TQC", "TQCConfig", "redq", "tqc"],
        "actor_critic.sac_discrete": ["DiscreteSAC", "DiscreteSACConfig", "discrete_sac"],
        "actor_critic.td3": ["DDPG", "DDPGConfig", "TD3", "TD3Config", "ddpg"],
        "building": ["BuildContext", "build_actor", "build_actor_critic", "build_critics"],
        "offline.bcq": ["BCQ", "BCQConfig", "Imitated"],
        "offline.behaviour_cloning": ["BC", "BehaviourCloning", "BehaviourCloningConfig"],
        "offline.cql": ["CQL", "CQLConfig", "Conservative"],
        "offline.iql": ["IQL", "IQLConfig"],
        "offline.td3_bc": ["TD3BC", "TD3BCConfig"],
        "on_policy.a2c": ["A2C", "A2CConfig"],
        "on_policy.appo": ["APPO", "APPOConfig", "ATPPO", "ATPPOConfig"],
        "on_policy.dagger": ["DAgger", "DAggerConfig"],
        "on_policy.estimator_ppo": ["EstimatorPPO", "EstimatorPPOConfig"],
        "on_policy.gail": ["GAIL", "GAILConfig"],
        "on_policy.impala": ["IMPALA", "IMPALAConfig"],
        "on_policy.ppo": ["PPO", "PPOConfig"],
        "on_policy.reinforce": ["REINFORCE", "REINFORCEConfig"],
        "on_policy.tppo": ["EstimatorTPPO", "EstimatorTPPOConfig", "TPPO", "TPPOConfig"],
        "sequence_learning": ["SequenceConfig"],
        "terms.adversarial": ["AdversarialConfig", "AdversarialReward", "AdversarialTermConfig"],
        "terms.discriminator": ["InfoVector", "StateAction", "StatePair"],
        "terms.distill": ["Distill", "DistillConfig"],
        "terms.estimation": ["Estimation", "EstimatorConfig"],
        "terms.expert": ["EnvExpert", "Expert", "ExpertRows", "expert_rows"],
        "terms.mimic": ["Mimic", "MimicConfig"],
        "terms.motion_prior": ["MotionPrior", "MotionPriorConfig"],
        "terms.rnd": ["RNDConfig", "RandomNetworkDistillation"],
        "terms.symmetry": ["Symmetry", "SymmetryConfig"],
        "terms.term": ["Term"],
        "value_based.distributional": [
            "Atoms",
            "C51",
            "C51Config",
            "IQN",
            "IQNConfig",
            "ImplicitQuantiles",
            "QRDQN",
            "QRDQNConfig",
            "Quantiles",
            "Rainbow",
            "RainbowConfig",
            "rainbow",
        ],
        "value_based.dqn": ["DQN", "DQNConfig", "Means", "q_policy"],
        "value_based.recurrent_dqn": ["R2D2", "R2D2Config", "RecurrentDQN"],
    },
    unlisted={
        "on_policy.reward_groups": ["RewardGroups"],
        "terms.expert": ["as_expert"],
        "terms.resample_memory": ["ResampleMemory"],
        "terms.symmetry": ["MirrorTable"],
    },
)
