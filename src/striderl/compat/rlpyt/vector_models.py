"""rlpyt's models for vectors: policies with values, and the actors and critics of DDPG, TD3 and SAC."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from striderl.compat.rlpyt.models import (
    MlpModel,
    Nonlinearity,
    RunningMeanStdModel,
    Sizes,
    recurrent_input,
    run_lstm,
)
from striderl.compat.rlpyt.tensors import infer_leading_dims, restore_leading_dims


class _NormalizedObservations(nn.Module):
    """Observations as they are, or shifted and scaled by their own mean and variance."""

    def __init__(self, shape: Sequence[int], clip: float, var_clip: float | None, *, enabled: bool) -> None:
        super().__init__()
        self.rms = RunningMeanStdModel(shape) if enabled else None
        self.clip, self.var_clip = clip, var_clip

    def forward(self, observation: Tensor) -> Tensor:
        if self.rms is None:
            return observation
        var = self.rms.var if self.var_clip is None else self.rms.var.clamp(min=self.var_clip)
        return ((observation - self.rms.mean) / var.sqrt()).clamp(-self.clip, self.clip)

    def update(self, observation: Tensor) -> None:
        if self.rms is not None:
            self.rms.update(observation)


class MujocoFfModel(nn.Module):
    """Layers of their own for the mean and for the value, and one log_std per entry for all observations."""

    def __init__(
        self,
        observation_shape: Sequence[int],
        action_size: int,
        hidden_sizes: Sizes = None,
        hidden_nonlinearity: Nonlinearity = nn.Tanh,
        mu_nonlinearity: Nonlinearity | None = nn.Tanh,
        init_log_std: float = 0.0,
        normalize_observation: bool = False,
        norm_obs_clip: float = 10,
        norm_obs_var_clip: float | None = 1e-6,
    ) -> None:
        super().__init__()
        self._obs_ndim, size = len(observation_shape), math.prod(observation_shape)
        hidden = hidden_sizes or [64, 64]
        mu: nn.Module = MlpModel(size, hidden, action_size, hidden_nonlinearity)
        self.mu = mu if mu_nonlinearity is None else nn.Sequential(mu, mu_nonlinearity())
        self.v = MlpModel(size, hidden, 1, hidden_nonlinearity)
        self.log_std = nn.Parameter(init_log_std * torch.ones(action_size))
        self.normalize_observation = normalize_observation
        self.observations = _NormalizedObservations(
            observation_shape, norm_obs_clip, norm_obs_var_clip, enabled=normalize_observation
        )

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any) -> Any:
        """Return mu and log_std [..., n], and v [...]."""
        lead_dim, T, B, _ = infer_leading_dims(observation, self._obs_ndim)
        rows = self.observations(observation).reshape(T * B, -1).float()
        mu = self.mu(rows)
        outputs = mu, self.log_std.expand_as(mu), self.v(rows).squeeze(-1)
        return restore_leading_dims(outputs, lead_dim, T, B)

    def update_obs_rms(self, observation: Tensor) -> None:
        """Take observations into account for their normalisation, where there is one."""
        self.observations.update(observation)


class MujocoLstmModel(nn.Module):
    """Layers and an LSTM to mean, log_std and value; previous action and reward enter the LSTM."""

    def __init__(
        self,
        observation_shape: Sequence[int],
        action_size: int,
        hidden_sizes: Sizes = None,
        lstm_size: int = 256,
        nonlinearity: Nonlinearity = nn.ReLU,
        normalize_observation: bool = False,
        norm_obs_clip: float = 10,
        norm_obs_var_clip: float | None = 1e-6,
    ) -> None:
        super().__init__()
        self._obs_ndim, self._action_size = len(observation_shape), action_size
        self.mlp = MlpModel(math.prod(observation_shape), hidden_sizes or [256, 256], None, nonlinearity)
        self.lstm = nn.LSTM(self.mlp.output_size + action_size + 1, lstm_size)
        self.head = nn.Linear(lstm_size, action_size * 2 + 1)
        self.normalize_observation = normalize_observation
        self.observations = _NormalizedObservations(
            observation_shape, norm_obs_clip, norm_obs_var_clip, enabled=normalize_observation
        )

    def forward(self, observation: Tensor, prev_action: Tensor, prev_reward: Tensor, init_rnn_state: Any) -> Any:
        """Return mu and log_std [..., n], v [...] and the next state."""
        lead_dim, T, B, _ = infer_leading_dims(observation, self._obs_ndim)
        features = self.mlp(self.observations(observation).reshape(T * B, -1).float())
        inputs = recurrent_input(features, prev_action, prev_reward, T, B)
        output, state = run_lstm(self.lstm, inputs, init_rnn_state)
        mu, log_std, v = self.head(output).split([self._action_size, self._action_size, 1], dim=-1)
        return *restore_leading_dims((mu, log_std, v.squeeze(-1)), lead_dim, T, B), state

    def update_obs_rms(self, observation: Tensor) -> None:
        """Take observations into account for their normalisation, where there is one."""
        self.observations.update(observation)


class MuMlpModel(nn.Module):
    """An action between -output_max and output_max: the actor of DDPG and TD3."""

    def __init__(
        self, observation_shape: Sequence[int], hidden_sizes: Sizes, action_size: int, output_max: float = 1
    ) -> None:
        super().__init__()
        self._output_max, self._obs_ndim = output_max, len(observation_shape)
        self.mlp = MlpModel(math.prod(observation_shape), hidden_sizes, action_size)

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any) -> Any:
        """Return mu [..., n]."""
        lead_dim, T, B, _ = infer_leading_dims(observation, self._obs_ndim)
        mu = self._output_max * self.mlp(observation.reshape(T * B, -1).float()).tanh()
        return restore_leading_dims(mu, lead_dim, T, B)


class PiMlpModel(nn.Module):
    """Mean and log_std, before squashing: the actor of SAC."""

    def __init__(self, observation_shape: Sequence[int], hidden_sizes: Sizes, action_size: int) -> None:
        super().__init__()
        self._obs_ndim = len(observation_shape)
        self.mlp = MlpModel(math.prod(observation_shape), hidden_sizes, action_size * 2)

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any) -> Any:
        """Return mu and log_std, [..., n] each."""
        lead_dim, T, B, _ = infer_leading_dims(observation, self._obs_ndim)
        mu, log_std = self.mlp(observation.reshape(T * B, -1).float()).chunk(2, dim=-1)
        return restore_leading_dims((mu, log_std), lead_dim, T, B)


class QofMuMlpModel(nn.Module):
    """The value of an action: the critic of DDPG, TD3 and SAC."""

    def __init__(self, observation_shape: Sequence[int], hidden_sizes: Sizes, action_size: int) -> None:
        super().__init__()
        self._obs_ndim = len(observation_shape)
        self.mlp = MlpModel(math.prod(observation_shape) + action_size, hidden_sizes, 1)

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any, action: Tensor) -> Any:
        """Return q [...]."""
        lead_dim, T, B, _ = infer_leading_dims(observation, self._obs_ndim)
        rows = torch.cat([observation.reshape(T * B, -1).float(), action.reshape(T * B, -1).float()], dim=1)
        return restore_leading_dims(self.mlp(rows).squeeze(-1), lead_dim, T, B)


class VMlpModel(nn.Module):
    """The value of an observation."""

    def __init__(self, observation_shape: Sequence[int], hidden_sizes: Sizes, action_size: int | None = None) -> None:
        super().__init__()
        self._obs_ndim = len(observation_shape)
        self.mlp = MlpModel(math.prod(observation_shape), hidden_sizes, 1)

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any) -> Any:
        """Return v [...]."""
        lead_dim, T, B, _ = infer_leading_dims(observation, self._obs_ndim)
        v = self.mlp(observation.reshape(T * B, -1).float()).squeeze(-1)
        return restore_leading_dims(v, lead_dim, T, B)
