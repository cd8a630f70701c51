"""Algorithms: pure losses and targets, and the terms that are handed to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.algorithms.a2c import A2C as A2C
    from striderl.algorithms.a2c import A2CConfig as A2CConfig
    from striderl.algorithms.appo import APPO as APPO
    from striderl.algorithms.appo import APPOConfig as APPOConfig
    from striderl.algorithms.atppo import ATPPO as ATPPO
    from striderl.algorithms.atppo import ATPPOConfig as ATPPOConfig
    from striderl.algorithms.bcq import BCQ as BCQ
    from striderl.algorithms.bcq import BCQConfig as BCQConfig
    from striderl.algorithms.bcq import Imitated as Imitated
    from striderl.algorithms.behaviour_cloning import BC as BC
    from striderl.algorithms.behaviour_cloning import BehaviourCloning as BehaviourCloning
    from striderl.algorithms.behaviour_cloning import BehaviourCloningConfig as BehaviourCloningConfig
    from striderl.algorithms.building import BuildContext as BuildContext
    from striderl.algorithms.building import build_actor as build_actor
    from striderl.algorithms.building import build_actor_critic as build_actor_critic
    from striderl.algorithms.building import build_critics as build_critics
    from striderl.algorithms.c51 import C51 as C51
    from striderl.algorithms.c51 import Atoms as Atoms
    from striderl.algorithms.c51 import C51Config as C51Config
    from striderl.algorithms.cql import CQL as CQL
    from striderl.algorithms.cql import Conservative as Conservative
    from striderl.algorithms.cql import CQLConfig as CQLConfig
    from striderl.algorithms.crossq import CrossQ as CrossQ
    from striderl.algorithms.crossq import CrossQConfig as CrossQConfig
    from striderl.algorithms.crossq import crossq as crossq
    from striderl.algorithms.dagger import DAgger as DAgger
    from striderl.algorithms.dagger import DAggerConfig as DAggerConfig
    from striderl.algorithms.ddpg import DDPG as DDPG
    from striderl.algorithms.ddpg import DDPGConfig as DDPGConfig
    from striderl.algorithms.ddpg import ddpg as ddpg
    from striderl.algorithms.dqn import DQN as DQN
    from striderl.algorithms.dqn import DQNConfig as DQNConfig
    from striderl.algorithms.dqn import Means as Means
    from striderl.algorithms.dqn import q_policy as q_policy
    from striderl.algorithms.estimator_ppo import EstimatorPPO as EstimatorPPO
    from striderl.algorithms.estimator_ppo import EstimatorPPOConfig as EstimatorPPOConfig
    from striderl.algorithms.fast_td3 import FastSAC as FastSAC
    from striderl.algorithms.fast_td3 import FastSACConfig as FastSACConfig
    from striderl.algorithms.fast_td3 import FastTD3 as FastTD3
    from striderl.algorithms.fast_td3 import FastTD3Config as FastTD3Config
    from striderl.algorithms.fast_td3 import fast_sac as fast_sac
    from striderl.algorithms.fast_td3 import fast_td3 as fast_td3
    from striderl.algorithms.gail import GAIL as GAIL
    from striderl.algorithms.gail import GAILConfig as GAILConfig
    from striderl.algorithms.iql import IQL as IQL
    from striderl.algorithms.iql import IQLConfig as IQLConfig
    from striderl.algorithms.iqn import IQN as IQN
    from striderl.algorithms.iqn import ImplicitQuantiles as ImplicitQuantiles
    from striderl.algorithms.iqn import IQNConfig as IQNConfig
    from striderl.algorithms.ppo import PPO as PPO
    from striderl.algorithms.ppo import PPOConfig as PPOConfig
    from striderl.algorithms.qr_dqn import QRDQN as QRDQN
    from striderl.algorithms.qr_dqn import QRDQNConfig as QRDQNConfig
    from striderl.algorithms.qr_dqn import Quantiles as Quantiles
    from striderl.algorithms.rainbow import Rainbow as Rainbow
    from striderl.algorithms.rainbow import RainbowConfig as RainbowConfig
    from striderl.algorithms.rainbow import rainbow as rainbow
    from striderl.algorithms.recurrent_dqn import R2D2 as R2D2
    from striderl.algorithms.recurrent_dqn import R2D2Config as R2D2Config
    from striderl.algorithms.recurrent_dqn import RecurrentDQN as RecurrentDQN
    from striderl.algorithms.recurrent_sac import RecurrentSAC as RecurrentSAC
    from striderl.algorithms.recurrent_sac import RecurrentSACConfig as RecurrentSACConfig
    from striderl.algorithms.redq import REDQ as REDQ
    from striderl.algorithms.redq import REDQConfig as REDQConfig
    from striderl.algorithms.redq import redq as redq
    from striderl.algorithms.reinforce import REINFORCE as REINFORCE
    from striderl.algorithms.reinforce import REINFORCEConfig as REINFORCEConfig
    from striderl.algorithms.reward_groups import RewardGroups as RewardGroups
    from striderl.algorithms.sac import SAC as SAC
    from striderl.algorithms.sac import SACConfig as SACConfig
    from striderl.algorithms.sac_discrete import DiscreteSAC as DiscreteSAC
    from striderl.algorithms.sac_discrete import DiscreteSACConfig as DiscreteSACConfig
    from striderl.algorithms.sac_discrete import discrete_sac as discrete_sac
    from striderl.algorithms.sequence_learning import SequenceConfig as SequenceConfig
    from striderl.algorithms.td3 import TD3 as TD3
    from striderl.algorithms.td3 import TD3Config as TD3Config
    from striderl.algorithms.td3_bc import TD3BC as TD3BC
    from striderl.algorithms.td3_bc import TD3BCConfig as TD3BCConfig
    from striderl.algorithms.terms.adversarial import AdversarialConfig as AdversarialConfig
    from striderl.algorithms.terms.adversarial import AdversarialReward as AdversarialReward
    from striderl.algorithms.terms.adversarial import AdversarialTermConfig as AdversarialTermConfig
    from striderl.algorithms.terms.adversarial_expert import ExpertRows as ExpertRows
    from striderl.algorithms.terms.adversarial_expert import expert_rows as expert_rows
    from striderl.algorithms.terms.adversarial_features import InfoVector as InfoVector
    from striderl.algorithms.terms.adversarial_features import StateAction as StateAction
    from striderl.algorithms.terms.adversarial_features import StatePair as StatePair
    from striderl.algorithms.terms.distill import Distill as Distill
    from striderl.algorithms.terms.distill_config import DistillConfig as DistillConfig
    from striderl.algorithms.terms.estimation import Estimation as Estimation
    from striderl.algorithms.terms.estimation import EstimatorConfig as EstimatorConfig
    from striderl.algorithms.terms.mimic import Mimic as Mimic
    from striderl.algorithms.terms.mimic import MimicConfig as MimicConfig
    from striderl.algorithms.terms.motion_expert import EnvExpert as EnvExpert
    from striderl.algorithms.terms.motion_expert import Expert as Expert
    from striderl.algorithms.terms.motion_expert import as_expert as as_expert
    from striderl.algorithms.terms.motion_prior import MotionPrior as MotionPrior
    from striderl.algorithms.terms.motion_prior_config import MotionPriorConfig as MotionPriorConfig
    from striderl.algorithms.terms.resample_memory import ResampleMemory as ResampleMemory
    from striderl.algorithms.terms.rnd import RandomNetworkDistillation as RandomNetworkDistillation
    from striderl.algorithms.terms.rnd import RNDConfig as RNDConfig
    from striderl.algorithms.terms.symmetry import MirrorTable as MirrorTable
    from striderl.algorithms.terms.symmetry import Symmetry as Symmetry
    from striderl.algorithms.terms.symmetry import SymmetryConfig as SymmetryConfig
    from striderl.algorithms.terms.term import Term as Term
    from striderl.algorithms.tppo import TPPO as TPPO
    from striderl.algorithms.tppo import EstimatorTPPO as EstimatorTPPO
    from striderl.algorithms.tppo import EstimatorTPPOConfig as EstimatorTPPOConfig
    from striderl.algorithms.tppo import TPPOConfig as TPPOConfig
    from striderl.algorithms.tqc import TQC as TQC
    from striderl.algorithms.tqc import TQCConfig as TQCConfig
    from striderl.algorithms.tqc import tqc as tqc

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "a2c": ["A2C", "A2CConfig"],
        "appo": ["APPO", "APPOConfig"],
        "atppo": ["ATPPO", "ATPPOConfig"],
        "bcq": ["BCQ", "BCQConfig", "Imitated"],
        "behaviour_cloning": ["BC", "BehaviourCloning", "BehaviourCloningConfig"],
        "building": ["BuildContext", "build_actor", "build_actor_critic", "build_critics"],
        "c51": ["Atoms", "C51", "C51Config"],
        "cql": ["CQL", "CQLConfig", "Conservative"],
        "crossq": ["CrossQ", "CrossQConfig", "crossq"],
        "dagger": ["DAgger", "DAggerConfig"],
        "ddpg": ["DDPG", "DDPGConfig", "ddpg"],
        "dqn": ["DQN", "DQNConfig", "Means", "q_policy"],
        "estimator_ppo": ["EstimatorPPO", "EstimatorPPOConfig"],
        "fast_td3": ["FastSAC", "FastSACConfig", "FastTD3", "FastTD3Config", "fast_sac", "fast_td3"],
        "gail": ["GAIL", "GAILConfig"],
        "iql": ["IQL", "IQLConfig"],
        "iqn": ["IQN", "IQNConfig", "ImplicitQuantiles"],
        "ppo": ["PPO", "PPOConfig"],
        "qr_dqn": ["QRDQN", "QRDQNConfig", "Quantiles"],
        "rainbow": ["Rainbow", "RainbowConfig", "rainbow"],
        "recurrent_dqn": ["R2D2", "R2D2Config", "RecurrentDQN"],
        "recurrent_sac": ["RecurrentSAC", "RecurrentSACConfig"],
        "redq": ["REDQ", "REDQConfig", "redq"],
        "reinforce": ["REINFORCE", "REINFORCEConfig"],
        "reward_groups": ["RewardGroups"],
        "sac": ["SAC", "SACConfig"],
        "sac_discrete": ["DiscreteSAC", "DiscreteSACConfig", "discrete_sac"],
        "sequence_learning": ["SequenceConfig"],
        "td3": ["TD3", "TD3Config"],
        "td3_bc": ["TD3BC", "TD3BCConfig"],
        "terms.adversarial": ["AdversarialConfig", "AdversarialReward", "AdversarialTermConfig"],
        "terms.adversarial_expert": ["ExpertRows", "expert_rows"],
        "terms.adversarial_features": ["InfoVector", "StateAction", "StatePair"],
        "terms.distill": ["Distill"],
        "terms.distill_config": ["DistillConfig"],
        "terms.estimation": ["Estimation", "EstimatorConfig"],
        "terms.mimic": ["Mimic", "MimicConfig"],
        "terms.motion_expert": ["EnvExpert", "Expert", "as_expert"],
        "terms.motion_prior": ["MotionPrior"],
        "terms.motion_prior_config": ["MotionPriorConfig"],
        "terms.resample_memory": ["ResampleMemory"],
        "terms.rnd": ["RNDConfig", "RandomNetworkDistillation"],
        "terms.symmetry": ["MirrorTable", "Symmetry", "SymmetryConfig"],
        "terms.term": ["Term"],
        "tppo": ["EstimatorTPPO", "EstimatorTPPOConfig", "TPPO", "TPPOConfig"],
        "tqc": ["TQC", "TQCConfig", "tqc"],
    },
)
