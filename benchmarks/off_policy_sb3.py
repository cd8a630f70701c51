"""Stable-Baselines3 in the off-policy benchmarks: its `DQN` and `SAC` with its replay buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Env
from gymnasium.spaces import Box, Discrete
from off_policy_tasks import GAMMA, NUM_STEPS, TARGET_EVERY, TAU, Task, Work, steps_of
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm


class Shapes(Env):  # type: ignore[type-arg]
    """Spaces without a simulation: an update needs nothing else."""

    def __init__(self, task: Task) -> None:
        self.observation_space = Box(-np.inf, np.inf, (task.obs_size,), np.float32)
        self.action_space = (
            Discrete(task.action_size) if task.algorithm == "dqn" else Box(-1.0, 1.0, (task.action_size,), np.float32)
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return zeros: a learner looks at an observation before it begins."""
        return np.zeros(self.observation_space.shape or (), np.float32), {}


def update(task: Task) -> Work:
    """Return some gradient steps."""
    settings = {
        "learning_rate": task.learning_rate,
        "buffer_size": NUM_STEPS,
        "batch_size": task.batch_size,
        "gamma": GAMMA,
        "policy_kwargs": {"net_arch": list(task.hidden)},
        "device": "cpu",
        "seed": 0,
    }
    model: OffPolicyAlgorithm
    if task.algorithm == "dqn":
        model = DQN("MlpPolicy", Shapes(task), target_update_interval=TARGET_EVERY, max_grad_norm=1e9, **settings)
    else:
        model = SAC("MlpPolicy", Shapes(task), tau=TAU, **settings)
    model._setup_learn(10**9)
    steps, buffer = steps_of(task), model.replay_buffer
    assert buffer is not None
    for row in range(NUM_STEPS):
        done = steps.terminated[row : row + 1]
        action = steps.act[row : row + 1]
        buffer.add(steps.obs[row], steps.obs[row + 1], action, steps.rew[row : row + 1], done, [{}])
    # DQN copies its target while it collects, not while it trains; the copy is a five-hundredth of the work
    return lambda: model.train(gradient_steps=task.updates_per_sample, batch_size=task.batch_size)
