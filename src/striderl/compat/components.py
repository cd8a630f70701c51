"""Observations of a user's batch as the named components of our policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.data import tree
from striderl.data.batch import Batch
from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec, torch_dtype


def components(obs: Any, spec: ObsSpec, device: torch.device, *, dims: int = 1) -> dict[str, Tensor]:
    """Return name → tensor [B, …] (`dims` leading dimensions) in the dtypes of the spec, or say what does not fit.

    `obs` is one array where there is one component, or nested arrays by name: a Batch, a dict or a named tuple.
    """
    given: dict[str, Any] = dict(tree.items(dict(obs.items()) if isinstance(obs, Batch) else obs))
    if list(given) == [""]:
        if len(spec) != 1:
            raise ValueError(f"the observation has the components {list(spec)}; give them by name, found one array")
        given = {next(iter(spec)): given[""]}
    found: dict[str, Tensor] = {}
    for name, part in spec.items():
        if name not in given:
            raise KeyError(unknown("component", name, given, where="the observation"))
        value = torch.as_tensor(given[name], device=device, dtype=torch_dtype(part.dtype))
        if tuple(value.shape[dims:]) != part.shape or value.dim() != dims + len(part.shape):
            leading = ["B"] if dims == 1 else ["T", "B"]
            raise ValueError(
                f"observation {name!r} wants shape [{', '.join([*leading, *map(str, part.shape)])}], "
                f"found {list(value.shape)}"
            )
        found[name] = value
    return found


def detached(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tensors without their gradients."""
    copied: dict[str, Any] = tree.map(lambda value: value.detach(), dict(nested))
    return copied
