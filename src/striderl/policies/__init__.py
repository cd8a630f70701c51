"""Policies: stages and heads composed into actors and critics; every class name of the st_rl line as a preset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.policies.actor_policy import ActorConfig as ActorConfig
    from striderl.policies.actor_policy import ActorPolicy as ActorPolicy
    from striderl.policies.encode import Encode as Encode
    from striderl.policies.estimate import Adapt as Adapt
    from striderl.policies.estimate import Estimate as Estimate
    from striderl.policies.facade.memory import ActorCriticHiddenState as ActorCriticHiddenState
    from striderl.policies.facade.memory import EstimatorActorHiddenState as EstimatorActorHiddenState
    from striderl.policies.facade.memory import LstmHiddenState as LstmHiddenState
    from striderl.policies.facade.stateful import StatefulPolicy as StatefulPolicy
    from striderl.policies.mutex.classes import ActorCriticClimbMutex as ActorCriticClimbMutex
    from striderl.policies.mutex.classes import ActorCriticFieldMutex as ActorCriticFieldMutex
    from striderl.policies.mutex.classes import ActorCriticMutex as ActorCriticMutex
    from striderl.policies.policy import Policy as Policy
    from striderl.policies.policy import PolicyConfig as PolicyConfig
    from striderl.policies.policy import PolicyOutput as PolicyOutput
    from striderl.policies.presets.amp import AmpActorCritic as AmpActorCritic
    from striderl.policies.presets.amp import AmpActorCriticRecurrent as AmpActorCriticRecurrent
    from striderl.policies.presets.amp import EncoderAmpActorCriticRecurrent as EncoderAmpActorCriticRecurrent
    from striderl.policies.presets.base import Actor as Actor
    from striderl.policies.presets.base import ActorCritic as ActorCritic
    from striderl.policies.presets.base import ActorCriticRecurrent as ActorCriticRecurrent
    from striderl.policies.presets.base import Critic as Critic
    from striderl.policies.presets.base import DeterministicPolicy as DeterministicPolicy
    from striderl.policies.presets.encoder import EncoderActorCritic as EncoderActorCritic
    from striderl.policies.presets.encoder import EncoderActorCriticRecurrent as EncoderActorCriticRecurrent
    from striderl.policies.presets.encoder import VisualDeterministicAC as VisualDeterministicAC
    from striderl.policies.presets.encoder import VisualDeterministicRecurrent as VisualDeterministicRecurrent
    from striderl.policies.presets.state import EncoderStateAc as EncoderStateAc
    from striderl.policies.presets.state import EncoderStateAcRecurrent as EncoderStateAcRecurrent
    from striderl.policies.presets.state import PrivilegeStateAcRecurrent as PrivilegeStateAcRecurrent
    from striderl.policies.presets.state import StateAc as StateAc
    from striderl.policies.presets.state import StateAcRecurrent as StateAcRecurrent
    from striderl.policies.run_reader import read_run as read_run
    from striderl.policies.settings import PolicySettings as PolicySettings
    from striderl.policies.stages import NormalizeObs as NormalizeObs
    from striderl.policies.stages import OneHot as OneHot
    from striderl.policies.stages import Override as Override
    from striderl.policies.stages import Remember as Remember
    from striderl.policies.transfer.load import TransferError as TransferError
    from striderl.policies.transfer.load import load_misaligned_state_dict as load_misaligned_state_dict
    from striderl.policies.transfer.parts import load_parts as load_parts
    from striderl.policies.transfer.parts import replace_encoder0 as replace_encoder0
    from striderl.policies.transfer.rsl_rl_names import load_rsl_rl as load_rsl_rl
    from striderl.policies.transfer.rsl_rl_names import policy_from_rsl_rl as policy_from_rsl_rl
    from striderl.policies.value_functions import ChoiceQFunction as ChoiceQFunction
    from striderl.policies.value_functions import QFunction as QFunction
    from striderl.policies.value_functions import QFunctionConfig as QFunctionConfig
    from striderl.policies.value_functions import ValueFunction as ValueFunction

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "actor_policy": ["ActorConfig", "ActorPolicy"],
        "encode": ["Encode"],
        "estimate": ["Adapt", "Estimate"],
        "facade.memory": ["ActorCriticHiddenState", "EstimatorActorHiddenState", "LstmHiddenState"],
        "facade.stateful": ["StatefulPolicy"],
        "mutex.classes": ["ActorCriticClimbMutex", "ActorCriticFieldMutex", "ActorCriticMutex"],
        "policy": ["Policy", "PolicyConfig", "PolicyOutput"],
        "presets.amp": ["AmpActorCritic", "AmpActorCriticRecurrent", "EncoderAmpActorCriticRecurrent"],
        "presets.base": ["Actor", "ActorCritic", "ActorCriticRecurrent", "Critic", "DeterministicPolicy"],
        "presets.encoder": [
            "EncoderActorCritic",
            "EncoderActorCriticRecurrent",
            "VisualDeterministicAC",
            "VisualDeterministicRecurrent",
        ],
        "presets.state": [
            "EncoderStateAc",
            "EncoderStateAcRecurrent",
            "PrivilegeStateAcRecurrent",
            "StateAc",
            "StateAcRecurrent",
        ],
        "run_reader": ["read_run"],
        "settings": ["PolicySettings"],
        "stages": ["NormalizeObs", "OneHot", "Override", "Remember"],
        "transfer.load": ["TransferError", "load_misaligned_state_dict"],
        "transfer.parts": ["load_parts", "replace_encoder0"],
        "transfer.rsl_rl_names": ["load_rsl_rl", "policy_from_rsl_rl"],
        "value_functions": ["ChoiceQFunction", "QFunction", "QFunctionConfig", "ValueFunction"],
    },
    unlisted={
        "facade.memory": ["AdaptorActorHiddenState"],
        "mutex.policy": ["MutexPolicy"],
        "settings": ["EncoderSettings"],
        "transfer.load": ["TransferReport", "input_columns"],
    },
)
