"""A state as named tensors and plain JSON, and back, bit for bit. No pickle, no class names, nothing to run.

    state = {"policy": {"weight": Tensor[2, 3]}, "steps": 7, "scale": nan, "betas": (0.9, 0.999), 3: "three"}

    tensors   {"/policy/weight": Tensor[2, 3]}
    plain     {"$dict": [["policy", {"weight": {"$tensor": "/policy/weight"}}], ["steps", 7],
                         ["scale", {"$float": "7ff8000000000000"}], ["betas", {"$tuple": [0.9, 0.999]}], [3, "three"]]}

A dict is a JSON table when its keys are strings without a leading '$', else a list of pairs. Dicts of any subclass
(`OrderedDict`, as modules give) come back as dicts; tensors come back contiguous, on the CPU and without gradient.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.checkpoint.errors import MAX_DEPTH

_NUMPY_DTYPES = {
    np.dtype(kind).name: np.dtype(kind)
    for kind in (np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
    + (np.float16, np.float32, np.float64, np.complex64, np.complex128)
}
"""Dtypes of numpy arrays and numbers that can be saved."""

_LARGE = 2**63
"""Whole numbers from here on are written in hexadecimal, which takes no longer to read than their length."""


class TreeError(ValueError):
    """Plain JSON is not a state that `flatten` made."""


# -- to tensors and JSON ---------------------------------------------------------------------------------------------


def flatten(state: Any, *, name: str = "state") -> tuple[dict[str, Tensor], Any]:
    """Return the tensors of a state by name, and everything else as a JSON value.

    What can be neither is refused with a TypeError that names the place: "state['collector']['actor']: function".
    The tensors share memory with the state.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _flatten(state, tensors, "", name, 0)


def _flatten(value: Any, tensors: dict[str, Tensor], key: str, where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise TypeError(f"{where}: nested deeper than {MAX_DEPTH} levels, or contains itself")
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return value if -_LARGE <= value < _LARGE else {"$int": hex(value)}
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if isinstance(value, Tensor):
        tensors[key or "/"] = _checked_tensor(value, where)
        return {"$tensor": key or "/"}
    if isinstance(value, (np.ndarray, np.generic)):
        return _flatten_numpy(value, tensors, key or "/", where)
    if type(value) is list or type(value) is tuple:
        items = [
            _flatten(item, tensors, f"{key}/{position}", f"{where}[{position}]", depth + 1)
            for position, item in enumerate(value)
        ]
        return items if type(value) is list else {"$tuple": items}
    if isinstance(value, dict):
        return _flatten_dict(value, tensors, key, where, depth)
    raise TypeError(f"{where}: {_kind(value)} cannot be saved; {_advice(value)}")


def _flatten_dict(table: Mapping[Any, Any], tensors: dict[str, Tensor], key: str, where: str, depth: int) -> Any:
    pairs = []
    for name, item in table.items():
        if type(name) not in (str, int):
            raise TypeError(f"{where}: the key {name!r} is of type {_kind(name)}; keys are strings or whole numbers")
        if type(name) is int and not -_LARGE <= name < _LARGE:
            raise TypeError(f"{where}: the key {name} does not fit into 64 bits")
        pairs.append([name, _flatten(item, tensors, f"{key}/{_key_text(name)}", f"{where}[{name!r}]", depth + 1)])
    if all(isinstance(name, str) and not name.startswith("$") for name, _ in pairs):
        return dict(pairs)
    return {"$dict": pairs}


def _flatten_numpy(value: Any, tensors: dict[str, Tensor], key: str, where: str) -> Any:
    if _NUMPY_DTYPES.get(value.dtype.name) != value.dtype:
        raise TypeError(f"{where}: {_kind(value)} of dtype {value.dtype} cannot be saved; use native numbers or bool")
    if isinstance(value, np.generic):
        return {"$number": [value.dtype.name, value.tobytes().hex()]}
    # a copy where torch could not look at the memory itself: read-only, or with steps backwards
    array = value if value.flags.c_contiguous and value.flags.writeable else np.array(value, order="C")
    tensors[key] = torch.from_numpy(array)
    return {"$array": [value.dtype.name, key]}


def _checked_tensor(value: Tensor, where: str) -> Tensor:
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        raise TypeError(f"{where}: a tensor that is sparse, quantized or without data cannot be saved; make it dense")
    if type(value) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise TypeError(f"{where}: {_kind(value)} cannot be saved; {_advice(value)}")
    return value.detach().as_subclass(Tensor)


def _key_text(key: str | int) -> str:
    """Return a key as part of a tensor's name; different paths have different names."""
    if isinstance(key, int):
        return f"~2{key}"
    text = key.replace("~", "~0").replace("/", "~1")
    # half of a surrogate pair is a legal str and illegal UTF-8
    return "".join(f"~3{ord(letter):x};" if "\ud800" <= letter <= "\udfff" else letter for letter in text)


def _kind(value: Any) -> str:
    return type(value).__name__


def _advice(value: Any) -> str:
    if isinstance(value, tuple):
        return "give a plain tuple or a dict (`_asdict()`)"
    if isinstance(value, (int, str)):
        return "give its plain value"
    return "give tensors, arrays, numbers, strings, bool, None, and dicts, lists or tuples of these"


# -- and back --------------------------------------------------------------------------------------------------------


def unflatten(tensors: Mapping[str, Tensor], plain: Any) -> Any:
    """Return the state that `flatten` converted; other content raises `TreeError`."""
    unused = dict(tensors)
    state = _unflatten(plain, unused, 0)
    if unused:
        raise TreeError(f"{len(unused)} tensors belong to no place in the state, the first is {next(iter(unused))!r}")
    return state


def _unflatten(node: Any, tensors: dict[str, Tensor], depth: int) -> Any:
    if depth > 2 * MAX_DEPTH + 4:
        raise TreeError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(node, list):
        return [_unflatten(item, tensors, depth + 1) for item in node]
    if not isinstance(node, dict):
        return node
    tags = [key for key in node if key.startswith("$")]
    if not tags:
        return {key: _unflatten(item, tensors, depth + 1) for key, item in node.items()}
    if len(node) != 1 or tags[0] not in _READERS:
        raise TreeError(f"unknown mark {tags[0]!r} in a table with the keys {list(node)[:5]}")
    return _READERS[tags[0]](node[tags[0]], tensors, depth + 1)


def _read_dict(content: Any, tensors: dict[str, Tensor], depth: int) -> dict[str | int, Any]:
    found: dict[str | int, Any] = {}
    for pair in _wanted(content, list, "$dict"):
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) not in (str, int) or pair[0] in found:
            raise TreeError(f"$dict wants pairs with different keys, found {str(pair)[:80]}")
        found[pair[0]] = _unflatten(pair[1], tensors, depth + 1)
    return found


