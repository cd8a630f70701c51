"""Operations on one leaf of a nested structure: a numpy array, a torch tensor, or any other object.

Torch is never imported here unless a tensor is to be made: before it is imported, no value can be a tensor.
That keeps the data layer usable in environment workers, which must start in a tenth of a second.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

NUMERIC = "biufc"
"""The numpy dtype kinds that are numbers: bool, int, unsigned, float, complex."""


def is_tensor(value: object) -> bool:
    """Return whether a value is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: object) -> bool:
    """Return whether a value is a numpy array, a numpy number or a torch tensor."""
    return isinstance(value, (np.ndarray, np.generic)) or is_tensor(value)


def is_numeric(value: Any) -> bool:
    """Return whether a value is an array or tensor of numbers."""
    return is_tensor(value) or (isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in NUMERIC)


def to_tensor(value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor that shares memory with the array where it can; anything that is not numeric stays as it is."""
    if not is_numeric(value):
        return value
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(device=device, dtype=dtype)
    array = np.asarray(value)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch supports neither read-only memory nor negative strides
    return torch.from_numpy(array).to(device=device, dtype=dtype)


def to_array(value: Any) -> Any:
    """Return a numpy array that shares memory with a CPU tensor; anything else stays as it is."""
    if not is_tensor(value):
        return value
    tensor = value.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":  # numpy has no such dtype; float32 holds every value exactly
        tensor = tensor.float()
    return tensor.numpy()


def like(value: Any, other: Any) -> Any:
    """Return value as the same kind of array as other, so that the two can be combined."""
    if is_tensor(other) and not is_tensor(value):
        return to_tensor(np.asarray(value), device=other.device)
    if not is_tensor(other) and is_tensor(value):
        return to_array(value)
    return value


def copied(value: Any) -> Any:
    """Return a leaf with memory of its own."""
    if is_tensor(value):
        return value.clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def empty_value(value: Any) -> Any:
    """Return what stands for "nothing here": zeros for numbers, None for objects."""
    if is_tensor(value):
        return value.new_zeros(value.shape)
    if isinstance(value, (np.ndarray, np.generic)):
        return np.zeros_like(value) if value.dtype.kind in NUMERIC else np.full(value.shape, None, dtype=object)
    return None


def empty_rows(value: Any, count: int) -> Any:
    """Return `count` rows of zeros, or of None for objects, in the form of this array's rows."""
    shape = (count, *value.shape[1:])
    if is_tensor(value):
        return value.new_zeros(shape)
    return np.zeros(shape, value.dtype) if value.dtype.kind in NUMERIC else np.full(shape, None, dtype=object)


def emptied(value: Any, index: Any, where: str) -> Any:
    """Write zeros, or None for objects, over these rows of a leaf in place (None: all) and return it.

    A number or an object by itself has no place to write to; its empty value is returned.
    """
    if not (isinstance(value, np.ndarray) or is_tensor(value)):
        return value.dtype.type(0) if isinstance(value, np.generic) else None
    loc = ... if index is None else plain_index(index)
    nothing = 0 if is_numeric(value) else None
    target = selected_shape(value, loc, where)
    write(value, index_for(value, loc), checked(np.zeros((), np.bool_) if nothing == 0 else None, target, value, where))
    return value


def shape_of(value: Any) -> tuple[int, ...]:
    """Return a leaf's shape; everything that is no array has shape ()."""
    return tuple(value.shape) if is_array(value) else ()


def plain_index(loc: Any) -> Any:
    """Return an index in which lists are arrays: torch would take some lists for tuples."""
    if isinstance(loc, list):
        return np.asarray(loc, dtype=None if loc else np.intp)
    return tuple(plain_index(part) for part in loc) if isinstance(loc, tuple) else loc


def index_for(value: Any, loc: Any) -> Any:
    """Return the index in the form this kind of leaf takes.

    Numpy takes a tensor of one element for an integer and drops a dimension; torch has neither negative steps nor
    negative strides.
    """
    if not is_tensor(value):
        return tuple(to_array(part) for part in loc) if isinstance(loc, tuple) else to_array(loc)
    if isinstance(loc, slice) and loc.step is not None and loc.step < 0:
        loc = np.arange(value.shape[0])[loc]
    return np.ascontiguousarray(loc) if isinstance(loc, np.ndarray) else loc


def indexed(value: Any, loc: Any, where: str) -> Any:
    """Return value[loc], or raise IndexError that names the place, the shape and the index."""
    if not isinstance(value, np.ndarray) and not is_tensor(value):
        raise IndexError(
            f"{where} is a single {type(value).__name__} ({_short(value)}) and cannot be indexed by {loc!r}"
        )
    try:
        return value[index_for(value, loc)]
    except (IndexError, TypeError, ValueError) as error:
        raise IndexError(
            f"{where} has shape {tuple(value.shape)} and cannot be indexed by {_short(loc)}: {error}"
        ) from None


def selected_shape(value: Any, loc: Any, where: str) -> tuple[int, ...]:
    """Return the shape of value[loc], or raise IndexError; an index array is tried on a stand-in that holds no data."""
    if isinstance(loc, list):
        loc = np.asarray(loc)
    if is_array(loc) and loc.ndim and is_array(value):
        num_dims = loc.ndim if str(loc.dtype).endswith("bool") else 1
        stand_in = np.empty(tuple(value.shape[:num_dims]), np.bool_)
        return tuple(indexed(stand_in, to_array(loc), where).shape) + tuple(value.shape[num_dims:])
    return shape_of(indexed(value, loc, where))


def checked(value: Any, target: tuple[int, ...], leaf: Any, where: str) -> Any:
    """Return value ready to be written over a part of leaf that has the target shape, or raise with nothing changed.

    Numbers must fit: the shape must broadcast, and the leaf's dtype must hold the values. Writing 0.7 into integers is
    refused rather than stored as 0; writing 1 into booleans is fine because nothing is lost.
    """
    _check_writable(leaf, where)
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "O":
        return value
    if not is_array(value):
        value = np.asarray(value)
    value = like(value, leaf)
    if not is_numeric(value) or not _holds(leaf, value):
        found = getattr(value, "dtype", type(value).__name__)
        raise TypeError(f"{where} holds {leaf.dtype} and cannot hold {found} {_short(value)} without changing it")
    if is_tensor(leaf):
        value = value.to(leaf.dtype)
    shape = tuple(value.shape)
    while len(shape) > len(target) and shape[0] == 1:
        shape = shape[1:]
    tail = target[len(target) - len(shape) :]
    if len(shape) > len(target) or not all(size in (1, wanted) for size, wanted in zip(shape, tail)):
        raise ValueError(f"{where} wants shape {target} there, found {tuple(value.shape)}")
    return value.reshape(shape)


def _check_writable(leaf: Any, where: str) -> None:
    """Raise unless values can be written into the leaf, each to a place of its own."""
    if isinstance(leaf, np.ndarray):
        if not leaf.flags.writeable:
            raise ValueError(f"{where} is read-only")
        return
    torch = sys.modules["torch"]
    if leaf.requires_grad and leaf.is_leaf and torch.is_grad_enabled():
        raise ValueError(f"{where} requires a gradient; write under torch.no_grad(), or detach it first")
    if leaf.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(f"{where} is an inference tensor; clone it first")
    if any(stride == 0 and size > 1 for stride, size in zip(leaf.stride(), leaf.shape)):
        raise ValueError(f"{where} is an expanded tensor, several rows of which are one; clone it first")


def write(leaf: Any, loc: Any, value: Any) -> None:
    """Set leaf[loc] = value for a value that was checked."""
    try:
        if is_tensor(loc) and is_tensor(value):
            leaf.index_put_((loc,), value)  # what leaf[loc] = value does in the end, without its type dispatch
        else:
            leaf[loc] = value
    except RuntimeError:  # torch does not scatter a tensor over its own memory; nothing is written yet
        leaf[loc] = copied(value)


def _holds(leaf: Any, value: Any) -> bool:
    """Return whether the leaf's dtype can hold the values: floats round, but integers must come back equal."""
    if value.dtype == leaf.dtype:
        return True
    if is_tensor(leaf):
        if leaf.is_complex() or (leaf.is_floating_point() and not value.is_complex()):
            return True
        return bool((value.to(leaf.dtype).to(value.dtype) == value).all())
    if leaf.dtype.kind == "c" or (leaf.dtype.kind == "f" and value.dtype.kind != "c"):
        return True
    with np.errstate(invalid="ignore"):
        return bool(np.array_equal(value.astype(leaf.dtype), value))


def stacked(values: Sequence[Any], axis: int, where: str) -> Any:
    """Stack leaves along a new axis; tensors stay tensors, objects become an object array."""
    return _joined(values, axis, where, "stack")


def concatenated(values: Sequence[Any], axis: int, where: str) -> Any:
    """Join leaves along an existing axis."""
    return _joined(values, axis, where, "cat")


def _joined(values: Sequence[Any], axis: int, where: str, how: str) -> Any:
    try:
        tensor = next((value for value in values if is_tensor(value)), None)
        if tensor is not None:
            import torch

            if any(value.__class__ is not tensor.__class__ for value in values):
                values = [like(value if is_array(value) else np.asarray(value), tensor) for value in values]
            return torch.stack(tuple(values), axis) if how == "stack" else torch.cat(tuple(values), axis)
        arrays = [value if isinstance(value, np.ndarray) else object_or_number(value) for value in values]
        if any(array.dtype.kind == "O" for array in arrays):
            arrays = [array.astype(object) for array in arrays]
        return np.stack(arrays, axis) if how == "stack" else np.concatenate(arrays, axis)
    except (ValueError, RuntimeError, IndexError, TypeError) as error:
        shapes = ", ".join(f"{type(value).__name__} {shape_of(value)}" for value in values[:8])
        raise ValueError(f"{where} cannot be joined ({how}, axis {axis}), shapes are {shapes}: {error}") from None


def object_or_number(value: Any) -> np.ndarray[Any, Any]:
    """Return a 0-d array: of the number, or of dtype object around anything else."""
    if isinstance(value, (bool, int, float, complex, np.generic)):
        return np.asarray(value)
    array = np.empty((), dtype=object)
    array[()] = value
    return array


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
