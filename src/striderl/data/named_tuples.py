"""Tuples with named fields that are indexed like arrays: one index slices every field.

    Samples = namedarraytuple("Samples", ["obs", "reward", "state"])
    s = Samples(obs=[T, B, 4], reward=[T, B], state=None)

               obs        reward    state          s.reward       the field itself
            ┌────────┐    ┌────┐                   s[3]           Samples(obs[3], reward[3], None)
    s[0] ─▶ │ ...... │    │ .. │    None           s[:, 1:3]      views of two columns of every field
    s[1] ─▶ │ ...... │    │ .. │                   s[3] = step    field by field, when step has the same fields
            └────────┘    └────┘                   s[3] = 0       the same value in every field

They are real tuples of their *fields*: `len(s)` is 3, `obs, reward, state = s` and `f(*s)` work, `s.get(0)` is `s.obs`.
A field may be None: it has nothing to index, stays None, and only None can be written there.

`NamedArrayTupleSchema("Samples", "obs reward state")` makes the same tuples without a class that must be importable:
they are pickled by value, and so can be sent to a spawned process. `NamedTupleSchema` does that for plain ones.
"""

from __future__ import annotations

import functools
import sys
from collections import namedtuple
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np

from striderl.data import leaf, tree
from striderl.data.memory import SharedArray
from striderl.data.naming import unknown
from striderl.data.tuple_assign import assign_fields, index_for, index_of

if TYPE_CHECKING:
    from typing import Self

Kind = TypeVar("Kind", bound=tuple[Any, ...])

_INDEX_ERRORS = (IndexError, TypeError, ValueError, RuntimeError)
"""What numpy and torch raise for an index they cannot follow."""

_direct: set[Any] = {np.ndarray, SharedArray}
"""Types of fields that take a number or a slice just as it is; tensors join when the first one is seen."""


class ArrayTuple(tuple[Any, ...]):
    """What all tuples with named array fields have in common; `namedarraytuple` and the schema make the classes."""

    __slots__ = ()

    if TYPE_CHECKING:
        _fields: ClassVar[tuple[str, ...]]

        def __new__(cls, *values: Any, **named: Any) -> Self: ...  # noqa: D102
        def __getattr__(self, name: str) -> Any: ...
        @classmethod
        def _make(cls, values: Iterable[Any]) -> Self: ...
        def _asdict(self) -> dict[str, Any]: ...

    def __getitem__(self, loc: Any) -> Self:
        """Return the same tuple with every field indexed; a bad index raises IndexError naming class and field."""
        kind = loc.__class__
        try:
            if kind is int or (kind is slice and loc.step is None):
                parts = [value[loc] if value.__class__ in _direct else _part(value, loc) for value in self]
            else:
                loc = index_of(loc)
                parts = [_part(value, loc) for value in self]
        except _INDEX_ERRORS as error:
            raise _named_index_error(self, loc, error) from None
        return tuple.__new__(type(self), parts)

    def __setitem__(self, loc: Any, value: Any) -> None:
        """Write value into every field at loc; when one field cannot be written, no field is changed.

        A tuple with the same fields, of whichever class, is written field by field. Anything else is written to every
        field that is not None.
        """
        assign_fields(self, loc, value)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._fields

    def __reversed__(self) -> Iterator[Any]:
        # Without this, Python would count indices down, which here select rows.
        return iter(tuple(self)[::-1])

    def get(self, position: int) -> Any:
        """Return the field at a position, as `[position]` does for other tuples."""
        try:
            return tuple.__getitem__(self, position)
        except IndexError:
            raise IndexError(f"{type(self).__name__} has {len(self)} fields, found position {position}") from None

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield (name, value) for every field in order."""
        return zip(self._fields, self)

    def _replace(self, **values: Any) -> Self:
        """Return the same tuple with other values in some fields."""
        _require_fields(type(self), values)
        return self._make(values.get(name, value) for name, value in self.items())

    __replace__ = _replace


def namedarraytuple(typename: str, field_names: str | Iterable[str], *, module: str | None = None) -> type[ArrayTuple]:
    """Return a new class of tuples with these fields, as `collections.namedtuple` does, that is indexed like an array.

    Field names are a sequence, or one string with either spaces or commas between them. Instances can be pickled when
    the class can be imported: `module` is where it is found, by default the caller's module.
    """
    fields = _field_names(typename, field_names, reserved=("get", "items"))
    found_in = module or sys._getframe(1).f_globals.get("__name__", "__main__")
    return _tuple_class(ArrayTuple, typename, fields, found_in)


# -- schemas: the same without a class to import -----------------------------------------------------------------------


class NamedTuple(tuple[Any, ...]):
    """A plain tuple with named fields that is pickled by value; made by `NamedTupleSchema`."""

    __slots__ = ()

    if TYPE_CHECKING:
        _fields: ClassVar[tuple[str, ...]]

        def __new__(cls, *values: Any, **named: Any) -> Self: ...  # noqa: D102
        def __getattr__(self, name: str) -> Any: ...
        @classmethod
        def _make(cls, values: Iterable[Any]) -> Self: ...
        def _asdict(self) -> dict[str, Any]: ...

    def _replace(self, **values: Any) -> Self:
        """Return the same tuple with other values in some fields."""
        _require_fields(type(self), values)
        return self._make(values.get(name, value) for name, value in zip(self._fields, self))

    __replace__ = _replace

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (NamedTupleSchema, type(self).__name__, self._fields, tuple(self))


class NamedArrayTuple(ArrayTuple):
    """A tuple with named array fields that is pickled by value; made by `NamedArrayTupleSchema`."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (NamedArrayTupleSchema, type(self).__name__, self._fields, tuple(self))


