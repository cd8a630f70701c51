"""How PPO, teacher PPO, A2C and REINFORCE are built from a run's config."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from striderl.algorithms.a2c import A2C
from striderl.algorithms.ppo import PPO, PPOConfig
from striderl.algorithms.reinforce import REINFORCE
from striderl.algorithms.terms.rnd import RandomNetworkDistillation
from striderl.algorithms.terms.term import Term
from striderl.algorithms.tppo import TPPO, TPPOConfig
from striderl.collect.actors.policy_actor import GreedyActor
from striderl.collect.collector import Collector
from striderl.data.actions import ActionSpec
from striderl.data.specs import ObsSpec
from striderl.envs.vec_env import VecEnv
from striderl.ops.moments import AllReduce
from striderl.policies.policy import Policy
from striderl.training.algorithm_entry import Learner
from striderl.training.consumers.consumer import Consumer
from striderl.training.consumers.ranks import together
from striderl.training.distributed import Ranks
from striderl.training.on_policy import OnPolicyAlgorithm
from striderl.training.policy_settings import build_policy
from striderl.training.trainer import Trainer

if TYPE_CHECKING:
    from striderl.training.run_config import RunConfig


def policy_of(config: RunConfig[Any, Any], obs_spec: ObsSpec, action_spec: ActionSpec) -> Policy:
    """Build the policy of an actor-critic algorithm; the run's seed decides its first weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return build_policy(config.policy, obs_spec, action_spec, _num_values(config)).to(config.device)


def _num_values(config: RunConfig[Any, Any]) -> int:
    """Return how many values the critic gives: one per group of rewards, where an algorithm has groups."""
    settings = config.algorithm.ppo if isinstance(config.algorithm, TPPOConfig) else config.algorithm
    return max(1, len(settings.reward_groups)) if isinstance(settings, PPOConfig) else 1


MakeAlgorithm = Callable[["RunConfig[Any, Any]", Policy, Sequence[Term], AllReduce | None], OnPolicyAlgorithm]


def on_policy(make: MakeAlgorithm) -> Callable[[RunConfig[Any, Any], VecEnv, Ranks], Learner]:
    """Return how an on-policy algorithm is built around an env."""

    def learner(config: RunConfig[Any, Any], env: VecEnv, ranks: Ranks) -> Learner:
        policy = policy_of(config, env.obs_spec, env.action_spec)
        algorithm = make(config, policy, terms_of(config, env), ranks.reduce)
        collector = Collector(env, algorithm.actor(), replace(config.collector, seed=config.seed))

        def trainer(consumers: Sequence[Consumer]) -> Trainer:
            return Trainer(
                algorithm,
                collector,
                config.plan,
                consumers=together(ranks, algorithm, consumers),
                seed=config.seed,
                total_envs=config.env.num_envs,
            )

        return Learner(policy=policy, greedy=GreedyActor(policy), trainer=trainer)

    return learner


def terms_of(config: RunConfig[Any, Any], env: VecEnv) -> list[Term]:
    """Build what is learned beside the algorithm; the run's seed decides its first weights."""
    if "rnd" not in config.terms:
        return []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed + 1)
        return [RandomNetworkDistillation(env.obs_spec, env.num_envs, config.rnd, config.device)]


def make_ppo(
    config: RunConfig[Any, Any], policy: Policy, terms: Sequence[Term], reduce: AllReduce | None
) -> OnPolicyAlgorithm:
    """Build PPO."""
    return PPO(policy, config.algorithm, terms=terms, mode=_mode(config), reduce=reduce)


def make_tppo(
    config: RunConfig[Any, Any], policy: Policy, terms: Sequence[Term], reduce: AllReduce | None
) -> OnPolicyAlgorithm:
    """Build teacher PPO, or DAgger, around the teacher that the config names."""
    return TPPO(policy, config.teacher.load(), config.algorithm, terms, mode=_mode(config), reduce=reduce)


def make_a2c(
    config: RunConfig[Any, Any], policy: Policy, terms: Sequence[Term], reduce: AllReduce | None
) -> OnPolicyAlgorithm:
    """Build A2C."""
    _require_no_terms(config)
    return A2C(policy, config.algorithm, mode=_mode(config), reduce=reduce)


def make_reinforce(
    config: RunConfig[Any, Any], policy: Policy, terms: Sequence[Term], reduce: AllReduce | None
) -> OnPolicyAlgorithm:
    """Build REINFORCE."""
    _require_no_terms(config)
    return REINFORCE(policy, config.algorithm, mode=_mode(config), reduce=reduce)


def _mode(config: RunConfig[Any, Any]) -> str:
    """Return how updates are run; 'auto' is graphed on a CUDA device and eager elsewhere."""
    return config.mode


def _require_no_terms(config: RunConfig[Any, Any]) -> None:
    if config.terms:
        raise ValueError(f"{config.algorithm_name} takes no terms, found {list(config.terms)}; ppo does")
