"""Named tensors in one file of the safetensors format, written in pieces and read with every number checked first.

    ┌ 8 bytes ┬ header, JSON padded with spaces to 8 ───────────────────────────┬ bytes of the tensors, in a row ┐
    │ length  │ {"/weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}} │ 24 bytes …                     │
    └─────────┴─────────────────────────────────────────────────────────────────┴────────────────────────────────┘

The package `safetensors` reads these files. It is not used here because it writes the whole file from one copy in
memory, cannot sync, and has no complex128, which is stored as pairs of float64.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from striderl.checkpoint.errors import (
    MAX_DIMENSIONS,
    MAX_ELEMENTS,
    MAX_HEADER_BYTES,
    MAX_TENSORS,
    CheckpointCorrupt,
    CheckpointError,
    memory_limit,
)
from striderl.checkpoint.safe_files import open_read
from striderl.checkpoint.strict_json import decode, encode

CHUNK_BYTES = 8 * 1024 * 1024
"""How much is written, hashed or read at a time."""

COMPLEX_MARK = "~complex128"
"""At the end of the name of a tensor that is stored as pairs of float64; keys never contain a lone '~c'."""

_DTYPES: dict[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_NAMES = {name: dtype for dtype, name in _DTYPES.items()}


class TensorEntry(NamedTuple):
    """One line of the header."""

    name: str
    """The name of the tensor."""
    dtype: torch.dtype
    """Its dtype."""
    shape: tuple[int, ...]
    """Its shape."""
    start: int
    """Where its bytes begin, counted from the end of the header."""
    stop: int
    """Where they end."""


# -- writing -----------------------------------------------------------------------------------------------------------


def pieces(tensors: Mapping[str, Tensor]) -> Iterator[memoryview]:
    """Yield the file, piece by piece; at most one tensor is copied at a time."""
    if sys.byteorder != "little":
        raise CheckpointError("checkpoints are little-endian; this machine is not")
    stored = {name + COMPLEX_MARK if is_wide(tensor) else name: tensor for name, tensor in tensors.items()}
    yield memoryview(_header(stored))
    for tensor in stored.values():
        yield from _bytes_of(tensor)


def is_wide(tensor: Tensor) -> bool:
    """Return whether a tensor has the one dtype that the format does not have."""
    return tensor.dtype == torch.complex128


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    if len(tensors) > MAX_TENSORS:
        raise CheckpointError(f"the state has {len(tensors)} tensors, at most {MAX_TENSORS} are saved; stack some")
    table: dict[str, Any] = {}
    start = 0
    for name, tensor in tensors.items():
        dtype = _DTYPES.get(torch.float64 if is_wide(tensor) else tensor.dtype)
        if dtype is None or tensor.dim() >= MAX_DIMENSIONS:
            raise CheckpointError(f"tensor {name!r} of {tensor.dtype} with {tensor.dim()} dimensions cannot be saved")
        shape = [*tensor.shape, 2] if is_wide(tensor) else [*tensor.shape]
        stop = start + tensor.numel() * tensor.element_size()
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
        start = stop
    text = encode(table)
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise CheckpointError(f"the names of the tensors take {len(text)} bytes, at most {MAX_HEADER_BYTES} are saved")
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: Tensor) -> Iterator[memoryview]:
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
    if dense.stride(0) != 1:  # torch calls up to one element contiguous whatever its stride, but looks at no bytes then
        dense = dense.clone(memory_format=torch.contiguous_format)
    flat = dense.view(torch.uint8).numpy().data
    for start in range(0, len(flat), CHUNK_BYTES):
        yield flat[start : start + CHUNK_BYTES]


# -- reading -----------------------------------------------------------------------------------------------------------


def read_tensors(file: BinaryIO, size: int, path: str | Path, *, foreign: bool = False) -> dict[str, Tensor]:
    """Read all tensors from an open file of `size` bytes; no more is allocated than the file has.

    foreign: other libraries may list the tensors in another order than their bytes have, and add metadata.
    """
    entries = _read_header(file, size, path, foreign)
    return dict(_read_entry(file, entry, path) for entry in entries)


def read_safetensors(path: str | Path) -> dict[str, Tensor]:
    """Read a safetensors file of any library, on the CPU; its metadata is ignored."""
    with open_read(path, max_bytes=memory_limit()) as file:
        return read_tensors(file, os.fstat(file.fileno()).st_size, path, foreign=True)


def _read_header(file: BinaryIO, size: int, path: str | Path, foreign: bool) -> list[TensorEntry]:
    """Return the header's lines, checked: they cover the rest of the file in order, without gap or overlap."""
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if len(first) < 8 or length > size - 8:
        raise CheckpointCorrupt(path, f"the header says it has {length} bytes, the file has {size}")
    if length > MAX_HEADER_BYTES:
        raise CheckpointCorrupt(path, f"the header has {length} bytes, at most {MAX_HEADER_BYTES} are read")
    table = decode(file.read(length), path, max_bytes=MAX_HEADER_BYTES)
    if not isinstance(table, dict) or len(table) > MAX_TENSORS:
        raise CheckpointCorrupt(path, f"the header is not a table of at most {MAX_TENSORS} tensors")
    if foreign:
        table.pop("__metadata__", None)
    entries = [_entry(name, line, path) for name, line in table.items()]
    if foreign:
        entries.sort(key=lambda entry: (entry.start, entry.stop))
    place = 0
    for entry in entries:
        if entry.start != place:
            raise CheckpointCorrupt(path, f"tensor {entry.name!r} begins at byte {entry.start}, wanted {place}")
        place = entry.stop
    if place != size - 8 - length:
        raise CheckpointCorrupt(path, f"the tensors end at byte {place}, the file has {size - 8 - length} for them")
    return entries


