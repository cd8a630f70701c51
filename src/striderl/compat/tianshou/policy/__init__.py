"""The names of `tianshou.policy`, and `AlgorithmPolicy`, which makes one of our own algorithms."""

from striderl.compat.tianshou.algorithm_policy import AlgorithmPolicy
from striderl.compat.tianshou.base_policy import BasePolicy
from striderl.compat.tianshou.policy.off_policy import DDPGPolicy, DiscreteSACPolicy, DQNPolicy, SACPolicy, TD3Policy
from striderl.compat.tianshou.policy.on_policy import A2CPolicy, PGPolicy, PPOPolicy
from striderl.compat.tianshou.policy.other_policies import (
    ImitationPolicy,
    MultiAgentPolicyManager,
    PSRLPolicy,
    RandomPolicy,
)

__all__ = [
    "A2CPolicy",
    "AlgorithmPolicy",
    "BasePolicy",
    "DDPGPolicy",
    "DQNPolicy",
    "DiscreteSACPolicy",
    "ImitationPolicy",
    "MultiAgentPolicyManager",
    "PGPolicy",
    "PPOPolicy",
    "PSRLPolicy",
    "RandomPolicy",
    "SACPolicy",
    "TD3Policy",
]
