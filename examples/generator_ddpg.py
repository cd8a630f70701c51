"""Train Pendulum with a DDPG of one's own in four classes: Model, Algorithm, Agent, Trainer, where the trainer yields.

About fifteen seconds on one core to a greedy return of -250 or more; a policy that does nothing has about -1200.

python examples/generator_ddpg.py [--seed 0] [--total-timesteps 16000]
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from striderl.compat.generator import Agent, Algorithm, BufferSamples, Trainer


def mlp(num_inputs: int, num_outputs: int) -> nn.Sequential:
    """Return two hidden layers."""
    return nn.Sequential(nn.Linear(num_inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, num_outputs))


class Model(nn.Module):
    """An actor with bounded actions and a critic of states and actions."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        obs, act = kwargs["obs_space"].shape[0], kwargs["act_space"].shape[0]
        self.actor, self.critic = mlp(obs, act), mlp(obs + act, 1)
        self.register_buffer("scale", torch.as_tensor(kwargs["act_space"].high))

    def value(self, x: Tensor, a: Tensor | None = None) -> Tensor:
        """Return Q [B] of these actions, or of the actor's own."""
        a = self.action(x) if a is None else a
        return self.critic(torch.cat([x, a / self.scale], 1))[:, 0]

    def action(self, x: Tensor) -> Tensor:
        """Return the actions [B, n]."""
        return self.actor(x).tanh() * self.scale


class DDPG(Algorithm):
    """A TD error for the critic, and its gradient for the actor."""

    def __init__(self, learning_rate: float = 1e-3, gamma: float = 0.98, tau: float = 0.01, **kwargs: Any) -> None:
        self.model = Model(**kwargs)
        self.target_model = copy.deepcopy(self.model)
        self.actor_optimizer = torch.optim.Adam(self.model.actor.parameters(), lr=learning_rate)
        self.critic_optimizer = torch.optim.Adam(self.model.critic.parameters(), lr=learning_rate)
        self.gamma, self.tau = gamma, tau

    def predict(self, obs: Tensor) -> Tensor:
        """Return the actions [B, n]."""
        return self.model.action(obs)

    def learn(self, data: BufferSamples) -> dict[str, Any]:
        """Take one gradient step of the critic and one of the actor."""
        with torch.no_grad():
            target = data.rewards + self.gamma * (1 - data.dones) * self.target_model.value(data.next_observations)
        q = self.model.value(data.observations, data.actions)
        critic_loss = nn.functional.mse_loss(q, target)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        actor_loss = -self.model.value(data.observations).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()
        self.sync_target()
        return {"critic_loss": critic_loss, "actor_loss": actor_loss, "q_value": q.mean()}

    @torch.no_grad()
    def sync_target(self) -> None:
        """Move the target a little towards the model."""
        for target, now in zip(self.target_model.parameters(), self.model.parameters()):
            target.lerp_(now, self.tau)


class DDPGAgent(Agent):
    """Random actions before learning starts, then Gaussian noise on the actor's."""

    def __init__(self, exploration_noise: float = 0.2, **kwargs: Any) -> None:
        self.alg = DDPG(**kwargs)
        self.act_space, self.seed = kwargs["act_space"], kwargs["seed"]
        self.learning_starts, self.exploration_noise = kwargs["learning_starts"], exploration_noise
        self.sample_step, self.learn_step = 0, 0
        self.random = np.random.default_rng(self.seed)

    def sample(self, obs: np.ndarray) -> np.ndarray:
        """Return noisy actions within the bounds."""
        self.sample_step += len(obs)
        low, high = self.act_space.low, self.act_space.high
        if self.sample_step <= self.learning_starts:
            return self.random.uniform(low, high, (len(obs), *low.shape)).astype(np.float32)
        actions = self.predict(obs)
        noise = self.random.standard_normal(actions.shape) * self.exploration_noise * high
        return (actions + noise).clip(low, high).astype(np.float32)


class DDPGTrainer(Trainer):
    """DDPG on Pendulum."""

    def __init__(self, **kwargs: Any) -> None:
        settings = {"env": "pendulum", "num_envs": 2, "total_timesteps": 16_000, "eval_frequency": 2000}
        super().__init__(agent=DDPGAgent, **{**settings, **kwargs})


def train(seed: int, total_timesteps: int) -> float:
    """Return the best mean return of an evaluation."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    trainer = DDPGTrainer(seed=seed, total_timesteps=total_timesteps)
    best = -float("inf")
    for log_data in trainer():
        if log_data["log_type"] == "evaluate" and log_data["sample_step"]:
            print(log_data, flush=True)
            best = max(best, log_data["logs"]["mean_episodic_return"])
            if best >= -250.0:
                break
    trainer.close()
    return best


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the model, the envs and the samples")
    parser.add_argument("--total-timesteps", type=int, default=16_000, help="env steps at most")
    print(f"best greedy return {train(**vars(parser.parse_args())):.1f}")
