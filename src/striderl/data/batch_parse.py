"""Values on their way into a `Batch`: lists become arrays, mappings become batches, anything ragged is refused.

`kind` is the class `Batch` itself, handed in so that the class can be read on its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from striderl.data import leaf

if TYPE_CHECKING:
    from striderl.data.batch import Batch


def mapping_of(data: Any, kind: type[Batch]) -> Mapping[str, Any]:
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


def parse(value: Any, key: str, kind: type[Batch]) -> Any:
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


def _parse_array(value: np.ndarray[Any, Any], key: str, kind: type[Batch]) -> Any:
    if value.dtype.kind in leaf.NUMERIC:
        return value
    if value.ndim == 0:
        return parse(value.item(), key, kind)
    if value.dtype.kind == "O" and value.size and all(isinstance(item, (Mapping, kind)) for item in value.flat):
        return kind.stack(list(value))
    return value if value.dtype.kind == "O" else value.astype(object)


def _parse_sequence(values: list[Any], key: str, kind: type[Batch]) -> Any:
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
        sizes = [leaf.shape_of(value) or (len(value) if hasattr(value, "__len__") else 1) for value in values]
        raise TypeError(f"{key!r} is ragged: wanted items of one shape, found sizes {sizes[:8]}") from None
    return array if array.dtype.kind in leaf.NUMERIC else array.astype(object)
