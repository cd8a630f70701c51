"""Operations of `Batch` on whole structures: joining with gaps filled, arithmetic by key.

The functions work on any class that keeps its keys in `__dict__` and is nested in itself, which is what `Batch` is;
they are apart from it so that the class can be read on its own.

Conversion of values for a `Batch`: lists become arrays, mappings become batches, anything ragged raises.

`kind` is the class `Batch` itself.

Writing rows into a `Batch`: batch[loc] = value, all leaves or none.

Everything is checked before anything is written, so a write that fails changes nothing. Two planners share the work:
`plain_rows` handles only the common case (the same keys, leaves that fit exactly) and is as fast as writing without a
check; everything else goes to `plan_rows`, which fills gaps, converts, and composes error messages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from striderl.data import leaf, tree
from striderl.data.naming import suggestion

Join = Callable[[Sequence[Any], int, str], Any]
Counts = Callable[[], list[int]] | None
_ndarray = np.ndarray


class Nested(Protocol):
    """What the functions here need of `Batch`, which imports them: keys in `__dict__`, made of a mapping, stacked."""

    def __init__(self, data: Any = None, /) -> None: ...

    @staticmethod
    def stack(batches: Sequence[Any], axis: int = 0) -> Any:
        """Join along a new axis."""


BatchT = TypeVar("BatchT", bound=Nested)


class Missing:
    """Stands for a key that a batch lacks, which is filled; a key whose value is None keeps it."""


MISSING = Missing()


def from_store(kind: type[BatchT], store: dict[str, Any]) -> BatchT:
    """Make a batch of values that are known to be parsed."""
    out = object.__new__(kind)
    out.__dict__.update(store)
    return out


def missing_key(batch: Nested, key: str) -> str:
    """Compose the message for a key that a batch does not have."""
    names = list(batch.__dict__)
    return f"Batch has no key {key!r}. {suggestion(key, names)}Available: {', '.join(names) or 'nothing'}."


def is_gap(value: Any, kind: type) -> bool:
    """Return whether there is no value: the key is missing, or reserved by a Batch without keys."""
    return value is MISSING or (value.__class__ is kind and not value.__dict__)


# -- joins -------------------------------------------------------------------------------------------------------------


def num_rows(batch: Nested) -> int:
    """Return how many rows a batch has in a join: those of its shortest leaf, 0 where there are no leaves."""
    rows: list[int] = []
    for path, value in tree.items(batch):
        shape = leaf.shape_of(value)
        if not shape and value is not None:
            raise ValueError(f"{path!r} cannot be joined (cat): {value!r} is a single value without rows; use stack")
        rows += shape[:1]
    return min(rows, default=0)


def merge(batches: list[BatchT], axis: int, path: str, join: Join, counts: Counts = None) -> BatchT:
    """Join batches key by key in the order in which keys first appear.

    `counts` returns the rows of each batch, which gaps are filled to when batches are joined along an existing axis.
    """
    kind = batches[0].__class__
    stores = [batch.__dict__ for batch in batches]
    first = stores[0].keys()
    keys = (
        first if all(store.keys() == first for store in stores) else dict.fromkeys(k for store in stores for k in store)
    )
    return from_store(
        kind,
        {
            key: _merge_key([store.get(key, MISSING) for store in stores], axis, path + key, join, batches, counts)
            for key in keys
        },
    )


def _merge_key(values: list[Any], axis: int, path: str, join: Join, batches: Sequence[Nested], counts: Counts) -> Any:
    kinds = {value.__class__ for value in values}
    batch_kind = batches[0].__class__
    if len(kinds) == 1:
        kind = kinds.pop()
        if kind is _ndarray or kind is getattr(sys.modules.get("torch"), "Tensor", None):
            return _join_alike(values, axis, path, join)
        if kind is batch_kind and all(value.__dict__ for value in values):
            return merge(values, axis, f"{path}.", join, counts)
        kinds = {kind}
    if type(None) in kinds:
        return _merge_with_none(values, axis, path, join, batches)
    if Missing not in kinds and batch_kind not in kinds:
        return join(values, axis, repr(path))
    return _merge_with_gaps(values, axis, path, join, batches, counts)


def _join_alike(values: list[Any], axis: int, path: str, join: Join) -> Any:
    """Join arrays only or tensors only, the common case in replay and collection; `join` has the error texts."""
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
    return join(values, axis, repr(path))


def _merge_with_none(values: list[Any], axis: int, path: str, join: Join, batches: Sequence[Nested]) -> Any:
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
    return join(filled, axis, repr(path))


_LEAVE_OUT = "leave the key out where there is no value, then it is filled with 0 (None for objects)"


def _merge_with_gaps(
    values: list[Any], axis: int, path: str, join: Join, batches: Sequence[Nested], counts: Counts
) -> Any:
    """Join values of which some are missing (or an empty Batch), filling the gaps with 0, or None for objects."""
    kind = batches[0].__class__
    present = [value for value in values if not is_gap(value, kind)]
    if not present:
        return from_store(kind, {})
    if axis != 0:
        raise ValueError(f"{path!r} is missing in some batches; gaps can be filled along axis 0 only, not {axis}")
    if len({value.__class__ is kind for value in present}) > 1:
        raise ValueError(f"{path!r} is a Batch in some batches and a leaf in others")
    rows: Sequence[int | None] = [None] * len(values) if counts is None else counts()
    filled = [
        value if not is_gap(value, kind) else _gap(present[0], count) for value, count in zip(values, rows, strict=True)
    ]
    return (
        merge(filled, axis, f"{path}.", join, counts)
        if present[0].__class__ is kind
        else join(filled, axis, repr(path))
    )


def _gap(example: Any, count: int | None) -> Any:
    """Return what fills a missing place: like the example when stacking, else `count` rows like its rows."""
    if count is None:
        return tree.map(leaf.empty_value, example)
    return tree.map(lambda item: leaf.empty_rows(item, count), example)


# -- arithmetic --------------------------------------------------------------------------------------------------------


def combine(batch: Nested, other: Any, operation: Callable[[Any, Any], Any], sign: str, path: str = "") -> Any:
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


def overwrite(batch: Nested, result: Any) -> Any:
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


def _pairs(one: Nested, two: Nested, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, leaf, leaf) for two batches with the same keys."""
    for key, value in one.__dict__.items():
        if isinstance(value, one.__class__):
            yield from _pairs(value, two.__dict__[key], f"{path}{key}.")
        else:
            yield path + key, value, two.__dict__[key]


