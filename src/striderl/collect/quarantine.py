"""Quarantine: keep NaN, infinite and absurd numbers of one env away from the weights.

A NaN, an infinity or an absurd magnitude in one env's reward or observation must neither stop a run of thousands nor
spread through the averages. What happens to env i when its observation turns bad in step t:

    step       t - 1          t                         t + 1, t + 2, …
    valid      true           true                      false until the env starts a new episode
    ends       as it did      truncated, final_obs is   –
                              the last good observation
    next obs   good           bad ──▶ zeros             zeros while the env is invalid

A bad reward makes its own sample invalid and counts as 0. Envs that stay so are reset between rollouts, and a report
names component, env, step and value. There is no GPU sync before the report is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from striderl.collect.trace import EnvTrace

Obs = dict[str, Tensor]


@dataclass(frozen=True)
class Fault:
    """One bad number."""

    component: str
    """The observation component, 'reward', or 'final_obs/…'."""
    env: int
    """The global index of the env."""
    step: int
    """Number of steps this collector had taken in that env."""
    value: float
    """The magnitude of the worst number in that env's row: nan, inf, or how large it was."""
    count: int = 1
    """How often this component of this env was bad since the last report, this time included."""
    trace: EnvTrace | None = field(default=None, compare=False, repr=False)
    """The steps of the env up to its first bad number since the last report, where they were kept."""

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
    """Checks the numbers of some envs and marks samples of invalid ones."""

    def __init__(self, num_envs: int, device: torch.device, *, first_env_index: int = 0, limit: float = 1e10) -> None:
        """Treat everything that is not finite, or larger than `limit` in magnitude, as bad."""
        self.limit = limit
        self.sick = torch.zeros(num_envs, dtype=torch.bool, device=device)
        """Which envs are waiting for a reset."""
        self.first_env_index = first_env_index
        self.on_cpu = device.type == "cpu"
        """Whether values are read on the host, which costs a sync elsewhere."""
        self._names: tuple[str, ...] = ()
        self._notes = torch.zeros(0, num_envs, 3, dtype=torch.float64, device=device)

    def check(self, previous: Obs, outcome: Outcome, step: int) -> Healthy:
        """Return the step without its bad numbers and update which envs are in quarantine.

        `previous` are the observations before the step; `outcome.valid` is that of the env.
        """
        reward, terminated, truncated, valid, obs, final_obs = outcome
        outcome = outcome._replace(valid=valid & ~self.sick)
        cheap = self.on_cpu and not any_true(self.sick)
        if cheap and self._looks_fine(reward, obs, final_obs, terminated | truncated):
            return Healthy(reward, outcome.valid, truncated, obs, final_obs)
        watch = self.watch(noted_names(obs, final_obs))
        found = checked(watch, previous=previous, outcome=outcome, limit=self.limit, step=_number(step, reward))
        self.go_on(found.watch)
        return found.healthy

    def watch(self, names: tuple[str, ...]) -> Watch:
        """Return the envs in quarantine and the faults under these names, blank where there were none."""
        if self._names != names:
            rows = dict(zip(self._names, self._notes))
            blank = self._notes.new_zeros(self._notes.shape[1:])
            self._notes = torch.stack([rows.get(name, blank) for name in names])
            self._names = names
        return Watch(self.sick, self._notes)

    def go_on(self, watch: Watch) -> None:
        """Store the watch that `checked` returned."""
        self.sick, self._notes = watch

    def all_fine(self, reward: Tensor, obs: Obs) -> bool:
        """Return whether no env is in quarantine and no number is bad, so that `check` would change nothing.

        For steps without an end, on the CPU, where checking is cheap; always False elsewhere.
        """
        return self.on_cpu and not any_true(self.sick) and self._sums_are_fine(reward, obs)

    def check_start(self, obs: Obs, step: int) -> Obs:
        """Check observations after a reset; bad ones put their env into quarantine."""
        reals = {name: value for name, value in obs.items() if value.is_floating_point()}
        bad = torch.zeros_like(self.sick)
        if reals:
            names = (*self._names, *(name for name in reals if name not in self._names))
            notes = dict(zip(names, self.watch(names).notes))
            rows, fresh = _noted(reals, self.limit, _number(step, bad), torch.stack([notes[name] for name in reals]))
            bad = rows.any(dim=0)
            self._notes = torch.stack(list({**notes, **dict(zip(reals, fresh))}.values()))
        self.sick = bad
        return {name: _where(bad, torch.zeros_like(value), value) for name, value in obs.items()}

    def faults(self) -> list[Fault]:
        """Return the first fault of each env and component since the last call; syncs with the device."""
        if not self._names:
            return []
        counts = self._notes[..., 0].sum(dim=1)
        if not any(counts.tolist()):
            return []
        where = self._notes[..., 0].nonzero()
        found = [
            Fault(self._names[component], self.first_env_index + env, int(step), value, int(count))
            for (component, env), (count, step, value) in zip(where.tolist(), self._notes[where.unbind(1)].tolist())
        ]
        self._notes = torch.zeros_like(self._notes)
        return found

    def _looks_fine(self, reward: Tensor, obs: Obs, final_obs: Obs | None, done: Tensor) -> bool:
        """Check norms only, which any bad number makes large or NaN; on the CPU this saves most of the work."""
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
        """Return whether the norm is no more than the limit: two bad numbers cannot cancel out in a sum of squares."""
        if value.dtype not in (torch.float32, torch.float64):
            return False  # squares of half precision overflow early; the long way checks each number
        norm: float = torch.linalg.vector_norm(value).item()
        return norm <= self.limit  # NaN compares false


