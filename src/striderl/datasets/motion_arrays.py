"""Named arrays in a `.npz` file, read without pickle and with every size checked before anything is allocated.

    zip ─▶ name.npy: magic, version, {"descr": "<f4", "fortran_order": False, "shape": (51, 12)}, bytes

numpy's own reader believes the shape in the header and allocates it; a few bytes could ask for all memory. Here the
shape must be what the bytes are.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from striderl.datasets.motion_clip import ClipError

MAX_BYTES = 1 << 30
"""All arrays of a file together; an hour of 50 Hz with a thousand numbers per frame is 720 MB."""
MAX_ARRAYS = 256
_MAX_HEADER = 4096
_READABLE = "fiubU"
"""Kinds of dtype: real, whole, unsigned, bool, text; an object would be a pickle."""


def write_arrays(path: str | Path, arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Write a compressed `.npz`, whole or not at all; the same arrays give the same bytes."""
    path = Path(path)
    temporary = part_of(path)
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, array in arrays.items():
                content = io.BytesIO()
                np.lib.format.write_array(content, np.ascontiguousarray(array), allow_pickle=False)
                # zip files remember a time; a fixed one keeps equal clips equal
                entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, content.getvalue())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def part_of(path: Path) -> Path:
    """Return the name under which a file is written before it is whole; its folder must be there."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}")
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def read_arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    """Read every array of a `.npz`; what is damaged, too large or holds Python objects raises ClipError."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_sizes(archive, path)
            return {entry.filename.removesuffix(".npy"): _member(archive, entry, path) for entry in archive.infolist()}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, UnicodeDecodeError) as error:
        raise _damaged(path, f"it is not a readable .npz ({error})") from None


def _check_sizes(archive: zipfile.ZipFile, path: str | Path) -> None:
    entries = archive.infolist()
    total = sum(entry.file_size for entry in entries)
    if len(entries) > MAX_ARRAYS or total > MAX_BYTES:
        raise _damaged(path, f"it has {len(entries)} arrays of {total} bytes, at most {MAX_ARRAYS} of {MAX_BYTES}")
    names = [entry.filename for entry in entries]
    if len(set(names)) != len(names):
        raise _damaged(path, "it names an array twice")
    if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
        raise _damaged(path, "it is compressed in a way that no .npz is")
    strange = [name for name in names if not name.endswith(".npy")]
    if strange:
        raise _damaged(path, f"it holds {strange[0][:100]!r}, which is not an array")


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: str | Path) -> NDArray[Any]:
    name = entry.filename[:100]
    with archive.open(entry) as compressed:
        # asked for by size, an entry that unpacks to more than it says is not unpacked; the end checks the sum
        content = compressed.read(entry.file_size)
        if len(content) != entry.file_size or compressed.read(1):
            raise _damaged(path, f"the array {name!r} does not have the {entry.file_size} bytes it says")
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=_MAX_HEADER)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream, max_header_size=_MAX_HEADER)
        else:
            raise ValueError(f"version {version} of the array format is not read")
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise _damaged(path, f"the array {name!r} has no readable header ({error})") from None
    if dtype.hasobject:
        raise _damaged(path, f"the array {name!r} holds pickled Python objects, which are never read")
    if dtype.kind not in _READABLE or dtype.subdtype is not None:
        raise _damaged(path, f"the array {name!r} has dtype {dtype}, which no clip needs")
    rest = len(content) - stream.tell()
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != rest:
        raise _damaged(path, f"the array {name!r} says its shape is {shape} of {dtype}, but has {rest} bytes")
    if not rest:
        return np.zeros(shape, dtype)
    flat = np.frombuffer(content, dtype, offset=stream.tell())
    return flat.reshape(shape, order="F" if fortran else "C").copy()


def _damaged(path: str | Path, reason: str) -> ClipError:
    return ClipError(f"cannot read {str(path)!r}: {reason}")
