"""What is timed by scaling.py: one piece of work of a given size, on any device.

    replay      sample (and update) rows of a replay          items: sampled rows
    gradient    one gradient step of PPO on a minibatch       items: samples
    rollout     collect from an env that costs nothing        items: env steps
    update      returns, then all gradient steps of PPO       items: samples × epochs

Observations have 48 numbers and actions 12, as a quadruped's; the env is a table of ready tensors, so only the
library's own cost shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from table_env import TableEnv

from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collector, CollectorConfig
from striderl.data.actions import BoxSpec
from striderl.data.arena import Placement
from striderl.data.specs import ObsSpec
from striderl.data.transition import transition_columns
from striderl.envs.vec_env import Step
from striderl.policies.policy import Policy, PolicyConfig
from striderl.storage.replay.replay import Replay
from striderl.storage.replay.samplers import Prioritized, Uniform
from striderl.storage.replay.views import NStep
from striderl.training.protocols import order_generator, rollout_storage

OBS, ACT = 48, 12
EPOCHS = 2
ROWS_OF_THE_TABLE = 16


@dataclass(frozen=True)
class Work:
    """Something to time."""

    call: Callable[[], Any]
    items: int
    """How many rows, samples or steps one call is about."""


def table_env(num_envs: int, device: str) -> TableEnv:
    """Return the env of rollouts and updates."""
    random = torch.Generator().manual_seed(0)
    rows = [
        Step(
            obs={"obs": torch.randn(num_envs, OBS, generator=random).to(device)},
            reward=torch.randn(num_envs, generator=random).to(device),
            terminated=(torch.rand(num_envs, generator=random) < 0.01).to(device),
            truncated=torch.zeros(num_envs, dtype=torch.bool, device=device),
            final_obs=None,
            info={"log": {}},
        )
        for _ in range(ROWS_OF_THE_TABLE)
    ]
    return TableEnv(ObsSpec.from_flat(OBS), BoxSpec(shape=(ACT,)), rows)


def replay(kind: str, size: int, batch: int, device: str) -> Work:
    """Return one sample of a full replay, and for 'prioritized' the update of its priorities."""
    columns = transition_columns(ObsSpec.from_flat(OBS), BoxSpec(shape=(ACT,)), {}, {})
    picker = Prioritized() if kind == "prioritized" else Uniform()
    view = NStep(3, gamma=0.99) if kind == "3-step" else None
    made = Replay(columns, size, 1, placement=Placement(device=device), picker=picker, view=view)
    for part in (made.steps, made.frames):
        part.arena.blocks["float32"].uniform_()
    made.steps.arena.data["valid"].fill_(True)
    made.cursor.set(np.array([size]), np.zeros(1, np.int64))
    picker.written(made.read, 0, size, True)
    error = torch.rand(batch, device=device)

    def sample_and_update() -> None:
        made.update_priorities(made.sample(batch).ticket, error)

    return Work(sample_and_update if kind == "prioritized" else lambda: made.sample(batch), batch)


def _parts(num_envs: int, num_steps: int, width: int, minibatches: int, device: str, mode: str) -> tuple[Any, ...]:
    torch.manual_seed(0)
    env = table_env(num_envs, device)
    policy = Policy(
        env.obs_spec, env.action_spec, PolicyConfig(actor_hidden_dims=(width, width), critic_hidden_dims=(width, width))
    ).to(device)
    config = PPOConfig(num_learning_epochs=EPOCHS, num_mini_batches=minibatches, use_clipped_value_loss=True)
    algorithm = PPO(policy, config, (), mode=mode)
    collector = Collector(env, PolicyActor(policy), CollectorConfig(seed=0))
    return algorithm, collector, rollout_storage(collector, policy, num_steps)


def rollout(num_envs: int, num_steps: int, width: int, device: str, mode: str) -> Work:
    """Return one rollout."""
    algorithm, collector, storage = _parts(num_envs, num_steps, width, 1, device, mode)
    collector.mode = algorithm.updater.mode

    def work() -> None:
        storage.clear()
        collector.collect(n_step=num_envs * num_steps, storage=storage)

    return Work(work, num_envs * num_steps)


def update(num_envs: int, num_steps: int, width: int, minibatches: int, device: str, mode: str) -> Work:
    """Return one update of a full rollout."""
    algorithm, collector, storage = _parts(num_envs, num_steps, width, minibatches, device, mode)
    collector.collect(n_step=num_envs * num_steps, storage=storage)
    last_obs, iteration = collector.env.reset(), 0

    def work() -> None:
        nonlocal iteration
        prepared = algorithm.prepare(storage, initial_state={}, last_obs=last_obs, last_state={})
        algorithm.update(prepared, order_generator(0, iteration, device))
        iteration += 1

    return Work(work, num_envs * num_steps * EPOCHS)
