"""Functions over nested data of any container type.

`Batch`, namedarraytuple, dict, tuple, list and TensorDict are containers; arrays, tensors and other objects are leaves;
`None` is an empty place that every function leaves alone. Functions return the kinds of containers they were given,
keys keep their order, and errors name the leaf by its path ("obs/joints").

    {"obs": Batch(joints=[N, 12]), "done": [N]}      map(f)      {"obs": Batch(joints=f([N, 12])), "done": f([N])}
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from striderl.data import leaf as leaves_


class StructureError(ValueError):
    """Two structures that should have the same containers and keys do not; the message names the path."""


class Container(NamedTuple):
    """How one type of container is taken apart and put together again."""

    items: Callable[[Any], list[tuple[str, Any]]]
    """The children with their names, in order."""
    rebuild: Callable[[Any, list[Any]], Any]
    """A container like the given one with other children."""


_containers: dict[type, Container | None] = {}


def register(kind: type, container: Container) -> None:
    """Register a container type for the tree functions."""
    _containers[kind] = container


def container_of(node: object) -> Container | None:
    """Return how to walk a node, or None for a leaf; cached per type."""
    kind = type(node)
    try:
        return _containers[kind]
    except KeyError:
        found = _containers[kind] = _recognise(kind)
        return found


def _recognise(kind: type) -> Container | None:
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return Container(lambda node: list(zip(node._fields, node)), lambda node, values: node._make(values))
    if issubclass(kind, (tuple, list)):
        return Container(
            lambda node: [(str(position), value) for position, value in enumerate(node)],
            lambda node, values: type(node)(values),
        )
    if any(base.__name__ == "TensorDictBase" for base in kind.__mro__):
        return Container(lambda node: list(node.items()), _rebuild_tensordict)
    if issubclass(kind, Mapping):
        make = OrderedDict if issubclass(kind, OrderedDict) else dict
        return Container(lambda node: list(node.items()), lambda node, values: make(zip(node.keys(), values)))
    return None


def _rebuild_tensordict(node: Any, values: list[Any]) -> Any:
    """Make a TensorDict with as many batch dimensions as before, fewer where the new leaves no longer share them."""
    if not all(leaves_.is_array(value) or container_of(value) is not None for value in values):
        return dict(zip(node.keys(), values))  # a TensorDict holds tensors only
    shapes = [tuple(value.shape) for value in values]
    shared = 0
    while shared < len(node.batch_size) and all(len(shape) > shared for shape in shapes):
        if len({shape[shared] for shape in shapes}) > 1:
            break
        shared += 1
    batch_size = list(shapes[0][:shared]) if shapes else list(node.batch_size)
    return type(node)(dict(zip(node.keys(), values)), batch_size=batch_size)


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def items(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf) for every leaf, depth first; None is skipped."""
    return ((place, values[0]) for place, values in zipped(tree, path=path))


def zipped(tree: Any, *others: Any, path: str = "") -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield (path, (leaf, other leaves …)) for the leaves of trees with the same keys, depth first; None is skipped."""
    container = container_of(tree)
    if container is not None:
        children = container.items(tree)
        rest = [_matching(children, other, path) for other in others]
        for position, (name, child) in enumerate(children):
            yield from zipped(child, *(values[position] for values in rest), path=_join(path, name))
    elif tree is None:
        _require_none(others, path)
    else:
        yield path, (tree, *others)


def leaves(tree: Any) -> list[Any]:
    """Return every leaf, depth first."""
    return [leaf for _, leaf in items(tree)]


def map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to every leaf, together with the leaves at the same place in the other trees."""
    return map_with_path(lambda _, *values: function(*values), tree, *others)


def map_with_path(function: Callable[..., Any], tree: Any, *others: Any, path: str = "") -> Any:
    """Apply function(path, leaf, *other leaves) to every leaf."""
    container = container_of(tree)
    if container is None:
        if tree is None:
            _require_none(others, path)
            return None
        return function(path, tree, *others)
    children = container.items(tree)
    rest = [_matching(children, other, path) for other in others]
    return container.rebuild(
        tree,
        [
            map_with_path(function, child, *(values[position] for values in rest), path=_join(path, name))
            for position, (name, child) in enumerate(children)
        ],
    )


def _require_none(others: Sequence[Any], path: str) -> None:
    for other in others:
        if other is not None:
            raise StructureError(f"{path or 'the top'} is None on one side and {type(other).__name__} on the other")


