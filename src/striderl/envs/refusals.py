"""The refusals that all built-in envs share: no episode yet, closed, an env that is not there, another task's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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


def check_saved_task(state: Mapping[str, Any], task: str) -> None:
    """Raise unless a state was saved from this task."""
    if "task" not in state:
        raise ValueError(f"the state to load into {task!r} does not say which task it was saved from")
    if state["task"] != task:
        raise ValueError(f"the state was saved from task {state['task']!r} and cannot be loaded into {task!r}")
