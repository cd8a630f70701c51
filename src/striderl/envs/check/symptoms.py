"""What is wrong or suspicious about an env, from watching it: each finding with its evidence and what to change.

    examine_env(env, seconds=20).findings         () for a healthy env

    contract      everything that `check_vec_env` finds
    survey        a long walk: constants, scales, non-finite numbers, rewards, episode lengths, time-outs, waiting,
                  and its speed beside that of the built-in cartpole on this machine at this time
    comparisons   resets that change nothing, actions that change nothing

'wrong' breaks learning; 'suspicious' is allowed, and rarely meant. A healthy env has no findings, so thresholds
are wide: a finding is worth reading.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec
from striderl.envs.check.checker import check_vec_env
from striderl.envs.check.probe import Probe, Stopped, first_difference, sample_actions
from striderl.envs.check.values import Recorder
from striderl.envs.vec_env import Actions, Obs, Step, VecEnv

Act = Callable[[Obs, Tensor], Actions]
"""Observation and the mask of envs whose episode has just begun, bool [N] → actions."""
Progress = Callable[[float], None]
"""Called with the share of the time that is over."""

CONTRACT_STEPS = 60
MIN_SAMPLES = 200
"""Samples of an env's numbers that a conclusion wants at least."""
_MOST_ENTRIES = 4096
_LARGE, _TINY = 100.0, 1e-4
_MANY_STEPS = 1000
_AT_BOUND = 0.01


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, or looks so."""

    level: Literal["wrong", "suspicious"]
    """Whether it breaks learning, or is only rarely meant."""
    what: str
    """What it is, in a few words."""
    evidence: str
    """What was seen, in numbers."""
    fix: str
    """What to change."""

    def __str__(self) -> str:
        return f"{self.level}: {self.what}\n    seen: {self.evidence}\n    fix:  {self.fix}"


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What was found, and how fast the env was."""

    findings: tuple[Finding, ...]
    """Everything that is wrong or suspicious."""
    steps_per_second: float
    """Env steps per second of `env.step` alone, over all envs."""


def examine_env(
    env: VecEnv,
    *,
    seconds: float = 20.0,
    seed: int = 0,
    max_steps: int = 20_000,
    act: Act | None = None,
    progress: Progress | None = None,
) -> Examination:
    """Watch an env for so long and return what is wrong or suspicious; `act` chooses actions instead of chance."""
    report = check_vec_env(env, num_steps=CONTRACT_STEPS, seed=seed, collect=True)
    findings = [
        Finding(
            level="wrong",
            what=f"{each.field} breaks the contract of an env",
            evidence=str(each),
            fix=each.advice or "see the contract in striderl/envs/vec_env.py",
        )
        for each in report.violations
    ]
    survey = Survey(env)
    try:
        survey.walk(seconds=seconds, seed=seed, max_steps=max_steps, act=act, progress=progress)
        findings += [*survey.findings(), *_slow(survey), *_compared(env, seed)]
    except Stopped:
        pass  # it is among the findings of the contract
    except Exception as error:  # noqa: BLE001  (an env under examination may raise anything)
        findings.append(
            Finding(
                level="wrong",
                what="the env raised an error",
                evidence=f"{type(error).__name__} after {survey.num_steps} steps: {error}",
                fix="mend the error; training would end with it",
            )
        )
    return Examination(findings=tuple(findings), steps_per_second=survey.steps_per_second)


# -- a long walk -------------------------------------------------------------------------------------------------------


@dataclass
class EntryStatistics:
    """Range and moments of every entry of a component, over envs and steps."""

    low: Tensor
    high: Tensor
    total: Tensor
    squares: Tensor
    count: int = 0
    num_bad: int = 0
    """How many numbers were not finite."""
    first_bad: str = ""
    """Where the first of them was."""

    @classmethod
    def blank(cls, size: int) -> EntryStatistics:
        """Return those of no samples."""
        zeros = torch.zeros(size, dtype=torch.float64)
        return cls(torch.full_like(zeros, torch.inf), torch.full_like(zeros, -torch.inf), zeros, zeros.clone())

    def add(self, rows: Tensor, step: int) -> None:
        """Take in values [N, size]."""
        wide = rows.double()
        finite = wide.isfinite()
        if not bool(finite.all()):
            self.num_bad += int((~finite).sum())
            if not self.first_bad:
                env, entry = (int(index) for index in (~finite).nonzero()[0])
                self.first_bad = f"{wide[env, entry].item()} at entry {entry} of env {env} at step {step}"
            wide = torch.where(finite, wide, 0.0)
        self.low = torch.minimum(self.low, wide.amin(0))
        self.high = torch.maximum(self.high, wide.amax(0))
        self.total += wide.sum(0)
        self.squares += wide.square().sum(0)
        self.count += len(wide)

    @property
    def mean(self) -> Tensor:
        """Mean of every entry."""
        return self.total / max(1, self.count)

    @property
    def std(self) -> Tensor:
        """Standard deviation of every entry."""
        return (self.squares / max(1, self.count) - self.mean.square()).clamp(min=0.0).sqrt()


