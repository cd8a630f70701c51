"""Rollouts whose returns were worked out outside the algorithm, in the form that PPO and A2C learn from.

columns [T, N, …], returns, advantage ──targets_of──▶ Prepared (PPO) or Targets (A2C) ──gradient_steps──▶ numbers
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.a2c import A2C
from striderl.algorithms.on_policy_targets import zero_where_not
from striderl.algorithms.ppo import PPO
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.data.arena import Placement
from striderl.data.transition import transition_columns
from striderl.ops.losses import normalised
from striderl.policies.policy import Policy
from striderl.storage.rollout import RolloutStorage

OnPolicy = PPO | A2C


def check_plain(algorithm: object) -> OnPolicy:
    """Return an algorithm that can learn from such rollouts, or say why it cannot."""
    if not isinstance(algorithm, (PPO, A2C)):
        raise TypeError(f"wanted PPO or A2C, found {type(algorithm).__name__}")
    reason = "a policy with memory" if algorithm.policy.state_spec() else ""
    if isinstance(algorithm, PPO):
        reason = reason or ("terms" if len(algorithm.terms) else "")
        reason = reason or ("normalize_values" if algorithm.value_normalizer is not None else "")
        reason = reason or ("reward_groups" if algorithm.config.reward_groups else "")
    if algorithm.policy.value_head.num_values != 1:
        reason = reason or "several values"
    if reason:
        raise ValueError(f"{reason} cannot be used in this calling style; train with striderl.training.Trainer")
    return algorithm


def targets_of(algorithm: OnPolicy, columns: Mapping[str, Any], returns: Tensor, advantage: Tensor) -> Any:
    """Put columns [T, N, …] (obs, act, rew, terminated, truncated, valid, policy) and targets [T, N] together.

    Advantages are normalised as the algorithm's settings say.
    """
    valid: Tensor = columns["valid"]
    storage = _storage(algorithm.policy, {**columns, "info": {}})
    last_obs = {name: value[-1] for name, value in storage.data["obs"].items()}
    # its own targets would trust `last_obs`, which is not what followed; they are replaced
    prepared: Any = algorithm.prepare(storage, initial_state={}, last_obs=last_obs, last_state={})
    returns, advantage = zero_where_not(returns, valid), zero_where_not(advantage, valid)
    if isinstance(algorithm, A2C):
        advantage = normalised(advantage, valid) if algorithm.config.normalize_advantage else advantage
        return prepared._replace(returns=returns, advantage=advantage)
    if not algorithm.config.normalize_advantage_per_mini_batch:
        advantage = zero_where_not(algorithm.reward_groups.combined(advantage, valid), valid)
    return prepared._replace(returns=returns, raw_returns=returns, advantage=advantage)


def _storage(policy: Policy, columns: Mapping[str, Any]) -> RolloutStorage:
    specs = transition_columns(policy.obs_spec, policy.action_spec, {}, PolicyActor(policy).columns())
    num_steps, num_envs = columns["valid"].shape
    placement = Placement(device=str(columns["valid"].device))
    storage = RolloutStorage(specs, num_steps, num_envs, placement=placement)
    storage.arena.write((slice(0, num_steps), slice(0, num_envs)), columns)
    return storage


def gradient_steps(algorithm: OnPolicy, prepared: Any, generator: torch.Generator) -> Iterator[dict[str, Tensor]]:
    """Learn from prepared targets as `algorithm.update` does, and yield the numbers of every gradient step."""
    if isinstance(algorithm, A2C):
        yield algorithm.update(prepared, generator)
        return
    algorithm.updater.attach()
    for minibatch in algorithm.minibatches(prepared, generator):
        # what a step is made of is the algorithm's own; the same functions each time, so that they are compiled once
        yield algorithm.updater.step(algorithm._step_losses, minibatch, algorithm._rule)
    algorithm.after_update(prepared)


@contextmanager
def other_minibatches(algorithm: OnPolicy, num_samples: int, batch_size: int, repeat: int) -> Iterator[None]:
    """Let PPO make `repeat` passes over minibatches of about this size; A2C takes one step on all or says so."""
    if isinstance(algorithm, A2C):
        if repeat != 1 or batch_size < num_samples:
            raise ValueError(
                f"A2C takes one gradient step on all {num_samples} samples; set repeat_per_collect=1 and a batch_size "
                f"of {num_samples} or more, found {repeat} and {batch_size}"
            )
        yield
        return
    before = algorithm.config
    count = max(1, num_samples // batch_size)
    algorithm.config = replace(before, num_learning_epochs=repeat, num_mini_batches=count)
    try:
        yield
    finally:
        algorithm.config = before
