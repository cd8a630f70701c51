"""Read a pickle that holds a dict of numpy arrays, without running it.

    a pickle is a program        what happens here
    BINUNICODE 'actions'         a text is put on a stack
    GLOBAL numpy dtype           a name: one of the few that arrays of numbers need, or the file is refused
    REDUCE                       the name is *called* in Python; here a table maps it to an array
    BUILD                        the array gets its bytes
    any other instruction        refused by its name

The standard library's machine is not used at all: instructions are listed by `pickletools`, and the few that the old
saver's files consist of are followed here. Nothing that a file names is imported or called.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from striderl.checkpoint.errors import memory_limit
from striderl.checkpoint.file_ops import FileOps
from striderl.datasets.trajectories.spec import TrajectoryError, TrajectoryMissing, TrajectoryRefused

Array = np.ndarray[Any, Any]

MAX_INSTRUCTIONS = 100_000
"""A file of the old saver has a few hundred."""

_DTYPE = re.compile(r"[<>|=]?[biuf][1-8]")
"""Numbers; other dtypes, such as 'O', hold references to anything."""


class BrokenPickle(TrajectoryError):  # noqa: N818  (says what is wrong)
    """A file is cut off or damaged; others next to it may be good."""


class _Refused(Exception):  # noqa: N818  (says what is wrong)
    """A file needs something that arrays of numbers do not."""


def read_arrays(path: str | Path) -> dict[str, Array]:
    """Read a dict of arrays; entries that are None are left out.

    Raises TrajectoryRefused, with the name, for a file that needs anything else, and BrokenPickle for a damaged one.
    """
    path, limit = Path(path), memory_limit() // 4
    try:
        with FileOps().open_read(path) as file:
            content = file.read(limit + 1)
    except FileNotFoundError:
        raise TrajectoryMissing(f"there is no file {str(path)!r}") from None
    except OSError as error:
        raise TrajectoryError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    if len(content) > limit:
        raise TrajectoryRefused(path, f"it has more than {limit} bytes")
    try:
        found = _followed(content)
    except _Refused as error:
        raise TrajectoryRefused(path, f"{error}; nothing of it was run") from None
    except Exception as error:  # noqa: BLE001  (damaged bytes raise whatever they run into)
        raise BrokenPickle(f"{path.name} cannot be read ({type(error).__name__}: {str(error)[:200]})") from None
    if type(found) is not dict:
        raise TrajectoryRefused(path, f"it holds a {type(found).__name__}, wanted a dict of arrays")
    return {str(name): _array(str(name), value, path) for name, value in found.items() if value is not None}


def _array(name: str, value: Any, path: Path) -> Array:
    """Return an entry as an array; the old saver put some into a tuple of one."""
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, _Blank):
        return value.array
    if isinstance(value, np.ndarray):
        return value
    raise TrajectoryRefused(path, f"{name[:100]!r} is a {type(value).__name__}, wanted an array of numbers")


# -- allowed names -----------------------------------------------------------------------------------------------------


@dataclass
class _Dtype:
    """A dtype of numbers."""

    text: str

    def build(self, state: Any) -> None:
        """Take the byte order; anything more is not of numbers."""
        order = state[1]
        if order not in ("<", ">", "|", "=") or any(part is not None for part in state[2:5]):
            raise _Refused("it wants a dtype that holds more than numbers")
        self.text = order + self.text.lstrip("<>|=")


@dataclass
class _Blank:
    """An array before its contents are known."""

    array: Array = field(default_factory=lambda: np.zeros(0, np.float32))

    def build(self, state: Any) -> None:
        """Take shape, dtype and bytes."""
        _, shape, dtype, fortran, content = state
        self.array = _from_bytes(content, dtype, shape, "F" if fortran else "C")


def _from_bytes(content: Any, dtype: Any, shape: Any, order: Any) -> Array:
    if not isinstance(dtype, _Dtype) or not isinstance(content, (bytes, bytearray)):
        raise _Refused("it wants an array that holds more than numbers")
    sizes = tuple(int(size) for size in shape)
    return np.frombuffer(bytes(content), np.dtype(dtype.text)).reshape(sizes, order="F" if order == "F" else "C")


def _dtype(*arguments: Any) -> _Dtype:
    text = arguments[0] if arguments else None
    if not isinstance(text, str) or not _DTYPE.fullmatch(text):
        raise _Refused(f"it wants the dtype {str(text)[:50]!r}, which holds more than numbers")
    return _Dtype(text)


def _blank(*_: Any) -> _Blank:
    return _Blank()


def _scalar(dtype: Any, content: Any) -> Array:
    return _from_bytes(content, dtype, (), "C")


def _bytes_of(text: Any, encoding: Any) -> bytes:
    """Turn text into bytes, which is how protocols 0 to 2 write them."""
    if not isinstance(text, str) or encoding != "latin1":
        raise _Refused("it wants another encoding than that of bytes")
    return text.encode("latin1")


def _no_bytes(*arguments: Any) -> bytes:
    """Make no bytes at all, for which protocols 0 to 2 have a call of their own."""
    if arguments:
        raise _Refused("it wants to call bytes")
    return b""


def _no_call(*_: Any) -> Any:
    raise _Refused("it wants to call numpy.ndarray by itself")


_MEANINGS: Mapping[str, Callable[..., Any]] = {
    "numpy ndarray": _no_call,
    "numpy dtype": _dtype,
    "_codecs encode": _bytes_of,
    "__builtin__ bytes": _no_bytes,
    **{f"numpy.{core}.multiarray _reconstruct": _blank for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray scalar": _scalar for core in ("core", "_core")},
    **{f"numpy.{core}.numeric _frombuffer": _from_bytes for core in ("core", "_core")},
}
"""Every name that a file may use, and what it means here."""


@dataclass(frozen=True)
class _Name:
    """A name on the stack."""

    meaning: Callable[..., Any]


def _named(name: str) -> _Name:
    if name not in _MEANINGS:
        raise _Refused(f"it wants {name.replace(' ', '.')[:200]!r}, which arrays of numbers do not need")
    return _Name(_MEANINGS[name])


# -- following the instructions ----------------------------------------------------------------------------------------

_MARK = object()
_NOTHING = {"PROTO", "FRAME"}
_VALUES = {
    *("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
"""Instructions whose argument is the value itself."""
_FIXED: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "MARK": lambda: _MARK,
}
_PUT = {"PUT", "BINPUT", "LONG_BINPUT"}
_GET = {"GET", "BINGET", "LONG_BINGET"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _followed(content: bytes) -> Any:
    """Follow the instructions of a file and return what is on the stack in the end."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for number, (instruction, argument, _) in enumerate(pickletools.genops(content)):
        if number > MAX_INSTRUCTIONS:
            raise _Refused(f"it has more than {MAX_INSTRUCTIONS} instructions")
        name = instruction.name
        if name in _VALUES:
            stack.append(argument)
        elif name in _FIXED:
            stack.append(_FIXED[name]())
        elif name in _PUT or name == "MEMOIZE":
            memo[len(memo) if name == "MEMOIZE" else _number(argument)] = stack[-1]
        elif name in _GET:
            stack.append(memo[_number(argument)])
        elif name == "STOP":
            return stack.pop()
        elif name not in _NOTHING:
            _combined(name, argument, stack)
    raise ValueError("it ends before its last instruction")


