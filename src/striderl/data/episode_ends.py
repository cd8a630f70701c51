"""Split Gym's `done` into terminated (the task ended) and truncated (the time limit ended the episode).

done     info["TimeLimit.truncated"]     terminated   truncated
False    absent or False                 False        False
True     absent or False                 True         False
True     True                            False        True
False    True                            ValueError: the two contradict each other

Flags that are given as `terminated` or `truncated` are never overruled by `info`, as in Gymnasium.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from striderl.data import leaf

if TYPE_CHECKING:
    from striderl.data.batch import Batch

TIME_LIMIT = "TimeLimit.truncated"
"""The info key of Gym's `TimeLimit` wrapper in a step that it ended."""


def ends_of(given: Mapping[str, Any] | Batch) -> tuple[Any, Any]:
    """Return (terminated, truncated) of a step by name: as they are given, else out of `done` and `info`."""
    terminated, truncated, done = (
        None if given.get(key) is None else as_flag(given[key], key) for key in ("terminated", "truncated", "done")
    )
    if done is None:
        if terminated is None:
            raise ValueError("a step wants 'done', or 'terminated' and 'truncated'")
        return terminated, terminated & False if truncated is None else truncated
    if terminated is None and truncated is None:
        return split_done(done, given.get("info"))
    if terminated is None:
        terminated = done & ~as_flag(truncated, "truncated")
    truncated = done & ~terminated if truncated is None else truncated
    if bool((done != (terminated | truncated)).any()):
        raise ValueError("'done' contradicts 'terminated' and 'truncated': it is true where either of them is")
    return terminated, truncated


def split_done(done: Any, info: Any) -> tuple[Any, Any]:
    """Return (terminated, truncated), bool like `done`: a scalar, or [N] for the infos of N envs.

    `info` is one mapping, with a flag or an array of flags, or a list or array with a mapping for each env.
    """
    done = as_flag(done, "done")
    late = time_limit(info)
    if late is None:
        return done, done & False
    late = leaf.like(late, done)
    if leaf.shape_of(late) != leaf.shape_of(done) and np.prod(leaf.shape_of(late)) == np.prod(leaf.shape_of(done)):
        late = late.reshape(done.shape)
    if leaf.shape_of(late) != leaf.shape_of(done):
        raise ValueError(
            f"info[{TIME_LIMIT!r}] wants the shape of done, {leaf.shape_of(done)}, found {leaf.shape_of(late)}"
        )
    if bool((late & ~done).any()):
        raise ValueError(
            f"info[{TIME_LIMIT!r}] is true in a step with done=False: an episode that the time limit ended is done. "
            "Set done=True there, or give terminated and truncated in place of done"
        )
    return done & ~late, late


def time_limit(info: Any) -> Any:
    """Return the flag of Gym's time limit as a bool array or tensor, or None where no info has it."""
    if info is None:
        return None
    if (isinstance(info, (list, tuple)) and not hasattr(info, "_fields")) or (
        isinstance(info, np.ndarray) and info.dtype == object and info.ndim
    ):
        each = [time_limit(one) for one in (info.ravel() if isinstance(info, np.ndarray) else info)]
        if all(one is None for one in each):
            return None
        return np.array([one is not None and bool(one) for one in each], np.bool_)
    if isinstance(info, np.ndarray) and info.dtype == object:
        return time_limit(info.item())
    given = info.get(TIME_LIMIT) if hasattr(info, "get") else None
    return None if given is None else as_flag(given, f"info[{TIME_LIMIT!r}]")


def as_flag(value: Any, name: str) -> Any:
    """Return a flag, or an array or tensor of flags, as bool: numbers count as true when they are not 0."""
    if leaf.is_tensor(value):
        return value.bool()
    array = np.asarray(value)
    if array.dtype == object:  # rows of which some have no such info
        array = np.array([False if each is None else each for each in array.ravel()]).reshape(array.shape)
    if array.dtype.kind not in leaf.NUMERIC:
        raise TypeError(f"{name!r} is true or false, found {value!r}")
    return array.astype(np.bool_)
