"""Memory for nested samples, allocated from one example and converted as a whole.

    example = Step(obs=zeros(4), reward=0.5, info=None)         a namedtuple, a namedarraytuple, a dict, or one array

    buffer = buffer_from_example(example, (T, B))               Step(obs=[T, B, 4], reward=[T, B], info=None), all zeros
    buffer[t] = step                                            one row of every field
    buffer_torch = torchify_buffer(buffer)                      the same memory as tensors

Every function keeps the structure it is given and leaves None alone. With `share_memory=True` all leaves lie in one
block that worker processes see, whether they are forked or spawned; pass a worker the numpy buffer, or its own part
(`buffer[:, 2:4]`), and let it call `torchify_buffer` there: torch would move tensors elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from striderl.data import leaf, tree
from striderl.data.memory import SharedArray, SharedBlock
from striderl.data.named_tuples import is_namedarraytuple, is_namedtuple, namedarraytuple_like
from striderl.data.specs import as_shape

_ALIGNMENT = 64
"""Leaves in shared memory start at multiples of this many bytes, a cache line, so no two processes share a line."""


@dataclass(frozen=True, kw_only=True)
class _Planned:
    """One array that is to be allocated."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def buffer_from_example(example: Any, leading_dims: int | Sequence[int], share_memory: bool = False) -> Any:
    """Return zeros in the structure of the example, with leading dimensions put before the shape of every leaf.

    A namedtuple becomes a namedarraytuple of the same name and fields, so that the buffer can be indexed. A leaf has
    the shape and dtype that `np.asarray` gives it: lists and plain tuples are leaves, None stays None. A TensorDict
    becomes a dict.
    """
    plan = _planned(example, as_shape(leading_dims), type(example).__name__)
    if not share_memory:
        return tree.map(lambda planned: np.zeros(planned.shape, planned.dtype), plan)
    block = SharedBlock(sum(_aligned(planned.num_bytes) for planned in tree.leaves(plan)))
    offset = 0

    def place(planned: _Planned) -> SharedArray:
        nonlocal offset
        array = block.array(planned.shape, planned.dtype, offset).view(SharedArray)
        offset += _aligned(planned.num_bytes)
        return array

    return tree.map(place, plan)


def _aligned(num_bytes: int) -> int:
    return math.ceil(num_bytes / _ALIGNMENT) * _ALIGNMENT


def _planned(example: Any, lead: tuple[int, ...], where: str) -> Any:
    """Return the structure of the buffer with a plan for each leaf."""
    if example is None:
        return None
    container = tree.container_of(example)
    if container is None or type(example) in (tuple, list):
        return _planned_leaf(example, lead, where)
    named = {name: _planned(child, lead, f"{where}.{name}") for name, child in container.items(example)}
    if is_namedtuple(example) or is_namedarraytuple(example):
        return namedarraytuple_like(example)._make(named.values())
    if any(base.__name__ == "TensorDictBase" for base in type(example).__mro__):
        return named  # a TensorDict holds tensors only
    return container.rebuild(example, list(named.values()))


def _planned_leaf(example: Any, lead: tuple[int, ...], where: str) -> _Planned:
    try:
        array = np.asarray(leaf.to_array(example))
    except ValueError as error:
        raise ValueError(
            f"{where}: an example is one array, found a ragged {type(example).__name__}: {error}"
        ) from None
    if array.dtype.kind not in leaf.NUMERIC:
        raise TypeError(f"{where}: a buffer holds numbers, found {type(example).__name__} ({array.dtype})")
    return _Planned(shape=lead + array.shape, dtype=array.dtype)


def torchify_buffer(buffer: Any) -> Any:
    """Return the buffer with tensors in place of arrays, over the same memory; tensors stay as they are."""
    return _map(_shared_tensor, buffer)


def _shared_tensor(where: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return leaf.to_tensor(value)
    import torch

    if not value.flags.writeable:
        raise ValueError(f"{where} is read-only, which a tensor over the same memory cannot be; copy it first")
    try:
        return torch.from_numpy(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}: no tensor can share the memory of this array: {error}") from None


def numpify_buffer(buffer: Any) -> Any:
    """Return the buffer with arrays in place of tensors; a CPU tensor shares its memory, another is copied."""
    return tree.to_numpy(buffer)


def buffer_to(buffer: Any, device: Any = None) -> Any:
    """Return the buffer with every tensor on a device, None for the one it is on; an array is an error, it has none."""

    def moved(where: str, value: Any) -> Any:
        if not leaf.is_tensor(value):
            raise TypeError(
                f"{where} is a {type(value).__name__}; only tensors can move to {device}: use torchify_buffer first"
            )
        return value.to(device)

    return _map(moved, buffer)


def buffer_method(buffer: Any, method_name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of every leaf, as in `buffer_method(buffer, "transpose", 0, 1)`, and return the results."""

    def called(where: str, value: Any) -> Any:
        method = getattr(value, method_name, None)
        if not callable(method):
            raise AttributeError(f"{where} is a {type(value).__name__}, which has no method {method_name!r}")
        return method(*args, **kwargs)

    return _map(called, buffer)


def buffer_func(buffer: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call func(leaf, *args) for every leaf and return the results."""
    return tree.map(lambda value: func(value, *args, **kwargs), buffer)


def get_leading_dims(buffer: Any, n_dim: int = 1) -> tuple[int, ...]:
    """Return the first n_dim dimensions, which all leaves must share; None has none and is passed over."""
    try:
        return tree.leading_dims(buffer, n_dim)
    except ValueError as error:
        raise ValueError(f"{type(buffer).__name__}: {error}") from None


def _map(function: Callable[[str, Any], Any], buffer: Any) -> Any:
    """Apply function(name, leaf) to every leaf, where the name begins with the type of the buffer."""
    return tree.map_with_path(
        lambda path, value: function(path.replace("/", "."), value), buffer, path=type(buffer).__name__
    )