@dataclass
class Survey:
    """What a walk of many steps showed."""

    env: VecEnv
    num_steps: int = 0
    """Steps of each env."""
    seconds: float = 0.0
    """Time inside `env.step`."""
    busy_seconds: float = 0.0
    """Processor time of this process in them."""
    num_waits: int = 0
    """How often this process gave its core away by itself in them."""
    obs: dict[str, EntryStatistics] = field(default_factory=dict)
    reward: EntryStatistics = field(default_factory=lambda: EntryStatistics.blank(1))
    actions: dict[str, Tensor] = field(default_factory=dict)
    """Per part of the action, the share of samples in which each entry was at a bound, as a running sum."""
    terms: dict[str, float] = field(default_factory=dict)
    """Terms of the reward in the env's log, each with the sum of its magnitudes."""
    lengths: list[int] = field(default_factory=list)
    num_terminated: int = 0
    num_truncated: int = 0

    def walk(self, *, seconds: float, seed: int, max_steps: int, act: Act | None, progress: Progress | None) -> None:
        """Step the env until the time is over, or so many steps are taken."""
        generator = torch.Generator().manual_seed(seed)
        env = self.env
        obs = env.reset(seed)
        age = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)
        fresh = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        began = time.monotonic()
        while self.num_steps < max_steps and (self.num_steps < 8 or time.monotonic() - began < seconds):
            actions = sample_actions(env.action_spec, obs, generator) if act is None else act(obs, fresh)
            step = self._timed(actions)
            self.num_steps += 1
            age += 1
            self._take(step, actions)
            fresh = step.done
            if bool(fresh.any()):
                self.lengths += age[fresh].tolist()
                age[fresh] = 0
            obs = step.obs
            if progress is not None and self.num_steps % 16 == 0:
                over = (time.monotonic() - began) / max(seconds, 1e-9)
                progress(min(1.0, max(over, self.num_steps / max_steps)))

    def _timed(self, actions: Actions) -> Step:
        before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        step = self.env.step(actions)
        self.seconds += time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_SELF)
        self.busy_seconds += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.num_waits += after.ru_nvcsw > before.ru_nvcsw
        return step

    def _take(self, step: Step, actions: Actions) -> None:
        for name, value in step.obs.items():
            if value.is_floating_point():
                rows = value.flatten(1)[:, :_MOST_ENTRIES] if value.ndim > 1 else value[:, None]
                if name not in self.obs:
                    self.obs[name] = EntryStatistics.blank(rows.shape[1])
                self.obs[name].add(rows.cpu(), self.num_steps)
        self.reward.add(step.reward[:, None].cpu(), self.num_steps)
        self.num_terminated += int(step.terminated.sum())
        self.num_truncated += int((step.truncated & ~step.terminated).sum())
        log = step.info.get("log") if isinstance(step.info, dict) else None
        for name, number in (log or {}).items():
            if name.startswith("reward/"):
                self.terms[name] = self.terms.get(name, 0.0) + abs(float(number))
        self._take_actions(actions)

    def _take_actions(self, actions: Actions) -> None:
        for name, spec in _boxes(self.env.action_spec).items():
            value = actions[name] if isinstance(actions, dict) else actions
            low, high = (torch.from_numpy(bound).to(value.device) for bound in spec.bounds())
            room = _AT_BOUND * torch.where((high - low).isfinite(), high - low, 0.0)
            at_bound = ((value <= low + room) | (value >= high - room)).double().mean(0).flatten().cpu()
            self.actions[name] = self.actions.get(name, torch.zeros_like(at_bound)) + at_bound

    # -- conclusions ---------------------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """Return what the walk showed."""
        found = [*self._of_declarations(), *self._of_numbers(), *self._of_rewards(), *self._of_episodes()]
        return [*found, *self._of_time()]

    def _of_declarations(self) -> list[Finding]:
        found = []
        for name, part in self.env.obs_spec.items():
            if part.dtype == "float64":
                found.append(
                    _suspicious(
                        f"observation {name!r} is float64",
                        f"obs_spec[{name!r}].dtype = 'float64'",
                        "return float32: policies compute in it, and float64 takes twice the memory",
                    )
                )
        for name, spec in _boxes(self.env.action_spec).items():
            low, high = (torch.from_numpy(bound) for bound in spec.bounds())
            widest = float(torch.where((high - low).isfinite(), high - low, 0.0).max())
            if widest > 2.0 * _LARGE:
                found.append(
                    _suspicious(
                        f"bounds of the action {name or 'as a whole'} are far apart",
                        f"an entry goes over {widest:g}",
                        "let the env take actions of about -1 to 1 and scale them itself: a new policy acts around 0 "
                        "with a spread of 1",
                    )
                )
        return found

    def _of_numbers(self) -> list[Finding]:
        found = []
        everything = {**{f"observation {name!r}": value for name, value in self.obs.items()}, "reward": self.reward}
        for name, values in everything.items():
            if values.num_bad:
                found.append(
                    Finding(
                        level="wrong",
                        what=f"{name} is not finite",
                        evidence=f"{values.num_bad} of {values.count * len(values.mean)} numbers, the first "
                        f"{values.first_bad}",
                        fix="find what divides by zero, takes a root or overflows there; quarantine leaves such "
                        "samples out, but the env stays broken",
                    )
                )
        for name, values in self.obs.items():
            if values.count >= MIN_SAMPLES and not values.num_bad:
                found += self._of_component(name, values)
        return found

    def _of_component(self, name: str, values: EntryStatistics) -> list[Finding]:
        still = values.low == values.high
        only_flags = bool((((values.low == 0) | (values.low == 1)) & ((values.high == 0) | (values.high == 1))).all())
        if bool(still.all()):
            return [
                _suspicious(
                    f"observation {name!r} never changes",
                    f"all {len(still)} entries were constant over {values.count} samples, the first {values.low[0]:g}",
                    "fill it in step and reset, or leave it out",
                )
            ]
        found = []
        # an entry of a one-hot vector may never come up
        if bool(still.any()) and not only_flags:
            which = still.nonzero().flatten().tolist()
            found.append(
                _suspicious(
                    f"{len(which)} of {len(still)} entries of observation {name!r} never change",
                    f"entries {which[:8]} were constant over {values.count} samples, the first "
                    f"{values.low[which[0]]:g}",
                    "fill them in step and reset, or leave them out",
                )
            )
        large = (values.std > _LARGE) | (values.mean.abs() > 10.0 * _LARGE)
        tiny = (values.std < _TINY) & ~still
        for wrong, word in ((large, "large"), (tiny, "small")):
            if bool(wrong.any()):
                entry = int(wrong.nonzero()[0])
                found.append(
                    _suspicious(
                        f"observation {name!r} is badly scaled",
                        f"entry {entry} has mean {values.mean[entry]:.3g} and deviation {values.std[entry]:.3g}: too "
                        f"{word} for a network that sees it raw",
                        "scale it to about -1 to 1 in the env, or keep --policy.normalize-obs True",
                    )
                )
        return found

    def _of_rewards(self) -> list[Finding]:
        found = []
        samples, low, high = self.reward.count, float(self.reward.low), float(self.reward.high)
        if samples >= MIN_SAMPLES and not self.reward.num_bad:
            if low == high == 0.0:
                found.append(
                    _suspicious(
                        "the reward is always zero",
                        f"in all {samples} samples",
                        "check that step returns it; if it is sparse, add a term that leads there, or --terms rnd",
                    )
                )
            if max(abs(low), abs(high)) > 10.0 * _LARGE:
                found.append(
                    _suspicious(
                        "rewards are large",
                        f"they go from {low:.3g} to {high:.3g}",
                        "scale them so that a step gives about -1 to 1: value losses grow with their square",
                    )
                )
        return found + self._of_terms()

    def _of_terms(self) -> list[Finding]:
        found = []
        silent = [name for name, size in self.terms.items() if size == 0.0]
        if silent and self.num_steps * self.env.num_envs >= MIN_SAMPLES:
            found.append(
                _suspicious(
                    "reward terms that are always zero",
                    f"{', '.join(silent)} in {self.num_steps} steps of {self.env.num_envs} envs",
                    "check their weights and what they measure; leave out what is meant to be off",
                )
            )
        total = sum(self.terms.values())
        for name, size in self.terms.items():
            if len(self.terms) >= 3 and total and size > 0.95 * total:
                found.append(
                    _suspicious(
                        "one reward term dominates",
                        f"{name} has {100.0 * size / total:.0f} % of all magnitudes",
                        "lower its weight, or the others have no effect",
                    )
                )
        return found

    def _of_episodes(self) -> list[Finding]:
        found = []
        number, env = len(self.lengths), self.env
        if not number and self.num_steps >= _MANY_STEPS and not env.max_episode_length:
            found.append(
                _suspicious(
                    "no episode ever ends",
                    f"none of {env.num_envs} envs in {self.num_steps} steps each, and there is no time limit",
                    "raise terminated where the task ends, and truncate after a time limit",
                )
            )
        if number >= 10 and max(self.lengths) == 1:
            found.append(
                _suspicious(
                    "every episode has one step",
                    f"all {number} episodes",
                    "look at what raises terminated or truncated: a new episode may begin in an end state",
                )
            )
        if number >= 5 and min(self.lengths) == max(self.lengths) >= 20 and not self.num_truncated:
            found.append(
                _suspicious(
                    "time-outs look like terminations",
                    f"all {number} episodes ended as terminated after exactly {self.lengths[0]} steps",
                    "return the time limit as truncated: after terminated the future counts as worth nothing",
                )
            )
        if self.num_truncated and not env.gives_final_obs:
            found.append(
                Finding(
                    level="wrong",
                    what="time-outs without final observations",
                    evidence=f"{self.num_truncated} time-outs, and gives_final_obs is False",
                    fix="return final_obs in the step in which an episode ends: values behind a time limit are "
                    "estimated from it",
                )
            )
        return found

    def _of_time(self) -> list[Finding]:
        """Name an env that waits: a process that only shares a busy core does not give it away by itself."""
        share, waits = self.busy_seconds / max(self.seconds, 1e-9), self.num_waits / max(1, self.num_steps)
        if share < 0.3 and waits > 0.9 and self.seconds > 1e-3 * self.num_steps:
            rate = self.num_steps * self.env.num_envs / self.seconds
            return [
                _suspicious(
                    "the env waits instead of simulating",
                    f"{rate:,.0f} env steps per second, with the processor busy for {100.0 * share:.0f} % of the time",
                    "take out sleeps, rendering and real-time clocks, or train with more envs at once",
                )
            ]
        return []

    @property
    def steps_per_second(self) -> float:
        """Env steps per second of `env.step` alone, over all envs."""
        return self.num_steps * self.env.num_envs / max(self.seconds, 1e-9)


