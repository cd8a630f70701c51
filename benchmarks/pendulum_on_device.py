"""Pendulum-v1 as tensors on any device: the equations of Gymnasium, for thousands of envs at once.

    state (angle, speed) ── torque in [-2, 2] ──▶ next state        reward = -(angle² + 0.1 speed² + 0.001 torque²)
    obs [N, 3] = (cos, sin, speed)                                  200 steps, then a new one; time-outs show their end

Nothing in a step asks the device for a value, so collection can be recorded. Starts follow from seed, env and episode.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from striderl.data.actions import BoxSpec
from striderl.data.noise import NoiseSpec, draw
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.envs.vec_env import Obs, Step, VecEnv

LENGTH, DT, GRAVITY, STRONGEST, FASTEST = 200, 0.05, 10.0, 2.0, 8.0
_STARTS = 64
"""How many starts of each env are drawn; then they come again."""


class PendulumOnDevice(VecEnv):
    """Pendulums to swing up and hold."""

    def __init__(self, num_envs: int, device: torch.device | str, seed: int = 0) -> None:
        self.num_envs, self.device = num_envs, torch.device(device)
        self.obs_spec = ObsSpec({"policy": ComponentSpec(shape=(3,))})
        self.action_spec = BoxSpec(shape=(1,), low=-STRONGEST, high=STRONGEST)
        self.info_spec: dict[str, Any] = {}
        self.gives_final_obs = True
        self.max_episode_length, self.step_dt = LENGTH, DT
        self._seed(seed)

    def _seed(self, seed: int) -> None:
        index = torch.arange(self.num_envs, device=self.device)
        spec = NoiseSpec(shape=(2,), kind="uniform")
        drawn = draw(spec, "starts", seed=seed, iteration=0, env_index=index, num_steps=_STARTS)
        self._starts = (2.0 * drawn - 1.0) * torch.tensor([math.pi, 1.0], device=self.device)
        self._index = index
        self._episode = torch.zeros_like(index)
        self._ages = torch.zeros_like(index)
        self._state = self._starts[0].clone()

    def reset(self, seed: int | None = None) -> Obs:
        """Begin everywhere."""
        if seed is not None:
            self._seed(seed)
        return self.reset_envs(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))

    def reset_envs(self, mask: Tensor) -> Obs:
        """Begin a new episode where the mask says so."""
        self._begin(mask)
        return self._shown(self._state)

    def step(self, actions: Tensor) -> Step:
        """Push for one time step."""
        angle, speed = self._state.unbind(-1)
        torque = actions.view(-1).clamp(-STRONGEST, STRONGEST)
        bent = torch.remainder(angle + math.pi, 2.0 * math.pi) - math.pi
        reward = -(bent.square() + 0.1 * speed.square() + 0.001 * torque.square())
        speed = (speed + (1.5 * GRAVITY * angle.sin() + 3.0 * torque) * DT).clamp(-FASTEST, FASTEST)
        self._state = torch.stack([angle + speed * DT, speed], dim=-1)
        self._ages = self._ages + 1
        final, over = self._shown(self._state), self._ages >= LENGTH
        self._begin(over)
        return Step(
            obs=self._shown(self._state),
            reward=reward,
            terminated=torch.zeros_like(over),
            truncated=over,
            final_obs=final,
            info={"log": {}},
        )

    @property
    def episode_length_buf(self) -> Tensor:
        """How many steps the episodes have had, int64 [N]."""
        return self._ages

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self._ages = value.clone()

    def _begin(self, mask: Tensor) -> None:
        self._episode = (self._episode + mask) % _STARTS
        self._state = torch.where(mask.unsqueeze(-1), self._starts[self._episode, self._index], self._state)
        self._ages = torch.where(mask, 0, self._ages)

    @staticmethod
    def _shown(state: Tensor) -> Obs:
        angle, speed = state.unbind(-1)
        return {"policy": torch.stack([angle.cos(), angle.sin(), speed], dim=-1)}
