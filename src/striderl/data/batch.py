"""`Batch`: a dict of arrays that can be indexed like an array, nested as deep as you like.

    b = Batch(obs={"joints": np.zeros((4, 12))}, rew=[0.0, 1.0, 2.0, 3.0])

              joints        rew                    b.obs.joints     the array itself
            ┌──────────┐   ┌────┐                  b[2]             Batch of row 2 of every leaf
    b[0] ─▶ │ ........ │   │ 0. │                  b[1:3]           rows 1 and 2, views: writing to them writes to b
    b[1] ─▶ │ ........ │   │ 1. │                  b[[0, 2]]        a copy of rows 0 and 2
            │ ........ │   │ 2. │                  b[:, 1] += 6     column 1 of every leaf
            └──────────┘   └────┘                  b[0] = {…}       the row; keys that are not given become 0 or None

Values become numpy arrays on the way in (tensors stay tensors), keys keep their order, arithmetic goes by key. An
operation that cannot be done raises an error that names the key, and leaves the batch as it was.
"""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from striderl.data import leaf, tree
from striderl.data.batch_ops import (
    Join,
    combine,
    from_store,
    mapping_of,
    merge,
    missing_key,
    num_rows,
    overwrite,
    parse,
    write_rows,
)
from striderl.data.naming import AssertedTypeError, AssertedValueError

_new = object.__new__
_PLAIN_INDICES = (int, slice, np.ndarray)
_ndarray = np.ndarray


