"""The names of `tianshou.policy`, and `AlgorithmPolicy`, which makes one of our own algorithms."""

from striderl.compat.tianshou.algorithm_policy import AlgorithmPolicy as AlgorithmPolicy
from striderl.compat.tianshou.base_policy import BasePolicy as BasePolicy
from striderl.compat.tianshou.policy.off_policy import DDPGPolicy as DDPGPolicy
from striderl.compat.tianshou.policy.off_policy import DiscreteSACPolicy as DiscreteSACPolicy
from striderl.compat.tianshou.policy.off_policy import DQNPolicy as DQNPolicy
from striderl.compat.tianshou.policy.off_policy import SACPolicy as SACPolicy
from striderl.compat.tianshou.policy.off_policy import TD3Policy as TD3Policy
from striderl.compat.tianshou.policy.on_policy import A2CPolicy as A2CPolicy
from striderl.compat.tianshou.policy.on_policy import PGPolicy as PGPolicy
from striderl.compat.tianshou.policy.on_policy import PPOPolicy as PPOPolicy
from striderl.compat.tianshou.policy.other_policies import ImitationPolicy as ImitationPolicy
from striderl.compat.tianshou.policy.other_policies import MultiAgentPolicyManager as MultiAgentPolicyManager
from striderl.compat.tianshou.policy.other_policies import PSRLPolicy as PSRLPolicy
from striderl.compat.tianshou.policy.other_policies import RandomPolicy as RandomPolicy
