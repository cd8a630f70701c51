"""Stop rules: a budget is spent, a metric is good enough, it no longer improves, a trial is pruned.

`Stop`: end a run early, for whichever of its rules has a reason first.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

from striderl.data.naming import unknown
from striderl.training.callbacks.callback import Reaction, RunningTrainer, better, check_mode
from striderl.training.record import Record

_log = logging.getLogger(__name__)

_LONG = 200
"""After how many records without its metric a rule logs a warning."""


@runtime_checkable
class StopRule(Protocol):
    """Check each record for a reason to stop."""

    def reason(self, record: Record) -> str:
        """Return why training should end after this record, or an empty string."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the rule's state, as plain data."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state."""
        ...


class Budget:
    """Stop when so many iterations, env steps or seconds are used up; 0 means no limit."""

    def __init__(self, *, iterations: int = 0, env_steps: int = 0, seconds: float = 0.0) -> None:
        """Set the limits; seconds are those of collecting and learning, over all resumed parts of a run."""
        if min(iterations, env_steps, seconds) < 0 or not (iterations or env_steps or seconds):
            raise ValueError("Budget wants at least one positive limit: iterations, env_steps or seconds")
        self.iterations, self.env_steps, self.seconds = iterations, env_steps, seconds
        self.used_seconds = 0.0

    def reason(self, record: Record) -> str:
        """Compare with the limits."""
        self.used_seconds += record.collection_seconds + record.learning_seconds
        if self.iterations and record.iteration >= self.iterations:
            return f"budget of {self.iterations} iterations is used up"
        if self.env_steps and record.env_steps >= self.env_steps:
            return f"budget of {self.env_steps} env steps is used up"
        if self.seconds and self.used_seconds >= self.seconds:
            return f"budget of {self.seconds} seconds is used up"
        return ""

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds used."""
        return {"used_seconds": self.used_seconds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the counts."""
        self.used_seconds = float(state["used_seconds"])


class _Metric:
    """Read a metric from records; warn once when it is missing for long, because its rule never applies."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._num_without = 0 if name else -1  # an empty name waits for nothing
        self._others: set[str] = set()

    def of(self, record: Record) -> float | None:
        """Return its value, or None where the record has none."""
        found = record.metrics.get(self.name)
        if found is not None:
            self._num_without = -1  # it exists: no warning any more
        elif self._num_without >= 0:
            self._num_without += 1
            self._others |= record.metrics.keys()
            if self._num_without == _LONG:
                known = unknown("metric", self.name, sorted(self._others), where=f"the log of {_LONG} records")
                _log.warning("a stop metric was never logged: %s", known)
                self._num_without = -1
        return found


class UnknownMetricError(ValueError):
    """A setting names a metric that is not in the log; the message lists those that are."""


class WantedMetrics:
    """Look for the metrics that settings name, and raise as soon as one is known to be missing.

    family       comes                                     known to be missing
    train/       with gradient steps                       after `min_updates` of them
    collect/     with steps, or when an episode ends       after the first episode
    evaluate/    with an evaluation                        after the first one
    others       with every record                         after the first one, unless callbacks add some (`open_ended`)
    """

    def __init__(self, names: Mapping[str, str], *, min_updates: int = 1, open_ended: bool = False) -> None:
        """Wait for the metrics of settings, {setting: metric}; an empty name waits for nothing."""
        self._missing = {setting: name for setting, name in names.items() if name}
        self._min_updates, self._open_ended = min_updates, open_ended
        self._seen: set[str] = set()

    def check(self, record: Record) -> None:
        """Check one more record."""
        if not self._missing:
            return
        self._seen |= record.metrics.keys()
        self._missing = {setting: name for setting, name in self._missing.items() if name not in self._seen}
        for setting, name in self._missing.items():
            if self._is_late(name.partition("/")[0], record):
                raise UnknownMetricError(unknown("metric", name, sorted(self._seen), where=f"{setting}: the log"))

    def _is_late(self, family: str, record: Record) -> bool:
        if family == "train":
            return record.num_updates >= self._min_updates
        if family == "collect":
            return "collect/episodes" in self._seen
        if family == "evaluate":
            return "evaluate/episodes" in self._seen
        return not self._open_ended


class Threshold:
    """Stop when a metric is at or beyond a value, so many times in a row among the records that have it."""

    def __init__(self, metric: str, value: float, *, mode: str = "max", times: int = 1) -> None:
        """Wait for metric >= value, or metric <= value with mode 'min'."""
        check_mode(mode, "Threshold")
        if times < 1:
            raise ValueError(f"Threshold: times is at least 1, found {times}")
        self.metric, self.value, self.mode, self.times = metric, value, mode, times
        self._found = _Metric(metric)
        self.count = 0

    def reason(self, record: Record) -> str:
        """Compare with the value."""
        found = self._found.of(record)
        if found is None:
            return ""
        reached = found >= self.value if self.mode == "max" else found <= self.value
        self.count = self.count + 1 if reached else 0
        sign = ">=" if self.mode == "max" else "<="
        return f"{self.metric} = {found:.6g} {sign} {self.value:.6g}" if self.count >= self.times else ""

    def state_dict(self) -> dict[str, Any]:
        """Return how often in a row it was reached."""
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the counts."""
        self.count = int(state["count"])


class Plateau:
    """Stop when a metric has not become better for `patience` of the records that have it."""

    def __init__(self, metric: str, *, patience: int, min_delta: float = 0.0, mode: str = "max") -> None:
        """Count a value as better when it beats the best by more than min_delta."""
        check_mode(mode, "Plateau")
        if patience < 1 or min_delta < 0.0:
            raise ValueError(f"Plateau: patience >= 1 and min_delta >= 0, found {patience} and {min_delta}")
        self.metric, self.patience, self.min_delta, self.mode = metric, patience, min_delta, mode
        self._found = _Metric(metric)
        self.best: float | None = None
        self.waited = 0

    def reason(self, record: Record) -> str:
        """Compare with the best."""
        found = self._found.of(record)
        if found is None:
            return ""
        if better(found, self.best, self.mode, self.min_delta):
            self.best, self.waited = found, 0
            return ""
        self.waited += 1
        stuck = self.waited >= self.patience
        best = "any number" if self.best is None else f"{self.best:.6g}"
        return f"{self.metric} has not become better than {best} for {self.waited} records" if stuck else ""

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and how long ago it was."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the best value and its age."""
        self.best = None if state["best"] is None else float(state["best"])
        self.waited = int(state["waited"])


class Trial(Protocol):
    """Interface of an Optuna trial, as far as it is used here."""

    def report(self, value: float, step: int) -> None:
        """Report an intermediate value."""
        ...

    def should_prune(self) -> bool:
        """Return whether the trial should be pruned."""
        ...


class Prune:
    """Report a metric to an Optuna trial and stop when the trial should be pruned.

    The study expects an exception, which the caller raises:
    `if trainer.stop_reason == Prune.REASON: raise optuna.TrialPruned`.
    """

    REASON = "trial was pruned"

    def __init__(self, trial: Trial, metric: str) -> None:
        self.trial, self.metric = trial, metric
        self._found = _Metric(metric)

    def reason(self, record: Record) -> str:
        """Report the metric and check for pruning; the step is the iteration."""
        found = self._found.of(record)
        if found is None:
            return ""
        self.trial.report(found, record.iteration)
        return self.REASON if self.trial.should_prune() else ""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the study keeps what was reported."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load nothing."""


class Stop:
    """Check rules in order; the trainer finishes the iteration, keeps the reason, and ends."""

    SAVED_NAME: ClassVar[str] = "Stop"

    def __init__(self, *rules: StopRule) -> None:
        """Take rules such as `Budget`, `Threshold`, `Plateau` and `Prune`."""
        for rule in rules:
            if not isinstance(rule, StopRule):
                raise TypeError(
                    f"Stop wants rules with reason(record), such as Budget or Plateau, found {type(rule).__name__}"
                )
        self.rules = rules

    def on_iteration(self, record: Record, run: RunningTrainer) -> Reaction:
        """Check every rule, since each may be counting, and return the first reason."""
        reasons = [rule.reason(record) for rule in self.rules]
        return Reaction(stop=next((reason for reason in reasons if reason), ""))

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the rules."""
        return {"rules": [rule.state_dict() for rule in self.rules]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the states of the rules."""
        if len(state["rules"]) != len(self.rules):
            raise ValueError(f"Stop has {len(self.rules)} rules; {len(state['rules'])} were saved")
        for rule, saved in zip(self.rules, state["rules"]):
            rule.load_state_dict(saved)

    def close(self) -> None:
        """Do nothing."""
