"""`JsonlLogger`: one JSON object per row, {"step": 4096, "train/kl": 0.01, …}."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from striderl.checkpoint.safe_files import decode_json
from striderl.loggers.line_file import PART_BYTES, LineFile
from striderl.loggers.logger import Logger


class JsonlLogger(Logger):
    """Appends a line per row; numbers that are not finite become null. Rows may differ in their names."""

    patience = 1.0

    def __init__(self, path: str | Path, *, max_bytes: int = PART_BYTES, max_parts: int = 0) -> None:
        """Name the file; it is opened, and its folder made, with the first row, and set aside as `LineFile` does."""
        self._file = LineFile(path, max_bytes=max_bytes, max_parts=max_parts)

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._file.path

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Append one line."""
        finite = {name: float(value) if math.isfinite(value) else None for name, value in numbers.items()}
        self._file.append(json.dumps({"step": int(step), **finite}, allow_nan=False, separators=(",", ":")))

    def resume_at(self, step: int) -> None:
        """Cut off the rows after this step, and a last line that was not finished."""
        self._file.keep_while(lambda line: _step_of(line, step) <= step)

    def close(self) -> None:
        """Close the file; a later row opens it again."""
        self._file.close()


def _step_of(line: str, unreadable: int) -> int:
    """Return the step of a row; a line that somebody else has damaged is kept, not cut with all that follows it."""
    try:
        return int(decode_json(line.encode(), "a row")["step"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return unreadable
