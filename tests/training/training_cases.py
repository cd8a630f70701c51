"""Small runs on CartPole for the trainer's tests, and how to compare two of them."""

from __future__ import annotations

from typing import Any

import torch

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data import tree
from striderl.envs.classic_control import CartPole
from striderl.envs.vec_env import VecEnv
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.stages import NormalizeObs, Remember
from striderl.training.plans import OnPolicyPlan
from striderl.training.trainer import Trainer

USUAL = {"num_learning_epochs": 2, "num_mini_batches": 2, "entropy_coef": 0.01, "schedule": "adaptive", "gamma": 0.99}


def make_policy(env: VecEnv, kind: str = "plain", *, weights: int = 0) -> Policy:
    torch.manual_seed(weights)
    first = (NormalizeObs(),)
    recipe = first if kind == "plain" else (*first, Remember(type=kind, hidden_size=6))
    config = PolicyConfig(actor=recipe, critic=recipe, actor_hidden_dims=(16,), critic_hidden_dims=(16,))
    return Policy(env.obs_spec, env.action_spec, config)


def make_trainer(
    kind: str = "plain",
    *,
    env: VecEnv | None = None,
    num_envs: int = 4,
    seed: int = 0,
    weights: int = 0,
    plan: dict[str, Any] | None = None,
    consumers: Any = (),
    ppo: dict[str, Any] | None = None,
) -> Trainer:
    """A new trainer; `consumers` may be a function of the policy."""
    env = env or CartPole(num_envs)
    policy = make_policy(env, kind, weights=weights)
    algorithm = PPO(policy, PPOConfig(**{**USUAL, **(ppo or {})}))
    collector = Collector(env, PolicyActor(policy), CollectorConfig(seed=seed))
    consumers = consumers(policy) if callable(consumers) else consumers
    settings = {"num_steps_per_env": 8, "total_iterations": 20, **(plan or {})}
    return Trainer(algorithm, collector, OnPolicyPlan(**settings), consumers=consumers, seed=seed)


def run(trainer: Trainer, count: int) -> list[Any]:
    """The records of the next iterations."""
    return [next(trainer) for _ in range(count)]


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.algorithm.policy.state_dict().items()}


def comparable(record: Any) -> tuple[Any, ...]:
    """All of a record but the times."""
    return (record.iteration, record.env_steps, record.num_updates, record.num_steps, dict(record.metrics))


def without_times(state: Any) -> Any:
    """A trainer's state without what depends on the clock, for exact comparison."""
    if isinstance(state, dict):
        return {name: without_times(value) for name, value in state.items() if not name.endswith("seconds")}
    return state


def same_state(one: Trainer, other: Trainer) -> bool:
    return tree.equal(without_times(one.state_dict()), without_times(other.state_dict()))
