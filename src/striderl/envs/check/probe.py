"""Drive an env for a check: call it, check what comes back, keep clones, and find the first difference of two runs.

Random actions that are valid: within bounds, and only choices that the observation's mask allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec, PlainActionSpec
from striderl.envs.check.values import Recorder, check_obs, check_step, ended, flat_rows
from striderl.envs.vec_env import Actions, Obs, Step, VecEnv

Result = TypeVar("Result")


class Stopped(Exception):  # noqa: N818  (a signal between the parts of the checker, not an error of a user)
    """This part of the check cannot go on; what is wrong was recorded."""


@dataclass(kw_only=True)
class Recording:
    """Clones of everything that a run showed; `fields[0]` is the reset, `fields[t]` the t-th step."""

    fields: list[dict[str, Tensor]] = field(default_factory=list)
    actions: list[Actions] = field(default_factory=list)


class Difference(NamedTuple):
    """Where two recordings differ first."""

    step: int
    name: str
    rows: list[int]


class Probe:
    """An env together with the recorder of its faults."""

    def __init__(self, env: VecEnv, recorder: Recorder, *, seed: int, num_steps: int) -> None:
        self.env, self.recorder, self.seed, self.num_steps = env, recorder, seed, num_steps

    def attempt(self, what: str, call: Callable[[], Result], *, step: int) -> Result:
        """Call the env; an exception becomes a finding that names the call."""
        try:
            return call()
        except Exception as error:  # an env under test may raise anything
            found = f"{type(error).__name__}: {error}"
            self.recorder.wrong(what, wanted="no error", found=found, step=step, cause=error)
            raise Stopped from error

    def reset(self, seed: int | None) -> Obs:
        """Reset and check the first observation."""
        obs = self.attempt(f"reset(seed={seed})", lambda: self.env.reset(seed), step=0)
        if not check_obs(self.env, obs, self.recorder, step=0):
            raise Stopped
        return obs

    def step(self, actions: Actions, number: int) -> Step:
        """Step, check what came back and that the actions were left alone."""
        before = clone_actions(actions)
        step = self.attempt("step", lambda: self.env.step(actions), step=number)
        if not check_step(self.env, step, self.recorder, number=number):
            raise Stopped
        changed = [name for name, value in _parts(actions).items() if not torch.equal(value, _parts(before)[name])]
        if changed:
            wanted, found = "actions left as they were", "they were changed in place"
            self.recorder.wrong("step", wanted=wanted, found=found, step=number)
        return step

    def sample(self, obs: Obs, generator: torch.Generator, number: int) -> Actions:
        """Draw valid actions; a mask that allows nothing is the env's fault."""
        return self.attempt(
            "action mask", lambda: sample_actions(self.env.action_spec, obs, generator), step=number - 1
        )

    def lengths(self, number: int) -> Tensor:
        """Read the episode lengths, int64 [N], as a clone."""
        value = self.attempt("episode_length_buf", lambda: self.env.episode_length_buf, step=number)
        wanted = f"int64 [{self.env.num_envs}]"
        if not isinstance(value, Tensor) or value.dtype != torch.int64 or list(value.shape) != [self.env.num_envs]:
            kind = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            found = kind.removeprefix("torch.")
            self.recorder.wrong("episode_length_buf", wanted=wanted, found=found, step=number)
            raise Stopped
        return value.clone()

    def record(self, seed: int, num_steps: int, actions: list[Actions] | None = None) -> Recording:
        """Reset with this seed and keep what the env shows, with these actions or with random ones."""
        generator = torch.Generator().manual_seed(self.seed)
        obs = self.reset(seed)
        recording = Recording(fields=[named(obs)])
        self.go_on(recording, obs, num_steps, generator, actions)
        return recording

    def go_on(
        self,
        recording: Recording,
        obs: Obs,
        num_steps: int,
        generator: torch.Generator,
        actions: list[Actions] | None = None,
        *,
        taken: int = 0,
    ) -> Obs:
        """Add steps to a recording, `taken` steps after the reset; return the last observation."""
        for count in range(num_steps):
            number = taken + count + 1
            chosen = self.sample(obs, generator, number) if actions is None else clone_actions(actions[count])
            recording.actions.append(clone_actions(chosen))
            step = self.step(chosen, number)
            recording.fields.append(named_step(step))
            obs = step.obs
        return obs


def named(obs: Obs, prefix: str = "obs") -> dict[str, Tensor]:
    """Return clones under the names that messages use."""
    return {f"{prefix}[{name!r}]": value.clone() for name, value in obs.items()}


def handed_out(step: Step) -> dict[str, Tensor]:
    """Return the very tensors of a step under the names that messages use."""
    parts = {f"obs[{name!r}]": value for name, value in step.obs.items()}
    parts |= {f"final_obs[{name!r}]": value for name, value in (step.final_obs or {}).items()}
    parts |= {f"info[{name!r}]": value for name, value in step.info.items() if isinstance(value, Tensor)}
    return {**parts, "reward": step.reward, "terminated": step.terminated, "truncated": step.truncated}


