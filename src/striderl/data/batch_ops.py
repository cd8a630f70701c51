"""What `Batch` does with whole structures: joining with gaps filled, arithmetic by key.

The functions work on any class that keeps its keys in `__dict__` and is nested in itself, which is what `Batch` is;
they are apart from it so that the class can be read on its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from striderl.data import leaf, tree
from striderl.data.naming import suggestion

if TYPE_CHECKING:
    from striderl.data.batch import Batch

Join = Callable[[Sequence[Any], int, str], Any]
_ndarray = np.ndarray


class Missing:
    """Stands for a key that a batch lacks, which is filled; a key whose value is None keeps it."""


MISSING = Missing()


def from_store(kind: type[Batch], store: dict[str, Any]) -> Batch:
    """Make a batch of values that are known to be parsed."""
    out = object.__new__(kind)
    out.__dict__.update(store)
    return out


def missing_key(batch: Batch, key: str) -> str:
    """Compose the message for a key that a batch does not have."""
    names = list(batch.__dict__)
    return f"Batch has no key {key!r}. {suggestion(key, names)}Available: {', '.join(names) or 'nothing'}."


def is_gap(value: Any, kind: type) -> bool:
    """Tell whether there is no value: the key is missing, or reserved by a Batch without keys."""
    return value is MISSING or (value.__class__ is kind and not value.__dict__)


# -- joins -------------------------------------------------------------------------------------------------------------


def merge(batches: list[Batch], axis: int, path: str, join: Join) -> Batch:
    """Join batches key by key in the order in which keys first appear."""
    kind = batches[0].__class__
    stores = [batch.__dict__ for batch in batches]
    first = stores[0].keys()
    keys = (
        first if all(store.keys() == first for store in stores) else dict.fromkeys(k for store in stores for k in store)
    )
    return from_store(
        kind,
        {
            key: _merge_key([store.get(key, MISSING) for store in stores], axis, path + key, join, batches)
            for key in keys
        },
    )


def _merge_key(values: list[Any], axis: int, path: str, join: Join, batches: list[Batch]) -> Any:
    kinds = {value.__class__ for value in values}
    batch_kind = batches[0].__class__
    if len(kinds) == 1:
        kind = kinds.pop()
        if kind is _ndarray or kind is getattr(sys.modules.get("torch"), "Tensor", None):
            return _join_alike(values, axis, path, join)
        if kind is batch_kind and all(value.__dict__ for value in values):
            return merge(values, axis, f"{path}.", join)
        kinds = {kind}
    if type(None) in kinds:
        return _merge_with_none(values, axis, path, join, batches)
    if Missing not in kinds and batch_kind not in kinds:
        return join(values, axis, path)
    return _merge_with_gaps(values, axis, path, join, batches)


def _join_alike(values: list[Any], axis: int, path: str, join: Join) -> Any:
    """Join arrays only or tensors only, which is what replay and collection do all day; `join` has the error texts."""
    first = values[0]
    stack = join is leaf.stacked
    try:
        if first.__class__ is not _ndarray:
            torch = sys.modules["torch"]
            return torch.stack(values, axis) if stack else torch.cat(values, axis)
        dtype = first.dtype
        if dtype.kind in leaf.NUMERIC and all(value.dtype is dtype for value in values):
            if not stack:
                return np.concatenate(values, axis)
            if axis == 0 and all(value.shape == first.shape for value in values):
                return np.array(values)
    except (RuntimeError, ValueError, IndexError, TypeError):
        pass
    return join(values, axis, path)


def _merge_with_none(values: list[Any], axis: int, path: str, join: Join, batches: list[Batch]) -> Any:
    """Join values of which some are None: stacked beside single values into an object array, never turned into 0."""
    if join is not leaf.stacked:
        if all(value is None for value in values):
            return None
        raise ValueError(f"{path!r} is None in some batches, which has no rows to join; {_LEAVE_OUT}")
    kind = batches[0].__class__
    filled = [None if is_gap(value, kind) else value for value in values]
    unfit = next(
        (value for value in filled if isinstance(value, kind) or leaf.is_tensor(value) or leaf.shape_of(value)), None
    )
    if unfit is not None:
        found = "a Batch" if isinstance(unfit, kind) else f"{type(unfit).__name__} of shape {leaf.shape_of(unfit)}"
        raise ValueError(f"{path!r} is None in some batches and {found} in others; {_LEAVE_OUT}")
    return join(filled, axis, path)


_LEAVE_OUT = "leave the key out where there is no value, then it is filled with 0 (None for objects)"


def _merge_with_gaps(values: list[Any], axis: int, path: str, join: Join, batches: list[Batch]) -> Any:
    """Join values of which some are missing (or an empty Batch), filling the gaps with 0, or None for objects."""
    kind = batches[0].__class__
    present = [value for value in values if not is_gap(value, kind)]
    if not present:
        return from_store(kind, {})
    if axis != 0:
        raise ValueError(f"{path!r} is missing in some batches; gaps can be filled along axis 0 only, not {axis}")
    if len({value.__class__ is kind for value in present}) > 1:
        raise ValueError(f"{path!r} is a Batch in some batches and a leaf in others")
    filled = [
        value if not is_gap(value, kind) else _gap(present[0], batch, path, join)
        for value, batch in zip(values, batches)
    ]
    return merge(filled, axis, f"{path}.", join) if present[0].__class__ is kind else join(filled, axis, path)


def _gap(example: Any, batch: Batch, path: str, join: Join) -> Any:
    """Return what fills a missing place: like the example when stacking, with the rows of its batch when joining."""
    if join is leaf.stacked:
        return tree.map(leaf.empty_value, example)
    rows = [leaf.shape_of(value)[:1] for _, value in tree.items(batch)]
    if not rows or not all(rows):
        raise ValueError(f"{path!r} is missing in a batch that has no rows to fill")
    count = min(row[0] for row in rows)
    return tree.map(lambda item: leaf.empty_value(item[np.zeros(count, dtype=np.int64)]), example)


# -- arithmetic --------------------------------------------------------------------------------------------------------


def combine(batch: Batch, other: Any, operation: Callable[[Any, Any], Any], sign: str, path: str = "") -> Any:
    """Apply an operation leaf by leaf, with another batch by key or with one number or array for all."""
    kind = batch.__class__
    by_key = isinstance(other, kind)
    if by_key and batch.__dict__.keys() != other.__dict__.keys():
        differing = sorted(batch.__dict__.keys() ^ other.__dict__.keys())
        raise ValueError(f"Batch {sign} Batch goes by key; {path or 'the batches'} differ in {differing}")
    if not by_key and not isinstance(other, (bool, int, float, complex)) and not leaf.is_array(other):
        return NotImplemented
    out: dict[str, Any] = {}
    for key, value in batch.__dict__.items():
        operand = other.__dict__[key] if by_key else other
        if isinstance(value, kind):
            if by_key and not isinstance(operand, kind):
                raise ValueError(f"Batch {sign} Batch: {path + key!r} is a Batch on one side only")
            out[key] = combine(value, operand, operation, sign, f"{path}{key}.")
        else:
            out[key] = None if value is None else _combine_leaf(value, operand, operation, sign, path + key)
    return from_store(kind, out)


def _combine_leaf(value: Any, operand: Any, operation: Callable[[Any, Any], Any], sign: str, path: str) -> Any:
    if not leaf.is_array(value) or not (leaf.is_array(operand) or isinstance(operand, (bool, int, float, complex))):
        found = f"{type(value).__name__} {sign} {type(operand).__name__}"
        raise TypeError(f"{path!r} holds no numbers to combine: {found}")
    try:
        return operation(value, leaf.like(operand, value) if leaf.is_array(operand) else operand)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{path!r} cannot be combined by '{sign}': {error}") from None


def overwrite(batch: Batch, result: Any) -> Any:
    """Write the result of an operation into the arrays of a batch, so that views of them change too."""
    if result is NotImplemented:
        return result
    writes = [
        (own, leaf.checked(new, tuple(own.shape), own, repr(path)))
        for path, own, new in _pairs(batch, result, "")
        if isinstance(own, np.ndarray) or leaf.is_tensor(own)
    ]
    for own, new in writes:
        own[...] = new
    return batch


def _pairs(one: Batch, two: Batch, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, leaf, leaf) for two batches with the same keys."""
    for key, value in one.__dict__.items():
        if isinstance(value, one.__class__):
            yield from _pairs(value, two.__dict__[key], f"{path}{key}.")
        else:
            yield path + key, value, two.__dict__[key]
