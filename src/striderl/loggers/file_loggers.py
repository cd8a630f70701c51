"""`CsvLogger`: a table that a spreadsheet can open, with one row per step.

step,train/kl,evaluate/return_mean          the second row brought a new column: the file is rewritten with the
32,0.01,                                    longer header, under another name, and renamed; older rows have nothing
64,0.02,195.5                               there. Parts that were set aside keep the header that they have.

`JsonlLogger`: one JSON object per row, {"step": 4096, "train/kl": 0.01, …}.

`LineFile`: a text file that grows by whole lines and survives being killed, full disks and deleted folders.

    step 1 …⏎ step 2 …⏎ step 3 …⏎ ste          killed while the fourth line was written
                                  └ end        opening cuts the file here: a line without its newline does not count

A line is on its way to the disk when `append` returns; a reader never sees a line that will change. When the disk is
full in the middle of a line, its beginning is taken back, so the next line does not run into it.

    metrics.part1.csv   oldest                 a file that has reached its size is set aside under the next number, and
    metrics.part2.csv                          later lines go to a new one; `parts_of` lists them in order of time
    metrics.csv         newest
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from striderl.checkpoint.errors import MAX_LINE_BYTES
from striderl.checkpoint.safe_files import check_plain, decode_json, open_append, open_read, read_lines, write_text
from striderl.loggers.logger import Logger

# -- the file ----------------------------------------------------------------------------------------------------------


PART_BYTES = 64 * 1024 * 1024
"""The size at which a file is set aside unless another is given."""

_BLOCK = 1 << 16


def parts_of(path: str | Path) -> list[Path]:
    """Return the files that hold the lines of `path`, oldest first; those that were set aside come before it."""
    path = Path(path)
    numbered = re.compile(rf"{re.escape(path.stem)}\.part([1-9][0-9]{{0,8}}){re.escape(path.suffix)}")
    names = os.listdir(path.parent) if path.parent.is_dir() else []
    found = {int(match[1]): path.with_name(name) for name in names if (match := numbered.fullmatch(name))}
    parts = [found[number] for number in sorted(found)]
    return [*parts, path] if os.path.lexists(path) else parts


class LineFile:
    """Append whole lines; opened on first use. Anything but plain files under its names raises."""

    def __init__(self, path: str | Path, *, max_bytes: int = PART_BYTES, max_parts: int = 0) -> None:
        """Name the file; after `max_bytes` it is set aside, and of those the newest `max_parts` are kept (0: all)."""
        if max_bytes < 1 or max_parts < 0:
            raise ValueError(f"LineFile: max_bytes >= 1 and max_parts >= 0, found {max_bytes} and {max_parts}")
        self.path = Path(path)
        self._max_bytes, self._max_parts = max_bytes, max_parts
        self._descriptor: int | None = None
        self._end = 0

    @property
    def empty(self) -> bool:
        """Whether there is no whole line in it; opens the file."""
        self._open()
        return self._end == 0

    def append(self, line: str, *, head: str = "") -> None:
        """Write one line, or raise OSError and leave the file as it was; a new part begins with the line `head`."""
        content = line.encode() + b"\n"
        descriptor = self._open()
        if self._end and self._end + len(content) > self._max_bytes:
            self._set_aside()
            descriptor = self._open()
            content = head.encode() + b"\n" + content if head else content
        view, written = memoryview(content), 0
        try:
            while written < len(content):
                written += os.write(descriptor, view[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, self._end)
            raise
        self._end += written

    def keep_while(self, wanted: Callable[[str], bool]) -> None:
        """Cut the lines before the first that is not wanted, whatever part it is in; nothing is made where none is."""
        parts = parts_of(self.path)
        for part in parts:
            check_plain(part)
        self.close()
        for position, part in enumerate(parts):
            end, whole = _wanted_bytes(part, wanted)
            if part == self.path or not whole:
                # newest first: a process killed here leaves a file without a gap, and the next cut finishes the work
                for later in reversed(parts[position + 1 :]):
                    later.unlink()
                _truncate(part, end)
                if part != self.path:
                    os.replace(part, self.path)
                return

    def replace(self, content: str) -> None:
        """Put other lines into the place of all in the newest part; a reader finds the old file or the new one."""
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, content)

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _open(self) -> int:
        if self._descriptor is not None:
            self._check_that_it_is_there(self._descriptor)
            return self._descriptor
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = open_append(self.path)
        try:
            self._end = _end_of_last_line(descriptor)
            os.ftruncate(descriptor, self._end)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return descriptor

    def _set_aside(self) -> None:
        """Give the file the next number, and remove the oldest parts where only some are kept."""
        aside = [part for part in parts_of(self.path) if part != self.path]
        number = int(aside[-1].name.removesuffix(self.path.suffix).rpartition(".part")[2]) + 1 if aside else 1
        part = self.path.with_name(f"{self.path.stem}.part{number}{self.path.suffix}")
        self.close()
        os.rename(self.path, part)
        if self._max_parts:
            for old in [*aside, part][: -self._max_parts]:
                check_plain(old)
                old.unlink(missing_ok=True)

    def _check_that_it_is_there(self, descriptor: int) -> None:
        """Raise when the name no longer leads to the open file: further lines would be lost."""
        opened = os.fstat(descriptor)
        try:
            found = os.lstat(self.path)
        except OSError:
            found = None
        if found is None or (found.st_ino, found.st_dev) != (opened.st_ino, opened.st_dev):
            self.close()
            raise FileNotFoundError(f"{self.path} was deleted or replaced while the run was writing it")


def _wanted_bytes(part: Path, wanted: Callable[[str], bool]) -> tuple[int, bool]:
    """Return the bytes of the wanted whole lines at the beginning of a file, and whether that is all it has."""
    end = 0
    with open_read(part) as file:
        while line := file.readline(MAX_LINE_BYTES):
            torn = not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES
            if torn or not wanted(line.decode(errors="replace").rstrip("\r\n")):
                return end, False
            end += len(line)
    return end, True


def _truncate(path: Path, end: int) -> None:
    descriptor = open_append(path)
    try:
        os.ftruncate(descriptor, end)
    finally:
        os.close(descriptor)


def _end_of_last_line(descriptor: int) -> int:
    """Return the number of bytes up to and with the last newline, reading backwards."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - _BLOCK)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


_STEP = "step"


class CsvLogger(Logger):
    """Append a row per step; numbers are written so that reading them gives the same bits, also 'nan' and 'inf'."""

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
            # the header was deleted with the file: check again before the next row
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
    """Append a line per row; numbers that are not finite become null. Rows may differ in their names."""

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
    """Return the step of a row; a damaged line is kept, not cut with all that follows it."""
    try:
        return int(decode_json(line.encode(), "a row")["step"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return unreadable
