"""A loop in one file in the off-policy benchmarks: what a good hand-written script does, and no library.

Written for this comparison, because CleanRL is not a package: modules of torch, its Adam, a replay of numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise

import numpy as np
import torch
from off_policy_tasks import GAMMA, NUM_STEPS, TARGET_EVERY, TAU, Steps, Task, Work, repeated_work, steps_of
from torch import Tensor, nn
from torch.nn import functional


class Arrays:
    """A replay of arrays with its own random numbers."""

    def __init__(self, steps: Steps) -> None:
        self.columns = (steps.obs[:-1], steps.act, steps.rew, steps.obs[1:], steps.terminated.astype(np.float32))
        self.random = np.random.default_rng(1)

    def sample(self, count: int) -> list[Tensor]:
        """Return obs, act, rew, obs_next and done of random steps."""
        index = self.random.integers(0, NUM_STEPS, count)
        return [torch.from_numpy(column[index]) for column in self.columns]


def _layers(sizes: tuple[int, ...]) -> nn.Sequential:
    found: list[nn.Module] = []
    for one, other in pairwise(sizes):
        found += [nn.Linear(one, other), nn.ReLU()]
    return nn.Sequential(*found[:-1])


def update(task: Task) -> Work:
    """Return some gradient steps."""
    replay = Arrays(steps_of(task))
    step = _dqn(task, replay) if task.algorithm == "dqn" else _sac(task, replay)
    return repeated_work(step, task.updates_per_sample)


def _dqn(task: Task, replay: Arrays) -> Callable[[], object]:
    network = _layers((task.obs_size, *task.hidden, task.action_size))
    target = deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=task.learning_rate)
    count = 0

    def step() -> None:
        nonlocal count
        obs, act, rew, obs_next, done = replay.sample(task.batch_size)
        with torch.no_grad():
            wanted = rew + GAMMA * target(obs_next).max(dim=1).values * (1.0 - done)
        value = network(obs).gather(1, act.unsqueeze(1)).squeeze(1)
        loss = functional.mse_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count += 1
        if count % TARGET_EVERY == 0:
            target.load_state_dict(network.state_dict())

    return step


class Actor(nn.Module):
    """A squashed Gaussian with state-dependent deviation."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.body = _layers((task.obs_size, *task.hidden))
        self.mean = nn.Linear(task.hidden[-1], task.action_size)
        self.log_std = nn.Linear(task.hidden[-1], task.action_size)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return an action and its log-probability."""
        features = self.body(obs).relu()
        log_std = -5.0 + 3.5 * (self.log_std(features).tanh() + 1.0)
        normal = torch.distributions.Normal(self.mean(features), log_std.exp())
        raw = normal.rsample()
        action = raw.tanh()
        log_prob = normal.log_prob(raw) - torch.log(1.0 - action.square() + 1e-6)
        return action, log_prob.sum(1)


def _sac(task: Task, replay: Arrays) -> Callable[[], object]:
    actor = Actor(task)
    critics = [_layers((task.obs_size + task.action_size, *task.hidden, 1)) for _ in range(2)]
    targets = [deepcopy(critic) for critic in critics]
    weights = [weight for critic in critics for weight in critic.parameters()]
    critic_optimizer = torch.optim.Adam(weights, lr=task.learning_rate)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=task.learning_rate)
    log_alpha = torch.zeros(1, requires_grad=True)
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=task.learning_rate)

    def step() -> None:
        obs, act, rew, obs_next, done = replay.sample(task.batch_size)
        alpha = log_alpha.detach().exp().item()
        with torch.no_grad():
            following, log_prob = actor(obs_next)
            joined = torch.cat([obs_next, following], 1)
            least = torch.min(targets[0](joined), targets[1](joined)).squeeze(1)
            wanted = rew + (1.0 - done) * GAMMA * (least - alpha * log_prob)
        joined = torch.cat([obs, act], 1)
        loss = sum(functional.mse_loss(critic(joined).squeeze(1), wanted) for critic in critics)
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()
        action, log_prob = actor(obs)
        joined = torch.cat([obs, action], 1)
        least = torch.min(critics[0](joined), critics[1](joined)).squeeze(1)
        actor_optimizer.zero_grad()
        (alpha * log_prob - least).mean().backward()
        actor_optimizer.step()
        alpha_optimizer.zero_grad()
        (-log_alpha.exp() * (log_prob.detach() - task.action_size).mean()).sum().backward()
        alpha_optimizer.step()
        for critic, target in zip(critics, targets):
            for weight, slow in zip(critic.parameters(), target.parameters()):
                slow.data.lerp_(weight.data, TAU)

    return step