def _read_tuple(content: Any, tensors: dict[str, Tensor], depth: int) -> tuple[Any, ...]:
    return tuple(_unflatten(item, tensors, depth + 1) for item in _wanted(content, list, "$tuple"))


def _read_int(content: Any, tensors: dict[str, Tensor], depth: int) -> int:
    return int(_wanted(content, str, "$int"), 16)


def _read_float(content: Any, tensors: dict[str, Tensor], depth: int) -> float:
    try:
        return float(struct.unpack(">d", bytes.fromhex(_wanted(content, str, "$float")))[0])
    except struct.error as error:
        raise TreeError(f"$float wants 8 bytes: {error}") from None


def _read_tensor(content: Any, tensors: dict[str, Tensor], depth: int) -> Tensor:
    name = _wanted(content, str, "$tensor")
    if name not in tensors:
        raise TreeError(f"the tensor {name!r} is missing, or used twice")
    return tensors.pop(name)


def _read_array(content: Any, tensors: dict[str, Tensor], depth: int) -> np.ndarray[Any, Any]:
    dtype, name = _typed(content, "$array")
    array = _read_tensor(name, tensors, depth).numpy()
    if array.dtype != dtype:
        raise TreeError(f"the array {name!r} was of dtype {dtype}, found {array.dtype}")
    return array


def _read_number(content: Any, tensors: dict[str, Tensor], depth: int) -> np.generic:
    dtype, text = _typed(content, "$number")
    raw = bytes.fromhex(text)
    if len(raw) != dtype.itemsize:
        raise TreeError(f"$number of dtype {dtype} wants {dtype.itemsize} bytes, found {len(raw)}")
    number: np.generic = np.frombuffer(raw, dtype)[0]
    return number


def _typed(content: Any, mark: str) -> tuple[np.dtype[Any], str]:
    """Return the dtype and the text of a mark that has both."""
    pair = _wanted(content, list, mark)
    if len(pair) != 2 or not all(isinstance(item, str) for item in pair) or pair[0] not in _NUMPY_DTYPES:
        raise TreeError(f"{mark} wants a dtype and a text, found {str(pair)[:80]}")
    return _NUMPY_DTYPES[pair[0]], pair[1]


def _wanted(content: Any, kind: type, mark: str) -> Any:
    if not isinstance(content, kind):
        raise TreeError(f"{mark} wants a {kind.__name__}, found {_kind(content)}")
    return content


_READERS: dict[str, Callable[[Any, dict[str, Tensor], int], Any]] = {
    "$dict": _read_dict,
    "$tuple": _read_tuple,
    "$int": _read_int,
    "$float": _read_float,
    "$tensor": _read_tensor,
    "$array": _read_array,
    "$number": _read_number,
}
