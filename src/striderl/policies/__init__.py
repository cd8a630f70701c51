"""Policies: stages and heads composed into actors and critics; every class name of the st_rl line as a preset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.policies.actor_policy import ActorConfig as ActorConfig
    from striderl.policies.actor_policy import ActorPolicy as ActorPolicy
    from striderl.policies.choice_q_function import ChoiceQFunction as ChoiceQFunction
    from striderl.policies.encode import Encode as Encode
    from striderl.policies.estimate import Adapt as Adapt
    from striderl.policies.estimate import Estimate as Estimate
    from striderl.policies.facade.stateful import StatefulPolicy as StatefulPolicy
    from striderl.policies.hidden_states import ActorCriticHiddenState as ActorCriticHiddenState
    from striderl.policies.hidden_states import AdaptorActorHiddenState as AdaptorActorHiddenState
    from striderl.policies.hidden_states import EstimatorActorHiddenState as EstimatorActorHiddenState
    from striderl.policies.hidden_states import LstmHiddenState as LstmHiddenState
    from striderl.policies.mutex.classes import ActorCriticClimbMutex as ActorCriticClimbMutex
    from striderl.policies.mutex.classes import ActorCriticFieldMutex as ActorCriticFieldMutex
    from striderl.policies.mutex.classes import ActorCriticMutex as ActorCriticMutex
    from striderl.policies.mutex.policy import MutexPolicy as MutexPolicy
    from striderl.policies.policy import Policy as Policy
    from striderl.policies.policy import PolicyConfig as PolicyConfig
    from striderl.policies.policy import PolicyOutput as PolicyOutput
    from striderl.policies.presets.amp import AmpActorCritic as AmpActorCritic
    from striderl.policies.presets.amp import AmpActorCriticRecurrent as AmpActorCriticRecurrent
    from striderl.policies.presets.amp import EncoderAmpActorCriticRecurrent as EncoderAmpActorCriticRecurrent
    from striderl.policies.presets.encoder import EncoderActorCritic as EncoderActorCritic
    from striderl.policies.presets.encoder import EncoderActorCriticRecurrent as EncoderActorCriticRecurrent
    from striderl.policies.presets.plain import Actor as Actor
    from striderl.policies.presets.plain import ActorCritic as ActorCritic
    from striderl.policies.presets.plain import ActorCriticRecurrent as ActorCriticRecurrent
    from striderl.policies.presets.plain import Critic as Critic
    from striderl.policies.presets.plain import DeterministicPolicy as DeterministicPolicy
    from striderl.policies.presets.state import EncoderStateAc as EncoderStateAc
    from striderl.policies.presets.state import EncoderStateAcRecurrent as EncoderStateAcRecurrent
    from striderl.policies.presets.state import PrivilegeStateAcRecurrent as PrivilegeStateAcRecurrent
    from striderl.policies.presets.state import StateAc as StateAc
    from striderl.policies.presets.state import StateAcRecurrent as StateAcRecurrent
    from striderl.policies.presets.visual import VisualDeterministicAC as VisualDeterministicAC
    from striderl.policies.presets.visual import VisualDeterministicRecurrent as VisualDeterministicRecurrent
    from striderl.policies.q_function import QFunction as QFunction
    from striderl.policies.q_function import QFunctionConfig as QFunctionConfig
    from striderl.policies.run_reader import read_run as read_run
    from striderl.policies.settings import EncoderSettings as EncoderSettings
    from striderl.policies.settings import PolicySettings as PolicySettings
    from striderl.policies.stages import NormalizeObs as NormalizeObs
    from striderl.policies.stages import OneHot as OneHot
    from striderl.policies.stages import Override as Override
    from striderl.policies.stages import Remember as Remember
    from striderl.policies.transfer.load import input_columns as input_columns
    from striderl.policies.transfer.load import load_misaligned_state_dict as load_misaligned_state_dict
    from striderl.policies.transfer.parts import load_parts as load_parts
    from striderl.policies.transfer.parts import replace_encoder as replace_encoder
    from striderl.policies.transfer.parts import replace_encoder0 as replace_encoder0
    from striderl.policies.transfer.report import TransferError as TransferError
    from striderl.policies.transfer.report import TransferReport as TransferReport
    from striderl.policies.transfer.rsl_rl_names import load_rsl_rl as load_rsl_rl
    from striderl.policies.transfer.rsl_rl_names import policy_from_rsl_rl as policy_from_rsl_rl
    from striderl.policies.value_function import ValueFunction as ValueFunction

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "actor_policy": [
            "ActorConfig",
            "ActorPolicy",
        ],
        "choice_q_function": [
            "ChoiceQFunction",
        ],
        "encode": [
            "Encode",
        ],
        "estimate": [
            "Adapt",
            "Estimate",
        ],
        "facade.stateful": [
            "StatefulPolicy",
        ],
        "hidden_states": [
            "ActorCriticHiddenState",
            "AdaptorActorHiddenState",
            "EstimatorActorHiddenState",
            "LstmHiddenState",
        ],
        "mutex.classes": [
            "ActorCriticClimbMutex",
            "ActorCriticFieldMutex",
            "ActorCriticMutex",
        ],
        "mutex.policy": [
            "MutexPolicy",
        ],
        "policy": [
            "Policy",
            "PolicyConfig",
            "PolicyOutput",
        ],
        "presets.amp": [
            "AmpActorCritic",
            "AmpActorCriticRecurrent",
            "EncoderAmpActorCriticRecurrent",
        ],
        "presets.encoder": [
            "EncoderActorCritic",
            "EncoderActorCriticRecurrent",
        ],
        "presets.plain": [
            "Actor",
            "ActorCritic",
            "ActorCriticRecurrent",
            "Critic",
            "DeterministicPolicy",
        ],
        "presets.state": [
            "EncoderStateAc",
            "EncoderStateAcRecurrent",
            "PrivilegeStateAcRecurrent",
            "StateAc",
            "StateAcRecurrent",
        ],
        "presets.visual": [
            "VisualDeterministicAC",
            "VisualDeterministicRecurrent",
        ],
        "q_function": [
            "QFunction",
            "QFunctionConfig",
        ],
        "run_reader": [
            "read_run",
        ],
        "settings": [
            "EncoderSettings",
            "PolicySettings",
        ],
        "stages": [
            "NormalizeObs",
            "OneHot",
            "Override",
            "Remember",
        ],
        "transfer.load": [
            "input_columns",
            "load_misaligned_state_dict",
        ],
        "transfer.parts": [
            "load_parts",
            "replace_encoder",
            "replace_encoder0",
        ],
        "transfer.report": [
            "TransferError",
            "TransferReport",
        ],
        "transfer.rsl_rl_names": [
            "load_rsl_rl",
            "policy_from_rsl_rl",
        ],
        "value_function": [
            "ValueFunction",
        ],
    },
)
