"""Train CartPole with a DQN of one's own in four classes: Model, Algorithm, Agent, Trainer, where the trainer yields.

Networks, update, exploration and loop are written here; envs, buffer, evaluation, log and checkpoints are imported.
About ten seconds on one core to a greedy return of 195 or more.

python examples/generator_dqn.py [--seed 0] [--total-timesteps 20000] [--tensorboard runs/dqn] [--folder checkpoints]
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from striderl.compat.generator import Agent, Algorithm, BufferSamples, Trainer, logger


class Model(nn.Module):
    """One Q-value per action."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        size, choices = kwargs["obs_space"].shape[0], kwargs["act_space"].n
        self.net = nn.Sequential(nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, choices))

    def value(self, x: Tensor, a: Tensor | None = None) -> Tensor:
        """Return Q [B, n], or Q [B] of these actions."""
        q = self.net(x)
        return q if a is None else q.gather(1, a[:, None])[:, 0]


class DQN(Algorithm):
    """Double DQN."""

    def __init__(self, learning_rate: float = 1e-3, gamma: float = 0.98, **kwargs: Any) -> None:
        self.model = Model(**kwargs)
        self.target_model = copy.deepcopy(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=learning_rate)
        self.gamma = gamma

    def predict(self, obs: Tensor) -> Tensor:
        """Return Q [B, n]."""
        return self.model.value(obs)

    def learn(self, data: BufferSamples) -> dict[str, Any]:
        """Take one gradient step on the TD error."""
        with torch.no_grad():
            best = self.model.value(data.next_observations).argmax(1)
            target = data.rewards + self.gamma * (1 - data.dones) * self.target_model.value(
                data.next_observations, best
            )
        q = self.model.value(data.observations, data.actions)
        loss = nn.functional.smooth_l1_loss(q, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"td_loss": loss, "q_value": q.mean()}

    def sync_target(self) -> None:
        """Copy the model."""
        self.target_model.load_state_dict(self.model.state_dict())


class DQNAgent(Agent):
    """Epsilon-greedy exploration, and the target copied every so many training steps."""

    def __init__(self, exploration_steps: int = 6000, target_frequency: int = 100, **kwargs: Any) -> None:
        self.alg = DQN(**kwargs)
        self.exploration_steps, self.target_frequency = exploration_steps, target_frequency
        self.act_space, self.sample_step, self.learn_step = kwargs["act_space"], 0, 0
        self.random = np.random.default_rng(kwargs["seed"])

    @property
    def current_epsilon(self) -> float:
        """Fall from 1 to 0.05."""
        return max(0.05, 1.0 - 0.95 * self.sample_step / self.exploration_steps)

    def sample(self, obs: np.ndarray) -> np.ndarray:
        """Return the best action, or any."""
        self.sample_step += len(obs)
        any_action = self.random.integers(self.act_space.n, size=len(obs))
        return np.where(self.random.random(len(obs)) < self.current_epsilon, any_action, self.predict(obs))

    def learn(self, data: BufferSamples) -> dict[str, Any]:
        """Hand the samples on as tensors."""
        logs = super().learn(data)
        if self.learn_step % self.target_frequency == 0:
            self.alg.sync_target()
        return {**logs, "epsilon": self.current_epsilon}


class DQNTrainer(Trainer):
    """DQN on CartPole."""

    def __init__(self, **kwargs: Any) -> None:
        settings = {"env": "CartPole-v1", "num_envs": 4, "total_timesteps": 20_000, "eval_frequency": 2000}
        super().__init__(agent=DQNAgent, **{**settings, **kwargs})


def train(seed: int, total_timesteps: int, tensorboard: str = "", folder: str = "") -> float:
    """Return the best mean return of an evaluation."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    trainer = DQNTrainer(seed=seed, total_timesteps=total_timesteps)
    call = logger("tensorboard", folder=tensorboard)(DQNTrainer.__call__) if tensorboard else DQNTrainer.__call__
    best = 0.0
    for log_data in call(trainer):
        if log_data["log_type"] == "evaluate" and log_data["sample_step"]:
            print(log_data, flush=True)
            best = max(best, log_data["logs"]["mean_episodic_return"])
            if folder:
                trainer.save(folder)  # DQNTrainer().load(folder) continues from it
            if best >= 195.0:
                break
    trainer.close()
    return best


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the model, the envs and the samples")
    parser.add_argument("--total-timesteps", type=int, default=20_000, help="env steps at most")
    parser.add_argument("--tensorboard", default="", help="folder of TensorBoard's files; empty for none")
    parser.add_argument("--folder", default="", help="folder of checkpoints; empty for none")
    print(f"best greedy return {train(**vars(parser.parse_args())):.1f}")
