"""Named arrays in a zip file (`.npz`), read without pickle and with every size checked before anything is allocated.

    zip ─▶ name.npy: magic, version, {"descr": "<f4", "fortran_order": False, "shape": (51, 12)}, bytes
           meta.json: plain values, where the caller has some

numpy's own reader trusts the shape in the header and allocates it; a few bytes could take all memory. Here the
shape must be what the bytes are, and the bytes what the file can hold.
"""

from __future__ import annotations

import errno
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from striderl.checkpoint.errors import FileRefused
from striderl.checkpoint.safe_files import open_read, replacing
from striderl.checkpoint.tensor_file import CHUNK_BYTES

_SUFFIX = ".npy"
_MAX_HEADER = 4096
_MOST_INFLATED = 1032
"""Bytes that one compressed byte can become, by the format of deflate."""
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, UnicodeDecodeError)


def write_archive(
    path: str | Path, arrays: Mapping[str, NDArray[Any]], texts: Mapping[str, bytes] | None = None, *, compress: bool
) -> Path:
    """Write an archive, whole or not at all; the same arrays give the same bytes. Another kind of file is not replaced.

    texts: further members by their whole name, such as 'meta.json'.
    """
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with replacing(path, beginning=b"PK") as file, zipfile.ZipFile(file, "w", kind) as archive:
        for name, text in (texts or {}).items():
            archive.writestr(_entry(name, kind), text)
        for name, array in arrays.items():
            with archive.open(_entry(name + _SUFFIX, kind), "w", force_zip64=True) as part:
                dense = np.ascontiguousarray(array).reshape(array.shape)
                np.lib.format.write_array(part, dense, allow_pickle=False)
    return Path(path)


def _entry(name: str, kind: int) -> zipfile.ZipInfo:
    # zip files remember a time; a fixed one keeps equal archives equal
    entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    entry.compress_type = kind
    return entry


def read_archive(
    path: str | Path, *, what: str, max_bytes: int, max_members: int, kinds: str, texts: tuple[str, ...] = ()
) -> tuple[dict[str, NDArray[Any]], dict[str, bytes]]:
    """Read every array, and the further members `texts`; what is damaged, too large or not an array is FileRefused.

    what: what the file is, for messages: 'clip'.
    max_bytes: of everything together, unpacked.
    kinds: the kinds of dtype that are read, as numpy's letters; objects, which would be pickles, never are.
    """
    try:
        with open_read(path) as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            _check_sizes(entries, os.fstat(file.fileno()).st_size, path, max_bytes, max_members)
            for entry in entries:
                if not entry.filename.endswith(_SUFFIX) and entry.filename not in texts:
                    raise FileRefused(path, f"it holds {entry.filename[:100]!r}, which is not an array")
            arrays, others = {}, {}
            for entry in entries:
                with archive.open(entry) as part:
                    if entry.filename in texts:
                        others[entry.filename] = _rest(part, entry, path)
                    else:
                        arrays[entry.filename.removesuffix(_SUFFIX)] = _array(part, entry, path, kinds, what)
            return arrays, others
    except FileRefused:
        raise
    except (*_DAMAGE, OSError, ValueError) as error:
        # a damaged offset is a seek to before the beginning; other system errors are not about the content
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise FileRefused(path, f"it is not a readable .npz ({error})") from None


def _check_sizes(entries: list[zipfile.ZipInfo], size: int, path: str | Path, max_bytes: int, max_members: int) -> None:
    total = sum(entry.file_size for entry in entries)
    if len(entries) > max_members or total > max_bytes:
        raise FileRefused(path, f"it has {len(entries)} arrays of {total} bytes, at most {max_members} of {max_bytes}")
    if len({entry.filename for entry in entries}) != len(entries):
        raise FileRefused(path, "it names an array twice")
    if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
        raise FileRefused(path, "it is compressed in a way that no .npz is")
    if sum(entry.compress_size for entry in entries) > size:
        raise FileRefused(path, f"its members are larger than its {size} bytes")
    for entry in entries:
        most = entry.compress_size * (_MOST_INFLATED if entry.compress_type == zipfile.ZIP_DEFLATED else 1)
        if entry.file_size > most:
            raise _untrue(entry, path)


def _array(part: IO[bytes], entry: zipfile.ZipInfo, path: str | Path, kinds: str, what: str) -> NDArray[Any]:
    name = entry.filename[:100]
    try:
        version = np.lib.format.read_magic(part)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(part, max_header_size=_MAX_HEADER)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(part, max_header_size=_MAX_HEADER)
        else:
            raise ValueError(f"version {version} of the array format is not read")
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise FileRefused(path, f"the array {name!r} has no readable header ({error})") from None
    if dtype.hasobject:
        raise FileRefused(path, f"the array {name!r} holds pickled Python objects, which are never read")
    if dtype.kind not in kinds or dtype.subdtype is not None:
        raise FileRefused(path, f"the array {name!r} has dtype {dtype}, which no {what} needs")
    rest = entry.file_size - part.tell()
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != rest:
        raise FileRefused(path, f"the array {name!r} says its shape is {shape} of {dtype}, but has {rest} bytes")
    flat = np.zeros(math.prod(shape), dtype)
    _fill(flat.view(np.uint8).data if rest else memoryview(b""), part, entry, path)
    return np.ascontiguousarray(flat.reshape(shape, order="F" if fortran else "C")).reshape(shape)


def _rest(part: IO[bytes], entry: zipfile.ZipInfo, path: str | Path) -> bytes:
    content = bytearray(entry.file_size)
    _fill(memoryview(content), part, entry, path)
    return bytes(content)


def _fill(target: memoryview, part: IO[bytes], entry: zipfile.ZipInfo, path: str | Path) -> None:
    """Read a member to its end, where its checksum is compared; one that unpacks to more is not unpacked."""
    done = 0
    while done < len(target) and (piece := part.read(min(CHUNK_BYTES, len(target) - done))):
        target[done : done + len(piece)] = piece
        done += len(piece)
    if done != len(target) or part.read(1):
        raise _untrue(entry, path)


def _untrue(entry: zipfile.ZipInfo, path: str | Path) -> FileRefused:
    return FileRefused(path, f"the array {entry.filename[:100]!r} does not have the {entry.file_size} bytes it says")