class Batch:
    """Nested arrays under open keys; see the picture at the top of this module."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise TypeError(
            f"{cls.__name__} cannot derive from Batch: operations return a Batch, so overrides would have no effect on "
            "their results; hold a Batch as an attribute, or write functions of one"
        )

    __array_ufunc__ = None  # so that `np.float64(2) * batch` calls Batch instead of making an object array

    def __init__(self, data: Any = None, /, copy: bool = False, **values: Any) -> None:
        """Build from a mapping, from keyword arguments, or from a sequence of mappings, which are stacked.

        With copy=True, arrays and tensors are copied; otherwise they are shared with the caller.
        """
        if data is not None:
            values = {**mapping_of(data, Batch), **values}
        store = self.__dict__
        for key, value in values.items():
            if key.__class__ is not str or key in _RESERVED:
                _check_key(key)
            kind = value.__class__
            if kind is _ndarray and value.dtype.kind in "biufc":
                store[key] = value
            else:
                store[key] = value if kind is Batch else parse(value, key, Batch)
        if copy:
            for key, value in store.items():
                store[key] = tree.copy(value)

    # -- keys ----------------------------------------------------------------------------------------------------------

    def __getattr__(self, key: str) -> Any:
        raise AttributeError(missing_key(self, key))

    def __setattr__(self, key: str, value: Any) -> None:
        if key.__class__ is not str or key in _RESERVED:
            _check_key(key)
        self.__dict__[key] = parse(value, key, Batch)

    def __delitem__(self, key: str) -> None:
        if key not in self.__dict__:
            raise KeyError(missing_key(self, key))
        del self.__dict__[key]

    def __contains__(self, key: object) -> bool:
        return key in self.__dict__

    def keys(self) -> Iterable[str]:
        """Return the keys in order."""
        return self.__dict__.keys()

    def values(self) -> Iterable[Any]:
        """Return the values in the order of the keys."""
        return self.__dict__.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return (key, value) pairs in order."""
        return self.__dict__.items()

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default where there is none."""
        return self.__dict__.get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a key and return its value, or the default where there is none."""
        if key not in self.__dict__ and not default:
            raise KeyError(missing_key(self, key))
        return self.__dict__.pop(key, *default)

    def update(self, data: Any = None, /, **values: Any) -> None:
        """Set keys from a mapping or Batch and from keyword arguments; other keys stay."""
        fresh = Batch(data, **values)
        self.__dict__.update(fresh.__dict__)

    def is_empty(self, recurse: bool = False) -> bool:
        """Return whether there are no keys; with recurse=True, whether there are no leaves however deep."""
        if not self.__dict__:
            return True
        return recurse and all(isinstance(value, Batch) and value.is_empty(True) for value in self.__dict__.values())

    # -- rows ----------------------------------------------------------------------------------------------------------

    def __getitem__(self, loc: Any) -> Any:
        store = self.__dict__
        if loc.__class__ is str:
            if loc not in store:
                raise KeyError(missing_key(self, loc))
            return store[loc]
        if not store:
            raise IndexError(f"an empty Batch has no rows; index {loc!r} does not exist")
        if loc.__class__ not in _PLAIN_INDICES:
            loc = leaf.plain_index(loc)
        array_loc = loc if loc.__class__ in _PLAIN_INDICES else None
        tensor = getattr(sys.modules.get("torch"), "Tensor", None)
        forward = loc.__class__ in (int, tensor) or (loc.__class__ is slice and (loc.step is None or loc.step > 0))
        out: Batch = _new(Batch)
        new = out.__dict__
        try:
            for key, value in store.items():
                kind = value.__class__
                if kind is _ndarray:
                    if array_loc is None:
                        array_loc = leaf.index_for(value, loc)
                    new[key] = value[array_loc]
                elif (kind is tensor and forward) or (kind is Batch and value.__dict__):
                    new[key] = value[loc]
                elif kind is Batch or value is None:
                    new[key] = value
                else:
                    new[key] = leaf.indexed(value, loc, repr(key))
        except IndexError:
            if kind is _ndarray:
                leaf.indexed(value, array_loc, repr(key))  # raises the same error with the key and the shape in it
            raise
        return out

    def __setitem__(self, loc: Any, value: Any) -> None:
        if loc.__class__ is str:
            self.__setattr__(loc, value)
            return
        if value.__class__ is not Batch:
            if not isinstance(value, Mapping):
                raise ValueError(
                    f"rows of a Batch are assigned from a Batch or a mapping, found {type(value).__name__}; "
                    "use batch.key[...] = value to write one leaf"
                )
            value = Batch(value)
        write_rows(self, loc if loc.__class__ in _PLAIN_INDICES else leaf.plain_index(loc), value)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the rows; a batch without keys, or with a single value that has no rows, yields none."""
        try:
            length = len(self)
        except TypeError:
            length = 0
        return (self[position] for position in range(length))

    def __len__(self) -> int:
        lengths = []
        for path, value in tree.items(self):
            shape = leaf.shape_of(value)
            if not shape:
                raise TypeError(f"a Batch with a single value at {path!r} has no length")
            lengths.append(shape[0])
        if not lengths:
            raise TypeError("an empty Batch has no length")
        return min(lengths)

    def __bool__(self) -> bool:
        return not self.is_empty()

    @property
    def shape(self) -> list[int]:
        """The element-wise minimum of the leaves' shapes, as far as all leaves go."""
        shapes = [leaf.shape_of(value) for _, value in tree.items(self)]
        return [min(sizes) for sizes in zip(*shapes)] if shapes else []

    def split(self, size: int, shuffle: bool = True, merge_last: bool = False) -> Iterator[Batch]:
        """Yield batches of this many rows (-1: all), in random order unless shuffle=False.

        The rest that does not fill a batch comes last, or is added to the batch before it with merge_last=True. The
        order is drawn from numpy's global generator, so `np.random.seed` fixes it. Where leaves have different lengths,
        the rows beyond the shortest are left out, with a warning.
        """
        length = len(self)
        if any(leaf.shape_of(value)[0] != length for _, value in tree.items(self)):
            lengths = {path: leaf.shape_of(value)[0] for path, value in tree.items(self)}
            warnings.warn(f"split leaves out rows beyond the shortest leaf: lengths are {lengths}", stacklevel=2)
        if not isinstance(size, int):
            raise TypeError(f"split wants a number of rows, found {type(size).__name__} {size!r}")
        if size != -1 and size < 1:
            raise AssertedValueError(f"split wants a size of at least 1, or -1 for everything, found {size}")
        size = length if size == -1 else size
        order = np.random.permutation(length) if shuffle else np.arange(length)
        starts = list(range(0, length, size))
        if merge_last and len(starts) > 1 and length % size:
            starts.pop()
        for start, stop in zip(starts, [*starts[1:], length]):
            yield self[order[start:stop]]

    # -- joining -------------------------------------------------------------------------------------------------------

    @staticmethod
    def stack(batches: Sequence[Any], axis: int = 0) -> Batch:
        """Join batches along a new axis; along axis 0, keys that some of them lack are filled with 0 or None."""
        return _joined(batches, axis, leaf.stacked)

    @staticmethod
    def cat(batches: Sequence[Any], axis: int = 0) -> Batch:
        """Join batches along an existing axis; along axis 0, keys that some of them lack are filled with 0 or None."""
        return _joined(batches, axis, leaf.concatenated)

    def stack_(self, batches: Sequence[Any], axis: int = 0) -> None:
        """Replace the contents by this batch and the given ones, stacked."""
        own = [] if self.is_empty() else [self]
        self._replace(Batch.stack([*own, *batches], axis))

    def cat_(self, batches: Any, axis: int = 0) -> None:
        """Append one batch or several to this one."""
        own = [] if self.is_empty() else [self]
        more = [batches] if isinstance(batches, (Batch, Mapping)) else list(batches)
        self._replace(Batch.cat([*own, *more], axis))

    def _replace(self, other: Batch) -> None:
        self.__dict__.clear()
        self.__dict__.update(other.__dict__)

    # -- conversion ----------------------------------------------------------------------------------------------------

    def to_torch(self, dtype: Any = None, device: Any = None) -> Batch:
        """Turn the numbers of this batch, and of every batch inside it, into tensors in place, and return it.

        Tensors have this dtype and device, where given; memory is shared where possible. `to` returns another batch.
        """
        _convert_in_place(self, lambda value: leaf.to_tensor(_numbers(value), dtype=dtype, device=device))
        return self

    def to_numpy(self) -> Batch:
        """Turn the tensors of this batch, and of every batch inside it, into numpy arrays in place, and return it."""
        _convert_in_place(self, leaf.to_array)
        return self

    def to(self, device: Any = None, dtype: Any = None) -> Batch:
        """Return a batch whose numbers are tensors of this dtype on this device; this batch stays as it is."""
        return _batch(tree.to_torch(self, dtype=dtype, device=device))

    def to_torch_(self, dtype: Any = None, device: Any = None) -> None:
        """Turn the numbers into tensors in place, as `to_torch`."""
        self.to_torch(dtype, device)

    def to_numpy_(self) -> None:
        """Turn the tensors into numpy arrays in place, as `to_numpy`."""
        self.to_numpy()

    # -- emptying ------------------------------------------------------------------------------------------------------

    def empty_(self, index: Any = None) -> Batch:
        """Set all numbers to 0 and all objects to None, in these rows or everywhere, in place; return the batch."""
        for key, value in self.__dict__.items():
            if value.__class__ is Batch:
                value.empty_(index)
            elif value is not None:
                self.__dict__[key] = leaf.emptied(value, index, repr(key))
        return self

    @staticmethod
    def empty(batch: Batch, index: Any = None) -> Batch:
        """Return a copy with 0 for numbers and None for objects, in these rows or everywhere."""
        return batch.copy().empty_(index)

    def copy(self) -> Batch:
        """Return a batch with memory of its own."""
        return _batch(tree.copy(self))

    # -- arithmetic, by key --------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        return combine(self, other, operator.add, "+")

    def __radd__(self, other: Any) -> Any:
        return combine(self, other, lambda one, two: two + one, "+")

    def __sub__(self, other: Any) -> Any:
        return combine(self, other, operator.sub, "-")

    def __rsub__(self, other: Any) -> Any:
        return combine(self, other, lambda one, two: two - one, "-")

    def __mul__(self, other: Any) -> Any:
        return combine(self, other, operator.mul, "*")

    def __rmul__(self, other: Any) -> Any:
        return combine(self, other, lambda one, two: two * one, "*")

    def __truediv__(self, other: Any) -> Any:
        return combine(self, other, operator.truediv, "/")

    def __rtruediv__(self, other: Any) -> Any:
        return combine(self, other, lambda one, two: two / one, "/")

    def __iadd__(self, other: Any) -> Any:
        return overwrite(self, combine(self, other, operator.add, "+"))

    def __isub__(self, other: Any) -> Any:
        return overwrite(self, combine(self, other, operator.sub, "-"))

    def __imul__(self, other: Any) -> Any:
        return overwrite(self, combine(self, other, operator.mul, "*"))

    def __itruediv__(self, other: Any) -> Any:
        return overwrite(self, combine(self, other, operator.truediv, "/"))

    def __neg__(self) -> Batch:
        return _batch(tree.map(operator.neg, self))

    def __eq__(self, other: object) -> bool:
        """Return whether the other batch has the same keys with exactly the same values; NaN equals NaN."""
        return isinstance(other, Batch) and tree.equal(self, other)

    __hash__ = None  # type: ignore[assignment]  # a batch changes, so it is no dictionary key

    def __repr__(self) -> str:
        if not self.__dict__:
            return "Batch()"
        lines = []
        for key, value in self.__dict__.items():
            text = repr(value).replace("\n", "\n" + " " * (6 + len(key)))
            lines.append(f"    {key}: {text},\n")
        return "Batch(\n" + "".join(lines) + ")"


