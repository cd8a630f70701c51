"""`Save`: pass the whole state of a run to a function that stores it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from striderl.training.callbacks.callback import NOTHING, Reaction, RunningTrainer, better, check_mode, is_due
from striderl.training.record import Record

Keep = Callable[[dict[str, Any], str], None]
"""save(state, name): writes a state under a name, replacing what had it before."""


class Save:
    """Saves every n iterations under 'iteration_<n>', the best so far under 'best', the end under 'last'.

    It is the last callback, so that the saved state includes this iteration in all others; a resumed run starts with
    the next one.
    """

    SAVED_NAME: ClassVar[str] = "Save"

    def __init__(
        self,
        save: Keep,
        *,
        every: int = 0,
        best: str = "",
        mode: str = "max",
        last: bool = True,
    ) -> None:
        """Save every `every` iterations (0: never), when the metric `best` is better than ever, and at the end."""
        if not callable(save):
            raise TypeError(f"Save wants a function save(state, name), found {type(save).__name__}")
        if every < 0:
            raise ValueError(f"Save: every is not negative, found {every}")
        check_mode(mode, "Save")
        self.save, self.every, self.best, self.mode, self.last = save, every, best, mode, last
        self.best_value: float | None = None

    def on_iteration(self, record: Record, run: RunningTrainer) -> Reaction:
        """Save, under each name that is due, one and the same state."""
        names = [f"iteration_{record.iteration}"] if is_due(record.iteration, self.every) else []
        value = record.metrics.get(self.best) if self.best else None
        if value is not None and better(value, self.best_value, self.mode):
            # before the state is taken, so that the saved state includes it. First among the names: a run killed
            # between two of them must not hold a best value that was never saved
            self.best_value = value
            names.insert(0, "best")
        if self.last and run.ending:
            names.append("last")
        if names:
            state = run.state_dict()
            for name in names:
                self.save(state, name)
        return NOTHING

    def state_dict(self) -> dict[str, Any]:
        """Return the best value so far."""
        return {"best_value": self.best_value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the best value so far."""
        self.best_value = None if state["best_value"] is None else float(state["best_value"])

    def close(self) -> None:
        """Do nothing."""
