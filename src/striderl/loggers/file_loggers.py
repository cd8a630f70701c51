"""`CsvLogger`: a table that a spreadsheet can open, with one row per step.

step,train/kl,evaluate/return_mean          the second row brought a new column: the file is written anew with the
32,0.01,                                    longer header, under another name, and renamed; older rows have nothing
64,0.02,195.5                               there. Parts that were set aside keep the header that they have.

`JsonlLogger`: one JSON object per row, {"step": 4096, "train/kl": 0.01, …}.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from striderl.checkpoint.safe_files import decode_json, read_lines
from striderl.loggers.line_file import PART_BYTES, LineFile
from striderl.loggers.logger import Logger

_STEP = "step"


class CsvLogger(Logger):
    """Appends a row per step; numbers are written so that reading them gives the same bits, also 'nan' and 'inf'."""

    patience = 1.0

    def __init__(self, path: str | Path, *, max_bytes: int = PART_BYTES, max_parts: int = 0) -> None:
        """Name the file; it is opened, and its folder made, with the first row, and set aside as `LineFile` does."""
        self._file = LineFile(path, max_bytes=max_bytes, max_parts=max_parts)
        self._columns: list[str] | None = None

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._file.path

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Append one row, after widening the table where there are new names."""
        try:
            columns = self._columns_for(numbers)
            row = _line([str(int(step)), *(_cell(numbers, name) for name in columns[1:])])
            self._file.append(row, head=_line(columns))
        except OSError:
            # whoever deleted the file has deleted the header with it: look again before the next row
            self._columns = None
            raise

    def resume_at(self, step: int) -> None:
        """Cut off the rows after this step, and a last line that was not finished."""
        self._columns = None
        self._file.keep_while(lambda line: _step_of_row(line, step) <= step)

    def close(self) -> None:
        """Close the file; a later row opens it again."""
        self._file.close()
        self._columns = None

    def _columns_for(self, numbers: Mapping[str, float]) -> list[str]:
        """Return the columns of the file after making sure that it has all of these."""
        columns = self._columns if self._columns is not None else self._read_columns()
        new = [name for name in numbers if name not in set(columns)]
        if new or not columns:
            columns = [*(columns or [_STEP]), *new]
            self._widen(columns)
        self._columns = columns
        return columns

    def _read_columns(self) -> list[str]:
        if self._file.empty:
            return []
        return next(read_table(self.path), [])

    def _widen(self, columns: list[str]) -> None:
        rows: list[list[str]] = []
        if not self._file.empty:
            rows = list(read_table(self.path))[1:]
        wide = (row + [""] * (len(columns) - len(row)) for row in rows)
        self._file.replace("".join(f"{_line(row)}\n" for row in ([*columns], *wide)))


def read_table(path: Path) -> Iterator[list[str]]:
    """Yield the rows of a file of comma-separated values, the header first."""
    return csv.reader(line.decode(errors="replace") + "\n" for line in read_lines(path))


def _cell(numbers: Mapping[str, float], name: str) -> str:
    return repr(float(numbers[name])) if name in numbers else ""


def _line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def _step_of_row(line: str, header: int) -> int:
    """Return the step of a row; the header and damaged lines are kept."""
    try:
        return int(line.split(",", 1)[0])
    except ValueError:
        return header


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
        self._file.keep_while(lambda line: _step_of_object(line, step) <= step)

    def close(self) -> None:
        """Close the file; a later row opens it again."""
        self._file.close()


def _step_of_object(line: str, unreadable: int) -> int:
    """Return the step of a row; a line that somebody else has damaged is kept, not cut with all that follows it."""
    try:
        return int(decode_json(line.encode(), "a row")["step"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return unreadable
