"""CartPole for many envs with one real action, in the calls of rsl_rl 2."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

LIMIT = 200


class CartPole:
    """A pole on a cart; the sign and size of the action push it. Reward 1 per step, at most 200 steps."""

    num_obs, num_actions, device = 4, 1, "cpu"
    num_privileged_obs = None
    max_episode_length = LIMIT

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.lengths: deque[int] = deque(maxlen=num_envs)
        self.reset()

    def reset(self) -> Tensor:
        self.state = 0.1 * torch.rand(self.num_envs, 4) - 0.05
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        return self.state.clone()

    def get_observations(self) -> tuple[Tensor, dict[str, Any]]:
        return self.state.clone(), {"observations": {}}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        position, speed, angle, turn = self.state.unbind(1)
        force = 10.0 * actions[:, 0].clamp(-1.0, 1.0)
        pushed = (force + 0.05 * turn.square() * angle.sin()) / 1.1
        turning = (9.8 * angle.sin() - angle.cos() * pushed) / (0.5 * (4.0 / 3.0 - 0.1 * angle.cos().square() / 1.1))
        moving = pushed - 0.05 * turning * angle.cos() / 1.1
        self.state = torch.stack(
            [position + 0.02 * speed, speed + 0.02 * moving, angle + 0.02 * turn, turn + 0.02 * turning], dim=1
        )
        self.episode_length_buf += 1
        fallen = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.2095)
        late = ~fallen & (self.episode_length_buf >= LIMIT)
        dones, last = fallen | late, self.state.clone()
        self.lengths.extend(self.episode_length_buf[dones].tolist())
        self.state[dones] = 0.1 * torch.rand(int(dones.sum()), 4) - 0.05
        self.episode_length_buf[dones] = 0
        infos = {"time_outs": late, "final_obs": last, "observations": {}}
        return self.state.clone(), torch.ones(self.num_envs), dones, infos

    def mean_length(self) -> float:
        return sum(self.lengths) / max(1, len(self.lengths))
