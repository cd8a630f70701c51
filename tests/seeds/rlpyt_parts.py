"""Envs and models that the tests of rlpyt's words share; everything is imported from `striderl.compat.rlpyt`."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from striderl.compat.rlpyt import (
    Env,
    EnvStep,
    FloatBox,
    IntBox,
    MlpModel,
    RnnState,
    SerialSampler,
    infer_leading_dims,
    restore_leading_dims,
)

CountInfo = namedtuple("CountInfo", ["steps", "timeout"])


class CountEnv(Env):
    """Shows how often it was stepped; pays 1 for action 1; ends after `length` steps, by the clock or by itself."""

    def __init__(self, length: int = 5, by_clock: bool = False) -> None:
        self._observation_space = FloatBox(-np.inf, np.inf, (2,))
        self._action_space = IntBox(0, 2)
        self.length, self.by_clock, self.count, self.closed = length, by_clock, 0, False

    def _observation(self) -> Any:
        return np.array([self.count, 1.0], np.float32)

    def reset(self) -> Any:
        self.count = 0
        return self._observation()

    def step(self, action: Any) -> EnvStep:
        self.count += 1
        done = self.count == self.length
        info = CountInfo(self.count, done and self.by_clock)
        return EnvStep(self._observation(), float(action), done, info)

    @property
    def horizon(self) -> int:
        return self.length

    def close(self) -> None:
        self.closed = True


class ImageEnv(CountEnv):
    """The same with small images, uint8 [3, 8, 6]."""

    def __init__(self, length: int = 5) -> None:
        super().__init__(length)
        self._observation_space = IntBox(0, 256, (3, 8, 6), "uint8")

    def _observation(self) -> Any:
        return np.full((3, 8, 6), self.count * 10, np.uint8)


class ReachEnv(CountEnv):
    """The same with real-valued actions in [-1, 1]; pays minus the distance to 0.5."""

    def __init__(self, length: int = 5) -> None:
        super().__init__(length)
        self._action_space = FloatBox(-1.0, 1.0, (1,))

    def step(self, action: Any) -> EnvStep:
        return super().step(0)._replace(reward=-abs(float(action[0]) - 0.5))


class PiModel(nn.Module):
    """Probabilities and a value from observation, previous action and previous reward."""

    def __init__(self, observation_shape: tuple[int, ...], output_size: int, hidden: int = 8) -> None:
        super().__init__()
        self.body = MlpModel(observation_shape[0] + output_size + 1, [hidden])
        self.pi, self.v = nn.Linear(hidden, output_size), nn.Linear(hidden, 1)
        self.seen: list[tuple[Any, ...]] = []

    def features(self, observation: Tensor, prev_action: Tensor, prev_reward: Tensor) -> tuple[Any, ...]:
        self.seen.append((observation, prev_action, prev_reward))
        lead_dim, T, B, _ = infer_leading_dims(observation, 1)
        parts = (observation.view(T * B, -1), prev_action.view(T * B, -1), prev_reward.view(T * B, 1))
        return lead_dim, T, B, self.body(torch.cat(parts, dim=1))

    def forward(self, observation: Tensor, prev_action: Tensor, prev_reward: Tensor) -> Any:
        lead_dim, T, B, x = self.features(observation, prev_action, prev_reward)
        outputs = self.pi(x).softmax(-1), self.v(x).squeeze(-1)
        return restore_leading_dims(outputs, lead_dim, T, B)


class QModel(PiModel):
    """Q-values."""

    def forward(self, observation: Tensor, prev_action: Tensor, prev_reward: Tensor) -> Any:
        lead_dim, T, B, x = self.features(observation, prev_action, prev_reward)
        return restore_leading_dims(self.pi(x), lead_dim, T, B)


class LstmPiModel(PiModel):
    """Probabilities and a value, with an LSTM."""

    def __init__(self, observation_shape: tuple[int, ...], output_size: int, hidden: int = 8) -> None:
        super().__init__(observation_shape, output_size, hidden)
        self.lstm = nn.LSTM(hidden, hidden)

    def recur(self, observation: Tensor, prev_action: Tensor, prev_reward: Tensor, state: Any) -> Any:
        lead_dim, T, B, x = self.features(observation, prev_action, prev_reward)
        x, (h, c) = self.lstm(x.view(T, B, -1), None if state is None else tuple(state))
        return lead_dim, T, B, x.view(T * B, -1), RnnState(h=h, c=c)

    def forward(self, observation: Tensor, prev_action: Tensor, prev_reward: Tensor, init_rnn_state: Any) -> Any:
        lead_dim, T, B, x, state = self.recur(observation, prev_action, prev_reward, init_rnn_state)
        outputs = self.pi(x).softmax(-1), self.v(x).squeeze(-1)
        return *restore_leading_dims(outputs, lead_dim, T, B), state


class LstmQModel(LstmPiModel):
    """Q-values, with an LSTM."""

    def forward(self, observation: Tensor, prev_action: Tensor, prev_reward: Tensor, init_rnn_state: Any) -> Any:
        lead_dim, T, B, x, state = self.recur(observation, prev_action, prev_reward, init_rnn_state)
        return restore_leading_dims(self.pi(x), lead_dim, T, B), state


class MuModel(nn.Module):
    """Mean, log_std and value."""

    def __init__(self, observation_shape: tuple[int, ...], action_size: int) -> None:
        super().__init__()
        self.mu, self.v = nn.Linear(observation_shape[0], action_size), nn.Linear(observation_shape[0], 1)
        self.log_std = nn.Parameter(torch.zeros(action_size))

    def forward(self, observation: Tensor, prev_action: Tensor, prev_reward: Tensor) -> Any:
        lead_dim, T, B, _ = infer_leading_dims(observation, 1)
        x = observation.view(T * B, -1)
        mu = self.mu(x)
        outputs = mu, self.log_std.expand_as(mu), self.v(x).squeeze(-1)
        return restore_leading_dims(outputs, lead_dim, T, B)


def make_sampler(EnvCls: Any = CountEnv, T: int = 6, B: int = 2, **settings: Any) -> SerialSampler:
    env_kwargs = settings.pop("env_kwargs", {})
    return SerialSampler(
        EnvCls=EnvCls, env_kwargs=env_kwargs, batch_T=T, batch_B=B, max_decorrelation_steps=0, **settings
    )


def started(algo: Any, agent: Any, EnvCls: Any = CountEnv, T: int = 6, B: int = 2, **settings: Any) -> SerialSampler:
    """Do what a runner does before its loop; return the sampler."""
    sampler = make_sampler(EnvCls, T, B, **settings)
    examples = sampler.initialize(agent, seed=1, bootstrap_value=algo.bootstrap_value)
    algo.initialize(agent, 10, sampler.batch_spec, sampler.mid_batch_reset, examples)
    agent.sample_mode(0)
    return sampler