def _matching(children: list[tuple[str, Any]], other: Any, path: str) -> list[Any]:
    """Return the other tree's children in the order of ours; names must be the same, order need not."""
    place = path or "the top"
    container = container_of(other)
    names = [name for name, _ in children]
    if container is None:
        raise StructureError(f"{place} has parts {names} on one side and is a {type(other).__name__} on the other")
    found = dict(container.items(other))
    if found.keys() != set(names):
        missing = [name for name in names if name not in found]
        extra = [name for name in found if name not in names]
        raise StructureError(f"{place}: the two sides differ; missing {missing}, unexpected {extra}")
    return [found[name] for name in names]


def index(tree: Any, loc: Any) -> Any:
    """Index every leaf: a view for basic slices, a copy for index arrays and masks, as the leaves themselves do."""
    loc = leaves_.plain_index(loc)
    return map_with_path(lambda path, leaf: leaves_.indexed(leaf, loc, path or "the leaf"), tree)


def assign(tree: Any, loc: Any, value: Any) -> None:
    """Write value into tree[loc], leaf by leaf; when any part does not fit, an error is raised and nothing is changed.

    The value is a structure with the same keys, or a number or array that is written to every leaf.
    """
    loc = leaves_.plain_index(loc)
    if container_of(value) is None:
        pairs = [(path, leaf, value) for path, leaf in items(tree)]
    else:
        pairs = [(path, leaf, new) for path, (leaf, new) in zipped(tree, value)]
    writes = []
    for path, leaf, new in pairs:
        where = path or "the leaf"
        target = leaves_.selected_shape(leaf, loc, where)
        if new is None and leaves_.is_numeric(leaf):
            raise TypeError(f"{where} holds {leaf.dtype}; None cannot be written there")
        writes.append((leaf, leaves_.checked(new, target, leaf, where)))
    for leaf, new in writes:
        leaves_.write(leaf, leaves_.index_for(leaf, loc), new)


def stack(trees: Sequence[Any], axis: int = 0) -> Any:
    """Join structures with the same keys along a new axis."""
    return _merge(trees, lambda path, values: leaves_.stacked(values, axis, path or "the leaf"))


def cat(trees: Sequence[Any], axis: int = 0) -> Any:
    """Join structures with the same keys along an existing axis."""
    return _merge(trees, lambda path, values: leaves_.concatenated(values, axis, path or "the leaf"))


def _merge(trees: Sequence[Any], join: Callable[[str, list[Any]], Any]) -> Any:
    trees = list(trees)
    if not trees:
        raise ValueError("joining needs at least one structure, found none")
    return map_with_path(lambda path, *values: join(path, list(values)), trees[0], *trees[1:])


def leading_dims(tree: Any, num_dims: int = 1) -> tuple[int, ...]:
    """Return the first dimensions, which all leaves must share."""
    found: tuple[int, ...] | None = None
    first = ""
    for path, leaf in items(tree):
        shape = leaves_.shape_of(leaf)[:num_dims]
        if len(shape) < num_dims:
            raise ValueError(f"{path or 'the leaf'} has shape {shape}; wanted at least {num_dims} leading dimensions")
        if found is None:
            found, first = shape, path
        elif shape != found:
            raise ValueError(f"leading dimensions differ: {first!r} has {found}, {path!r} has {shape}")
    if found is None:
        raise ValueError("a structure without leaves has no leading dimensions")
    return found


def to_torch(tree: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Turn every array of numbers into a tensor; memory is shared where nothing has to be converted."""
    return map(lambda leaf: leaves_.to_tensor(leaf, dtype=dtype, device=device), tree)


def to_numpy(tree: Any) -> Any:
    """Turn every tensor into a numpy array; memory is shared where nothing has to be converted."""
    return map(leaves_.to_array, tree)


def to(tree: Any, device: Any = None, dtype: Any = None) -> Any:
    """Move every tensor to a device and dtype; arrays and objects stay as they are."""
    return map(lambda leaf: leaf.to(device=device, dtype=dtype) if leaves_.is_tensor(leaf) else leaf, tree)


def copy(tree: Any) -> Any:
    """Return the same structure with memory of its own."""
    return map(leaves_.copied, tree)


def equal(one: Any, other: Any) -> bool:
    """Return whether two structures have the same keys and exactly the same values; NaN equals NaN."""
    try:
        return (one is None) == (other is None) and all(_equal_leaf(*pair) for _, pair in zipped(one, other))
    except StructureError:
        return False


def _equal_leaf(one: Any, other: Any) -> bool:
    if container_of(other) is not None or leaves_.is_array(one) != leaves_.is_array(other):
        return False
    if not leaves_.is_array(one):
        return bool(one == other)
    left, right = np.asarray(leaves_.to_array(one)), np.asarray(leaves_.to_array(other))
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return bool(np.array_equal(left, right, equal_nan=left.dtype.kind in "fc"))
