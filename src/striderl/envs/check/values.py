"""Compare what an env returns with what it declared: structure, shapes, dtypes, devices, finite numbers.

Also here: the report of a check: what was checked, violations and their places, and warnings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec
from striderl.data.specs import ObsSpec, TensorSpec, torch_dtype
from striderl.envs.vec_env import ContractError, Step, VecEnv

ATTRIBUTES: dict[str, tuple[type, ...]] = {
    "num_envs": (int,),
    "device": (torch.device,),
    "obs_spec": (ObsSpec,),
    "action_spec": (BoxSpec, DiscreteSpec, MultiDiscreteSpec, DictActionSpec),
    "info_spec": (Mapping,),
    "gives_final_obs": (bool,),
    "max_episode_length": (int,),
    "step_dt": (int, float),
    "first_env_index": (int,),
}
"""What a `VecEnv` must have after construction, and of which type."""


def check_declarations(env: VecEnv, recorder: Recorder) -> bool:
    """Check the attributes and specs of an env; return whether they are sound enough to go on."""
    declared = {name: getattr(env, name, None) for name in ATTRIBUTES}
    sound = True
    for name, kinds in ATTRIBUTES.items():
        if not isinstance(declared[name], kinds) or (kinds == (int,) and isinstance(declared[name], bool)):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            found = "nothing" if declared[name] is None else f"{type(declared[name]).__name__} {declared[name]!r}"
            recorder.wrong(name, wanted=wanted, found=found, advice="Set it in the env's constructor.")
            sound = False
    if not sound:
        return False
    if env.num_envs < 1:
        recorder.wrong("num_envs", wanted="at least 1", found=str(env.num_envs))
        return False
    if env.max_episode_length < 0:
        recorder.wrong("max_episode_length", wanted="0 or more", found=str(env.max_episode_length))
    _check_components(env.obs_spec, recorder)
    _check_masks(env.action_spec, env.obs_spec, recorder)
    recorder.checked("declarations")
    return len(env.obs_spec) > 0


def _check_components(spec: ObsSpec, recorder: Recorder) -> None:
    if not len(spec):
        recorder.wrong("obs_spec", wanted="at least one component", found="none")
    for name, component in spec.items():
        if component.size == 0:
            found = f"shape {list(component.shape)}"
            recorder.wrong(f"obs_spec[{name!r}]", wanted="at least one number", found=found, advice="Leave it out.")


def _check_masks(action_spec: ActionSpec, obs_spec: ObsSpec, recorder: Recorder) -> None:
    """Check that every mask that actions name is a bool component of the right size."""
    parts = action_spec.parts if isinstance(action_spec, DictActionSpec) else {"": action_spec}
    for name, part in parts.items():
        if isinstance(part, BoxSpec) or not part.mask:
            continue
        field = f"action_spec[{name!r}].mask" if name else "action_spec.mask"
        size = part.n if isinstance(part, DiscreteSpec) else sum(part.nvec)
        if part.mask not in obs_spec.components:
            recorder.wrong(field, wanted=f"a component of the observation ({list(obs_spec)})", found=repr(part.mask))
            continue
        mask = obs_spec[part.mask]
        if mask.shape != (size,) or mask.dtype != "bool":
            recorder.wrong(field, wanted=f"bool [{size}]", found=f"{mask.dtype} {list(mask.shape)}")


def check_obs(
    env: VecEnv, obs: Any, recorder: Recorder, *, step: int, field: str = "obs", rows: list[int] | None = None
) -> bool:
    """Check one observation against `env.obs_spec`; return whether its structure is right.

    With `rows`, only the numbers in these rows must be finite: `final_obs` is unused where no episode ended.
    """
    if not isinstance(obs, dict):
        recorder.wrong(field, wanted="a dict of named tensors", found=type(obs).__name__, step=step)
        return False
    missing = [name for name in env.obs_spec if name not in obs]
    extra = [name for name in obs if name not in env.obs_spec.components]
    if missing or extra:
        found = " and ".join([f"no {name!r}" for name in missing] + [f"also {name!r}" for name in extra])
        wanted = f"the components {list(env.obs_spec)}"
        recorder.wrong(field, wanted=wanted, found=found, step=step, advice="Return what obs_spec declares.")
    good = not missing
    for name, spec in env.obs_spec.items():
        if name in obs:
            good &= check_tensor(env, obs[name], spec, recorder, step=step, field=f"{field}[{name!r}]", rows=rows)
    return good


def check_step(env: VecEnv, step: Any, recorder: Recorder, *, number: int) -> bool:
    """Check the structure of what `step` returned; return whether the parts can be used."""
    if not isinstance(step, Step):
        found = type(step).__name__
        recorder.wrong("step", wanted="a Step(obs, reward, terminated, …)", found=found, step=number)
        return False
    good = check_obs(env, step.obs, recorder, step=number)
    number_spec, flag_spec = TensorSpec(dtype="float32"), TensorSpec(dtype="bool")
    good &= check_tensor(env, step.reward, number_spec, recorder, step=number, field="reward")
    good &= check_tensor(env, step.terminated, flag_spec, recorder, step=number, field="terminated")
    good &= check_tensor(env, step.truncated, flag_spec, recorder, step=number, field="truncated")
    good &= check_info(env, step.info, recorder, step=number)
    return good and _check_final_obs(env, step, recorder, number=number)


def flat_rows(value: Tensor) -> Tensor:
    """Return [N, …] as [N, numbers], also when there are none."""
    return value.reshape(len(value), math.prod(value.shape[1:]))


def ended(step: Step) -> Tensor:
    """Return bool [N], also when an env gave its flags as numbers."""
    return step.terminated.bool() | step.truncated.bool()


def _check_final_obs(env: VecEnv, step: Step, recorder: Recorder, *, number: int) -> bool:
    done = ended(step).nonzero().flatten().tolist()
    if not env.gives_final_obs:
        if step.final_obs is not None:
            wanted, found = "None, because gives_final_obs is False", type(step.final_obs).__name__
            advice = "Set gives_final_obs=True in the constructor."
            recorder.wrong("final_obs", wanted=wanted, found=found, step=number, advice=advice)
        return True
    if step.final_obs is None:
        wanted = "the observation before the reset, because gives_final_obs is True"
        advice = "Give it in every step, or set gives_final_obs=False."
        env_index = done[0] if done else NOWHERE
        recorder.wrong("final_obs", wanted=wanted, found="None", env=env_index, step=number, advice=advice)
        return False
    return check_obs(env, step.final_obs, recorder, step=number, field="final_obs", rows=done)


def check_info(env: VecEnv, info: Any, recorder: Recorder, *, step: int) -> bool:
    """Check that info is a dict with a 'log' of numbers and every declared key; return whether it is a dict."""
    if not isinstance(info, dict):
        recorder.wrong("info", wanted="a dict", found=type(info).__name__, step=step)
        return False
    log = info.get("log")
    if not isinstance(log, dict):
        found = "no 'log'" if log is None else f"'log' of type {type(log).__name__}"
        recorder.wrong("info", wanted="a dict under 'log', possibly empty", found=found, step=step)
    else:
        for name, value in log.items():
            if not isinstance(value, (int, float)) and not (isinstance(value, Tensor) and value.ndim == 0):
                found = f"{type(value).__name__} {list(getattr(value, 'shape', []))}"
                recorder.wrong(f"info['log'][{name!r}]", wanted="a number or a 0-d tensor", found=found, step=step)
    for name, spec in env.info_spec.items():
        if name not in info:
            recorder.wrong(
                f"info[{name!r}]",
                wanted=f"{spec.dtype} {[env.num_envs, *spec.shape]}, because info_spec declares it",
                found=f"only {sorted(map(str, info))}",
                step=step,
            )
        else:
            check_tensor(env, info[name], spec, recorder, step=step, field=f"info[{name!r}]")
    return True


def check_tensor(
    env: VecEnv,
    value: Any,
    spec: TensorSpec,
    recorder: Recorder,
    *,
    step: int,
    field: str,
    rows: list[int] | None = None,
) -> bool:
    """Check type, shape, device, dtype and finite numbers (of some rows); return whether the first three are right."""
    if not check_form(env, value, spec, recorder, step=step, field=field):
        return False
    if value.device.type != env.device.type or (env.device.index or 0) != (value.device.index or 0):
        recorder.wrong(field, wanted=f"device {env.device}", found=f"{value.device}", step=step)
        return False
    if value.requires_grad:
        recorder.wrong(field, wanted="no gradient", found="requires_grad=True", step=step, advice="Detach it.")
    _check_finite(value, recorder, step=step, field=field, rows=rows)
    return True


def check_form(env: VecEnv, value: Any, spec: TensorSpec, recorder: Recorder, *, step: int, field: str) -> bool:
    """Check type, shape and dtype; return whether the first two are right."""
    if not isinstance(value, Tensor):
        recorder.wrong(field, wanted="a torch tensor", found=type(value).__name__, step=step)
        return False
    wanted = [env.num_envs, *spec.shape]
    if list(value.shape) != wanted:
        recorder.wrong(field, wanted=f"shape {wanted}", found=f"{list(value.shape)}", step=step)
        return False
    if value.dtype != torch_dtype(spec.dtype):
        found = str(value.dtype).removeprefix("torch.")
        recorder.wrong(field, wanted=f"dtype {spec.dtype}", found=found, step=step)
    return True


def check_first_step(env: VecEnv, step: Any) -> None:
    """Raise ContractError for a first step of another form than the env declares.

    Numbers are not read: the collector checks them in every step, and a GPU is not waited for.
    """
    recorder = Recorder(type(env).__name__, collect=False)
    if not isinstance(step, Step):
        recorder.wrong("step", wanted="a Step(obs, reward, terminated, …)", found=type(step).__name__, step=1)
    _check_obs_form(env, step.obs, recorder, field="obs")
    check_form(env, step.reward, TensorSpec(), recorder, step=1, field="reward")
    for name, flags in (("terminated", step.terminated), ("truncated", step.truncated)):
        check_form(env, flags, TensorSpec(dtype="bool"), recorder, step=1, field=name)
    if step.final_obs is not None:
        _check_obs_form(env, step.final_obs, recorder, field="final_obs")
    info = step.info if isinstance(step.info, dict) else {}
    for name in ("log", *env.info_spec):
        if name not in info:
            recorder.wrong("info", wanted=f"a dict with {name!r}", found=f"{sorted(map(str, info))}", step=1)
        elif name != "log":
            check_form(env, info[name], env.info_spec[name], recorder, step=1, field=f"info[{name!r}]")


def _check_obs_form(env: VecEnv, obs: Any, recorder: Recorder, *, field: str) -> None:
    if not isinstance(obs, dict) or any(name not in obs for name in env.obs_spec):
        found = f"the components {list(obs)}" if isinstance(obs, dict) else type(obs).__name__
        recorder.wrong(field, wanted=f"a dict with the components {list(env.obs_spec)}", found=found, step=1)
    for name, spec in env.obs_spec.items():
        check_form(env, obs[name], spec, recorder, step=1, field=f"{field}[{name!r}]")


def _check_finite(value: Tensor, recorder: Recorder, *, step: int, field: str, rows: list[int] | None) -> None:
    if not value.is_floating_point() or value.is_meta:
        return
    bad = ~flat_rows(value).isfinite()
    if rows is not None:
        kept = torch.zeros(len(value), dtype=torch.bool, device=value.device)
        kept[rows] = True
        bad &= kept[:, None]
    if bad.any():
        row, column = (int(number) for number in bad.nonzero()[0])
        found = f"{float(flat_rows(value.detach())[row, column])} at entry {column}"
        recorder.wrong(field, wanted="finite numbers", found=found, env=row, step=step)


# -- the report --------------------------------------------------------------------------------------------------------


NOWHERE = -1
"""The env index or step of a finding that belongs to no single env or step."""


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One broken rule, where it showed first."""

    field: str
    """What is wrong: 'obs['joints']', 'reward', 'episode_length_buf', 'reset_envs', …"""
    wanted: str
    """What the contract requires."""
    found: str
    """What the env did."""
    env: int = NOWHERE
    """The first env in which it shows; `NOWHERE` when it is the same for all."""
    step: int = NOWHERE
    """The call of `step` after a reset, counted from 1; 0 is the reset itself; `NOWHERE` when no step is to blame."""
    advice: str = ""
    """What to change."""

    def __str__(self) -> str:
        place = [] if self.env == NOWHERE else [f"env {self.env}"]
        if self.step != NOWHERE:
            place.append("at reset" if self.step == 0 else f"at step {self.step}")
        where = f" ({', '.join(place)})" if place else ""
        advice = f" {self.advice}" if self.advice else ""
        return f"{self.field}{where}: wanted {self.wanted}, found {self.found}.{advice}"


