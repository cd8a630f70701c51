"""PPO in one file, in the manner of CleanRL: plain PyTorch, one loop, nothing hidden.

Written for this comparison, with care for speed where it costs no clarity: tensors are allocated once, data goes to
torch once per step, minibatches are views of one shuffled copy per epoch, numbers for the log are read once per update.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
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
    make_plain,
    rollout,
    rollout_of,
)
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Normal


def _layer(inputs: int, outputs: int, gain: float = 2.0**0.5) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _network(inputs: int, hidden: tuple[int, ...], outputs: int, gain: float, activation: str) -> nn.Sequential:
    kinds = {"tanh": nn.Tanh, "elu": nn.ELU}
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [_layer(inputs, width), kinds[activation]()]
        inputs = width
    return nn.Sequential(*layers, _layer(inputs, outputs, gain))


class Agent(nn.Module):
    """An actor and a critic; choices when `discrete`, otherwise Gaussian actions with one learned std each."""

    def __init__(self, obs_size: int, action_size: int, hidden: tuple[int, ...], activation: str, discrete: bool):
        super().__init__()
        self.critic = _network(obs_size, hidden, 1, 1.0, activation)
        self.actor = _network(obs_size, hidden, action_size, 0.01, activation)
        self.log_std = None if discrete else nn.Parameter(torch.zeros(action_size))

    def distribution(self, obs: Tensor) -> Distribution:
        """Return the distribution of actions."""
        output = self.actor(obs)
        return Categorical(logits=output) if self.log_std is None else Normal(output, self.log_std.exp())

    def log_prob(self, distribution: Distribution, action: Tensor) -> Tensor:
        """Return the log-probability of whole actions."""
        log_prob: Tensor = distribution.log_prob(action)  # type: ignore[no-untyped-call]
        return log_prob if self.log_std is None else log_prob.sum(-1)

    def entropy(self, distribution: Distribution) -> Tensor:
        """Return the entropy of whole actions."""
        entropy: Tensor = distribution.entropy()  # type: ignore[no-untyped-call]
        return entropy if self.log_std is None else entropy.sum(-1)


class Buffer:
    """A rollout, time first."""

    def __init__(self, num_steps: int, num_envs: int, obs_size: int, action_shape: tuple[int, ...], discrete: bool):
        self.obs = torch.zeros(num_steps, num_envs, obs_size)
        self.act = torch.zeros(num_steps, num_envs, *action_shape, dtype=torch.int64 if discrete else torch.float32)
        self.rew, self.done, self.value, self.log_prob = (torch.zeros(num_steps, num_envs) for _ in range(4))


@torch.no_grad()
def advantages(buffer: Buffer, last_value: Tensor) -> tuple[Tensor, Tensor]:
    """Return (advantages, returns) by GAE; `done[t]` says that the episode ended in step t."""
    advantage = torch.zeros_like(buffer.rew)
    running = torch.zeros_like(last_value)
    following = last_value
    for step in reversed(range(len(buffer.rew))):
        going = 1.0 - buffer.done[step]
        delta = buffer.rew[step] + GAMMA * following * going - buffer.value[step]
        advantage[step] = running = delta + GAMMA * LAM * going * running
        following = buffer.value[step]
    return advantage, advantage + buffer.value


def learn(
    agent: Agent, optimizer: torch.optim.Optimizer, buffer: Buffer, last_value: Tensor, epochs: int, minibatches: int
) -> list[float]:
    """Take all gradient steps and return the mean of what is logged."""
    advantage, target = advantages(buffer, last_value)
    columns = [column.flatten(0, 1) for column in (buffer.obs, buffer.act, buffer.log_prob, advantage, target)]
    logged = []
    for _ in range(epochs):
        order = torch.randperm(len(columns[0]))
        shuffled = [column[order].chunk(minibatches) for column in columns]
        for obs, act, old_log_prob, gain, goal in zip(*shuffled):
            distribution = agent.distribution(obs)
            log_ratio = agent.log_prob(distribution, act) - old_log_prob
            ratio = log_ratio.exp()
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            policy_loss = torch.max(-gain * ratio, -gain * ratio.clamp(1.0 - CLIP, 1.0 + CLIP)).mean()
            value_loss = 0.5 * (agent.critic(obs).squeeze(-1) - goal).square().mean()
            entropy = agent.entropy(distribution).mean()
            loss = policy_loss + VALUE_COEF * value_loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            with torch.no_grad():
                kl = (ratio - 1.0 - log_ratio).mean()
                clipped = ((ratio - 1.0).abs() > CLIP).float().mean()
                logged.append(torch.stack([policy_loss, value_loss, entropy, kl, clipped]))
    return torch.stack(logged).mean(0).tolist()


def update(task: UpdateTask) -> Work:
    """Return one update of a full rollout."""
    torch.manual_seed(0)
    agent = Agent(task.obs_size, task.action_size, task.hidden, task.activation, discrete=False)
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
    data = rollout_of(task)
    buffer = Buffer(task.num_steps, task.num_envs, task.obs_size, (task.action_size,), discrete=False)
    for name in ("obs", "act", "rew", "done", "value", "log_prob"):
        vars(buffer)[name].copy_(torch.from_numpy(data._asdict()[name]))
    last_obs = torch.from_numpy(data.last_obs)

    def work() -> None:
        with torch.no_grad():
            last_value = agent.critic(last_obs).squeeze(-1)
        learn(agent, optimizer, buffer, last_value, task.epochs, task.minibatches)

    return work


def train(task: TrainTask) -> Work:
    """Return some iterations of training on `SyncVectorEnv`."""
    torch.manual_seed(0)
    env = SyncVectorEnv([make_plain(task.env)] * task.num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    space = env.single_action_space
    discrete = isinstance(space, gymnasium.spaces.Discrete)
    obs_size = int(np.prod(env.single_observation_space.shape or ()))
    action_size = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else int(np.prod(space.shape or ()))
    agent = Agent(obs_size, action_size, task.hidden, "tanh", discrete)
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
    shape = () if discrete else (action_size,)
    buffer = Buffer(task.num_steps, task.num_envs, obs_size, shape, discrete)
    obs = torch.as_tensor(env.reset(seed=0)[0], dtype=torch.float32)

    def work() -> None:
        nonlocal obs
        for _ in range(task.iterations):
            obs = collect(env, agent, buffer, obs)
            with torch.no_grad():
                last_value = agent.critic(obs).squeeze(-1)
            learn(agent, optimizer, buffer, last_value, task.epochs, task.minibatches)

    return work


@torch.no_grad()
def collect(env: Any, agent: Agent, buffer: Buffer, obs: Tensor) -> Tensor:
    """Fill the buffer and return the observation after its last step."""
    for step in range(len(buffer.rew)):
        distribution = agent.distribution(obs)
        action = distribution.sample()  # type: ignore[no-untyped-call]
        buffer.obs[step], buffer.act[step] = obs, action
        buffer.log_prob[step] = agent.log_prob(distribution, action)
        buffer.value[step] = agent.critic(obs).squeeze(-1)
        next_obs, reward, terminated, truncated, _ = env.step(action.numpy())
        buffer.rew[step] = torch.as_tensor(reward, dtype=torch.float32)
        buffer.done[step] = torch.as_tensor(terminated | truncated, dtype=torch.float32)
        obs = torch.as_tensor(next_obs, dtype=torch.float32)
    return obs


def returns(num_steps: int, num_envs: int) -> Work:
    """Return one call of GAE."""
    data = rollout(num_steps, num_envs, 1, 1)
    buffer = Buffer(num_steps, num_envs, 1, (1,), discrete=False)
    for name in ("rew", "done", "value"):
        vars(buffer)[name].copy_(torch.from_numpy(data._asdict()[name]))
    last_value = torch.from_numpy(data.last_value)
    return lambda: advantages(buffer, last_value)