def _slow(survey: Survey) -> list[Finding]:
    """Name an env that is a thousand times slower than the built-in cartpole beside it."""
    from striderl.envs.classic_control.tasks import CLASSIC_TASKS

    yardstick = Survey(CLASSIC_TASKS["CartPole-v1"](survey.env.num_envs, "cpu"))
    yardstick.walk(seconds=1.0, seed=0, max_steps=100, act=None, progress=None)
    if survey.steps_per_second > 1e-3 * yardstick.steps_per_second:
        return []
    return [
        _suspicious(
            "the env is slow for this machine",
            f"{survey.steps_per_second:,.1f} env steps per second, where cartpole makes "
            f"{yardstick.steps_per_second:,.0f}",
            "profile env.step; simulate fewer substeps, or step many envs in worker processes",
        )
    ]


def _suspicious(what: str, evidence: str, fix: str) -> Finding:
    return Finding(level="suspicious", what=what, evidence=evidence, fix=fix)


def _boxes(spec: ActionSpec) -> dict[str, BoxSpec]:
    parts: dict[str, Any] = dict(spec.parts) if isinstance(spec, DictActionSpec) else {"": spec}
    return {name: part for name, part in parts.items() if isinstance(part, BoxSpec)}


# -- comparisons -------------------------------------------------------------------------------------------------------