# -- conversion of values ----------------------------------------------------------------------------------------------


def mapping_of(data: Any, kind: type[Nested]) -> Mapping[str, Any]:
    """Return the keys and values of whatever a Batch may be built from."""
    if isinstance(data, kind):
        return data.__dict__
    if isinstance(data, Mapping) or _is_tensordict(data):
        return {key: value for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return dict(zip(data._fields, data))
    if isinstance(data, (list, tuple)) or (isinstance(data, np.ndarray) and data.dtype == object):
        return kind.stack(list(data)).__dict__ if len(data) else {}
    raise TypeError(f"a Batch is built from a mapping or a sequence of mappings, found {type(data).__name__}")


def _is_tensordict(value: Any) -> bool:
    return any(base.__name__ == "TensorDictBase" for base in type(value).__mro__)


def parse(value: Any, key: str, kind: type[Nested]) -> Any:
    """Turn a value into what a Batch stores: an array, a tensor, a Batch, None, or a single object."""
    if value is None or isinstance(value, kind) or leaf.is_tensor(value):
        return value
    if isinstance(value, np.ndarray):
        return _parse_array(value, key, kind)
    if isinstance(value, (bool, int, float, complex, np.number, np.bool_)):
        return np.asarray(value)
    if isinstance(value, Mapping) or _is_tensordict(value) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return kind(value)
    if isinstance(value, (list, tuple, range)):
        return _parse_sequence(list(value), key, kind)
    return value


def _parse_array(value: np.ndarray[Any, Any], key: str, kind: type[Nested]) -> Any:
    if value.dtype.kind in leaf.NUMERIC:
        return value
    if value.ndim == 0:
        return parse(value.item(), key, kind)
    if value.dtype.kind == "O" and value.size and all(isinstance(item, (Mapping, kind)) for item in value.flat):
        return kind.stack(list(value))
    return value if value.dtype.kind == "O" else value.astype(object)


def _parse_sequence(values: list[Any], key: str, kind: type[Nested]) -> Any:
    """Turn a list into one array, tensor or Batch; anything ragged is an error that shows the shapes."""
    tensors = sum(leaf.is_tensor(value) for value in values)
    mappings = sum(isinstance(value, (Mapping, kind)) for value in values)
    if mappings and mappings == len(values):
        return kind.stack(values)
    if mappings or (tensors and tensors != len(values)):
        kinds = sorted({type(value).__name__ for value in values})
        raise TypeError(f"{key!r} wants a list of one kind of value, found a mixture of {', '.join(kinds)}")
    if tensors:
        shapes = [tuple(value.shape) for value in values]
        if len(set(shapes)) > 1:
            raise TypeError(f"{key!r} wants tensors of one shape, found shapes {shapes[:8]}")
        return leaf.stacked(values, 0, repr(key))
    try:
        array = np.asarray(values)
    except ValueError:
        sizes = [leaf.shape_of(value) if leaf.is_array(value) else _size(value) for value in values]
        raise TypeError(f"{key!r} is ragged: wanted items of one shape, found sizes {sizes[:8]}") from None
    return array if array.dtype.kind in leaf.NUMERIC else array.astype(object)


def _size(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 1


# -- rows --------------------------------------------------------------------------------------------------------------


def write_rows(batch: Nested, loc: Any, value: Nested) -> None:
    """Set batch[loc] = value."""
    direct: list[tuple[Any, Any]] = []
    views: list[Any] = []
    sources: list[Any] = []
    basic = loc.__class__ is int or loc.__class__ is slice
    prefix = () if basic else _row_prefix(loc)
    if prefix is not None and plain_rows(batch, loc, value, prefix, basic, direct, views, sources):
        try:
            if views:
                sys.modules["torch"]._foreach_copy_(views, sources)
        except RuntimeError:
            plan_rows(batch, loc, value, "", [])  # raises with a message, for example for a tensor that requires grad
            raise
        if basic:
            for own, new in direct:
                own[loc] = new
            return
        if direct and _written_by_numpy(*direct[0], loc):
            del direct[0]
    else:
        direct = []
        plan_rows(batch, loc, value, "", direct)
    try:
        _scatter(direct, loc)
    except IndexError:
        plan_rows(batch, loc, value, "", [])  # raises the same error with the key in it
        raise


def _scatter(writes: list[tuple[Any, Any]], loc: Any) -> None:
    """Write under any index, which is brought into the form of arrays and of tensors at most once."""
    array_loc = loc if loc.__class__ is _ndarray else None
    places = (loc,) if leaf.is_tensor(loc) else None
    for own, new in writes:
        if own.__class__ is _ndarray:
            if array_loc is None:
                array_loc = leaf.index_for(own, loc)
            own[array_loc] = new
        elif places is None:
            leaf.write(own, leaf.index_for(own, loc), new)
        else:
            try:
                own.index_put_(places, new)
            except RuntimeError:  # the value lies in the same memory: nothing is written yet
                leaf.write(own, loc, new)


def _written_by_numpy(own: Any, new: Any, loc: Any) -> bool:
    """Write a tensor's rows as an array's, if that is possible: torch writes the rows before one that is not there."""
    if own.__class__ is _ndarray:
        return False
    try:
        own.numpy()[loc if loc.__class__ is _ndarray else loc.numpy()] = new.numpy()
    except (AttributeError, RuntimeError, TypeError):  # on a GPU, or without a counterpart in numpy
        return False
    return True


def _row_prefix(loc: Any) -> tuple[int, ...] | None:
    """Return the leading shape that an index array selects, or None when `plan_rows` should handle it."""
    if loc.__class__ is _ndarray:
        return loc.shape if loc.ndim and loc.dtype.kind in "iu" else None
    if leaf.is_tensor(loc) and loc.ndim and loc.dtype.itemsize > 1:  # neither a mask nor its old form as uint8
        return tuple(loc.shape)
    return None


def plain_rows(
    batch: Nested,
    loc: Any,
    value: Nested,
    prefix: tuple[int, ...],
    basic: bool,
    direct: list[tuple[Any, Any]],
    views: list[Any],
    sources: list[Any],
    rows: int = -1,
) -> bool:
    """Plan the common case; return False as soon as anything is not that plain.

    Tensors under a basic index are views already, to be copied in one call. Under an index array all leaves must have
    the same number of rows: then the first write fails if any would.
    """
    kind = batch.__class__
    store, given = batch.__dict__, value.__dict__
    if list(store) != list(given):
        return False
    known: Any = None
    target: Any = None
    try:
        for own, new in zip(store.values(), given.values()):
            own_kind = own.__class__
            if own_kind is _ndarray or (not basic and own_kind is not kind):
                shape = own.shape
                if shape != known:
                    if not basic and rows not in (-1, shape[0]):
                        return False
                    known, rows = shape, shape[0]
                    target = own[loc].shape if basic else (*prefix, *shape[1:])
                if new.shape != target or own.dtype is not new.dtype:
                    return False
                # an expanded tensor is not contiguous; writing one of its rows would change them all
                if not own.flags.writeable if own_kind is _ndarray else own.requires_grad or not own.is_contiguous():
                    return False
                direct.append((own, new))
            elif own_kind is kind:
                if new.__class__ is not kind:
                    return False
                if not plain_rows(own, loc, new, prefix, basic, direct, views, sources, rows):
                    return False
            else:
                view = own[loc]
                if view.dtype is not new.dtype or not view.is_same_size(new):
                    return False
                if not own.is_contiguous():  # expanded, perhaps: writing one row would change them all
                    return False
                views.append(view)
                sources.append(new)
    except (AttributeError, IndexError, TypeError, ValueError):
        return False
    return True


def plan_rows(batch: Nested, loc: Any, value: Nested, path: str, writes: list[tuple[Any, Any]]) -> None:
    """Plan any row write, or raise an error that names the key."""
    kind = batch.__class__
    store, given = batch.__dict__, value.__dict__
    for key in given:
        if key not in store:
            raise KeyError(f"{missing_key(batch, key)} A row assignment cannot add keys.")
    for key, own in store.items():
        new = given.get(key, MISSING)
        if own.__class__ is kind:
            if new is not MISSING and new.__class__ is not kind:
                raise ValueError(f"{path + key!r} is a Batch; wanted a mapping there, found {type(new).__name__}")
            plan_rows(own, loc, from_store(kind, {}) if new is MISSING else new, f"{path}{key}.", writes)
        elif own is not None or not (new is None or is_gap(new, kind)):
            target = leaf.selected_shape(own, loc, repr(path + key))
            if new is None and leaf.is_numeric(own):
                raise TypeError(
                    f"{path + key!r} holds {own.dtype} and cannot hold None; leave the key out to write 0 there"
                )
            if is_gap(new, kind):
                new = np.zeros((), np.bool_) if leaf.is_numeric(own) else None
            writes.append((own, leaf.checked(new, target, own, repr(path + key))))
