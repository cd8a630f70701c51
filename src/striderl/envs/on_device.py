"""`OnDevice`: CPU envs with their tensors on another device.

    learner on the GPU ──actions──▶ [ to the host ] ──▶ env on the CPU ──step──▶ [ to the GPU ] ──▶ learner on the GPU

Each step waits for the actions, since the simulation cannot start without them. The way back does not wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.data import tree
from striderl.envs.vec_env import Actions, Obs, Step, VecEnv


class OnDevice(VecEnv):
    """Another env with its observations, rewards and flags on `device`, where actions are taken from too."""

    def __init__(self, env: VecEnv, device: torch.device | str) -> None:
        """Wrap the env; nothing of it is changed."""
        self.env, self.device = env, torch.device(device)
        self.num_envs, self.obs_spec, self.action_spec = env.num_envs, env.obs_spec, env.action_spec
        self.info_spec, self.gives_final_obs = env.info_spec, env.gives_final_obs
        self.max_episode_length, self.step_dt = env.max_episode_length, env.step_dt
        self.render_fps = env.render_fps
        self.first_env_index, self.actuation = env.first_env_index, env.actuation

    def _there(self, values: Any) -> Any:
        return tree.map(lambda leaf: leaf.to(self.device, non_blocking=True), values)

    def _home(self, values: Any) -> Any:
        return tree.map(lambda leaf: leaf.to(self.env.device), values)

    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env."""
        obs: Obs = self._there(self.env.reset(seed))
        return obs

    def step(self, actions: Actions) -> Step:
        """Copy the actions to the envs' device, step, and copy the results back."""
        step = self.env.step(self._home(actions))
        return Step(
            obs=self._there(step.obs),
            reward=self._there(step.reward),
            terminated=self._there(step.terminated),
            truncated=self._there(step.truncated),
            final_obs=None if step.final_obs is None else self._there(step.final_obs),
            info={name: value if name == "log" else self._there(value) for name, value in step.info.items()},
        )

    def reset_envs(self, mask: Tensor) -> Obs:
        """Start new episodes where mask is true."""
        obs: Obs = self._there(self.env.reset_envs(self._home(mask)))
        return obs

    @property
    def episode_length_buf(self) -> Tensor:
        """Steps taken so far in each env's episode, int64 [N]."""
        ages: Tensor = self._there(self.env.episode_length_buf)
        return ages

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self.env.episode_length_buf = self._home(value)

    def state_dict(self) -> dict[str, Any]:
        """Return the env's state, where the env keeps it."""
        return self.env.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> Obs:
        """Continue from a saved state."""
        obs: Obs = self._there(self.env.load_state_dict(state))
        return obs

    def render(self, env_index: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return one env's picture."""
        return self.env.render(env_index)

    def metrics(self) -> dict[str, Tensor]:
        """Return the env's metrics on the device."""
        found: dict[str, Tensor] = self._there(self.env.metrics())
        return found

    def close(self) -> None:
        """Close the env."""
        self.env.close()