def _compared(env: VecEnv, seed: int) -> list[Finding]:
    """Compare what a reset and what actions change."""
    probe = Probe(env, Recorder(type(env).__name__, collect=True), seed=seed, num_steps=CONTRACT_STEPS)
    found = []
    first = probe.record(seed, 24)
    start, end = (
        {name: value for name, value in first.fields[place].items() if name.startswith("obs[")} for place in (0, -1)
    )
    again = {f"obs[{name!r}]": value for name, value in env.reset(seed + 1).items()}
    moved = any(not torch.equal(start[name], end[name]) for name in start)
    if moved and all(torch.equal(end[name], again[name]) for name in end):
        found.append(
            Finding(
                level="wrong",
                what="a reset changes nothing",
                evidence=f"after {len(first.actions)} steps reset({seed + 1}) returned the observation of before",
                fix="put the state back in reset, and compute the observation after that",
            )
        )
    other = Probe(env, probe.recorder, seed=seed + 1, num_steps=CONTRACT_STEPS).record(seed, 24)
    if first_difference(first, other) is None and not _same_actions(first.actions, other.actions):
        found.append(
            _suspicious(
                "actions change nothing",
                f"two walks of {len(first.actions)} steps from seed {seed} with other actions gave the same numbers",
                "check that step uses its argument",
            )
        )
    return found


def _same_actions(one: list[Actions], other: list[Actions]) -> bool:
    def parts(actions: Actions) -> list[Tensor]:
        return list(actions.values()) if isinstance(actions, dict) else [actions]

    return all(
        torch.equal(a, b) for left, right in zip(one, other) for a, b in zip(parts(left), parts(right), strict=True)
    )