class NamedTupleSchema:
    """A name and field names, called like a namedtuple class; what it makes is pickled by value."""

    __slots__ = ("_class", "_fields", "_typename")
    _base: ClassVar[type] = NamedTuple
    _reserved: ClassVar[tuple[str, ...]] = ("index", "count")

    _class: Any
    _fields: tuple[str, ...]
    _typename: str

    def __init__(self, typename: str, fields: str | Iterable[str]) -> None:
        names = _field_names(typename, fields, reserved=self._reserved)
        object.__setattr__(self, "_typename", typename)
        object.__setattr__(self, "_fields", names)
        object.__setattr__(self, "_class", _value_class(self._base, typename, names))

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Return a tuple with these values, by position or by field name."""
        return self._class(*values, **named)

    def _make(self, values: Iterable[Any]) -> Any:
        """Return a tuple with the values of an iterable, one per field."""
        return self._class._make(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self!r} cannot be changed, found an assignment to {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{self!r} cannot be changed, found a deletion of {name!r}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, NamedTupleSchema) and self._class is other._class

    def __hash__(self) -> int:
        return hash((self._typename, self._fields))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._typename, self._fields)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._typename!r}, {list(self._fields)})"


class NamedArrayTupleSchema(NamedTupleSchema):
    """A name and field names, called like a namedarraytuple class; what it makes is pickled by value."""

    __slots__ = ()
    _base: ClassVar[type] = NamedArrayTuple
    _reserved: ClassVar[tuple[str, ...]] = ("index", "count", "get", "items")


def _restore(schema: type[NamedTupleSchema], typename: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """Make a pickled tuple again."""
    return schema(typename, fields)._make(values)


# -- type checks and conversions --------------------------------------------------------------------------------------


def is_namedarraytuple(value: object) -> bool:
    """Return whether a value is a tuple with named array fields, made by a class or by a schema."""
    return isinstance(value, ArrayTuple)


def is_namedtuple(value: object) -> bool:
    """Return whether a value is a tuple with named fields but without array indexing, of a class or a schema."""
    return is_namedtuple_class(type(value))


def is_namedarraytuple_class(value: object) -> bool:
    """Return whether a value is a class of tuples with named array fields; a schema is not a class."""
    return isinstance(value, type) and issubclass(value, ArrayTuple)


def is_namedtuple_class(value: object) -> bool:
    """Return whether a value is a class of plain tuples with named fields."""
    if not isinstance(value, type) or not issubclass(value, tuple) or issubclass(value, ArrayTuple):
        return False
    fields = getattr(value, "_fields", None)
    return isinstance(fields, tuple) and all(isinstance(name, str) for name in fields)


def namedarraytuple_like(example: Any) -> type[ArrayTuple]:
    """Return the namedarraytuple class with the name and fields of a namedtuple: of a tuple, a class or a schema.

    A namedarraytuple class is returned as is. The same example gives the same class every time, and its instances can
    be pickled wherever those of the example can.
    """
    kind: Any = NamedTuple if isinstance(example, NamedTupleSchema) else _named_class(example)
    if is_namedarraytuple_class(kind):
        like: type[ArrayTuple] = kind
    elif issubclass(kind, NamedTuple):
        like = NamedArrayTupleSchema_like(example)._class
    else:
        like = _like_class(kind)
    return like


def NamedArrayTupleSchema_like(example: Any) -> NamedArrayTupleSchema:  # noqa: N802  (the name users of rlpyt know)
    """Return the schema with the name and fields of a namedtuple or namedarraytuple: a tuple, a class or a schema."""
    if isinstance(example, NamedTupleSchema):
        return NamedArrayTupleSchema(example._typename, example._fields)
    kind: Any = _named_class(example)
    return NamedArrayTupleSchema(kind.__name__, kind._fields)


def _named_class(example: Any) -> type:
    """Return the class of a named tuple, whether given the tuple or the class."""
    kind = example if isinstance(example, type) else type(example)
    if not is_namedarraytuple_class(kind) and not is_namedtuple_class(kind):
        raise TypeError(f"wanted a namedtuple or namedarraytuple, its class or its schema; found {kind.__name__}")
    return kind


# -- how classes are made ----------------------------------------------------------------------------------------------


def _field_names(typename: str, names: str | Iterable[str], reserved: tuple[str, ...]) -> tuple[str, ...]:
    """Return the field names as a tuple, or raise an error that names the class and the field."""
    if not isinstance(typename, str):
        raise TypeError(f"the name of a tuple class is a string, found {typename!r}")
    if isinstance(names, str):
        if "," in names and any(letter.isspace() for letter in names):
            raise ValueError(
                f"{typename}: field names {names!r} have commas and spaces between them; use one of the two"
            )
        names = names.split(",") if "," in names else names.split()
    fields = tuple(names)
    for name in fields:
        if not isinstance(name, str):
            raise TypeError(f"{typename}: field names are strings, found {name!r}")
        if name in reserved:
            raise ValueError(f"{typename}.{name}: a field cannot have the name of the tuple's method {name!r}")
    return fields


def _tuple_class(base: type[Kind], typename: str, fields: tuple[str, ...], module: str, **members: Any) -> type[Kind]:
    """Return a class with the behaviour of base and the fields of a namedtuple, which reads fields at C speed."""
    try:
        plain = namedtuple(typename, fields, module=module)  # type: ignore[misc]
    except ValueError as error:
        raise ValueError(f"{typename}: {error}") from None
    members = {"__slots__": (), "__module__": module, "__doc__": plain.__doc__, **members}
    return cast("type[Kind]", type(typename, (base, plain), members))


@functools.cache
def _value_class(base: type, typename: str, fields: tuple[str, ...]) -> Any:
    """Return the one class of this process for a schema."""
    return _tuple_class(base, typename, fields, __name__, _typename=typename)


@functools.cache
def _like_class(kind: Any) -> type[ArrayTuple]:
    """Return the array class of a plain namedtuple class; it cannot be imported, so its pickles name the plain one."""
    _field_names(kind.__name__, kind._fields, reserved=("get", "items"))
    return _tuple_class(
        ArrayTuple,
        kind.__name__,
        kind._fields,
        kind.__module__,
        __reduce__=lambda self: (_restore_like, (kind, tuple(self))),
    )


def _restore_like(kind: type, values: tuple[Any, ...]) -> ArrayTuple:
    return namedarraytuple_like(kind)._make(values)


# -- helpers -----------------------------------------------------------------------------------------------------------


def _require_fields(kind: Any, values: dict[str, Any]) -> None:
    for name in values:
        if name not in kind._fields:
            raise ValueError(unknown("field", name, kind._fields, where=kind.__name__))


def _part(value: Any, loc: Any) -> Any:
    """Index one field that is not a bare numpy array."""
    if value is None:
        return None
    if isinstance(value, ArrayTuple):
        return value[loc]
    if leaf.is_tensor(value):
        _direct.add(value.__class__)
        return value[index_for(value, loc)]
    if isinstance(value, np.ndarray):
        return value[index_for(value, loc)]
    return tree.index(value, loc)


def _named_index_error(value: ArrayTuple, loc: Any, error: Exception) -> IndexError:
    """Find the first leaf that cannot be indexed and raise with its name."""
    for path, part in tree.items(value, type(value).__name__):
        where = path.replace("/", ".")
        try:
            leaf.indexed(part, index_for(part, loc), where)
        except IndexError as named:
            return named
        except (ValueError, RuntimeError, TypeError) as reason:
            return IndexError(f"{where} has shape {tuple(part.shape)} and cannot be indexed so: {reason}")
    return IndexError(f"{type(value).__name__}: {error}")
