"""`Logger`: the base class of everything that takes the numbers of a run somewhere.

    class Mine(Logger):
        def log(self, step, numbers):
            send(step, numbers["collect/return_mean"])

The rest does nothing until it is overridden. Two habits keep a logger easy to guard and to resume: open files and
connections on first use, not in the constructor, so that a failure happens where it is caught (`guarded.py`); and keep
no state that a checkpoint would have to hold: `resume_at` says how far the run had got, and later rows are to go.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Logger(ABC):
    """Takes the numbers, texts, settings, videos and files of one run."""

    patience: float = 0.0
    """Seconds that training waits for a row to be written. Local files set it, so that the rows before a checkpoint are
    on disk when it is made; 0 for everything that talks to somebody else."""

    @property
    def name(self) -> str:
        """What a warning calls this logger."""
        return type(self).__name__

    @abstractmethod
    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers of one step; steps grow."""

    def text(self, name: str, value: str) -> None:  # noqa: B027  (a logger takes what it can show)
        """Take a text, such as the reason why a run ended."""

    def config(self, values: Mapping[str, Any]) -> None:  # noqa: B027
        """Take the settings of the run as plain nested data."""

    def video(self, step: int, name: str, path: Path) -> None:  # noqa: B027
        """Take a video that lies at `path` and stays there."""

    def file(self, path: Path) -> None:  # noqa: B027
        """Take any other file: an exported policy, a plot, a report."""

    def resume_at(self, step: int) -> None:  # noqa: B027
        """Forget the rows after this step: the run goes on from a checkpoint made there and writes them again."""

    def close(self) -> None:  # noqa: B027
        """Finish; calling it twice is fine."""


def flat_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings with names like 'ppo.clip', for trackers that keep one level."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(flat_settings(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
