"""The refusals that all built-in envs share: no episode yet, closed, wrong shapes, another task's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def not_ready(who: object, *, closed: bool) -> RuntimeError:
    """Return the error for a call that needs an episode when there is none, or when the env is closed."""
    if closed:
        return RuntimeError(f"this {type(who).__name__} is closed; build a new one")
    return RuntimeError(f"{type(who).__name__} has no episode yet; call reset() first")


def require_open(who: object, *, closed: bool) -> None:
    """Raise if the env is closed."""
    if closed:
        raise not_ready(who, closed=True)


def check_env_index(env_index: int, num_envs: int) -> None:
    """Raise unless there is an env of this index."""
    if not 0 <= env_index < num_envs:
        raise IndexError(f"render: env_index {env_index} is not in 0 to {num_envs - 1}")


def check_mask(mask: Tensor, num_envs: int) -> None:
    """Raise unless a mask says of every env whether to reset it."""
    if tuple(mask.shape) != (num_envs,) or mask.dtype != torch.bool:
        raise ValueError(f"reset_envs wants a bool mask [{num_envs}], found {mask.dtype} {list(mask.shape)}")


def check_ages(ages: Tensor, num_envs: int) -> None:
    """Raise unless there is an episode's length for every env."""
    if tuple(ages.shape) != (num_envs,):
        raise ValueError(f"episode_length_buf wants [{num_envs}] numbers, found {list(ages.shape)}")


def action_array(who: object, actions: object, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a tensor of actions as an array, or raise unless it is one of this shape."""
    if not isinstance(actions, Tensor):
        raise TypeError(f"{type(who).__name__} wants a tensor of actions, found {type(actions).__name__}")
    chosen = actions.detach() if actions.requires_grad else actions
    array: NDArray[Any] = chosen.numpy() if chosen.is_cpu else chosen.cpu().numpy()
    if array.shape != shape:
        raise ValueError(f"{type(who).__name__} wants actions {list(shape)}, found {list(array.shape)}")
    return array


def check_saved_task(state: Mapping[str, Any], task: str) -> None:
    """Raise unless a state was saved from this task."""
    if "task" not in state:
        raise ValueError(f"the state to load into {task!r} does not say which task it was saved from")
    if state["task"] != task:
        raise ValueError(f"the state was saved from task {state['task']!r} and cannot be loaded into {task!r}")
