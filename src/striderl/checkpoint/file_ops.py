"""Every operation on the file system that a save or a load makes, one method each.

A store uses this object and nothing else, so that a test can let the nth operation fail, record them all, or drop what
was not synced. The order of a save is

    make_directory .tmp_…  ─▶ create, write …, sync, close   (each file, the manifest last)
                           ─▶ sync_directory .tmp_…  ─▶ read back  ─▶ rename .tmp_… step_…  ─▶ sync_directory parent
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


class FileOps:
    """The real file system."""

    def make_directory(self, path: Path) -> None:
        """Make one directory, which must not exist."""
        path.mkdir()

    def create(self, path: Path) -> int:
        """Make a file, which must not exist, and return its descriptor for writing."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)

    def write(self, descriptor: int, content: memoryview) -> None:
        """Write all bytes; the system may take them in several pieces."""
        while len(content):
            written = os.write(descriptor, content)
            if written == 0:
                raise OSError(errno.EIO, "the system wrote nothing and gave no reason")
            content = content[written:]

    def sync(self, descriptor: int) -> None:
        """Wait until the bytes of a file are on the disk."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a descriptor; some file systems report a full disk only here."""
        os.close(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Wait until the names in a directory are on the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or directory another name in one step; a file of that name is replaced."""
        os.replace(source, target)

    def remove_file(self, path: Path) -> None:
        """Remove a file or a link, never what a link points to."""
        os.unlink(path)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def names(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(os.listdir(path))

    def is_directory(self, path: Path) -> bool:
        """Return whether this is a directory itself, not a link to one."""
        try:
            return stat.S_ISDIR(os.lstat(path).st_mode)
        except FileNotFoundError:
            return False

    def open_read(self, path: Path) -> BinaryIO:
        """Open a plain file; links, pipes and devices are refused: reading them may leave the folder or hang."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.ELOOP, "not a plain file", str(path))
        return os.fdopen(descriptor, "rb")


def make_directories(ops: FileOps, path: Path) -> None:
    """Make a directory and those above it that are missing, each on the disk before the next one."""
    if path.is_dir():
        return
    if path.parent != path:
        make_directories(ops, path.parent)
    ops.make_directory(path)
    ops.sync_directory(path.parent)
