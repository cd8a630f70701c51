"""Assignment into tuples with named array fields, all or nothing.

All checks happen before the first number is written:

    s[3] = step     pair up      Samples.obs ◀── step.obs,  Samples.reward ◀── step.reward,  …
                    check        index, shape, dtype, None, write protection; an error names class and field
                    write        only now

Rows, slices and numbers are checked without touching data. An index tensor on a GPU is fetched to be checked, which
waits for the device: in a loop on a GPU, index by numbers and slices.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from striderl.data import leaf, tree

_ndarray = np.ndarray


def assign_fields(target: Any, loc: Any, value: Any) -> None:
    """Write value into target[loc] for a tuple with named fields, field by field or the same into every field."""
    loc = index_of(loc)
    quick = _Quick(loc)
    if quick.num_dims and quick.plan(target, value):
        quick.write()
        return
    plan = [
        (place, _fitted(place, loc, new, where)) for where, place, new in _pairs(target, value, type(target).__name__)
    ]
    for place, new in plan:
        place[index_for(place, loc)] = new


def index_of(loc: Any) -> Any:
    """Return an index that numpy and torch read alike: a list becomes an array, which torch would take for a tuple."""
    return np.asarray(loc, dtype=None if loc else np.intp) if isinstance(loc, list) else loc


def index_for(place: Any, loc: Any) -> Any:
    """Return the index in the form that an array or a tensor takes.

    Numpy would read a tensor of one element, alone or in a tuple, as an integer, and drop a dimension.
    """
    if isinstance(loc, tuple) and isinstance(place, _ndarray):
        return tuple(leaf.to_array(part) for part in loc)
    return leaf.index_for(place, loc)


# -- any value, with every check ---------------------------------------------------------------------------------------


def _pairs(target: Any, value: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, array, what to write there) for every array in target."""
    if target is None:
        return
    container = tree.container_of(target)
    if container is None:
        if tree.container_of(value) is not None and type(value) not in (tuple, list) and not _holds_objects(target):
            raise TypeError(f"{where} holds {_described(target)}; found a {_described(value)} to write there")
        yield where, target, value
        return
    children = container.items(target)
    given = _given(target, value, [name for name, _ in children], where)
    for position, (name, child) in enumerate(children):
        part = value if given is None else given[position]
        if given is not None and child is None and part is not None:
            raise TypeError(f"{where}.{name} is None and can hold nothing; found {_described(part)} to write there")
        yield from _pairs(child, part, f"{where}.{name}")


def _given(target: Any, value: Any, names: list[str], where: str) -> list[Any] | None:
    """Return one value per child of target, or None when the same value goes to all of them."""
    if isinstance(target, tuple) and hasattr(target, "_fields"):
        same = isinstance(value, tuple) and getattr(value, "_fields", None) == target._fields
        return list(value) if same else None
    container = tree.container_of(value)
    if container is None:
        return None
    found = dict(container.items(value))
    if found.keys() != set(names):
        raise ValueError(f"{where} has the parts {', '.join(names)}; found {', '.join(found) or 'none'} to write there")
    return [found[name] for name in names]


def _fitted(place: Any, loc: Any, value: Any, where: str) -> Any:
    """Return value such that `place[loc] = value` cannot fail, or raise."""
    _require_writable(place, where)
    try:
        shape = leaf.selected_shape(place, index_for(place, loc), where)
    except (ValueError, RuntimeError, TypeError) as reason:
        raise IndexError(f"{where} has shape {tuple(place.shape)} and cannot be indexed so: {reason}") from None
    if _holds_objects(place):
        return _fitted_objects(value, shape, where)
    if value is None:
        raise TypeError(f"{where} holds {place.dtype} of shape {tuple(place.shape)}; None cannot be written there")
    try:
        new = leaf.checked(value, shape, place, where)
    except (ValueError, TypeError, RuntimeError, OverflowError) as reason:
        # A ragged list, a tensor that numpy cannot read: errors without the place.
        kind = TypeError if isinstance(reason, TypeError) else ValueError
        named = str(reason).startswith(where)
        raise kind(str(reason) if named else f"{where} cannot hold this value: {reason}") from None
    if leaf.is_tensor(place) and new.untyped_storage().data_ptr() == place.untyped_storage().data_ptr():
        new = new.clone()  # torch refuses to write a tensor over its own memory
    # Numpy drops leading dimensions of size 1 from a value, but not where it writes a single number.
    return new.reshape(new.shape[new.ndim - len(shape) :]) if new.ndim > len(shape) else new


def _fitted_objects(value: Any, shape: tuple[int, ...], where: str) -> Any:
    """Return what to write into an object array: anything for one place, a matching array for several."""
    if shape == ():
        return value
    objects = np.empty(shape, dtype=object)
    try:
        objects[...] = value
    except ValueError as reason:
        raise ValueError(f"{where} wants shape {shape} there: {reason}") from None
    return objects


