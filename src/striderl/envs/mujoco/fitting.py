"""What a task observes, brought to the shapes and dtypes that it has declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec
from striderl.envs.mujoco.saving import Arrays


def fitted(found: Mapping[str, NDArray[Any]], spec: ObsSpec, count: int, *, where: str) -> Arrays:
    """Return new arrays [count, …] of every component, or raise for one that is missing or has another shape."""
    result: Arrays = {}
    for name, component in spec.items():
        if name not in found:
            raise KeyError(unknown("component", name, found, where=where))
        value = np.array(found[name], component.dtype)
        if value.shape != (count, *component.shape):
            raise ValueError(f"{where}: {name!r} wants {[count, *component.shape]}, found {list(value.shape)}")
        result[name] = value
    return result
