"""The algorithms that a run can be told by name: the one table, with the settings and the way to build each.

    name ──▶ AlgorithmEntry: type of its settings, type of its plan, policy(config, specs), learner(config, env, ranks)
                                                                                              │
    Learner: the policy, who plays it greedily, and a function that makes the trainer for some consumers

An off-policy algorithm is one more entry: its plan is another class, and its learner makes a replay buffer. One that
learns from a dataset has an `OfflinePlan`, and its learner loads the folder `RunConfig.dataset`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from striderl.algorithms.a2c import A2CConfig
from striderl.algorithms.bcq import BCQConfig
from striderl.algorithms.behaviour_cloning import BehaviourCloningConfig
from striderl.algorithms.cql import CQLConfig
from striderl.algorithms.dqn import DQNConfig
from striderl.algorithms.iql import IQLConfig
from striderl.algorithms.ppo import PPOConfig
from striderl.algorithms.reinforce import REINFORCEConfig
from striderl.algorithms.sac import SACConfig
from striderl.algorithms.td3 import TD3Config
from striderl.algorithms.td3_bc import TD3BCConfig
from striderl.algorithms.tppo import TPPOConfig
from striderl.data.naming import unknown
from striderl.training.algorithm_entry import AlgorithmEntry
from striderl.training.offline_learners import (
    bcq_policy_of,
    make_bc,
    make_bcq,
    make_cql,
    make_iql,
    make_td3_bc,
    offline,
)
from striderl.training.on_policy_learners import make_a2c, make_ppo, make_reinforce, make_tppo, on_policy, policy_of
from striderl.training.plans import OfflinePlan, OffPolicyPlan, OnPolicyPlan
from striderl.training.replay_learners import (
    actor_policy_of,
    make_dqn,
    make_sac,
    make_td3,
    q_policy_of,
    replay,
)

if TYPE_CHECKING:
    from striderl.training.run_config import RunConfig

ALGORITHMS: dict[str, AlgorithmEntry] = {
    "ppo": AlgorithmEntry(
        summary="proximal policy optimisation, on-policy",
        config=PPOConfig,
        plan=OnPolicyPlan,
        policy=policy_of,
        learner=on_policy(make_ppo),
        learns_in_ranks=True,
    ),
    "tppo": AlgorithmEntry(
        summary="PPO and imitation of a teacher, or imitation alone (DAgger); wants --teacher.run",
        config=TPPOConfig,
        plan=OnPolicyPlan,
        policy=policy_of,
        learner=on_policy(make_tppo),
    ),
    "a2c": AlgorithmEntry(
        summary="advantage actor-critic, on-policy, one step per rollout",
        config=A2CConfig,
        plan=OnPolicyPlan,
        policy=policy_of,
        learner=on_policy(make_a2c),
        learns_in_ranks=True,
    ),
    "reinforce": AlgorithmEntry(
        summary="the policy gradient with or without a learned baseline",
        config=REINFORCEConfig,
        plan=OnPolicyPlan,
        policy=policy_of,
        learner=on_policy(make_reinforce),
        learns_in_ranks=True,
    ),
    "dqn": AlgorithmEntry(
        summary="deep Q-learning from replay, for choices",
        config=DQNConfig,
        plan=OffPolicyPlan,
        policy=q_policy_of,
        learner=replay(make_dqn, q_policy_of),
    ),
    "sac": AlgorithmEntry(
        summary="soft actor-critic from replay, for real-valued actions",
        config=SACConfig,
        plan=OffPolicyPlan,
        policy=actor_policy_of,
        learner=replay(make_sac, actor_policy_of),
    ),
    "td3": AlgorithmEntry(
        summary="twin delayed deterministic policy gradient from replay, for real-valued actions",
        config=TD3Config,
        plan=OffPolicyPlan,
        policy=actor_policy_of,
        learner=replay(make_td3, actor_policy_of),
    ),
    "bc": AlgorithmEntry(
        summary="behaviour cloning of a dataset",
        config=BehaviourCloningConfig,
        plan=OfflinePlan,
        policy=actor_policy_of,
        learner=offline(make_bc, actor_policy_of),
    ),
    "td3_bc": AlgorithmEntry(
        summary="TD3 that stays near a dataset, for real-valued actions",
        config=TD3BCConfig,
        plan=OfflinePlan,
        policy=actor_policy_of,
        learner=offline(make_td3_bc, actor_policy_of),
    ),
    "cql": AlgorithmEntry(
        summary="conservative Q-learning from a dataset, for real-valued actions",
        config=CQLConfig,
        plan=OfflinePlan,
        policy=actor_policy_of,
        learner=offline(make_cql, actor_policy_of),
    ),
    "iql": AlgorithmEntry(
        summary="implicit Q-learning from a dataset",
        config=IQLConfig,
        plan=OfflinePlan,
        policy=actor_policy_of,
        learner=offline(make_iql, actor_policy_of),
    ),
    "bcq": AlgorithmEntry(
        summary="Q-learning from a dataset among what it would choose, for choices",
        config=BCQConfig,
        plan=OfflinePlan,
        policy=bcq_policy_of,
        learner=offline(make_bcq, bcq_policy_of),
    ),
}
"""Every algorithm that a run can use."""


def algorithm_entry(name: str) -> AlgorithmEntry:
    """Return the entry of a name, or raise with a suggestion."""
    if name not in ALGORITHMS:
        raise KeyError(unknown("algorithm", name, ALGORITHMS, where="striderl"))
    return ALGORITHMS[name]


def check_algorithm(name: str, settings: Any, plan: Any, dataset: str) -> None:
    """Raise unless settings and plan are those of the algorithm, and a dataset is given to those alone that use one."""
    if name not in ALGORITHMS:
        raise ValueError(unknown("algorithm", name, ALGORITHMS, where="algorithm_name: striderl"))
    entry = ALGORITHMS[name]
    for what, value, wanted in (("algorithm", settings, entry.config), ("plan", plan, entry.plan)):
        if not isinstance(value, wanted):
            raise ValueError(
                f"{what}: algorithm_name={name!r} wants a {wanted.__name__}, found {type(value).__name__}; "
                "on the command line choose the algorithm with --algorithm"
            )
    if dataset and entry.plan is not OfflinePlan:
        users = ", ".join(other for other, each in ALGORITHMS.items() if each.plan is OfflinePlan)
        raise ValueError(f"dataset has no effect with {name}, which learns from an env; from datasets learn {users}")


def check_ranks(config: RunConfig[Any, Any], num_ranks: int) -> None:
    """Raise unless so many processes can learn what the config asks for together."""
    if num_ranks == 1:
        return
    name = config.algorithm_name
    if not ALGORITHMS[name].learns_in_ranks:
        able = ", ".join(other for other, each in ALGORITHMS.items() if each.learns_in_ranks)
        raise ValueError(f"{name} cannot learn in {num_ranks} processes yet, only {able}; start it without torchrun")
    if config.mode == "graphed":
        raise ValueError(f"mode='graphed' cannot learn in {num_ranks} processes yet; choose 'eager' or 'compiled'")
    if config.device.startswith("cuda:"):
        raise ValueError(f"{num_ranks} processes have a GPU each: write --device cuda, found {config.device!r}")
    if config.env.num_envs < num_ranks:
        raise ValueError(f"{config.env.num_envs} envs cannot be shared by {num_ranks} processes; use more envs")
