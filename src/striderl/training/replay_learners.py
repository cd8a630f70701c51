"""How DQN, SAC and TD3 are built from a run's config; another learner from replay is one more function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace as with_changes
from typing import TYPE_CHECKING, Any

import torch

from striderl.algorithms.dqn import DQN, q_policy
from striderl.algorithms.sac import SAC
from striderl.algorithms.td3 import TD3
from striderl.algorithms.terms.term import Term
from striderl.collect.actors.behaviours import ExploringActor
from striderl.collect.actors.policy_actor import GreedyActor
from striderl.collect.collector import Collector
from striderl.data.actions import ActionSpec
from striderl.data.specs import ObsSpec
from striderl.envs.vec_env import VecEnv
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.q_function import QFunction
from striderl.training.algorithm_entry import Learner
from striderl.training.distributed import Ranks
from striderl.training.on_policy_learners import terms_of
from striderl.training.policy_settings import actor_config, head_settings, q_function_config
from striderl.training.trainer import Trainer

if TYPE_CHECKING:
    from striderl.training.run_config import RunConfig

HEADS = {"sac": "squashed_gaussian", "td3": "deterministic", "td3_bc": "deterministic", "cql": "squashed_gaussian"}
"""The head that each of them learns with; others leave the choice."""

MakePolicy = Callable[["RunConfig[Any, Any]", ObsSpec, ActionSpec], ActorPolicy]
MakeReplay = Callable[["RunConfig[Any, Any]", ActorPolicy, VecEnv, Sequence[Term]], tuple[Any, ExploringActor]]


def q_policy_of(config: RunConfig[Any, Any], obs_spec: ObsSpec, action_spec: ActionSpec) -> ActorPolicy:
    """Build a network of Q-values; the run's seed decides its first weights."""
    head_settings(config.policy, action_spec)  # a setting of a head that is not there is refused
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return q_policy(obs_spec, action_spec, actor_config(config.policy, obs_spec, {})).to(config.device)


def actor_policy_of(config: RunConfig[Any, Any], obs_spec: ObsSpec, action_spec: ActionSpec) -> ActorPolicy:
    """Build an actor without a critic; the run's seed decides its first weights."""
    wanted = HEADS.get(config.algorithm_name, config.policy.head)
    if config.policy.head != wanted:
        raise ValueError(f"{config.algorithm_name} learns with policy.head={wanted!r}, found {config.policy.head!r}")
    settings = actor_config(config.policy, obs_spec, head_settings(config.policy, action_spec))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return ActorPolicy(obs_spec, action_spec, settings).to(config.device)


def replay(make: MakeReplay, make_policy: MakePolicy) -> Callable[[RunConfig[Any, Any], VecEnv, Ranks], Learner]:
    """Return how a learner from replay is built around an env."""

    def learner(config: RunConfig[Any, Any], env: VecEnv, ranks: Ranks) -> Learner:
        policy = make_policy(config, env.obs_spec, env.action_spec)
        algorithm, actor = make(config, policy, env, terms_of(config, env))
        collector = Collector(env, actor, with_changes(config.collector, seed=config.seed))
        return Learner(
            policy=policy,
            greedy=GreedyActor(policy),
            trainer=lambda consumers: Trainer(algorithm, collector, config.plan, consumers=consumers, seed=config.seed),
        )

    return learner


def make_dqn(
    config: RunConfig[Any, Any], policy: ActorPolicy, env: VecEnv, terms: Sequence[Term]
) -> tuple[Any, ExploringActor]:
    """Build deep Q-learning."""
    algorithm = DQN(policy, settings_of(config), terms=terms)
    return algorithm, algorithm.actor()


def make_sac(
    config: RunConfig[Any, Any], policy: ActorPolicy, env: VecEnv, terms: Sequence[Term]
) -> tuple[Any, ExploringActor]:
    """Build soft actor-critic."""
    algorithm = SAC(policy, critics_of(config, env), settings_of(config), terms=terms)
    return algorithm, algorithm.actor()


def make_td3(
    config: RunConfig[Any, Any], policy: ActorPolicy, env: VecEnv, terms: Sequence[Term]
) -> tuple[Any, ExploringActor]:
    """Build TD3."""
    algorithm = TD3(policy, critics_of(config, env), settings_of(config), terms=terms)
    return algorithm, algorithm.actor()


def critics_of(config: RunConfig[Any, Any], env: VecEnv) -> QFunction:
    """Build the critics; the run's seed decides their first weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed + 1)
        settings = q_function_config(config.policy, env.obs_spec)
        return QFunction(env.obs_spec, env.action_spec, settings).to(config.device)


def settings_of(config: RunConfig[Any, Any]) -> Any:
    """Return the settings of the algorithm in the run's mode, unless they have one of their own."""
    return with_changes(config.algorithm, mode=config.algorithm.mode or config.mode)