def _combined(name: str, argument: Any, stack: list[Any]) -> None:
    """Follow an instruction that makes something of what is on the stack."""
    if name == "GLOBAL":
        stack.append(_named(argument))
    elif name == "STACK_GLOBAL":
        attribute, module = stack.pop(), stack.pop()
        stack.append(_named(f"{module} {attribute}"))
    elif name in _TUPLES:
        stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
    elif name == "TUPLE":
        stack.append(tuple(_since_mark(stack)))
    elif name == "DICT":
        stack.append(_pairs(_since_mark(stack)))
    elif name == "SETITEMS":
        items = _pairs(_since_mark(stack))
        _table(stack[-1]).update(items)
    elif name == "SETITEM":
        value, key = stack.pop(), stack.pop()
        _table(stack[-1])[str(key)] = value
    elif name == "REDUCE":
        arguments, called = stack.pop(), stack.pop()
        if not isinstance(called, _Name) or not isinstance(arguments, tuple):
            raise _Refused("it wants to call something that has no name")
        stack.append(called.meaning(*arguments))
    elif name == "BUILD":
        state, built = stack.pop(), stack[-1]
        if not isinstance(built, (_Dtype, _Blank)) or not isinstance(state, tuple):
            raise _Refused("it wants to change something that is not an array")
        built.build(state)
    else:
        raise _Refused(f"it has the instruction {name}, which arrays of numbers do not need")


def _number(argument: Any) -> int:
    return int(argument)


def _since_mark(stack: list[Any]) -> list[Any]:
    place = len(stack) - 1
    while stack[place] is not _MARK:
        place -= 1
        if place < 0:
            raise ValueError("a mark is missing")
    items = stack[place + 1 :]
    del stack[place:]
    return items


def _pairs(items: list[Any]) -> dict[str, Any]:
    return {str(key): value for key, value in zip(items[::2], items[1::2], strict=True)}


def _table(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise _Refused("it wants to put items into something that is not a table")
    return value
