"""Write the files of one checkpoint into a new directory, each on the disk before the manifest vouches for it.

Only a checkpoint is ever replaced or removed: a directory with our manifest and our files. One that holds anything
else, a file or a link is refused, because somebody else's work may be in it.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from striderl.checkpoint.errors import CheckpointError, CheckpointUnreadable, FileRefused
from striderl.checkpoint.file_ops import FileOps
from striderl.checkpoint.limits import MAX_JSON_BYTES, MAX_JSON_NODES
from striderl.checkpoint.manifest import FORMAT, MANIFEST, MEMBERS, STATE, TENSORS, Manifest, Member, write_manifest
from striderl.checkpoint.safe_files import check_absent
from striderl.checkpoint.state_tree import flatten
from striderl.checkpoint.strict_json import count_nodes, encode
from striderl.checkpoint.tensor_file import pieces

_ADVICE = "choose another name, or move it away"


class Payload:
    """A state, taken apart and checked: what `write_checkpoint` needs, and nothing that could still be refused."""

    def __init__(self, state: Any, config: Mapping[str, Any] | None, layout: Mapping[str, Any] | None) -> None:
        """Take a state apart; what cannot be saved raises TypeError with its place."""
        self.tensors: dict[str, Tensor]
        self.tensors, plain_state = flatten(state)
        plain = {"state": plain_state, "config": _plain(config, "config"), "layout": _plain(layout, "layout")}
        self.text = encode(plain)
        if len(self.text) > MAX_JSON_BYTES or count_nodes(self.text) > MAX_JSON_NODES:
            raise CheckpointError(
                f"the plain part of the state has {len(self.text)} bytes and about {count_nodes(self.text)} values; "
                f"at most {MAX_JSON_BYTES} bytes and {MAX_JSON_NODES} values are saved: make lists of numbers tensors"
            )

    @property
    def num_bytes(self) -> int:
        """About how much will be written."""
        return len(self.text) + sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


def write_checkpoint(
    ops: FileOps, folder: Path, payload: Payload, *, step: int, best: bool, seal: Mapping[str, str] | None = None
) -> None:
    """Make a directory and write a checkpoint into it; the manifest last."""
    ops.make_directory(folder)
    files = {
        TENSORS: write_file(ops, folder / TENSORS, pieces(payload.tensors)),
        STATE: write_file(ops, folder / STATE, [memoryview(payload.text)]),
    }
    manifest = write_manifest(Manifest(step=step, best=best, files=files, seal=seal or {}))
    write_file(ops, folder / MANIFEST, [memoryview(manifest)])
    ops.sync_directory(folder)


def write_file(ops: FileOps, path: Path, content: Iterable[memoryview]) -> Member:
    """Write a new file, wait until it is on the disk, and return its checksum and size."""
    digest, size = hashlib.sha256(), 0
    descriptor = ops.create(path)
    try:
        for piece in content:
            ops.write(descriptor, piece)
            digest.update(piece)
            size += len(piece)
        ops.sync(descriptor)
    finally:
        ops.close(descriptor)
    return Member(sha256=digest.hexdigest(), size=size)


def check_replaceable(ops: FileOps, path: Path) -> None:
    """Raise FileRefused unless there is nothing, an empty directory, or a checkpoint and no more."""
    try:
        names = ops.names(path) if ops.is_directory(path) else None
    except OSError as error:
        raise CheckpointUnreadable(path, error) from error
    if names is None:
        check_absent(path)
        return
    others = foreign_names(names)
    if others:
        found = ", ".join(repr(name) for name in others[:5]) + (" …" if len(others) > 5 else "")
        raise FileRefused(path, f"a save replaces nothing but a checkpoint, found a folder with {found}; {_ADVICE}")
    if names and not _has_manifest(ops, path):
        raise FileRefused(
            path, f"a save replaces nothing but a checkpoint, found a folder without our {MANIFEST}; {_ADVICE}"
        )


def foreign_names(names: Iterable[str]) -> list[str]:
    """Return the names that no file of a checkpoint has."""
    return [name for name in names if name not in (*MEMBERS, MANIFEST)]


def remove_checkpoint(ops: FileOps, path: Path) -> None:
    """Remove a checkpoint, or what a cut-off save left of one; a directory with anything else in it is left alone."""
    if not ops.is_directory(path):
        ops.remove_file(path)
        return
    names = ops.names(path)
    others = foreign_names(names)
    if others:
        raise OSError(errno.ENOTEMPTY, f"it holds {others[0]!r}, which is not of a checkpoint", str(path))
    for name in names:
        ops.remove_file(path / name)
    ops.remove_directory(path)


def _has_manifest(ops: FileOps, path: Path) -> bool:
    """Tell whether the manifest begins as ours do; a damaged checkpoint is still one of ours."""
    mark = encode({"format": FORMAT})[:-1]
    try:
        with ops.open_read(path / MANIFEST) as file:
            return file.read(len(mark)) == mark
    except OSError:
        return False


def _plain(table: Mapping[str, Any] | None, name: str) -> Any:
    if table is None:
        return None
    tensors, plain = flatten(dict(table), name=name)
    if tensors:
        raise TypeError(f"{name} holds numbers, strings and lists; found an array or tensor at {next(iter(tensors))!r}")
    return plain
