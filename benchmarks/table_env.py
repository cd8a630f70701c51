"""An env that costs nothing: a table of ready tensors, shown row by row, so that only the library's own cost shows.

step   0          1          2       …  15         16
row    1          2          3       …   0          1          reset shows row 0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from striderl.data.actions import BoxSpec
from striderl.data.specs import ObsSpec
from striderl.envs.vec_env import Obs, Step, VecEnv


class TableEnv(VecEnv):
    """Shows ready tensors, whatever is done."""

    def __init__(self, obs_spec: ObsSpec, action_spec: BoxSpec, rows: Sequence[Step]) -> None:
        self.num_envs, self.device = len(rows[0].reward), rows[0].reward.device
        self.obs_spec, self.action_spec, self.info_spec = obs_spec, action_spec, {}
        self.gives_final_obs = False
        self.max_episode_length, self.step_dt = 0, 0.02
        self._rows, self._at = rows, 0
        self._ages = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)

    def reset(self, seed: int | None = None) -> Obs:
        """Show the first row."""
        return self._rows[0].obs

    def step(self, actions: Any) -> Step:
        """Show the next row."""
        self._at = (self._at + 1) % len(self._rows)
        return self._rows[self._at]

    def reset_envs(self, mask: torch.Tensor) -> Obs:
        """Show the row again."""
        return self._rows[self._at].obs

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """Zeros."""
        return self._ages

    @episode_length_buf.setter
    def episode_length_buf(self, value: torch.Tensor) -> None:
        self._ages = value
