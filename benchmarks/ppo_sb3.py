"""Stable-Baselines3 in the PPO benchmarks: `PPO` with its own rollout buffer, on `DummyVecEnv`."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import Env
from gymnasium.spaces import Box
from ppo_tasks import (
    CLIP,
    GAMMA,
    LAM,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    VALUE_COEF,
    Rollout,
    TrainTask,
    UpdateTask,
    Work,
    make_plain,
    rollout,
    rollout_of,
)
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv


class Shapes(Env):  # type: ignore[type-arg]
    """Spaces without a simulation: an update needs nothing else."""

    def __init__(self, obs_size: int, action_size: int) -> None:
        self.observation_space = Box(-np.inf, np.inf, (obs_size,), np.float32)
        self.action_space = Box(-10.0, 10.0, (action_size,), np.float32)  # it wants bounds; an update ignores them


def _learner(env: VecEnv, num_steps: int, minibatch: int, epochs: int, hidden: tuple[int, ...], activation: str) -> PPO:
    return PPO(
        "MlpPolicy",
        env,
        learning_rate=LEARNING_RATE,
        n_steps=num_steps,
        batch_size=minibatch,
        n_epochs=epochs,
        gamma=GAMMA,
        gae_lambda=LAM,
        clip_range=CLIP,
        ent_coef=0.0,
        vf_coef=VALUE_COEF,
        max_grad_norm=MAX_GRAD_NORM,
        policy_kwargs={
            "net_arch": {"pi": list(hidden), "vf": list(hidden)},
            "activation_fn": {"tanh": torch.nn.Tanh, "elu": torch.nn.ELU}[activation],
        },
        device="cpu",
        seed=0,
    )


def update(task: UpdateTask) -> Work:
    """Return one update of a full rollout."""
    env = DummyVecEnv([lambda: Shapes(task.obs_size, task.action_size)] * task.num_envs)
    model = _learner(env, task.num_steps, task.minibatch_size, task.epochs, task.hidden, task.activation)
    model.set_logger(Logger(folder=None, output_formats=[]))
    data, buffer = rollout_of(task), model.rollout_buffer
    last_value = torch.from_numpy(data.last_value)

    def work() -> None:
        _fill(buffer, data)
        buffer.compute_returns_and_advantage(last_value, data.done[-1])
        model.train()

    return work


def _fill(buffer: RolloutBuffer, data: Rollout) -> None:
    """Put the rollout in: `train` leaves the buffer flattened, so its arrays are set anew (no copies)."""
    buffer.reset()
    buffer.observations, buffer.actions = data.obs, data.act
    buffer.rewards, buffer.values, buffer.log_probs = data.rew, data.value, data.log_prob
    buffer.episode_starts = np.concatenate([np.zeros_like(data.done[:1]), data.done[:-1]]).astype(np.float32)
    buffer.pos, buffer.full = len(data.rew), True


def train(task: TrainTask) -> Work:
    """Return some iterations of training, without a logger's output."""
    env = DummyVecEnv([make_plain(task.env)] * task.num_envs)
    model = _learner(env, task.num_steps, task.minibatch_size, task.epochs, task.hidden, "tanh")
    return lambda: model.learn(task.steps_per_sample, log_interval=10**9, reset_num_timesteps=False)


def returns(num_steps: int, num_envs: int) -> Work:
    """Return one call of the buffer's GAE."""
    data = rollout(num_steps, num_envs, 1, 1)
    buffer = RolloutBuffer(num_steps, Box(-1, 1, (1,)), Box(-1, 1, (1,)), "cpu", LAM, GAMMA, num_envs)
    _fill(buffer, data)
    last_value = torch.from_numpy(data.last_value)
    return lambda: buffer.compute_returns_and_advantage(last_value, data.done[-1])
