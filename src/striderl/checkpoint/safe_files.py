"""Safe access to files of run folders, checkpoints and datasets: plain files only, size limits, clear errors.

    read      open_read(path)  read_bytes(path)  read_text(path)  read_json(path)  read_lines(path)
              read_json_lines(path)  decode_json(text, path)
    append    open_append(path)                           a descriptor; the file is made where it is missing
    replace   write_bytes(path, …)  write_text(path, …)  write_json(path, …)  replacing(path)  replacing_path(path)
                                                          a reader finds the old file or the new one, on the disk
    names     member(root, name)                          a name from a file, never outside of its folder
              check_plain(path)  check_folder(path)       nothing there, or a plain file; or a folder, and no link
              check_absent(path)                          nothing there

A link, a pipe, a device or a directory in the place of a file is refused, and so is a file that is larger than what is
wanted: `FileRefused`, which names the file and the reason, and is a ValueError. Text that is not UTF-8 and JSON that is
damaged, ambiguous or nested too deeply are the same error. What the system itself refuses (no such file, no rights, a
full disk) stays an OSError. The folders above a file may be links; the file itself may not.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from striderl.checkpoint import strict_json
from striderl.checkpoint.errors import MAX_DEPTH, MAX_JSON_BYTES, MAX_LINE_BYTES, CheckpointCorrupt, FileRefused

_KINDS = [
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
]
_NOT_PLAIN = {errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EMLINK, errno.ENODEV}
"""The system's errors when a link, a socket, a directory or a device is opened as a file."""


# -- reading -----------------------------------------------------------------------------------------------------------


def open_read(path: str | Path, *, max_bytes: int | None = None) -> BinaryIO:
    """Open a plain file of at most `max_bytes`; nothing is read yet, and nothing else is waited for."""
    descriptor = _open(Path(path), os.O_RDONLY | os.O_NONBLOCK)
    size = os.fstat(descriptor).st_size
    if max_bytes is not None and size > max_bytes:
        os.close(descriptor)
        raise FileRefused(path, f"it has {size} bytes, at most {max_bytes} are read")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: str | Path, *, max_bytes: int) -> bytes:
    """Read a whole file of at most `max_bytes`."""
    with open_read(path, max_bytes=max_bytes) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise FileRefused(path, f"it grew beyond the {max_bytes} bytes that are read")
    return content


def read_text(path: str | Path, *, max_bytes: int = MAX_JSON_BYTES) -> str:
    """Read a whole file of UTF-8."""
    return _text(read_bytes(path, max_bytes=max_bytes), path)


def read_json(path: str | Path, *, constant: Callable[[str], Any] = strict_json.refuse_constant) -> Any:
    """Read a JSON file; a key given twice, NaN, too many values and too many levels are refused.

    constant: how to convert 'NaN' and 'Infinity' in a file of another program.
    """
    return decode_json(read_bytes(path, max_bytes=MAX_JSON_BYTES), path, constant=constant)


def decode_json(text: bytes, path: str | Path, *, constant: Callable[[str], Any] = strict_json.refuse_constant) -> Any:
    """Read a JSON text that came from `path`, by the rules of `read_json`."""
    try:
        return strict_json.decode(text, path, max_bytes=MAX_JSON_BYTES, max_depth=MAX_DEPTH, constant=constant)
    except CheckpointCorrupt as error:
        raise FileRefused(path, error.reason) from None


