"""`Logger`: the base class of loggers.

    class Mine(Logger):
        def log(self, step, numbers):
            send(step, numbers["collect/return_mean"])

The rest does nothing until it is overridden. Two habits keep a logger easy to guard and to resume: open files and
connections on first use, not in the constructor, so that a failure happens where it is caught (`guarded.py`); and keep
no state that a checkpoint would have to hold: `resume_at` gives the step of the checkpoint; later rows are dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Logger(ABC):
    """Log the metrics, texts, settings, videos and files of one run."""

    patience: float = 0.0
    """Seconds that training waits for a row to be written. Local files set it, so that the rows before a checkpoint are
    on disk when it is made; 0 for everything over a network."""

    @property
    def name(self) -> str:
        """The name of this logger in warnings."""
        return type(self).__name__

    @abstractmethod
    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log the metrics of one step; steps grow."""

    def text(self, name: str, value: str) -> None:  # noqa: B027  (a logger takes what it can show)
        """Log a text, such as the reason why a run ended."""

    def config(self, values: Mapping[str, Any]) -> None:  # noqa: B027
        """Log the settings of the run as plain nested data."""

    def video(self, step: int, name: str, path: Path) -> None:  # noqa: B027
        """Log a video that lies at `path` and stays there."""

    def file(self, path: Path) -> None:  # noqa: B027
        """Log any other file: an exported policy, a plot, a report."""

    def artifact(self, name: str) -> None:  # noqa: B027
        """Log the use of an artifact that the tracker keeps, by its name there."""

    def resume_at(self, step: int) -> None:  # noqa: B027
        """Drop the rows after this step: the run resumes from its checkpoint and writes them again."""

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
