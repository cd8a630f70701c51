"""Experts and learners for tests of the adversarial reward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from striderl.algorithms.actor_critic.sac import SAC, SACConfig
from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.algorithms.terms.adversarial import AdversarialConfig, AdversarialReward
from striderl.algorithms.terms.discriminator import StateAction
from striderl.algorithms.terms.expert import ExpertRows
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data.actions import BoxSpec
from striderl.data.specs import ObsSpec
from striderl.envs.toy import ContinuousBandit, ContinuousBanditConfig
from striderl.envs.vec_env import VecEnv
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.value_functions import QFunction, QFunctionConfig
from striderl.training.plans import OffPolicyPlan, OnPolicyPlan
from striderl.training.trainer import Trainer

OBS, ACT = ObsSpec.from_flat(1), BoxSpec(shape=(1,), low=-2.0, high=2.0)


def opposite_expert(count: int = 512) -> ExpertRows:
    """Somebody who does 1 minus what the bandit shows; paid for is what it shows."""
    shown = torch.rand(count, 1, generator=torch.Generator().manual_seed(3)) * 2.0 - 1.0
    return ExpertRows(torch.cat([shown, 1.0 - shown], dim=-1), num_ends=count)


def make_term(**config: Any) -> AdversarialReward:
    torch.manual_seed(2)
    settings = AdversarialConfig(**{"hidden_dims": (32, 32), "learning_rate": 1e-3, **config})
    return AdversarialReward(StateAction(OBS, ACT), opposite_expert(), settings)


def bandit(num_envs: int) -> VecEnv:
    return ContinuousBandit(num_envs, config=ContinuousBanditConfig(contextual=True))


def ppo_trainer(term: AdversarialReward, *, iterations: int, weights: int = 0, seed: int = 0) -> Trainer:
    env = bandit(64)
    torch.manual_seed(weights)
    settings = PolicyConfig(actor_hidden_dims=(32,), critic_hidden_dims=(32,))
    policy = Policy(env.obs_spec, env.action_spec, settings)
    config = PPOConfig(
        num_learning_epochs=4, num_mini_batches=4, learning_rate=3e-3, schedule="fixed", entropy_coef=0.0
    )
    collector = Collector(env, PolicyActor(policy), CollectorConfig(seed=seed))
    plan = OnPolicyPlan(num_steps_per_env=8, total_iterations=iterations)
    return Trainer(PPO(policy, config, terms=[term]), collector, plan, seed=seed)


def sac_trainer(term: AdversarialReward, *, iterations: int, weights: int = 0, seed: int = 0, **config: Any) -> Trainer:
    env = bandit(4)
    torch.manual_seed(weights)
    policy = ActorPolicy(env.obs_spec, env.action_spec, ActorConfig(hidden_dims=(32,), head="squashed_gaussian"))
    critic = QFunction(env.obs_spec, env.action_spec, QFunctionConfig(hidden_dims=(32,)))
    rates = dict.fromkeys(("actor_learning_rate", "critic_learning_rate", "temperature_learning_rate"), 3e-3)
    algorithm = SAC(policy, critic, SACConfig(**{**rates, "init_temperature": 0.1, **config}), terms=[term])
    plan = OffPolicyPlan(
        num_steps_per_env=20, batch_size=64, learning_starts=64, buffer_size=2000, total_iterations=iterations
    )
    return Trainer(algorithm, Collector(env, algorithm.actor(), CollectorConfig(seed=seed)), plan, seed=seed)


def distance_from_expert(policy: Any) -> float:
    """The mean distance of the policy's mode from the expert's action."""
    shown = torch.linspace(-0.95, 0.95, 39).unsqueeze(1)
    with torch.no_grad():
        distribution = policy.act({"obs": shown}, {}, {})[0]
    chosen: Tensor = distribution.mode()
    return float((chosen + shown - 1.0).abs().mean())


class Linear(nn.Module):
    """Score = weight · features, to be worked out by hand."""

    def __init__(self, *weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def linear_term(*weight: float, features: Any = None, expert: Any = None, **config: Any) -> AdversarialReward:
    """A term whose discriminator is linear in raw features."""
    features = features or StateAction(OBS, ACT)
    expert = expert or ExpertRows(torch.zeros(4, features.size))
    term = AdversarialReward(features, expert, AdversarialConfig(**config), network=Linear(*weight))
    size = features.size + int(term.config.absorbing)
    # mean 0 and variance 1, less epsilon: what is seen is what is given
    term.judge.normalizer.statistics.mean.zero_()
    term.judge.normalizer.statistics.m2.copy_(torch.full((size,), 1.0 - 1e-4, dtype=torch.float64))
    return term


def rollout(
    obs: Any,
    act: Any = None,
    rew: Any = None,
    terminated: Any = None,
    truncated: Any = None,
    valid: Any = None,
) -> dict[str, Any]:
    """Columns [T, N] of a rollout with observations [T, N, 1]."""
    obs = torch.as_tensor(obs, dtype=torch.float32)
    shape = obs.shape[:2]
    return {
        "obs": {"obs": obs},
        "act": torch.zeros(*shape, 1) if act is None else torch.as_tensor(act, dtype=torch.float32),
        "rew": torch.zeros(shape) if rew is None else torch.as_tensor(rew, dtype=torch.float32),
        "terminated": torch.zeros(shape, dtype=torch.bool) if terminated is None else torch.as_tensor(terminated),
        "truncated": torch.zeros(shape, dtype=torch.bool) if truncated is None else torch.as_tensor(truncated),
        "valid": torch.ones(shape, dtype=torch.bool) if valid is None else torch.as_tensor(valid),
        "info": {},
    }


def minibatch_of(policy: Tensor) -> dict[str, Any]:
    """Policy samples [B, 2], a state and an action each, as PPO's minibatches have them."""
    return {"obs": {"obs": policy[:, :1]}, "act": policy[:, 1:], "valid": torch.ones(len(policy), dtype=torch.bool)}
