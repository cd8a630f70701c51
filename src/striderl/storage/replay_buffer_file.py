"""A `ReplayBuffer` in one file: a zip of plain arrays and a table of contents, read without executing anything.

    meta.json     sizes, pointers, which columns are tensors, the number of the next draw
    obs.id.npy    one array per column
    final/3/….npy where the episode that was truncated at index 3 stopped

The zip carries a checksum per part, so damage is found; a file is replaced as a whole or not at all.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from striderl.data import leaf
from striderl.data.batch import Batch
from striderl.storage.replay_buffer_rows import leaves, zeros

if TYPE_CHECKING:
    from striderl.storage.replay_buffer import ReplayBuffer

_FORMAT = 1


def save_buffer(buffer: ReplayBuffer, path: Path) -> None:
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
    scratch = path.with_name(path.name + ".new")
    with zipfile.ZipFile(scratch, "w") as file:
        file.writestr("meta.json", json.dumps(meta))
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as part:
                np.lib.format.write_array(part, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)
    with scratch.open("rb") as handle:
        os.fsync(handle.fileno())
    os.replace(scratch, path)


def load_buffer(buffer: ReplayBuffer, path: Path) -> None:
    """Bring a buffer of the same size into the state of a file."""
    meta, arrays = _read(path)
    for name, wanted in (("maxsize", buffer.maxsize), ("num_rings", buffer._places.num_rings), ("format", _FORMAT)):
        if meta.get(name) != wanted:
            raise ValueError(f"{path} has {name} {meta.get(name)}, this buffer has {wanted}")
    if ("priorities" in meta) != (buffer.priorities is not None):
        raise ValueError(f"{path}: one of the two buffers has priorities and the other does not")
    try:
        data = _columns(arrays, meta, buffer.folder)
        finals = _finals(arrays)
        pointer, size, cut = arrays["pointer"], arrays["size"], arrays["cut"]
        if (
            pointer.shape != buffer._places.pointer.shape
            or size.shape != pointer.shape
            or cut.shape != (buffer.maxsize,)
        ):
            raise ValueError("its parts have the wrong shapes")
    except (KeyError, ValueError, IndexError) as error:
        raise ValueError(f"{path} is not a complete replay buffer: {error}") from None
    if buffer.priorities is not None:
        buffer.priorities.load(meta["priorities"], arrays["priorities"])
    buffer._data, buffer._finals = data, finals
    buffer._places.pointer, buffer._places.size, buffer._cut = pointer.copy(), size.copy(), cut.copy()
    buffer._draw, buffer.seed, buffer._draws = int(meta["draw"]), int(meta["seed"]), None


def _read(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    try:
        with zipfile.ZipFile(path) as file:
            meta = json.loads(file.read("meta.json"))
            arrays = {}
            for name in file.namelist():
                if name.endswith(".npy"):
                    with file.open(name) as part:
                        arrays[name[:-4]] = np.lib.format.read_array(part, allow_pickle=False)
                        part.read()  # to the end, so that the checksum is compared
    except FileNotFoundError:
        raise
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, OSError, NotImplementedError) as error:
        raise ValueError(f"{path} is not a replay buffer, or it is damaged: {error}") from None
    if not isinstance(meta, dict):
        raise ValueError(f"{path} is not a replay buffer: its table of contents is a {type(meta).__name__}")
    return meta, arrays


def _columns(arrays: dict[str, NDArray[Any]], meta: dict[str, Any], folder: Path | None) -> Batch:
    data = Batch()
    for key in meta["keys"]:
        data[key] = Batch()
    for name, array in arrays.items():
        if name.startswith("column/"):
            path = name.removeprefix("column/")
            if array.shape[0] != meta["maxsize"]:
                raise ValueError(f"column {path!r} has {array.shape[0]} rows, wanted {meta['maxsize']}")
            if path in meta["tensors"]:
                _set(data, path.split("."), leaf.to_tensor(array))
            else:
                column = zeros(array.shape, array.dtype, path, folder)
                column[...] = array
                _set(data, path.split("."), column)
    return data


def _finals(arrays: dict[str, NDArray[Any]]) -> dict[int, Any]:
    finals: dict[int, Any] = {}
    for name, array in arrays.items():
        if name.startswith("final/"):
            _, place, path = name.split("/", 2)
            if path.startswith("="):
                finals[int(place)] = array
            else:
                _set(finals.setdefault(int(place), Batch()), path.split("."), array)
    return finals


def _set(batch: Batch, path: list[str], value: Any) -> None:
    for key in path[:-1]:
        if key not in batch:
            batch[key] = Batch()
        batch = batch[key]
    batch.__dict__[path[-1]] = value
