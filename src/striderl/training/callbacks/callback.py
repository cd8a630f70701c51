"""Callbacks: objects that are called with every record, in order, and may keep state.

    record ──▶ Evaluate ──▶ Log ──▶ Progress ──▶ Stop ──▶ Save
                  └ adds 'evaluate/…' for those behind      └ reason to end

Callbacks look at training and never change it: a run with them and a run without have the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from striderl.training.record import Record

NO_METRICS: Mapping[str, float] = {}
"""No metrics; never written to."""


class Reaction(NamedTuple):
    """A callback's result for a record."""

    metrics: Mapping[str, float] = NO_METRICS
    """Metrics that are added to the record for later callbacks and for the user."""
    stop: str = ""
    """Why training should end after this iteration; empty to go on."""
    seconds: Mapping[str, float] = NO_METRICS
    """How long the callback took, by what it did: logged as 'time/evaluation_seconds' and so on."""


NOTHING = Reaction()
"""The result of a callback that only reads."""


class RunningTrainer(Protocol):
    """The part of the trainer that callbacks may read."""

    @property
    def ending(self) -> bool:
        """Whether this iteration is the last one, as far as is known when a callback is called."""
        ...

    @property
    def remaining_iterations(self) -> int | None:
        """How many iterations are left; None without a limit."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a new trainer needs to resume from here."""
        ...


@runtime_checkable
class Callback(Protocol):
    """Called with the record of every iteration."""

    def on_iteration(self, record: Record, run: RunningTrainer) -> Reaction:
        """Process the record; training is not changed."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the callback's state as plain data."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state."""
        ...

    def close(self) -> None:
        """Close files, envs and windows; calling it twice is fine."""
        ...


def is_due(iteration: int, every: int) -> bool:
    """Return whether something with this interval of iterations is due; 0 means never."""
    return every > 0 and iteration % every == 0


def better(value: float, best: float | None, mode: str, min_delta: float = 0.0) -> bool:
    """Return whether a value beats the best so far by more than min_delta; NaN never does."""
    if value != value:
        return False
    if best is None:
        return True
    return value > best + min_delta if mode == "max" else value < best - min_delta


def check_mode(mode: str, who: str) -> None:
    """Raise unless the mode is 'max' or 'min'."""
    if mode not in ("max", "min"):
        raise ValueError(f"{who}: mode is 'max' or 'min', found {mode!r}")


class Watcher:
    """A function of records as a callback: it may return metrics to log, or a reason to stop."""

    def __init__(self, function: Callable[[Record], Mapping[str, float] | str | None]) -> None:
        """Take the function; anything callable with a record will do."""
        self.function = function

    def on_iteration(self, record: Record, run: RunningTrainer) -> Reaction:
        """Call the function."""
        found = self.function(record)
        if isinstance(found, str):
            return Reaction(stop=found)
        if found is not None and not isinstance(found, Mapping):
            raise TypeError(
                f"a callback returns None, a dict of metrics or the text of a reason to stop; {self.function!r} "
                f"returned {found!r}"
            )
        return NOTHING if found is None else Reaction(metrics=found)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: a function has no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load nothing."""

    def close(self) -> None:
        """Do nothing."""


def as_callback(callback: Any) -> Callback:
    """Return a callback as it is, and a function of records as one."""
    if isinstance(callback, Callback):
        return callback
    if callable(callback):
        return Watcher(callback)
    raise TypeError(
        f"a callback is a function of a record, or has on_iteration, state_dict, load_state_dict and close; found "
        f"{type(callback).__name__}"
    )
