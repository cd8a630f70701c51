"""skrl 2 in the off-policy benchmarks: its `DQN` and `SAC` agents with its random memory.

The memory draws with replacement, as the others do; drawing without, its default, shuffles all of it for each sample.
Its Gaussian policy has no correction for tanh: the mean is squashed, as in its examples for SAC, and samples are cut.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, Space
from off_policy_tasks import GAMMA, NUM_STEPS, TARGET_EVERY, TAU, Task, Work, steps_of
from skrl.agents.torch.dqn import DQN
from skrl.agents.torch.sac import SAC
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from torch import Tensor, nn


def _layers(sizes: tuple[int, ...]) -> nn.Sequential:
    found: list[nn.Module] = []
    for one, other in pairwise(sizes):
        found += [nn.Linear(one, other), nn.ReLU()]
    return nn.Sequential(*found[:-1])


class Choices(DeterministicMixin, Model):  # type: ignore[misc]
    """Q-values of all choices, as skrl's examples write it."""

    def __init__(self, task: Task, observation_space: Box, action_space: Discrete) -> None:
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = _layers((task.obs_size, *task.hidden, task.action_size))

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        """Return the values."""
        return self.net(inputs["observations"]), {}


class Critic(DeterministicMixin, Model):  # type: ignore[misc]
    """The value of an observation and an action."""

    def __init__(self, task: Task, observation_space: Box, action_space: Box) -> None:
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = _layers((task.obs_size + task.action_size, *task.hidden, 1))

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        """Return the value."""
        return self.net(torch.cat([inputs["observations"], inputs["taken_actions"]], dim=1)), {}


class Actor(GaussianMixin, Model):  # type: ignore[misc]
    """A Gaussian with a squashed mean and a deviation of the state."""

    def __init__(self, task: Task, observation_space: Box, action_space: Box) -> None:
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device="cpu")
        GaussianMixin.__init__(self, clip_actions=True)
        self.body = _layers((task.obs_size, *task.hidden))
        self.mean = nn.Linear(task.hidden[-1], task.action_size)
        self.log_std = nn.Linear(task.hidden[-1], task.action_size)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        """Return the mean and log std."""
        features = self.body(inputs["observations"]).relu()
        return self.mean(features).tanh(), {"log_std": self.log_std(features)}


def update(task: Task) -> Work:
    """Return some gradient steps."""
    torch.manual_seed(0)
    seen = Box(-np.inf, np.inf, (task.obs_size,), np.float32)
    settings = {
        "gradient_steps": task.updates_per_sample,
        "batch_size": task.batch_size,
        "discount_factor": GAMMA,
        "learning_rate": task.learning_rate,
        "experiment": {"write_interval": 0, "checkpoint_interval": 0},
    }
    done: Space[Any]
    if task.algorithm == "dqn":
        done = Discrete(task.action_size)
        kind: Any = DQN
        settings |= {"polyak": 1.0, "target_update_interval": TARGET_EVERY}
        models: dict[str, Any] = {name: Choices(task, seen, done) for name in ("q_network", "target_q_network")}
    else:
        done = Box(-1.0, 1.0, (task.action_size,), np.float32)
        kind = SAC
        settings |= {"polyak": TAU, "initial_entropy_value": 1.0}
        names = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
        models = {"policy": Actor(task, seen, done), **{name: Critic(task, seen, done) for name in names}}
    memory = RandomMemory(memory_size=NUM_STEPS, num_envs=1, device="cpu", replacement=True)
    agent = kind(models=models, memory=memory, observation_space=seen, action_space=done, device="cpu", cfg=settings)
    agent.init()
    agent.enable_models_training_mode(True)
    _fill(memory, task)
    return lambda: agent.update(timestep=0, timesteps=10**9)


def _fill(memory: RandomMemory, task: Task) -> None:
    steps = steps_of(task)
    act = torch.from_numpy(steps.act)
    memory.add_samples(
        observations=torch.from_numpy(steps.obs[:-1]),
        states=None,
        actions=act.unsqueeze(-1) if act.ndim == 1 else act,
        rewards=torch.from_numpy(steps.rew).unsqueeze(-1),
        next_observations=torch.from_numpy(steps.obs[1:]),
        next_states=None,
        terminated=torch.from_numpy(steps.terminated).unsqueeze(-1),
    )
