"""`LineFile`: a text file that grows by whole lines and survives being killed, full disks and deleted folders.

    step 1 …⏎ step 2 …⏎ step 3 …⏎ ste          killed while the fourth line was written
                                  └ end        opening cuts the file here: a line without its newline does not count

A line is on its way to the disk when `append` returns; a reader never sees a line that will change. When the disk is
full in the middle of a line, its beginning is taken back, so the next line does not run into it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

_BLOCK = 1 << 16


class LineFile:
    """Appends whole lines; opened on first use."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._descriptor: int | None = None
        self._end = 0

    @property
    def empty(self) -> bool:
        """Whether there is no whole line in it; opens the file."""
        self._open()
        return self._end == 0

    def append(self, line: str) -> None:
        """Write one line, or raise OSError and leave the file as it was."""
        descriptor = self._open()
        content = memoryview(line.encode() + b"\n")
        written = 0
        try:
            while written < len(content):
                written += os.write(descriptor, content[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, self._end)
            raise
        self._end += written

    def keep_while(self, wanted: Callable[[str], bool]) -> None:
        """Cut the file before its first line that is not wanted; a file that is not there stays so."""
        if not self.path.exists():
            return
        self._open()
        end = 0
        with self.path.open("rb") as file:
            for line in file:
                if not wanted(line.decode(errors="replace").rstrip("\r\n")):
                    break
                end += len(line)
        os.truncate(self.path, end)
        self._end = end

    def replace(self, content: str) -> None:
        """Put other lines into the place of all, at once: a reader finds the old file or the new one."""
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.new")
        try:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

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
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            self._end = _end_of_last_line(descriptor)
            os.ftruncate(descriptor, self._end)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return descriptor

    def _check_that_it_is_there(self, descriptor: int) -> None:
        """Raise when the name no longer leads to the open file: the system would take lines that nobody can read."""
        opened = os.fstat(descriptor)
        try:
            found = os.stat(self.path)
        except OSError:
            found = None
        if found is None or (found.st_ino, found.st_dev) != (opened.st_ino, opened.st_dev):
            self.close()
            raise FileNotFoundError(f"{self.path} was deleted or replaced while the run was writing it")


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