_RESERVED = frozenset(dir(Batch))


def _check_key(key: object) -> None:
    if not isinstance(key, str):
        raise AssertedTypeError(f"the keys of a Batch are strings, found {key!r} of type {type(key).__name__}")
    if key in _RESERVED:
        raise KeyError(f"the key {key!r} would hide Batch.{key}; choose another name, such as '{key.strip('_')}_value'")


def _batch(value: Any) -> Batch:
    assert isinstance(value, Batch)
    return value


def _numbers(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, (bool, int, float, complex)) else value


def _joined(batches: Sequence[Any], axis: int, join: Join) -> Batch:
    if any(batch is None for batch in batches):
        raise TypeError("wanted batches or mappings to join, found None; Batch() stands for a row without values")
    parts = [batch if isinstance(batch, Batch) else Batch(batch) for batch in batches]
    if join is leaf.concatenated:
        parts = [part for part in parts if part.__dict__]
        if not parts:
            return Batch()
        try:
            return merge(parts, axis, "", join, lambda: [num_rows(part) for part in parts])
        except ValueError:
            for part in parts:
                num_rows(part)  # raises for a single value, which has no rows
            raise
    return merge(parts, axis, "", join) if parts else Batch()


tree.register(
    Batch,
    tree.Container(
        lambda node: list(node.__dict__.items()),
        lambda node, values: from_store(Batch, dict(zip(node.__dict__, values))),
    ),
)


def _convert_in_place(batch: Batch, convert: Callable[[Any], Any]) -> None:
    for key, value in batch.__dict__.items():
        if isinstance(value, Batch):
            _convert_in_place(value, convert)
        else:
            batch.__dict__[key] = convert(value)
