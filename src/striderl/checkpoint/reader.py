"""Read one checkpoint: the manifest first, then every checksum, then the values.

A file is opened once; what was hashed is what is read. Nothing is allocated before it is known to be in the file.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from striderl.checkpoint.errors import CheckpointCorrupt, CheckpointUnreadable
from striderl.checkpoint.file_ops import FileOps
from striderl.checkpoint.limits import MAX_JSON_BYTES, MAX_MANIFEST_BYTES
from striderl.checkpoint.manifest import MANIFEST, STATE, TENSORS, Manifest, Member, read_manifest
from striderl.checkpoint.state_tree import unflatten
from striderl.checkpoint.strict_json import decode
from striderl.checkpoint.tensor_file import CHUNK_BYTES, read_tensors

_NOT_OURS = {
    errno.ENOENT: "the file is missing",
    errno.ELOOP: "it is a link, a pipe or a device, not a plain file",
    errno.ENXIO: "it is a link, a pipe or a device, not a plain file",
    errno.EISDIR: "it is a directory, not a file",
    errno.ENOTDIR: "it is not in a directory",
}
"""What the system says about something that is not a file of a checkpoint at all."""


class Content(NamedTuple):
    """What a checkpoint holds."""

    manifest: Manifest
    """What it consists of."""
    parts: dict[str, Any]
    """The values: 'state', 'config' and 'layout'."""


def read_checkpoint(ops: FileOps, path: Path, *, max_bytes: int) -> Content:
    """Read a checkpoint whose every byte has been checked."""
    manifest = check_sizes(ops, path, max_bytes=max_bytes)
    with _opened(ops, path / STATE) as file:
        _check_member(file, path / STATE, manifest.files[STATE])
        plain = decode(file.read(MAX_JSON_BYTES + 1), path / STATE, max_bytes=MAX_JSON_BYTES)
    with _opened(ops, path / TENSORS) as file:
        _check_member(file, path / TENSORS, manifest.files[TENSORS])
        tensors = read_tensors(file, manifest.files[TENSORS].size, path / TENSORS)
    try:
        parts = unflatten(tensors, plain)
    except (ValueError, RecursionError) as error:
        raise CheckpointCorrupt(path / STATE, str(error)) from None
    if not isinstance(parts, dict) or set(parts) != {"state", "config", "layout"}:
        raise CheckpointCorrupt(path / STATE, "it does not hold state, config and layout")
    return Content(manifest, parts)


def verify_checkpoint(ops: FileOps, path: Path, *, max_bytes: int) -> Manifest:
    """Check every byte of a checkpoint without keeping any."""
    manifest = check_sizes(ops, path, max_bytes=max_bytes)
    for name, member in manifest.files.items():
        with _opened(ops, path / name) as file:
            _check_member(file, path / name, member)
    return manifest


def check_sizes(ops: FileOps, path: Path, *, max_bytes: int) -> Manifest:
    """Read the manifest and compare the sizes of the files, but not yet their bytes."""
    try:
        is_directory = ops.is_directory(path)
    except OSError as error:
        raise CheckpointUnreadable(path, error) from error
    if not is_directory:
        raise CheckpointCorrupt(path, "it is not a directory (a link to one is not followed)")
    with _opened(ops, path / MANIFEST) as file:
        manifest = read_manifest(file.read(MAX_MANIFEST_BYTES + 1), path / MANIFEST)
    total = sum(member.size for member in manifest.files.values())
    if total > max_bytes:
        raise CheckpointCorrupt(path, f"it says it has {total} bytes, this process can hold {max_bytes}")
    for name, member in manifest.files.items():
        with _opened(ops, path / name) as file:
            found = os.fstat(file.fileno()).st_size
        if found != member.size:
            raise CheckpointCorrupt(path / name, f"it has {found} bytes, {member.size} were written")
    return manifest


def read_small(ops: FileOps, path: Path) -> bytes:
    """Read a file that is no larger than a manifest."""
    with _opened(ops, path) as file:
        return file.read(MAX_MANIFEST_BYTES + 1)


def _check_member(file: BinaryIO, path: Path, member: Member) -> None:
    """Compare the bytes of an open file with the manifest, and go back to its beginning."""
    digest = hashlib.sha256()
    left = member.size + 1
    while left > 0:
        piece = file.read(min(CHUNK_BYTES, left))
        if not piece:
            break
        digest.update(piece)
        left -= len(piece)
    if left != 1 or digest.hexdigest() != member.sha256:
        raise CheckpointCorrupt(path, "its bytes are not those that were written (SHA-256 differs)")
    file.seek(0)


@contextmanager
def _opened(ops: FileOps, path: Path) -> Iterator[BinaryIO]:
    """Open a file; what the system says while it is read is told with the file's name."""
    try:
        with ops.open_read(path) as file:
            yield file
    except OSError as error:
        if error.errno in _NOT_OURS:
            raise CheckpointCorrupt(path, _NOT_OURS[error.errno]) from error
        raise CheckpointUnreadable(path, error) from error