def read_lines(path: str | Path, *, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Yield the lines of a file without their ends; the file may be of any size, a line may not."""
    with open_read(path) as file:
        while line := file.readline(max_line_bytes + 1):
            if len(line) > max_line_bytes:
                raise FileRefused(path, f"it has a line of more than {max_line_bytes} bytes")
            yield line.rstrip(b"\r\n")


def read_json_lines(path: str | Path, *, max_bytes: int = MAX_JSON_BYTES) -> list[Any]:
    """Read a file of one JSON value per line; empty lines are passed over."""
    lines = read_bytes(path, max_bytes=max_bytes).splitlines()
    return [decode_json(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def _text(content: bytes, path: str | Path) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileRefused(path, f"byte {error.start} is not UTF-8 text") from None


# -- writing -----------------------------------------------------------------------------------------------------------


def open_append(path: str | Path) -> int:
    """Open a plain file for reading and for writing at its end, made where it is missing, and return its descriptor."""
    return _open(Path(path), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK)


def write_bytes(path: str | Path, content: bytes) -> Path:
    """Write a file, whole or not at all; a file of that name is replaced, anything else is refused."""
    with replacing(path) as file:
        file.write(content)
    return Path(path)


def write_text(path: str | Path, content: str) -> Path:
    """Write a file of UTF-8, whole or not at all."""
    return write_bytes(path, content.encode("utf-8"))


def write_json(path: str | Path, value: Any, *, indent: int | None = 2) -> Path:
    """Write a JSON file, whole or not at all; NaN and infinities are not JSON and raise ValueError."""
    return write_text(path, json.dumps(value, indent=indent, allow_nan=False) + "\n")


@contextmanager
def replacing(path: str | Path, *, several_writers: bool = False, beginning: bytes = b"") -> Iterator[BinaryIO]:
    """Give an empty file to write to, which takes the place of `path` at the end, or goes away after an error.

    An existing file that does not begin with `beginning` belongs to another program and raises; an empty one does not.
    """
    if beginning and os.path.lexists(path):
        with open_read(path) as old:
            found = old.read(len(beginning))
        if found not in (beginning, b""):
            raise FileRefused(path, "it is a file of another kind, which is not replaced; choose another name")
    with (
        replacing_path(path, several_writers=several_writers) as temporary,
        os.fdopen(_open(temporary, os.O_RDWR), "w+b") as file,
    ):
        yield file


@contextmanager
def replacing_path(path: str | Path, *, several_writers: bool = False) -> Iterator[Path]:
    """Give the name of an empty file next to `path`, as `replacing` does, for libraries that open files themselves.

    What a killed writer left is removed by the next one, so there is one writer at a time; with `several_writers` each
    has a name of its own.
    """
    path = Path(path)
    check_plain(path)
    mark = f"{secrets.token_hex(6)}." if several_writers else ""
    temporary = path.with_name(f".new.{mark}{path.name}")
    if not several_writers:
        check_plain(temporary)
        temporary.unlink(missing_ok=True)
    os.close(_open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    try:
        yield temporary
        _sync(temporary)
        check_plain(path)
        os.replace(temporary, path)
        _sync(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- names -------------------------------------------------------------------------------------------------------------


def member(root: str | Path, name: str) -> Path:
    """Return root/name for a relative name that a file gave; one that leaves the folder, also by a link, is refused."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise FileRefused(root, f"it names {name[:200]!r}, wanted a file inside this folder")
    path = Path(root, *parts)
    if not path.resolve().is_relative_to(Path(root).resolve()):
        raise FileRefused(path, "a link on the way leads out of the folder; copy the files in (cp -rL follows links)")
    return path


def check_plain(path: str | Path) -> None:
    """Raise FileRefused where there is something that is not a plain file; nothing is opened."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise FileRefused(path, f"it is {_kind(mode)}, wanted a plain file; move it away")


def check_folder(path: str | Path) -> None:
    """Raise FileRefused where there is something that is not a folder, a link to one included."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        found = "a file" if stat.S_ISREG(mode) else _kind(mode)
        raise FileRefused(path, f"it is {found}, wanted a folder; move it away")


def check_absent(path: str | Path) -> None:
    """Raise FileRefused where there is anything, a link to nowhere included."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    found = "a file" if stat.S_ISREG(mode) else _kind(mode)
    raise FileRefused(path, f"it is to become a folder, found {found}; choose another name, or move it away")


def _open(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in _NOT_PLAIN:
            check_plain(path)
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise FileRefused(path, f"it is {_kind(mode)}, wanted a plain file")
    return descriptor


def _kind(mode: int) -> str:
    return next((words for test, words in _KINDS if test(mode)), "not a file")
