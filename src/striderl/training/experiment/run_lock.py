"""`FolderLock`: one process at a time trains into a folder, and the lock dies with it.

    run.lock      {"pid": 4711, "host": "node3", "since": "2026-01-31 12:00:00", "command": "striderl train cartpole"}

The lock is the kernel's (flock on the open file), not the file: after `kill -9` the file is there and the lock is not.
A forked child, such as a worker of an env, gives up its copy of the descriptor, so it cannot keep the lock of a trainer
that has died. Readers need no lock. Where the file system has none, or the folder cannot be written to, a warning is
logged and training goes on.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import logging
import os
import socket
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path

from striderl.checkpoint.safe_files import decode_json, open_append

_log = logging.getLogger(__name__)

LOCK_FILE = "run.lock"
"""The file of a run's folder, or of a runner's log_dir, that is locked."""
MAX_HOLDER_BYTES = 4096
_COMMAND_LENGTH = 200

_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


class FolderLockedError(RuntimeError):
    """Another process holds the folder's lock; the message names it."""


class FolderLock:
    """The lock of one folder, held from construction until `release`, garbage collection or the end of the process."""

    def __init__(self, folder: str | Path) -> None:
        """Take the lock; a locked folder raises FolderLockedError at once."""
        self.folder = Path(folder)
        self._descriptor = _locked_file(self.folder)
        self._closing = weakref.finalize(self, _close, self._descriptor)
        _held.add(self)

    @property
    def held(self) -> bool:
        """Whether this object has a lock; False after `release`, and where the file system has none."""
        return self._closing.alive and self._descriptor >= 0

    def release(self) -> None:
        """Release the lock; calling it twice is fine."""
        if self.held:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._closing()

    def drop_copy(self) -> None:
        """Close a forked child's copy; unlike releasing, this keeps the parent's lock."""
        self._closing()

    def guards_the_folder(self) -> bool:
        """Return whether the locked file is the one in the folder: a folder that was deleted took its lock along."""
        if not self.held:
            return True
        try:
            there, mine = os.lstat(self.folder / LOCK_FILE), os.fstat(self._descriptor)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _locked_file(folder: Path) -> int:
    """Return a descriptor with the lock; -1 where the file system has none."""
    path = folder / LOCK_FILE
    try:
        descriptor = open_append(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise
        _log.warning("%s is not locked against a second training: %s", folder, error.strerror)
        return -1
    try:
        if not _flock(descriptor):
            refusal, is_own = _refusal(folder, descriptor)
            if is_own:
                gc.collect()  # a run of this process that was dropped without close() holds nothing
            if not _flock(descriptor):
                raise FolderLockedError(refusal)
    except OSError as error:
        os.close(descriptor)
        _log.warning("%s is not locked against a second training: %s", folder, error.strerror)
        return -1
    except FolderLockedError:
        os.close(descriptor)
        raise
    with suppress(OSError):  # on a full disk the holder is not named
        os.ftruncate(descriptor, 0)
        os.write(descriptor, _holder())
    return descriptor


def _flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder() -> bytes:
    command = " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]]) if sys.argv else ""
    content = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": command[:_COMMAND_LENGTH],
    }
    return (json.dumps(content) + "\n").encode("ascii")


def _refusal(folder: Path, descriptor: int) -> tuple[str, bool]:
    """Return a sentence with the holder's name, if it can be read: it may not be written yet; and whether it is us."""
    try:
        found = decode_json(os.pread(descriptor, MAX_HOLDER_BYTES, 0), folder / LOCK_FILE)
        pid, host, since, command = (str(found[name]) for name in ("pid", "host", "since", "command"))
    except (OSError, ValueError, KeyError, TypeError):
        return f"{str(folder)!r} is being trained by another process; wait for its end or stop it", False
    if pid == str(os.getpid()) and host == socket.gethostname():
        text = f"{str(folder)!r} is being trained by this process, since {since}; close() that run or runner first"
        return text, True
    return (
        f"{str(folder)!r} is being trained by process {pid} on {host} since {since} ({_printable(command)}); "
        f"wait for its end, or stop it there with 'kill {pid}', which saves it",
        False,
    )


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_COMMAND_LENGTH])


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)


def _drop_copies() -> None:
    for lock in list(_held):
        lock.drop_copy()


os.register_at_fork(after_in_child=_drop_copies)
