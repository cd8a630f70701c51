"""One bad number from one env never reaches the weights.

A NaN, an infinity or an absurd magnitude in one env's reward or observation must neither stop a run of thousands nor
spread through the averages. What happens to env i when its observation turns bad in step t:

    step       t - 1          t                         t + 1, t + 2, …
    valid      true           true                      false until the env starts a new episode
    ends       as it did      truncated, final_obs is   –
                              the last good observation
    next obs   good           bad ──▶ zeros             zeros while the env is sick

A bad reward makes its own sample invalid and counts as 0. Envs that stay sick are reset between rollouts, and a report
names component, env, step and value. Nothing here asks a GPU for a value before the report is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Obs = dict[str, Tensor]


@dataclass(frozen=True)
class Fault:
    """One bad number."""

    component: str
    """The observation component, 'reward', or 'final_obs/…'."""
    env: int
    """The global index of the env."""
    step: int
    """How many steps this collector had taken in that env."""
    value: float
    """The magnitude of the worst number in that env's row: nan, inf, or how large it was."""
    count: int = 1
    """How many rows of this component were bad since the last report, this one included."""

    def __str__(self) -> str:
        return f"{self.component} of env {self.env} was {self.value} at step {self.step}"


class Healthy(NamedTuple):
    """One step's outcome with bad numbers replaced."""

    reward: Tensor
    valid: Tensor
    truncated: Tensor
    obs: Obs
    final_obs: Obs | None


class Quarantine:
    """Watches the numbers of some envs and keeps the sick ones out of the data."""

    def __init__(self, num_envs: int, device: torch.device, *, first_env_index: int = 0, limit: float = 1e10) -> None:
        """Take everything that is not finite, or larger than `limit` in magnitude, for bad."""
        self.limit = limit
        self.sick = torch.zeros(num_envs, dtype=torch.bool, device=device)
        """Which envs are waiting for a reset."""
        self._first = first_env_index
        self._on_cpu = device.type == "cpu"
        self._notes: dict[str, Tensor] = {}

    def check(
        self,
        *,
        previous: Obs,
        reward: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        valid: Tensor,
        obs: Obs,
        final_obs: Obs | None,
        step: int,
    ) -> Healthy:
        """Return the step without its bad numbers and remember who is sick."""
        done = terminated | truncated
        valid = valid & ~self.sick
        if self._on_cpu and not any_true(self.sick) and self._looks_fine(reward, obs, final_obs, done):
            return Healthy(reward, valid, truncated, obs, final_obs)
        bad_reward = self._bad("reward", reward, step)
        bad_obs = torch.zeros_like(done)
        for name, value in obs.items():
            if value.is_floating_point():
                bad_obs = bad_obs | self._bad(name, value, step)
        sick_next = (self.sick & ~done) | bad_obs
        truncated = truncated | (bad_obs & ~done)
        if final_obs is not None:
            final_obs = self._mend_finals(final_obs, previous, done, bad_obs & ~done, step)
        obs = {name: _where(sick_next, torch.zeros_like(value), value) for name, value in obs.items()}
        reward = torch.where(bad_reward, 0.0, reward)
        self.sick = sick_next
        return Healthy(reward, valid & ~bad_reward, truncated, obs, final_obs)

    def all_fine(self, reward: Tensor, obs: Obs) -> bool:
        """Tell whether nobody is sick and a step that ended nowhere has no bad number, so that `check` changes nothing.

        For envs on the CPU, where looking is cheap; elsewhere the answer is False without a look.
        """
        return self._on_cpu and not any_true(self.sick) and self._sums_are_fine(reward, obs)

    def check_start(self, obs: Obs, step: int) -> Obs:
        """Look at observations after a reset; bad ones make their env sick at once."""
        bad = torch.zeros_like(self.sick)
        for name, value in obs.items():
            if value.is_floating_point():
                bad = bad | self._bad(name, value, step)
        self.sick = bad
        return {name: _where(bad, torch.zeros_like(value), value) for name, value in obs.items()}

    def faults(self) -> list[Fault]:
        """Return the first fault of each component since the last call; the host waits for the device here."""
        if not self._notes:
            return []
        notes = torch.stack(list(self._notes.values())).tolist()
        found = [
            Fault(name, self._first + int(env), int(step), value, int(count))
            for name, (count, env, step, value) in zip(self._notes, notes)
            if count
        ]
        self._notes = {}
        return found

    def _looks_fine(self, reward: Tensor, obs: Obs, final_obs: Obs | None, done: Tensor) -> bool:
        """Look at sums of squares only, in which a bad number shows; on the CPU this saves most of the work."""
        if not self._sums_are_fine(reward, obs):
            return False
        if final_obs is None or not any_true(done):
            return True
        ends = [value[done] for value in final_obs.values() if value.is_floating_point()]
        return all(self._is_small(value) for value in ends)

    def _sums_are_fine(self, reward: Tensor, obs: Obs) -> bool:
        if not self._is_small(reward):
            return False
        return all(self._is_small(value) for value in obs.values() if value.is_floating_point())

    def _is_small(self, value: Tensor) -> bool:
        """Tell whether the squares add up to no more than the limit's: two bad numbers cannot cancel out in them."""
        if value.dtype not in (torch.float32, torch.float64):
            return False  # squares of half precision overflow early; the long way looks at each number
        flat = value.detach().numpy().ravel()
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(flat.dot(flat) <= self.limit**2)  # NaN compares false

    def _bad(self, name: str, value: Tensor, step: int) -> Tensor:
        """Return which rows are bad, bool [N], and note how many and the first: (count, env, step, magnitude)."""
        largest = value.abs() if value.ndim == 1 else value.abs().flatten(1).amax(dim=1)
        rows = ~(largest <= self.limit)  # NaN compares false
        env = rows.int().argmax()
        now = torch.full_like(env, step)
        worst = largest.index_select(0, env.view(1)).squeeze(0)
        note = torch.stack([rows.sum().double(), env.double(), now.double(), worst.double()])
        before = self._notes.get(name)
        if before is not None:
            count = before[0] + note[0]
            note = torch.where(before[0] > 0, before, note)
            note[0] = count
        self._notes[name] = note
        return rows

    def _mend_finals(self, final_obs: Obs, previous: Obs, done: Tensor, cut: Tensor, step: int) -> Obs:
        """Give rows that were cut, or whose final observation is bad, the last good observation instead."""
        bad = cut
        for name, value in final_obs.items():
            if value.is_floating_point():
                ended = _where(done, value, torch.zeros_like(value))
                bad = bad | self._bad(f"final_obs/{name}", ended, step)
        return {name: _where(bad, previous[name], value) for name, value in final_obs.items()}


def any_true(mask: Tensor) -> bool:
    """Tell whether any entry of a mask on the CPU is true; a look at its bytes is the cheapest for a few envs."""
    return b"\x01" in mask.numpy().tobytes()


def all_true(mask: Tensor) -> bool:
    """Tell whether every entry of a mask on the CPU is true."""
    return b"\x00" not in mask.numpy().tobytes()


def _where(rows: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(rows.view(-1, *[1] * (yes.ndim - 1)), yes, no)