@dataclass(kw_only=True)
class Report:
    """The result of `check_vec_env`."""

    env_name: str
    """The class of the env."""
    checked: list[str] = field(default_factory=list)
    """The rules that were looked at, in order."""
    skipped: list[str] = field(default_factory=list)
    """The rules that could not be looked at, and why."""
    warnings: list[str] = field(default_factory=list)
    """What is allowed but is rarely meant."""
    violations: list[Violation] = field(default_factory=list)
    """What is wrong, each rule once; empty unless violations are collected, because the first one is raised."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; warnings do not count."""
        return not self.violations

    def __str__(self) -> str:
        verdict = "keeps the contract" if self.ok else f"breaks the contract in {len(self.violations)} places"
        lines = [f"{self.env_name} {verdict}; checked: {', '.join(self.checked)}"]
        lines += [f"  wrong: {violation}" for violation in self.violations]
        lines += [f"  warning: {warning}" for warning in self.warnings]
        lines += [f"  not checked: {reason}" for reason in self.skipped]
        return "\n".join(lines)


class Recorder:
    """Take down findings; the first violation is raised unless all are collected."""

    def __init__(self, env_name: str, *, collect: bool) -> None:
        self.report = Report(env_name=env_name)
        self._collect = collect
        self._known: set[tuple[str, str]] = set()

    def wrong(
        self,
        field: str,
        *,
        wanted: str,
        found: str,
        env: int = NOWHERE,
        step: int = NOWHERE,
        advice: str = "",
        cause: Exception | None = None,
    ) -> None:
        """Record a violation, once per field and rule: later steps add nothing."""
        violation = Violation(field=field, wanted=wanted, found=found, env=env, step=step, advice=advice)
        if not self._collect:
            raise ContractError(f"{self.report.env_name}: {violation}") from cause
        if (field, wanted) not in self._known:
            self._known.add((field, wanted))
            self.report.violations.append(violation)

    def warn(self, text: str) -> None:
        """Record something that is allowed but is rarely meant."""
        if text not in self.report.warnings:
            self.report.warnings.append(text)

    def checked(self, what: str) -> None:
        """Record that a rule was looked at."""
        self.report.checked.append(what)

    def skipped(self, why: str) -> None:
        """Record that a rule could not be looked at."""
        self.report.skipped.append(why)
