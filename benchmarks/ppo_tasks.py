"""What the PPO benchmarks ask of everybody: the same sizes, the same data, the same settings.

    rollout (numpy, time first)         obs [T, N, O]   act [T, N, A]   rew, done, value, log_prob [T, N]

Settings are the same for all contenders where they have them: Adam, clip 0.2, gamma 0.99, lambda 0.95, gradient norm
0.5, value loss 0.5, no entropy bonus, a fixed learning rate of 3e-4, advantages normalised, no clipping of values, no
early stop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

GAMMA, LAM = 0.99, 0.95
CLIP = 0.2
LEARNING_RATE = 3e-4
MAX_GRAD_NORM = 0.5
VALUE_COEF = 0.5


@dataclass(frozen=True, kw_only=True)
class UpdateTask:
    """One update: returns and advantages of a full rollout, then every gradient step."""

    num_envs: int
    num_steps: int
    obs_size: int
    action_size: int
    hidden: tuple[int, ...]
    activation: str
    epochs: int
    minibatches: int

    @property
    def minibatch_size(self) -> int:
        """Samples per gradient step."""
        return self.num_envs * self.num_steps // self.minibatches


@dataclass(frozen=True, kw_only=True)
class TrainTask:
    """Training on an env of Gymnasium: 8 envs, actor and critic of two hidden layers of 64 with tanh."""

    env: str
    num_steps: int
    epochs: int
    minibatch_size: int
    iterations: int
    """Iterations of collecting and learning in one sample."""
    num_envs: int = 8
    hidden: tuple[int, ...] = (64, 64)

    @property
    def minibatches(self) -> int:
        """Gradient steps per epoch."""
        return self.num_envs * self.num_steps // self.minibatch_size

    @property
    def steps_per_sample(self) -> int:
        """Env steps in one sample."""
        return self.iterations * self.num_steps * self.num_envs


UPDATES = {
    "[64, 64], 64 envs × 128 steps, 320 steps on 256 samples": UpdateTask(
        num_envs=64,
        num_steps=128,
        obs_size=17,
        action_size=6,
        hidden=(64, 64),
        activation="tanh",
        epochs=10,
        minibatches=32,
    ),
    "[512, 256, 128], 1,024 envs × 24 steps, 8 steps on 6,144 samples": UpdateTask(
        num_envs=1024,
        num_steps=24,
        obs_size=48,
        action_size=12,
        hidden=(512, 256, 128),
        activation="elu",
        epochs=2,
        minibatches=4,
    ),
}
"""Row of the update table → task."""

TRAININGS = {
    "HalfCheetah-v5, 8 × 256, 10 epochs, minibatch 64": TrainTask(
        env="HalfCheetah-v5", num_steps=256, epochs=10, minibatch_size=64, iterations=1
    ),
    "CartPole-v1, 8 × 128, 4 epochs, minibatch 256": TrainTask(
        env="CartPole-v1", num_steps=128, epochs=4, minibatch_size=256, iterations=4
    ),
    "CartPole-v1, 8 × 128, 10 epochs, minibatch 64": TrainTask(
        env="CartPole-v1", num_steps=128, epochs=10, minibatch_size=64, iterations=2
    ),
}
"""Row of the training table → task."""

GAE_SIZES = {"128 steps × 64 envs": (128, 64), "24 steps × 4,096 envs": (24, 4096)}
"""Row of the returns table → (steps, envs)."""


@dataclass(frozen=True, kw_only=True)
class CollectTask:
    """Rollouts from an env of rsl_rl's interface, with normalised observations."""

    num_envs: int
    num_steps: int = 24
    obs_size: int = 48
    action_size: int = 12
    hidden: tuple[int, ...] = (512, 256, 128)


COLLECTIONS = {
    "64 envs × 24 steps, [512, 256, 128]": CollectTask(num_envs=64),
    "1,024 envs × 24 steps, [512, 256, 128]": CollectTask(num_envs=1024),
}
"""The rows of collecting: what an env of rsl_rl costs beside its simulation."""


class StillEnv:
    """rsl_rl's interface without a simulation: the same few observations again and again, episodes of 1,000 steps."""

    max_episode_length = 1000

    def __init__(self, task: CollectTask) -> None:
        import torch

        self.num_envs, self.num_actions, self.cfg = task.num_envs, task.action_size, {}
        self.device = torch.device("cpu")
        generator = torch.Generator().manual_seed(0)
        self._shown = [torch.randn(task.num_envs, task.obs_size, generator=generator) for _ in range(16)]
        self._reward, self._time = torch.zeros(task.num_envs), 0
        self.episode_length_buf = torch.zeros(task.num_envs, dtype=torch.long)

    def get_observations(self) -> Any:
        """Return the observation as rsl_rl 5 wants it."""
        from tensordict import TensorDict

        return TensorDict({"policy": self._shown[self._time % 16]}, batch_size=[self.num_envs])

    def reset(self) -> Any:
        """Return the observation and nothing else."""
        return self.get_observations(), {}

    def step(self, actions: Any) -> Any:
        """Return observation, reward, dones and extras."""
        self._time += 1
        self.episode_length_buf += 1
        time_outs = self.episode_length_buf >= self.max_episode_length
        self.episode_length_buf[time_outs] = 0
        return self.get_observations(), self._reward, time_outs.long(), {"time_outs": time_outs, "log": {}}


Work = Callable[[], Any]
"""One call does the work of one sample."""


class Rollout(NamedTuple):
    """Experience made up at random, as a policy with mean 0 and standard deviation 1 would have left it."""

    obs: Array
    act: Array
    rew: Array
    done: Array
    value: Array
    log_prob: Array
    last_obs: Array
    last_value: Array


def rollout(num_steps: int, num_envs: int, obs_size: int, action_size: int) -> Rollout:
    """Draw a rollout, the same for every contender; one step in a hundred ends an episode."""
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return generator.standard_normal(shape).astype(np.float32)

    act = normal(num_steps, num_envs, action_size)
    return Rollout(
        obs=normal(num_steps, num_envs, obs_size),
        act=act,
        rew=normal(num_steps, num_envs),
        done=generator.random((num_steps, num_envs)) < 0.01,
        value=0.1 * normal(num_steps, num_envs),
        log_prob=(-0.5 * (act**2).sum(-1) - 0.5 * action_size * np.log(2.0 * np.pi)).astype(np.float32),
        last_obs=normal(num_envs, obs_size),
        last_value=0.1 * normal(num_envs),
    )


def rollout_of(task: UpdateTask) -> Rollout:
    """Draw the rollout of an update task."""
    return rollout(task.num_steps, task.num_envs, task.obs_size, task.action_size)


def make_plain(env: str) -> Callable[[], Any]:
    """Return a maker of one Gymnasium env, without the env checker."""
    import gymnasium

    return lambda: gymnasium.make(env, disable_env_checker=True)