class Watch(NamedTuple):
    """The state of quarantine between steps."""

    sick: Tensor
    """Which envs are waiting for a reset, bool [N]."""
    notes: Tensor
    """The first fault of each component and env: (count, step, magnitude), float64 [K, N, 3]; a count of 0: none."""


class Outcome(NamedTuple):
    """The env's results for one step of N envs."""

    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    obs: Obs
    final_obs: Obs | None


class Checked(NamedTuple):
    """A step without its bad numbers, and the new state."""

    healthy: Healthy
    watch: Watch


def noted_names(obs: Obs, final_obs: Obs | None) -> tuple[str, ...]:
    """Return the names under which bad numbers of a step are stored, in order."""
    finals = {} if final_obs is None else final_obs
    return (
        "reward",
        *(name for name, value in obs.items() if value.is_floating_point()),
        *(f"final_obs/{name}" for name, value in finals.items() if value.is_floating_point()),
    )


def checked(watch: Watch, *, previous: Obs, outcome: Outcome, limit: float, step: Tensor) -> Checked:
    """Replace bad numbers and mark invalid envs: all of quarantine as a pure function of tensors.

    `valid` is that of envs which are not in quarantine already; `step` is its number, for the notes, which are those
    of `noted_names`.
    """
    reward, terminated, truncated, valid, obs, final_obs = outcome
    done = terminated | truncated
    reals = {name: value for name, value in obs.items() if value.is_floating_point()}
    finals = {} if final_obs is None else {k: v for k, v in final_obs.items() if v.is_floating_point()}
    ends = {f"final_obs/{name}": _where(done, value, torch.zeros_like(value)) for name, value in finals.items()}
    rows, notes = _noted({"reward": reward, **reals, **ends}, limit, step, watch.notes)
    bad_reward, bad_obs, bad_ends = rows[0], rows[1 : 1 + len(reals)].any(dim=0), rows[1 + len(reals) :].any(dim=0)
    sick = (watch.sick & ~done) | bad_obs
    cut = bad_obs & ~done
    truncated = truncated | cut
    if final_obs is not None:
        # rows that were cut, or whose final observation is bad, get the last good observation instead
        final_obs = {name: _where(cut | bad_ends, previous[name], value) for name, value in final_obs.items()}
    obs = {name: _where(sick, torch.zeros_like(value), value) for name, value in obs.items()}
    reward = torch.where(bad_reward, 0.0, reward)
    return Checked(Healthy(reward, valid & ~bad_reward, truncated, obs, final_obs), Watch(sick, notes))


def _noted(values: dict[str, Tensor], limit: float, step: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Return which rows are bad, bool [K, N], and the notes with the first of each env: (count, step, magnitude)."""
    largest = torch.stack([_largest(value) for value in values.values()])
    rows = ~(largest <= limit)  # NaN compares false
    count = before[..., 0]
    note = torch.stack([torch.zeros_like(count), step.double().expand_as(count), largest.double()], dim=2)
    first = torch.where((rows & (count == 0)).unsqueeze(2), note, before)
    first[..., 0] += rows
    return rows, first


def _largest(value: Tensor) -> Tensor:
    """Return the largest magnitude of every row, float32 or wider [N]."""
    wide = value if value.dtype in (torch.float32, torch.float64) else value.float()
    return wide.abs() if wide.ndim == 1 else wide.abs().flatten(1).amax(dim=1)


def _number(step: int, like: Tensor) -> Tensor:
    return torch.full((), step, dtype=torch.float64, device=like.device)


def any_true(mask: Tensor) -> bool:
    """Return whether any entry of a mask on the CPU is true; reading its bytes is cheapest for a few envs."""
    return b"\x01" in mask.numpy().tobytes()


def all_true(mask: Tensor) -> bool:
    """Return whether every entry of a mask on the CPU is true."""
    return b"\x00" not in mask.numpy().tobytes()


def _where(rows: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(rows.view(-1, *[1] * (yes.ndim - 1)), yes, no)
