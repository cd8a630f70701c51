"""Named arrays of a motion in a `.npz` file, read by `checkpoint/array_archive.py` without pickle and within limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from striderl.checkpoint.array_archive import read_archive, write_archive
from striderl.checkpoint.errors import FileRefused
from striderl.datasets.motion_clip import ClipError

MAX_BYTES = 1 << 30
"""All arrays of a file together; an hour of 50 Hz with a thousand numbers per frame is 720 MB."""
MAX_ARRAYS = 256
_READABLE = "fiubU"
"""Kinds of dtype: real, whole, unsigned, bool, text; an object would be a pickle."""


def write_arrays(path: str | Path, arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Write a compressed `.npz`, whole or not at all; the same arrays give the same bytes."""
    require_folder(Path(path))
    return write_archive(path, arrays, compress=True)


def require_folder(path: Path) -> None:
    """Raise FileNotFoundError where the folder of a file that is to be written is not there."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}")


def read_arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    """Read every array of a `.npz`; what is damaged, too large or holds Python objects raises ClipError."""
    try:
        return read_archive(path, what="clip", max_bytes=MAX_BYTES, max_members=MAX_ARRAYS, kinds=_READABLE)[0]
    except FileRefused as error:
        raise ClipError(f"cannot read {str(path)!r}: {error.reason}") from None
