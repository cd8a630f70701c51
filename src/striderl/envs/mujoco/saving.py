"""Named arrays to tensors and back, with an error that says which names do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

Arrays = dict[str, NDArray[Any]]


def saved(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Return copies of the arrays as tensors."""
    return {name: torch.from_numpy(value.copy()) for name, value in arrays.items()}


def check_names(here: Mapping[str, Any], found: Mapping[str, Any], *, where: str) -> None:
    """Raise ValueError unless a saved state has the same names as this object."""
    if set(here) != set(found):
        raise ValueError(f"{where}: the saved state has {sorted(found)}, this env has {sorted(here)}")


def load_arrays(arrays: Arrays, found: Mapping[str, Tensor], *, where: str) -> None:
    """Write saved tensors into the arrays, in place."""
    check_names(arrays, found, where=where)
    for name, value in found.items():
        if tuple(value.shape) != arrays[name].shape:
            shapes = f"{list(value.shape)}, this env {list(arrays[name].shape)}"
            raise ValueError(f"{where}: the saved state has {name!r} of shape {shapes}")
        arrays[name][...] = value.cpu().numpy()
