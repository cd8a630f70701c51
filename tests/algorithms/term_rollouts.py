"""Rollouts for tests of terms: an env with a component to estimate, a policy for it, and PPO with terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from ppo_rollouts import USUAL, Parts, endings, scripted

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.algorithms.terms.rnd import RandomNetworkDistillation, RNDConfig
from striderl.algorithms.terms.symmetry import MirrorTable, Symmetry
from striderl.algorithms.terms.term import Term
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.envs.toy import Scripted
from striderl.envs.vec_env import VecEnv
from striderl.policies.estimate import Adapt, Estimate
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import Remember
from striderl.storage.rollout import RolloutStorage

ESTIMATE = Estimate(
    obs_components=("joints",), target_components=("command",), hidden_sizes=(5,), replace_state_prob=0.5
)
ADAPT = Adapt(obs_components=("joints",), target_components=("command",), hidden_sizes=(4,))
MEMORY = Remember(type="gru", hidden_size=6)
MIRROR = {"joints": MirrorTable([1, 0, 2], [1, 1, -1]), "command": MirrorTable([0, 1], [1, -1])}
MIRROR_ACT = MirrorTable([1, 0])

MakeTerms = Callable[[VecEnv], Sequence[Term]]


def no_terms(env: VecEnv) -> Sequence[Term]:
    return ()


def make_env(steps: int = 8, envs: int = 4, *, rate: float = 0.2, seed: int = 0) -> Scripted:
    return scripted(*endings(steps, envs, rate=rate, seed=seed), seed=seed)


def make_policy(env: VecEnv, actor: tuple[Any, ...] = (), critic: tuple[Any, ...] = (), **more: Any) -> Policy:
    torch.manual_seed(0)
    config = PolicyConfig(actor=actor, critic=critic, actor_hidden_dims=(8,), critic_hidden_dims=(8,), **more)
    return Policy(env.obs_spec, env.action_spec, config)


def make_parts(env: VecEnv, policy: Policy, terms: MakeTerms = no_terms, *, num_steps: int = 8, **config: Any) -> Parts:
    """PPO with terms, whose networks depend on nothing but the env."""
    torch.manual_seed(1)
    settings = PPOConfig(**{**USUAL, "num_mini_batches": 2, "num_learning_epochs": 2, **config})
    ppo = PPO(policy, settings, terms=terms(env))
    collector = Collector(env, PolicyActor(policy), CollectorConfig(seed=3))
    finals = env.gives_final_obs
    storage = RolloutStorage(
        collector.columns(),
        num_steps,
        env.num_envs,
        final_obs=env.obs_spec if finals else None,
        final_state=policy.state_spec() if finals else None,
    )
    return Parts(ppo, collector, storage)


def make_rnd(env: VecEnv, **config: Any) -> RandomNetworkDistillation:
    small = {"predictor_hidden_dims": (6,), "target_hidden_dims": (6,), "num_outputs": 3}
    return RandomNetworkDistillation(env.obs_spec, env.num_envs, RNDConfig(**{**small, **config}))


def make_symmetry(**settings: Any) -> Symmetry:
    return Symmetry(mirror_obs=MIRROR, mirror_act=MIRROR_ACT, **settings)


def order(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def learn(parts: Parts) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The numbers of one update, and the policy's weights after it."""
    prepared = parts.collect()
    numbers = parts.ppo.update(prepared, order())
    parts.ppo.absorb(prepared.columns)
    return numbers, {name: value.clone() for name, value in parts.ppo.policy.state_dict().items()}


def touched(loss: torch.Tensor, named: dict[str, torch.Tensor]) -> set[str]:
    """Which parameters a loss has a gradient in."""
    grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name for name, grad in zip(named, grads) if grad is not None and bool((grad != 0).any())}
