"""skrl 2 in the PPO benchmarks: its `PPO` agent and memory; the update and GAE.

Its update works out the returns itself. Training rows are left out: its trainer and wrappers are made for simulators on
a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from harness_process import UnavailableError
from ppo_tasks import (
    CLIP,
    GAMMA,
    LAM,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    VALUE_COEF,
    TrainTask,
    UpdateTask,
    Work,
    rollout,
    rollout_of,
)
from skrl.agents.torch.ppo import PPO
from skrl.agents.torch.ppo.ppo import compute_gae
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from torch import nn

_ACTIVATIONS = {"tanh": nn.Tanh, "elu": nn.ELU}


def _network(task: UpdateTask, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    inputs = task.obs_size
    for width in task.hidden:
        layers += [nn.Linear(inputs, width), _ACTIVATIONS[task.activation]()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


class Actor(GaussianMixin, Model):  # type: ignore[misc]
    """A Gaussian policy as skrl's examples write it."""

    def __init__(self, task: UpdateTask, observation_space: Box, action_space: Box) -> None:
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device="cpu")
        GaussianMixin.__init__(self)
        self.net = _network(task, task.action_size)
        self.log_std = nn.Parameter(torch.zeros(task.action_size))

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the mean and log std."""
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Critic(DeterministicMixin, Model):  # type: ignore[misc]
    """A value function as skrl's examples write it."""

    def __init__(self, task: UpdateTask, observation_space: Box, action_space: Box) -> None:
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device="cpu")
        DeterministicMixin.__init__(self)
        self.net = _network(task, 1)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the value."""
        return self.net(inputs["observations"]), {}


def update(task: UpdateTask) -> Work:
    """Return one update of a full memory."""
    torch.manual_seed(0)
    spaces = (
        Box(-np.inf, np.inf, (task.obs_size,), np.float32),
        Box(-np.inf, np.inf, (task.action_size,), np.float32),
    )
    memory = RandomMemory(memory_size=task.num_steps, num_envs=task.num_envs, device="cpu")
    agent = PPO(
        models={"policy": Actor(task, *spaces), "value": Critic(task, *spaces)},
        memory=memory,
        observation_space=spaces[0],
        action_space=spaces[1],
        device="cpu",
        cfg={
            "rollouts": task.num_steps,
            "learning_epochs": task.epochs,
            "mini_batches": task.minibatches,
            "discount_factor": GAMMA,
            "gae_lambda": LAM,
            "learning_rate": LEARNING_RATE,
            "grad_norm_clip": MAX_GRAD_NORM,
            "ratio_clip": CLIP,
            "value_clip": 0.0,
            "value_loss_scale": VALUE_COEF,
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},
        },
    )
    agent.init()
    agent.enable_models_training_mode(True)
    columns = {name: torch.from_numpy(array) for name, array in rollout_of(task)._asdict().items()}
    for step in range(task.num_steps):
        memory.add_samples(
            observations=columns["obs"][step],
            states=None,
            actions=columns["act"][step],
            rewards=columns["rew"][step].unsqueeze(-1),
            terminated=columns["done"][step].unsqueeze(-1),
            truncated=torch.zeros_like(columns["done"][step]).unsqueeze(-1),
            log_prob=columns["log_prob"][step].unsqueeze(-1),
            values=columns["value"][step].unsqueeze(-1),
        )
    agent._current_next_observations, agent._current_next_states = columns["last_obs"], None
    return lambda: agent.update(timestep=0, timesteps=10**9)


def train(task: TrainTask) -> Work:
    """Say that there is no such row."""
    raise UnavailableError("–")


def returns(num_steps: int, num_envs: int) -> Work:
    """Return one call of its GAE, which normalises the advantages too."""
    data = rollout(num_steps, num_envs, 1, 1)
    rew, done, value = (torch.from_numpy(array).unsqueeze(-1) for array in (data.rew, data.done, data.value))
    last, nowhere = torch.from_numpy(data.last_value).unsqueeze(-1), torch.zeros_like(done)
    return lambda: compute_gae(
        rewards=rew,
        terminated=done,
        truncated=nowhere,
        values=value,
        last_values=last,
        discount_factor=GAMMA,
        lambda_coefficient=LAM,
    )
