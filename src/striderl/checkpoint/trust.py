"""The trust boundary: a file may name code, but the user decides whether it is imported.

    config.json   "task": "gymnasium:my_robots:Walk-v0"   ─▶  my_robots would be imported
                        │
        require_trust ──┼── the caller passed trust=True (--trust on the command line)          fine
                        ├── this user made the file on this machine: it is among the records    fine
                        └── otherwise                                                           UntrustedFile

A record is a small file outside of the folder, one per content, named by its SHA-256:

    $XDG_STATE_HOME/striderl/known_runs/<digest>          ~/.local/state where the variable is not set

so a run stays known when it is moved or copied, and one whose config was edited is not. Names of this library and ids
that Gymnasium has registered need no trust, and nothing is recorded for them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from striderl.checkpoint.errors import FileRefused
from striderl.checkpoint.safe_files import replacing

_log = logging.getLogger(__name__)

MAX_RECORDS = 10_000
"""How many files are remembered; the oldest tenth goes when there are more."""


class UntrustedFile(ValueError):  # noqa: N818  (says what is wrong)
    """A file names code that would be imported, or a cluster that would be connected to, without permission."""

    def __init__(self, path: str | Path, modules: Sequence[str], addresses: Sequence[str] = ()) -> None:
        """Name the file, the modules, and the addresses of clusters."""
        found = [f"the module {', '.join(map(repr, modules))}, which would be imported and run"] if modules else []
        if addresses:
            found.append(
                f"the cluster {', '.join(map(repr, addresses))}, whose processes would run code here and get code"
            )
        super().__init__(
            f"{str(path)!r} names {', and '.join(found)}, and it was not made by this user on this machine. Look at "
            "the file and at what it names; --trust (trust=True in Python) allows it"
        )
        self.path, self.modules = Path(path), tuple(modules)


def require_trust(
    path: str | Path, content: Any, modules: Sequence[str], addresses: Sequence[str] = (), *, trust: bool
) -> None:
    """Raise UntrustedFile for content that names modules or addresses, unless it is trusted or made here."""
    if (modules or addresses) and not trust and not is_known(content):
        raise UntrustedFile(path, modules, addresses)


def content_digest(content: Any) -> str:
    """Return the SHA-256 of plain content; spaces do not count, every value does, and so does the order of keys.

    The components of an observation have an order, which is that of their keys.
    """
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def is_known(content: Any) -> bool:
    """Return whether this user has made a file of this content on this machine."""
    try:
        folder = _records()
        above, record = os.lstat(folder), os.lstat(folder / content_digest(content))
    except (OSError, RuntimeError):
        return False
    # a folder that others may write to proves nothing about this user
    private = stat.S_ISDIR(above.st_mode) and not above.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return private and stat.S_ISREG(record.st_mode) and {above.st_uid, record.st_uid} == {os.geteuid()}


def remember(path: str | Path, content: Any) -> None:
    """Record that this user has made a file of this content here; where that fails, a warning is logged and no more."""
    try:
        folder = _records()
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        _write(folder / content_digest(content), {"file": str(Path(path).absolute()), "time": _now()})
        _prune(folder)
    except (OSError, RuntimeError, FileRefused) as error:  # RuntimeError: there is no home directory
        _log.warning("%s is not recorded as made here, so reading it will ask for --trust: %s", path, error)


def _records() -> Path:
    given = os.environ.get("XDG_STATE_HOME", "")
    # the specification has a path that is not absolute ignored
    state = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    return state / "striderl" / "known_runs"


def _write(path: Path, about: dict[str, str]) -> None:
    """Write a record that only this user can read, whole or not at all."""
    with replacing(path, several_writers=True) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(f"{json.dumps(about)}\n".encode())


def _prune(folder: Path) -> None:
    records = list(os.scandir(folder))
    if len(records) <= MAX_RECORDS:
        return
    ages: list[tuple[float, str]] = []
    for record in records:
        with suppress(FileNotFoundError):  # another process prunes as well
            ages.append((record.stat(follow_symlinks=False).st_mtime, record.path))
    for _, oldest in sorted(ages)[: len(records) - MAX_RECORDS + MAX_RECORDS // 10]:
        with suppress(FileNotFoundError):
            os.unlink(oldest)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
