"""One checkpoint as a folder of files: written file by file, the manifest last; read manifest first, then the values.

    {"format":"striderl-checkpoint","version":1,"striderl":"0.1.0","torch":"2.13.0","step":1234,"best":false,
     "files":{"tensors.safetensors":{"sha256":"…","size":4816},"state.json":{"sha256":"…","size":912}},
     "seal":{"config.json":"<digest>","specs.json":"<digest>"},
     "checksum":"<sha256 of this text without its checksum>"}

The manifest is accepted only in the spelling in which it is written, so no flipped bit goes unnoticed. The seal has the
digests of the files next to the checkpoints in the folder of a run; checkpoints that were saved without one have none.

Each file is on the disk before the manifest lists it. Only a checkpoint is ever replaced or removed: a directory
with our manifest and our files. One that holds anything else, a file or a link raises, because it may hold other
data. A file is opened once when it is read; what was hashed is what is read. Nothing is allocated before it is
known to be in the file.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

import striderl
from striderl.checkpoint.errors import (
    MAX_JSON_BYTES,
    MAX_JSON_NODES,
    MAX_MANIFEST_BYTES,
    CheckpointCorrupt,
    CheckpointError,
    CheckpointUnreadable,
    CheckpointVersion,
    FileRefused,
)
from striderl.checkpoint.file_ops import FileOps
from striderl.checkpoint.safe_files import check_absent
from striderl.checkpoint.state_tree import flatten, unflatten
from striderl.checkpoint.strict_json import count_nodes, decode, encode
from striderl.checkpoint.tensor_file import CHUNK_BYTES, pieces, read_tensors

# -- manifest ----------------------------------------------------------------------------------------------------------


FORMAT = "striderl-checkpoint"
VERSION = 1
"""Counts up when a checkpoint can no longer be read by older versions."""

MANIFEST, TENSORS, STATE = "manifest.json", "tensors.safetensors", "state.json"
MEMBERS = (TENSORS, STATE)
"""The files that a manifest lists."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """What one file must be."""

    sha256: str
    """Of its bytes, in hexadecimal."""
    size: int
    """In bytes."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint consists of."""

    step: int
    """The step it was saved at."""
    best: bool
    """Whether it was the best so far when it was saved."""
    files: Mapping[str, Member]
    """Every file but the manifest, by name."""
    seal: Mapping[str, str] = field(default_factory=dict)
    """Digests of the run's own files by name, see `training/experiment/seal.py`; empty where nothing is sealed."""


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return a table as JSON that carries its own checksum."""
    return encode({**content, "checksum": hashlib.sha256(encode(dict(content))).hexdigest()})


def unsealed(text: bytes, path: Path, *, max_bytes: int = MAX_MANIFEST_BYTES) -> dict[str, Any]:
    """Read what `sealed` wrote; anything else is refused."""
    content = decode(text, path, max_bytes=max_bytes)
    if not isinstance(content, dict) or "checksum" not in content:
        raise CheckpointCorrupt(path, "it carries no checksum")
    checksum = content.pop("checksum")
    try:
        spelled = sealed(content)
    except ValueError as error:  # 1e999 is read as infinity, which is never written
        raise CheckpointCorrupt(path, str(error)) from None
    if spelled != text:
        raise CheckpointCorrupt(path, f"its checksum {str(checksum)[:16]!r}… does not fit its content")
    return content


def write_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as bytes."""
    files = {name: {"sha256": member.sha256, "size": member.size} for name, member in manifest.files.items()}
    return sealed(
        {
            "format": FORMAT,
            "version": VERSION,
            "striderl": striderl.__version__,
            "torch": str(torch.__version__),
            "step": manifest.step,
            "best": manifest.best,
            "files": files,
            **({"seal": dict(manifest.seal)} if manifest.seal else {}),
        }
    )


def read_manifest(text: bytes, path: Path) -> Manifest:
    """Read a manifest; a newer format and a damaged one raise different errors."""
    content = unsealed(text, path)
    if content.get("format") != FORMAT or type(content.get("version")) is not int:
        raise CheckpointCorrupt(path, f"it is not a manifest of the format {FORMAT!r}")
    if content["version"] != VERSION:
        raise CheckpointVersion(
            f"{str(path)!r} has the checkpoint format {content['version']}, written by striderl "
            f"{content.get('striderl')}; this is {striderl.__version__}, which reads format {VERSION}. "
            "Update striderl to use it"
        )
    step, best, files = content.get("step"), content.get("best"), content.get("files")
    if type(step) is not int or step < 0 or type(best) is not bool or not isinstance(files, dict):
        raise CheckpointCorrupt(path, "its step, best or files are missing or of another type")
    if tuple(files) != MEMBERS:
        raise CheckpointCorrupt(path, f"it lists the files {list(files)[:5]}, wanted {list(MEMBERS)}")
    seal = content.get("seal", {})
    if not isinstance(seal, dict) or not all(isinstance(digest, str) for digest in seal.values()):
        raise CheckpointCorrupt(path, f"its seal is not a table of digests: {str(seal)[:200]}")
    members = {name: _member(line, path) for name, line in files.items()}
    return Manifest(step=step, best=best, files=members, seal=seal)


def _member(line: Any, path: Path) -> Member:
    fits = isinstance(line, dict) and set(line) == {"sha256", "size"}
    if not fits or type(line["size"]) is not int or line["size"] < 0 or not isinstance(line["sha256"], str):
        raise CheckpointCorrupt(path, f"it has a line that is not a checksum and a size: {str(line)[:200]}")
    return Member(sha256=line["sha256"], size=line["size"])


# -- writing -----------------------------------------------------------------------------------------------------------


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
    """Return whether the manifest begins as ours do; a damaged checkpoint is still one of ours."""
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


# -- reading -----------------------------------------------------------------------------------------------------------


_NOT_OURS = {
    errno.ENOENT: "the file is missing",
    errno.ELOOP: "it is a link, a pipe or a device, not a plain file",
    errno.ENXIO: "it is a link, a pipe or a device, not a plain file",
    errno.EISDIR: "it is a directory, not a file",
    errno.ENOTDIR: "it is not in a directory",
}
"""The system's errors for something that is not a file of a checkpoint at all."""


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
    """Open a file; system errors while it is read are raised with the file's name."""
    try:
        with ops.open_read(path) as file:
            yield file
    except OSError as error:
        if error.errno in _NOT_OURS:
            raise CheckpointCorrupt(path, _NOT_OURS[error.errno]) from error
        raise CheckpointUnreadable(path, error) from error
