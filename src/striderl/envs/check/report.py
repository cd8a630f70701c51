"""What a contract check says: what was checked, what is wrong and where, and what looks odd."""

from __future__ import annotations

from dataclasses import dataclass, field

from striderl.envs.vec_env import ContractError

NOWHERE = -1
"""The env index or step of a finding that belongs to no single env or step."""


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One broken rule, where it showed first."""

    field: str
    """What is wrong: 'obs['joints']', 'reward', 'episode_length_buf', 'reset_envs', …"""
    wanted: str
    """What the contract asks for."""
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
        """Record a violation, once per field and rule: the thousandth bad step says no more than the first."""
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