def named_step(step: Step) -> dict[str, Tensor]:
    """Return clones of a step's meaningful values: everything but the rows of final_obs in which nothing ended."""
    parts = {name: value.clone() for name, value in handed_out(step).items() if not name.startswith("final_obs")}
    done = ended(step)
    for name, value in (step.final_obs or {}).items():
        shape = (-1, *(1,) * (value.ndim - 1))
        parts[f"final_obs[{name!r}]"] = torch.where(done.view(shape), value, torch.zeros_like(value))
    return parts


def first_difference(one: Recording, other: Recording) -> Difference | None:
    """Return where two runs differ first, and in which rows; None when they are equal bit for bit."""
    for step, (left, right) in enumerate(zip(one.fields, other.fields, strict=True)):
        for name in [name for name in left if name in right]:
            rows = different_rows(left[name], right[name])
            if rows:
                return Difference(step, name, rows)
    return None


def different_rows(left: Tensor, right: Tensor) -> list[int]:
    """Return the envs in which two tensors [N, …] are not the same; NaN is the same as NaN."""
    unequal = (left != right) & ~((left != left) & (right != right))
    return [int(row) for row in flat_rows(unequal).any(dim=1).nonzero().flatten()]


def clone_actions(actions: Actions) -> Actions:
    """Return a copy that the env may keep or change."""
    return {name: part.clone() for name, part in actions.items()} if isinstance(actions, dict) else actions.clone()


def _parts(actions: Actions) -> dict[str, Tensor]:
    return actions if isinstance(actions, dict) else {"": actions}


# -- random actions ----------------------------------------------------------------------------------------------------


def sample_actions(action_spec: ActionSpec, obs: Obs, generator: torch.Generator) -> Actions:
    """Draw one random action per env, on the observation's device.

    Choices are uniform over those allowed; numbers are uniform between finite bounds, exponential beyond a single one
    and normal without any. The numbers come from the generator's device, so a CPU generator gives the same actions to
    an env on any device. A mask that allows nothing is an error on the CPU; elsewhere looking would wait for the
    device, and choice 0 is taken.
    """
    if isinstance(action_spec, DictActionSpec):
        return {name: _sample(part, obs, generator) for name, part in action_spec.parts.items()}
    return _sample(action_spec, obs, generator)


def _sample(spec: PlainActionSpec, obs: Obs, generator: torch.Generator) -> Tensor:
    first = next(iter(obs.values()))
    if isinstance(spec, BoxSpec):
        return _numbers(spec, len(first), generator).to(first.device)
    sizes = (spec.n,) if isinstance(spec, DiscreteSpec) else spec.nvec
    allowed = _allowed(spec, obs)
    # the largest of independent uniform numbers is at each allowed place with the same probability
    scores = torch.rand(len(first), sum(sizes), generator=generator, device=generator.device).to(first.device)
    if allowed is not None:
        scores = torch.where(allowed, scores, -1.0)
    entries = []
    for entry, last in enumerate(accumulate(sizes)):
        piece = scores[:, last - sizes[entry] : last]
        if allowed is not None and piece.is_cpu:
            _require_a_choice(piece, entry, spec.mask)
        entries.append(piece.argmax(dim=1))
    return entries[0] if isinstance(spec, DiscreteSpec) else torch.stack(entries, dim=1)


def _allowed(spec: DiscreteSpec | MultiDiscreteSpec, obs: Obs) -> Tensor | None:
    return obs[spec.mask].bool() if spec.mask else None


def _require_a_choice(scores: Tensor, entry: int, mask: str) -> None:
    none_left = (scores < 0).all(dim=1)
    if none_left.any():
        row = int(none_left.int().argmax())
        raise ValueError(f"mask {mask!r} allows no choice for action entry {entry} in env {row}; allow at least one")


def _numbers(spec: BoxSpec, num_envs: int, generator: torch.Generator) -> Tensor:
    """Draw float32 [num_envs, *shape] by the kind of each entry's bounds."""
    shape, device = (num_envs, *spec.shape), generator.device
    low, high = (torch.from_numpy(bound).to(device) for bound in spec.bounds())
    uniform = torch.rand(shape, generator=generator, device=device)
    normal = torch.randn(shape, generator=generator, device=device)
    tail = -torch.log1p(-uniform)
    has_low, has_high = low.isfinite(), high.isfinite()
    safe_low, safe_high = torch.where(has_low, low, 0.0), torch.where(has_high, high, 0.0)
    between = torch.lerp(safe_low.expand(shape), safe_high.expand(shape), uniform)
    one_sided = torch.where(has_low, safe_low + tail, safe_high - tail)
    return torch.where(has_low & has_high, between, torch.where(has_low | has_high, one_sided, normal))
