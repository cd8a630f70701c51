"""Steps of all envs on their way to the disk: a rollout is filled row by row, then squeezed and brought over at once.

device   [T, N, …] in one arena   │ row t: obs, act, rew, …                      final observations of the rows that
         of the stored columns    ▼                                              ended, packed: [K, …]
host     squeezed by the codecs: {('obs', 'depth'): uint8 [T, N, 1, 48, 64], …}  {…: [K, …]}, (t, env) → row
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from striderl.data.arena import Arena, Columns, Placement
from striderl.data.transition import Transition
from striderl.datasets.trajectories.spec import ColumnPath, TrajectorySpec
from striderl.envs.vec_env import Obs

Array = np.ndarray[Any, Any]


class Stepped(NamedTuple):
    """What `get_transition` returns: st_rl's six values in their order."""

    actions: Any
    """What is recorded as the action: what was done, or in `DaggerSaver` what the teacher would have done."""
    rewards: Tensor
    """float32 [N]."""
    dones: Tensor
    """bool [N]."""
    infos: dict[str, Any]
    """The env's info."""
    obs: Obs
    """What the policy sees next, by component."""
    critic_obs: Obs
    """What only the critic sees, by component; what the policy sees where there is nothing of the kind."""


class HostRollout(NamedTuple):
    """Some steps of all envs, as they are stored."""

    stored: dict[ColumnPath, Tensor]
    """Squeezed columns [T, N, …] on the CPU."""
    finals: dict[ColumnPath, Tensor]
    """Squeezed observations after an end, [K, …]; empty where none are kept."""
    final_rows: dict[tuple[int, int], int]
    """(step, env) → row of `finals`."""
    done: Array
    """Where an episode ended, bool [T, N]."""
    success: Array
    """Whether it ended well, bool [T, N]; means something where `done`."""
    cut: Array
    """Where an episode was given up because of a number that is not finite, bool [T, N]."""

    @property
    def num_steps(self) -> int:
        """How many steps each env has."""
        return int(self.done.shape[0])


class SaverBuffer:
    """A rollout in the making."""

    def __init__(self, columns: Columns, spec: TrajectorySpec, num_steps: int, num_envs: int, device: torch.device):
        """Make room for `num_steps` steps of `num_envs` envs."""
        self.num_steps, self.count = num_steps, 0
        self._spec, self._num_envs = spec, num_envs
        self._arena = Arena(columns, (num_steps, num_envs), Placement(device=str(device)))
        self._success = torch.zeros((num_steps, num_envs), dtype=torch.bool, device=device)
        self._cut = torch.zeros_like(self._success)
        self._finals: list[tuple[int, Tensor, dict[str, Tensor]]] = []

    @property
    def data(self) -> dict[str, Any]:
        """All columns as views, [T, N, …] each; rows from `count` on are old."""
        return self._arena.data

    def add(self, columns: Mapping[str, Any], transition: Transition, success: Tensor, cut: Tensor) -> None:
        """Write the next step of all envs."""
        if self.count >= self.num_steps:
            raise IndexError(f"the buffer has {self.num_steps} steps, and all are there; call save_steps first")
        step = self.count
        self._arena.write((step, slice(0, self._num_envs)), columns)
        self._success[step] = success
        self._cut[step] = cut
        if self._spec.final_obs and transition.final_obs is not None:
            # a look at the device in each step; what is written to files need not outrun it
            rows = transition.done.nonzero().squeeze(1)
            if len(rows):
                self._finals.append((step, rows, {name: value[rows] for name, value in transition.final_obs.items()}))
        self.count += 1

    def take(self) -> HostRollout:
        """Return what is there, squeezed and on the host, and start again."""
        count = self.count
        stored = {
            path: values.to("cpu", copy=True)
            for path, values in self._spec.squeezed(_first(self._arena.data, count)).items()
        }
        terminated, truncated = stored[("terminated",)], stored[("truncated",)]
        rollout = HostRollout(
            stored=stored,
            finals=self._squeezed_finals(),
            final_rows=self._final_rows(),
            done=(terminated | truncated).numpy(),
            success=self._success[:count].cpu().numpy().copy(),
            cut=self._cut[:count].cpu().numpy().copy(),
        )
        self.count, self._finals = 0, []
        return rollout

    def squeezed_obs(self, obs: Mapping[str, Tensor]) -> dict[ColumnPath, Tensor]:
        """Return what is stored of observations [n, …], on the host."""
        return {
            column.path: column.squeezed(obs["/".join(column.path[1:])]).to("cpu") for column in self._spec.obs_columns
        }

    def _squeezed_finals(self) -> dict[ColumnPath, Tensor]:
        if not self._finals:
            return {}
        names = self._finals[0][2]
        return self.squeezed_obs({name: torch.cat([rows[name] for _, _, rows in self._finals]) for name in names})

    def _final_rows(self) -> dict[tuple[int, int], int]:
        places = [(step, env) for step, rows, _ in self._finals for env in rows.tolist()]
        return {place: row for row, place in enumerate(places)}


def _first(values: Any, count: int) -> Any:
    if isinstance(values, Mapping):
        return {name: _first(value, count) for name, value in values.items()}
    return values[:count]
