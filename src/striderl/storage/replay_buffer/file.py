"""A `ReplayBuffer` in one file: a zip of plain arrays and a table of contents, read without executing anything.

    meta.json     sizes, pointers, which columns are tensors, the number of the next draw
    obs.id.npy    one array per column
    final/3/….npy where the episode that was truncated at index 3 stopped

The zip carries a checksum per part, so damage is found; a file is replaced as a whole or not at all. Sizes, shapes and
names are checked before anything is written; a file of another kind is not replaced.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from striderl.checkpoint.array_archive import read_archive, write_archive
from striderl.checkpoint.errors import MAX_TENSORS, FileRefused, memory_limit
from striderl.checkpoint.safe_files import decode_json
from striderl.data import leaf
from striderl.data.batch import Batch
from striderl.storage.replay_buffer.places import Priorities, RingPlaces
from striderl.storage.replay_buffer.rows import column_file, keys_of, leaves, zeros

_FORMAT = 1
_META = "meta.json"


class SavedBuffer(Protocol):
    """The parts of a `ReplayBuffer` that are in its file."""

    maxsize: int
    seed: int
    folder: Path | None
    priorities: Priorities | None
    _data: Batch
    _places: RingPlaces
    _finals: dict[int, Any]
    _cut: NDArray[np.bool_]
    _draw: int
    _draws: Any


def save_buffer(buffer: SavedBuffer, path: Path) -> None:
    """Write a buffer to a file."""
    arrays: dict[str, NDArray[Any]] = {}
    tensors = []
    for name, column in leaves(buffer._data):
        if not leaf.is_numeric(column):
            raise TypeError(f"column {name!r} holds Python objects, which are not saved; store numbers")
        arrays[f"column/{name}"] = leaf.to_array(column)
        tensors += [name] if leaf.is_tensor(column) else []
    for place, final in buffer._finals.items():
        whole = final if isinstance(final, Batch) else Batch(value=final)
        for name, value in leaves(whole):
            arrays[f"final/{place}/{'' if whole is final else '='}{name}"] = np.asarray(leaf.to_array(value))
    arrays |= {"pointer": buffer._places.pointer, "size": buffer._places.size, "cut": buffer._cut}
    meta: dict[str, Any] = {"format": _FORMAT, "maxsize": buffer.maxsize, "num_rings": buffer._places.num_rings}
    meta |= {"tensors": tensors, "keys": list(buffer._data.keys()), "draw": buffer._draw, "seed": buffer.seed}
    if buffer.priorities is not None:
        meta["priorities"] = buffer.priorities.state()
        arrays["priorities"] = buffer.priorities.tree.leaves.numpy()
    write_archive(path, arrays, {_META: json.dumps(meta).encode()}, compress=False)


def load_buffer(buffer: SavedBuffer, path: Path) -> None:
    """Load a file into a buffer of the same size."""
    meta, arrays = _read(path)
    for name, wanted in (("maxsize", buffer.maxsize), ("num_rings", buffer._places.num_rings), ("format", _FORMAT)):
        if meta.get(name) != wanted:
            raise ValueError(f"{path} has {name} {meta.get(name)}, this buffer has {wanted}")
    if ("priorities" in meta) != (buffer.priorities is not None):
        raise ValueError(f"{path}: one of the two buffers has priorities and the other does not")
    try:
        pointer, size, cut = arrays["pointer"], arrays["size"], arrays["cut"]
        if (
            pointer.shape != buffer._places.pointer.shape
            or size.shape != pointer.shape
            or cut.shape != (buffer.maxsize,)
        ):
            raise ValueError("its parts have the wrong shapes")
        draw, seed = int(meta["draw"]), int(meta["seed"])
        finals = _finals(arrays)
        data = _columns(arrays, meta, buffer.folder)
        if buffer.priorities is not None:
            buffer.priorities.load(meta["priorities"], arrays["priorities"])
    except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a complete replay buffer: {error}") from None
    buffer._data, buffer._finals = data, finals
    buffer._places.pointer, buffer._places.size, buffer._cut = pointer.copy(), size.copy(), cut.copy()
    buffer._draw, buffer.seed, buffer._draws = draw, seed, None


def _read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    try:
        arrays, texts = read_archive(
            path,
            what="replay buffer",
            max_bytes=memory_limit(),
            max_members=MAX_TENSORS,
            kinds=leaf.NUMERIC,
            texts=(_META,),
        )
        if _META not in texts:
            raise FileRefused(path, f"it has no {_META}")
        meta = decode_json(texts[_META], path)
    except FileRefused as error:
        raise ValueError(f"{path} is not a replay buffer, or it is damaged: {error.reason}") from None
    if not isinstance(meta, dict):
        raise ValueError(f"{path} is not a replay buffer: its table of contents is a {type(meta).__name__}")
    return meta, arrays


def _columns(arrays: dict[str, NDArray[Any]], meta: dict[str, Any], folder: Path | None) -> Batch:
    columns = {name.removeprefix("column/"): array for name, array in arrays.items() if name.startswith("column/")}
    for path, array in columns.items():
        _check_column(path, array, meta, folder)
    data = Batch()
    for key in meta["keys"]:
        data[key] = Batch()
    for path, array in columns.items():
        if path in meta["tensors"]:
            _set(data, keys_of(path), leaf.to_tensor(array))
        else:
            column = zeros(array.shape, array.dtype, path, folder)
            column[...] = array
            _set(data, keys_of(path), column)
    return data


def _check_column(name: str, array: NDArray[Any], meta: dict[str, Any], folder: Path | None) -> None:
    """Raise, before the first is written, for a column with a name or file outside of the folder, or other rows."""
    if not all(name.split(".")) or name.startswith("/"):
        raise ValueError(f"a column is called {name[:200]!r}, wanted keys with dots between them")
    if folder is not None and name not in meta["tensors"]:
        column_file(folder, name)
    if array.ndim < 1 or array.shape[0] != meta["maxsize"]:
        raise ValueError(f"column {name[:200]!r} has shape {list(array.shape)}, wanted {meta['maxsize']} rows")


def _finals(arrays: dict[str, NDArray[Any]]) -> dict[int, Any]:
    finals: dict[int, Any] = {}
    for name, array in arrays.items():
        if name.startswith("final/"):
            _, place, path = name.split("/", 2)
            if path.startswith("="):
                finals[int(place)] = array
            else:
                _set(finals.setdefault(int(place), Batch()), keys_of(path), array)
    return finals


def _set(batch: Batch, path: list[str], value: Any) -> None:
    for key in path[:-1]:
        if key not in batch:
            batch[key] = Batch()
        batch = batch[key]
    batch.__dict__[path[-1]] = value