def _entry(name: str, line: Any, path: str | Path) -> TensorEntry:
    if not isinstance(line, dict) or set(line) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointCorrupt(path, f"the header's line for {name[:200]!r} is not one of a tensor")
    shape, offsets = line["shape"], line["data_offsets"]
    dtype = _NAMES.get(line["dtype"]) if isinstance(line["dtype"], str) else None
    if dtype is None or not _is_sizes(shape) or not _is_sizes(offsets) or len(offsets) != 2:
        raise CheckpointCorrupt(path, f"tensor {name[:200]!r} has no known dtype, shape and place: {str(line)[:200]}")
    if len(shape) > MAX_DIMENSIONS or math.prod(max(size, 1) for size in shape) > MAX_ELEMENTS:
        raise CheckpointCorrupt(path, f"tensor {name[:200]!r} has the impossible shape {str(shape)[:200]}")
    wanted = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != wanted:
        raise CheckpointCorrupt(
            path, f"tensor {name[:200]!r} of shape {shape} wants {wanted} bytes, the header gives it {offsets}"
        )
    return TensorEntry(name, dtype, tuple(shape), offsets[0], offsets[1])


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _read_entry(file: BinaryIO, entry: TensorEntry, path: str | Path) -> tuple[str, Tensor]:
    tensor = torch.empty(entry.shape, dtype=entry.dtype)
    target = tensor.reshape(-1).view(torch.uint8).numpy().data
    done = 0
    while done < len(target):
        count = file.readinto(target[done : done + CHUNK_BYTES])  # type: ignore[attr-defined]
        if not count:
            raise CheckpointCorrupt(path, f"the file ends inside tensor {entry.name!r}")
        done += count
    if not entry.name.endswith(COMPLEX_MARK):
        return entry.name, tensor
    if entry.dtype != torch.float64 or entry.shape[-1:] != (2,):
        raise CheckpointCorrupt(path, f"tensor {entry.name!r} is not made of pairs of float64")
    return entry.name.removesuffix(COMPLEX_MARK), torch.view_as_complex(tensor)
