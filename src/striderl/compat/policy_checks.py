"""What a user's policy may return: checked where it comes in, with errors that name the method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.data import leaf, tree
from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec, PlainActionSpec
from striderl.data.batch import Batch
from striderl.data.specs import torch_dtype


def checked_batch(value: object, who: str) -> Batch:
    """Return a Batch, or say that it is not one."""
    if not isinstance(value, Batch):
        raise TypeError(f"{who} must return a Batch, found {type(value).__name__}")
    return value


def checked_numbers(value: object, who: str) -> dict[str, Any]:
    """Return floats, or lists of them, by name; 0-d tensors are read."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{who} must return a dict of numbers by name, found {type(value).__name__}")
    return {str(name): _number(each, f"{who}: {name!r}") for name, each in value.items()}


def _number(value: Any, who: str) -> float | list[float]:
    if isinstance(value, (list, tuple)):
        return [float(each) for each in value]
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{who} must be a number or a list of numbers, found {value!r}") from error


def checked_forward(result: object, num_rows: int, who: str) -> Batch:
    """Return what `forward` gave: a Batch with `act`, and a row for each observation in all that is kept."""
    batch = checked_batch(result, who)
    if "act" not in batch:
        raise KeyError(f"{who} must return a Batch with 'act'; found {list(batch.keys())}")
    for key in ("act", "state", "policy"):
        if batch.get(key) is None:
            continue
        if key == "policy" and not isinstance(batch.policy, Batch):
            raise TypeError(f"{who}: 'policy' must be a Batch of what is stored, found {type(batch.policy).__name__}")
        for path, value in tree.items(batch[key]):
            name = "/".join(part for part in (key, path) if part)
            if value is None:
                continue
            if not leaf.is_numeric(value):
                raise TypeError(f"{who}: {name!r} must be an array or a tensor, found {type(value).__name__}")
            if tuple(value.shape[:1]) != (num_rows,):
                raise ValueError(
                    f"{who}: {name!r} wants one row for each of {num_rows} observations, found {list(value.shape)}"
                )
    return batch


def as_actions(act: Any, spec: ActionSpec, num_rows: int, device: torch.device, who: str) -> Any:
    """Return actions as the env takes them, or say what is wrong with them."""
    if isinstance(spec, DictActionSpec):
        parts = dict(act.items()) if isinstance(act, (Batch, Mapping)) else {}
        if parts.keys() != spec.parts.keys():
            raise ValueError(f"{who}: 'act' wants the parts {sorted(spec.parts)}, found {sorted(parts)}")
        return {
            name: _plain_actions(parts[name], part, num_rows, device, f"{who}: 'act/{name}'")
            for name, part in spec.parts.items()
        }
    return _plain_actions(act, spec, num_rows, device, f"{who}: 'act'")


def _plain_actions(act: Any, spec: PlainActionSpec, num_rows: int, device: torch.device, who: str) -> Tensor:
    actions = torch.as_tensor(act, device=device).detach()
    wanted = (num_rows, *spec.tensor.shape)
    if tuple(actions.shape) != wanted:
        raise ValueError(f"{who} wants shape {list(wanted)}, found {list(actions.shape)}")
    if not isinstance(spec, BoxSpec):
        if actions.is_floating_point() or actions.dtype is torch.bool:
            raise TypeError(f"{who} wants whole numbers, found {actions.dtype}")
        limit = np.asarray(spec.n if isinstance(spec, DiscreteSpec) else spec.nvec)
        if actions.device.type == "cpu" and bool(((actions < 0) | (actions >= torch.as_tensor(limit))).any()):
            raise ValueError(f"{who} wants choices from 0 to {(limit - 1).tolist()}, found {actions.tolist()}")
    assert isinstance(spec, (BoxSpec, DiscreteSpec, MultiDiscreteSpec))
    return actions.to(torch_dtype(spec.tensor.dtype))
