"""Train CartPole with a PPO of one's own in four classes: Model, Algorithm, Agent, Trainer, where the trainer yields.

`on_policy = True` makes the trainer hand over whole rollouts [T, N, …]. About five seconds on one core to a greedy
return of 195 or more.

python examples/generator_ppo.py [--seed 0] [--total-timesteps 60000]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from striderl.compat.generator import Agent, Algorithm, BufferSamples, Trainer
from striderl.ops.returns import gae


def mlp(num_inputs: int, num_outputs: int) -> nn.Sequential:
    """Return two hidden layers."""
    return nn.Sequential(nn.Linear(num_inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, num_outputs))


class Model(nn.Module):
    """A policy of choices and a value of states."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        size = kwargs["obs_space"].shape[0]
        self.actor, self.critic = mlp(size, kwargs["act_space"].n), mlp(size, 1)

    def value(self, x: Tensor, a: Tensor | None = None) -> Tensor:
        """Return V [...]."""
        return self.critic(x)[..., 0]

    def action(self, x: Tensor) -> Categorical:
        """Return the distribution of actions."""
        return Categorical(logits=self.actor(x))


class PPO(Algorithm):
    """The clipped surrogate, with advantages by GAE."""

    on_policy = True

    def __init__(
        self,
        learning_rate: float = 1e-3,
        gamma: float = 0.99,
        lam: float = 0.95,
        clip: float = 0.2,
        update_epochs: int = 6,
        minibatch_size: int = 128,
        **kwargs: Any,
    ) -> None:
        self.model = Model(**kwargs)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=learning_rate)
        self.gamma, self.lam, self.clip = gamma, lam, clip
        self.update_epochs, self.minibatch_size = update_epochs, minibatch_size

    def predict(self, obs: Tensor) -> Categorical:
        """Return the distribution of actions."""
        return self.model.action(obs)

    def learn(self, data: BufferSamples) -> dict[str, Any]:
        """Compute advantages of a rollout [T, N, …] and take the gradient steps."""
        with torch.no_grad():
            value, next_value = self.model.value(data.observations), self.model.value(data.next_observations)
            ends = (data.dones.bool(), data.truncated)
            returns, advantage = gae(data.rewards, value, next_value, *ends, gamma=self.gamma, lam=self.lam)
            old_log_prob = self.model.action(data.observations).log_prob(data.actions).flatten()
        flat, returns, advantage = data.flat(), returns.flatten(), advantage.flatten()
        for _ in range(self.update_epochs):
            for rows in torch.randperm(len(flat)).split(self.minibatch_size):
                logs = self._step(flat[rows], old_log_prob[rows], returns[rows], advantage[rows])
        return logs

    def _step(self, data: BufferSamples, old_log_prob: Tensor, returns: Tensor, advantage: Tensor) -> dict[str, Any]:
        policy = self.model.action(data.observations)
        ratio = (policy.log_prob(data.actions) - old_log_prob).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        surrogate = torch.min(ratio * advantage, ratio.clamp(1 - self.clip, 1 + self.clip) * advantage).mean()
        value_loss = (self.model.value(data.observations) - returns).square().mean()
        entropy = policy.entropy().mean()
        self.optimizer.zero_grad()
        (-surrogate + 0.5 * value_loss - 0.01 * entropy).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        return {"policy_loss": -surrogate, "value_loss": value_loss, "entropy": entropy}


class PPOAgent(Agent):
    """Samples of the policy in training, its mode in evaluations: what `Agent` does by itself."""

    def __init__(self, **kwargs: Any) -> None:
        self.alg = PPO(**kwargs)


class PPOTrainer(Trainer):
    """PPO on CartPole."""

    def __init__(self, **kwargs: Any) -> None:
        settings = {"env": "cartpole", "num_envs": 8, "num_steps": 128, "eval_frequency": 4096}
        super().__init__(agent=PPOAgent, **{**settings, **kwargs})


def train(seed: int, total_timesteps: int) -> float:
    """Return the best mean return of an evaluation."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    trainer = PPOTrainer(seed=seed, total_timesteps=total_timesteps)
    best = 0.0
    for log_data in trainer():
        if log_data["log_type"] == "evaluate" and log_data["sample_step"]:
            print(log_data, flush=True)
            best = max(best, log_data["logs"]["mean_episodic_return"])
            if best >= 195.0:
                break
    trainer.close()
    return best


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the model, the envs and the samples")
    parser.add_argument("--total-timesteps", type=int, default=60_000, help="env steps at most")
    print(f"best greedy return {train(**vars(parser.parse_args())):.1f}")