def _require_writable(place: Any, where: str) -> None:
    """Raise for memory that numpy or torch would refuse to write to, after other fields have been written."""
    if isinstance(place, _ndarray):
        if not place.flags.writeable:
            raise ValueError(f"{where} is read-only")
        return
    if not leaf.is_tensor(place):
        raise TypeError(f"{where} is a {_described(place)}, which cannot be written to; wanted an array or a tensor")
    torch = sys.modules["torch"]
    root = place._base if place._is_view() else place
    if root.requires_grad and root.is_leaf and torch.is_grad_enabled():
        raise ValueError(f"{where} is a parameter that requires grad; write to it under torch.no_grad()")
    if place.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(f"{where} was made in inference mode and cannot be written to outside of it")
    if any(stride == 0 and size > 1 for stride, size in zip(place.stride(), place.shape)):
        raise ValueError(f"{where} is an expanded tensor whose places share memory; write to a clone of it")


def _holds_objects(place: Any) -> bool:
    return isinstance(place, _ndarray) and place.dtype.kind == "O"


def _described(value: Any) -> str:
    """Describe a value in a few words."""
    fields = getattr(value, "_fields", None)
    if isinstance(value, tuple) and fields is not None:
        return f"{type(value).__name__} with the fields {', '.join(fields)}"
    if leaf.is_array(value):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return f"{type(value).__name__}"


# -- the everyday value, with few checks -------------------------------------------------------------------------------


class _Quick:
    """The plan for arrays and tensors of just the right shape and dtype, and for plain numbers.

    It gives up at the first doubt; then the checks above decide, and compose the error message.
    """

    def __init__(self, loc: Any) -> None:
        self.loc = loc
        self.num_dims = _num_dims(loc)
        self._known: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._arrays: list[tuple[Any, Any]] = []
        self._views: list[Any] = []
        self._rows: list[Any] = []

    def plan(self, target: Any, value: Any) -> bool:
        """Plan all writes and return True, or return False when anything is not everyday."""
        same = isinstance(value, tuple) and getattr(value, "_fields", None) == target._fields
        if not same and value.__class__ not in _NUMBERS:
            return False
        for place, new in zip(target, value if same else (value,) * len(target)):
            if isinstance(place, _ndarray):
                if not self._plan_array(place, new):
                    return False
            elif place is None:
                if same and new is not None:
                    return False
            elif isinstance(place, tuple):
                if not hasattr(place, "_fields") or not self.plan(place, new):
                    return False
            elif not leaf.is_tensor(place) or not self._plan_tensor(place, new):
                return False
        return True

    def write(self) -> None:
        """Carry out the plan."""
        for array, new in self._arrays:
            array[self.loc] = new
        if self._views:
            import torch

            torch._foreach_copy_(self._views, self._rows)

    def _plan_array(self, place: Any, new: Any) -> bool:
        dtype = place.dtype
        try:
            shape = self._selected(place.shape)
        except (IndexError, TypeError):
            return False
        if isinstance(new, (_ndarray, np.generic)):
            if new.dtype != dtype or new.shape != shape or dtype.kind == "O":
                return False
        elif new.__class__ not in _NUMBERS or not _fits(new, dtype.kind):
            return False
        self._arrays.append((place, new))
        return bool(place.flags.writeable)

    def _plan_tensor(self, place: Any, new: Any) -> bool:
        if self.loc.__class__ is _ndarray or self.loc.__class__ is tuple or not leaf.is_tensor(new):
            return False
        if place.requires_grad or place.is_inference() or 0 in place.stride():
            return False
        if place.dtype is not new.dtype or place.device != new.device:
            return False
        if place.untyped_storage().data_ptr() == new.untyped_storage().data_ptr():
            return False
        try:
            view = place[self.loc]
        except (IndexError, ValueError):
            return False
        self._views.append(view)
        self._rows.append(new)
        return bool(view.shape == new.shape)

    def _selected(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that the index selects; it is tried once per leading shape, on a stand-in without data."""
        lead = shape[: self.num_dims]
        found = self._known.get(lead)
        if found is None:
            found = self._known[lead] = np.empty(lead, np.bool_)[self.loc].shape
        return found + shape[self.num_dims :]


_NUMBERS = (float, int, bool)


def _num_dims(loc: Any) -> int:
    """Return how many dimensions an index uses up, or 0 for one that is not everyday."""
    kind = loc.__class__
    if kind is int or kind is slice or isinstance(loc, np.integer):
        return 1
    if kind is _ndarray:
        return int(loc.ndim) if loc.dtype.kind == "b" else 1
    if kind is tuple:
        sizes = [_num_dims(part) if part.__class__ is not tuple else 0 for part in loc]
        return sum(sizes) if all(sizes) else 0
    return 0


def _fits(number: Any, kind: str) -> bool:
    """Return whether every numpy dtype of a kind holds the number without changing it."""
    if kind in "fc" or number is True or number is False:
        return kind in leaf.NUMERIC
    if number.__class__ is float or kind not in "iu":
        return False
    lowest, highest = (-128, 127) if kind == "i" else (0, 255)
    return bool(lowest <= number <= highest)
