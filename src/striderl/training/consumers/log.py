"""`Log`: write the numbers of each iteration to sinks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO, runtime_checkable

from striderl.training.consumers.consumer import NOTHING, Reaction, Run, is_due
from striderl.training.record import Record


@runtime_checkable
class Sink(Protocol):
    """Where numbers go: a file, TensorBoard, a dashboard."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the numbers of one step."""
        ...

    def close(self) -> None:
        """Finish; calling it twice is fine."""
        ...


class Log:
    """Hands the numbers of every n-th record to one or several sinks; the step is the number of env steps."""

    def __init__(self, *sinks: Sink, every: int = 1) -> None:
        """Write every `every` iterations, and at the end."""
        for sink in sinks:
            if not isinstance(sink, Sink):
                raise TypeError(f"Log wants sinks with write(step, metrics) and close(), found {type(sink).__name__}")
        if every < 1:
            raise ValueError(f"Log: every is at least 1, found {every}")
        self.sinks, self.every = sinks, every

    def consume(self, record: Record, run: Run) -> Reaction:
        """Write."""
        if is_due(record.iteration, self.every) or run.ending:
            numbers = record.numbers()
            for sink in self.sinks:
                sink.write(record.env_steps, numbers)
        return NOTHING

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: what was written is in the sinks."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take nothing."""

    def close(self) -> None:
        """Close the sinks."""
        for sink in self.sinks:
            sink.close()


class JsonLines:
    """A text file with one JSON object per write: {"step": 4096, "train/kl": 0.01, …}; not finite becomes null.

    Lines are appended, and each is complete on disk when `write` returns, so the file can be read while a run goes on.
    A run that was resumed from an earlier point writes some steps a second time; the later line counts.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: TextIO | None = None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", encoding="utf-8")
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps({"step": step, **finite}, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None
