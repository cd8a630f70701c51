"""st_rl's and rsl_rl 1's own classes: bring a program, change its imports, override any method.

from st_rl.modules.normalizer import Normalizer     from striderl.compat.st_rl.modules.normalizer import Normalizer
from rsl_rl.runners import OnPolicyRunner           from striderl.compat.st_rl.runners import OnPolicyRunner
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy
from striderl.compat import original_paths

original_paths.install(__name__, original_paths.ST_RL)

if TYPE_CHECKING:
    from striderl.compat.st_rl.algorithms import PPO as PPO
    from striderl.compat.st_rl.build import load_policy as load_policy
    from striderl.compat.st_rl.build import load_run as load_run
    from striderl.compat.st_rl.encoders import EncoderActorCritic as EncoderActorCritic
    from striderl.compat.st_rl.encoders import EncoderActorCriticMixin as EncoderActorCriticMixin
    from striderl.compat.st_rl.encoders import EncoderActorCriticRecurrent as EncoderActorCriticRecurrent
    from striderl.compat.st_rl.encoders import EncoderAmpActorCriticRecurrent as EncoderAmpActorCriticRecurrent
    from striderl.compat.st_rl.encoders import VisualActorCriticMixin as VisualActorCriticMixin
    from striderl.compat.st_rl.encoders import VisualDeterministicAC as VisualDeterministicAC
    from striderl.compat.st_rl.encoders import VisualDeterministicRecurrent as VisualDeterministicRecurrent
    from striderl.compat.st_rl.encoders import get_obs_slice as get_obs_slice
    from striderl.compat.st_rl.encoders import get_subobs_by_components as get_subobs_by_components
    from striderl.compat.st_rl.encoders import get_subobs_size as get_subobs_size
    from striderl.compat.st_rl.encoders import substitute_estimated_state as substitute_estimated_state
    from striderl.compat.st_rl.estimators import EncoderStateAc as EncoderStateAc
    from striderl.compat.st_rl.estimators import EncoderStateAcRecurrent as EncoderStateAcRecurrent
    from striderl.compat.st_rl.estimators import EstimatorMixin as EstimatorMixin
    from striderl.compat.st_rl.estimators import PrivilegeEstimatorMixin as PrivilegeEstimatorMixin
    from striderl.compat.st_rl.estimators import PrivilegeStateAcRecurrent as PrivilegeStateAcRecurrent
    from striderl.compat.st_rl.estimators import StateAc as StateAc
    from striderl.compat.st_rl.estimators import StateAcRecurrent as StateAcRecurrent
    from striderl.compat.st_rl.modules import ActorCritic as ActorCritic
    from striderl.compat.st_rl.modules import ActorCriticRecurrent as ActorCriticRecurrent
    from striderl.compat.st_rl.modules import AmpActorCritic as AmpActorCritic
    from striderl.compat.st_rl.modules import AmpActorCriticRecurrent as AmpActorCriticRecurrent
    from striderl.compat.st_rl.modules import AmpMixin as AmpMixin
    from striderl.compat.st_rl.modules import DeterministicPolicyMixin as DeterministicPolicyMixin
    from striderl.compat.st_rl.modules import Memory as Memory
    from striderl.compat.st_rl.modules import get_activation_Cls as get_activation_Cls
    from striderl.compat.st_rl.modules import unpad_trajectories as unpad_trajectories
    from striderl.compat.st_rl.normalizers import (
        EmpiricalDiscountedVariationNormalization as EmpiricalDiscountedVariationNormalization,
    )
    from striderl.compat.st_rl.normalizers import EmpiricalNormalization as EmpiricalNormalization
    from striderl.compat.st_rl.normalizers import Normalizer as Normalizer
    from striderl.compat.st_rl.recordings import DaggerSaver as DaggerSaver
    from striderl.compat.st_rl.recordings import export_old_trajectories as export_old_trajectories
    from striderl.compat.st_rl.relatives import APPO as APPO
    from striderl.compat.st_rl.relatives import ATPPO as ATPPO
    from striderl.compat.st_rl.relatives import GET_PROB_FUNC as GET_PROB_FUNC
    from striderl.compat.st_rl.relatives import TPPO as TPPO
    from striderl.compat.st_rl.relatives import APPOAlgoMixin as APPOAlgoMixin
    from striderl.compat.st_rl.relatives import EstimatorAlgoMixin as EstimatorAlgoMixin
    from striderl.compat.st_rl.relatives import EstimatorPPO as EstimatorPPO
    from striderl.compat.st_rl.relatives import EstimatorTPPO as EstimatorTPPO
    from striderl.compat.st_rl.runners import AmpPolicyRunner as AmpPolicyRunner
    from striderl.compat.st_rl.runners import OnPolicyRunner as OnPolicyRunner
    from striderl.compat.st_rl.runners import TwoStageRunner as TwoStageRunner
    from striderl.compat.st_rl.storage import ActionLabelRollout as ActionLabelRollout
    from striderl.compat.st_rl.storage import AmpRolloutStorage as AmpRolloutStorage
    from striderl.compat.st_rl.storage import QueueRolloutStorage as QueueRolloutStorage
    from striderl.compat.st_rl.storage import RolloutStorage as RolloutStorage
    from striderl.compat.st_rl.storage import SarsaRolloutStorage as SarsaRolloutStorage

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "algorithms": ["PPO"],
        "build": ["load_policy", "load_run"],
        "encoders": [
            "EncoderActorCritic",
            "EncoderActorCriticMixin",
            "EncoderActorCriticRecurrent",
            "EncoderAmpActorCriticRecurrent",
            "VisualActorCriticMixin",
            "VisualDeterministicAC",
            "VisualDeterministicRecurrent",
            "get_obs_slice",
            "get_subobs_by_components",
            "get_subobs_size",
            "substitute_estimated_state",
        ],
        "estimators": [
            "EncoderStateAc",
            "EncoderStateAcRecurrent",
            "EstimatorMixin",
            "PrivilegeEstimatorMixin",
            "PrivilegeStateAcRecurrent",
            "StateAc",
            "StateAcRecurrent",
        ],
        "modules": [
            "ActorCritic",
            "ActorCriticRecurrent",
            "AmpActorCritic",
            "AmpActorCriticRecurrent",
            "AmpMixin",
            "DeterministicPolicyMixin",
            "Memory",
            "get_activation_Cls",
            "unpad_trajectories",
        ],
        "normalizers": ["EmpiricalDiscountedVariationNormalization", "EmpiricalNormalization", "Normalizer"],
        "recordings": ["DaggerSaver", "export_old_trajectories"],
        "relatives": [
            "APPO",
            "APPOAlgoMixin",
            "ATPPO",
            "EstimatorAlgoMixin",
            "EstimatorPPO",
            "EstimatorTPPO",
            "GET_PROB_FUNC",
            "TPPO",
        ],
        "runners": ["AmpPolicyRunner", "OnPolicyRunner", "TwoStageRunner"],
        "storage": [
            "ActionLabelRollout",
            "AmpRolloutStorage",
            "QueueRolloutStorage",
            "RolloutStorage",
            "SarsaRolloutStorage",
        ],
    },
)
