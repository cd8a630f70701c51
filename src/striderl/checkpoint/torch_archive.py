"""Open a `.pt` file that somebody else wrote: look at what it asks for first, then let torch read its tensors.

    file.pt (zip, stored)      data.pkl        a small program that puts tensors into containers
                               data/0, data/1  the bytes of the tensors
                               version, byteorder, …

`torch.load(weights_only=True)` runs none of the program's calls but a few of its own. Before that the archive's sizes
are checked, and every name in the program must be one that a state dict needs. Not even this is done to our own files.
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from striderl.checkpoint.errors import CheckpointCorrupt, CheckpointError, CheckpointUnreadable
from striderl.checkpoint.limits import MAX_HEADER_BYTES, memory_limit
from striderl.checkpoint.safe_files import open_read
from striderl.checkpoint.tensor_file import CHUNK_BYTES

MAX_MEMBERS = 100_000
"""Files in an archive."""

MAX_OPERATIONS = 1_000_000
"""Steps of the program that puts the tensors together."""

_STORAGES = ["Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool"]
_NAMES = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    "torch Size",
    "torch device",
    *(f"torch {kind}Storage" for kind in _STORAGES),
}
"""All that a state dict of modules and optimisers refers to."""

_REFUSED = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "NEXT_BUFFER"}
"""Operations that torch never writes and that can name or make anything."""


def read_torch_archive(path: str | Path) -> dict[str, Any]:
    """Read a `.pt` file of tensors and plain containers; what is damaged, too large or wants code is refused."""
    path = Path(path)
    try:
        with open_read(path) as file:
            sizes = _check_archive(file, path)
            file.seek(0)
            content = _load(file, path)
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no file {str(path)!r}") from error
    except OSError as error:
        raise CheckpointUnreadable(path, error) from error
    if not isinstance(content, dict):
        raise CheckpointCorrupt(path, f"it wants a state dict, found {type(content).__name__}; wanted a table by name")
    # torch believes the length that the program gives; nothing may be looked at before it is known to be there
    claimed = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in _tensors(content)}
    for size in claimed.values():
        if size and size not in sizes:
            raise CheckpointCorrupt(path, f"a tensor says it has {size} bytes, which no file in the archive has left")
        if size:
            sizes.remove(size)
    return content


def _check_archive(file: BinaryIO, path: Path) -> list[int]:
    """Check sizes and names of an archive, and return the sizes of its tensors' bytes."""
    total = _check_size(file, path)
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            names = [member.filename for member in members]
            if any(name.endswith("constants.pkl") or "/code/" in name for name in names):
                raise CheckpointCorrupt(path, "it is a TorchScript program, not a state dict; programs are never run")
            if len(set(names)) != len(names) or any(".." in Path(name).parts or name[:1] == "/" for name in names):
                raise CheckpointCorrupt(path, "it names a file twice, or one outside of itself")
            stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
            if not stored or sum(member.file_size for member in members) > total:
                raise CheckpointCorrupt(path, "its files are compressed or larger than the archive")
            programs = [member for member in members if member.filename.endswith("data.pkl")]
            if len(programs) != 1 or programs[0].file_size > MAX_HEADER_BYTES:
                raise CheckpointCorrupt(path, f"it has {len(programs)} tables of tensors, wanted one of moderate size")
            _check_program(archive.read(programs[0]), path)
            return [member.file_size for member in members if Path(member.filename).parent.name == "data"]
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError, ValueError) as error:
        raise CheckpointCorrupt(path, f"it is not an archive that torch.save writes ({error})") from None


def _check_size(file: BinaryIO, path: Path) -> int:
    """Return the size of the file; it must fit into memory and list no absurd number of files."""
    total = file.seek(0, 2)
    if total > memory_limit():
        raise CheckpointCorrupt(path, f"it has {total} bytes, this process can hold {memory_limit()}")
    file.seek(0)
    if file.read(4) != b"PK\x03\x04":
        raise CheckpointCorrupt(
            path,
            "it is not an archive of torch 1.6 or later, and a bare pickle is never run; save it with a newer torch",
        )
    members = 0
    while piece := file.read(CHUNK_BYTES):
        members += piece.count(b"PK\x01\x02")
    if members > MAX_MEMBERS:
        raise CheckpointCorrupt(path, f"it lists {members} files, at most {MAX_MEMBERS} are read")
    return total


def _check_program(program: bytes, path: Path) -> None:
    """Read, without running it, what a program refers to."""
    for position, (operation, argument, _) in enumerate(pickletools.genops(program)):
        if position > MAX_OPERATIONS:
            raise CheckpointCorrupt(path, f"its table of tensors has more than {MAX_OPERATIONS} operations")
        if operation.name in _REFUSED or (operation.name == "GLOBAL" and argument not in _NAMES):
            name = argument if operation.name == "GLOBAL" else operation.name
            raise CheckpointCorrupt(
                path, f"it wants {str(name)[:200]!r}, which a state dict does not need and which is never run"
            )


def _load(file: BinaryIO, path: Path) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes raise whatever they run into
        reason = str(error).partition("\n")[0]
        raise CheckpointCorrupt(path, f"torch cannot read it: {type(error).__name__}: {reason[:300]}") from error


def _tensors(content: Any) -> Iterator[Tensor]:
    """Yield all tensors of nested containers; without recursion, because their depth is not ours."""
    waiting, seen = [content], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (dict, list, tuple, set)) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(value.values() if isinstance(value, dict) else value)
