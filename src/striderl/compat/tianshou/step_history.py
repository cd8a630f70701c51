"""`StepHistory`: the steps of all envs in the order of time, until their episodes have ended and are stored.

    env           0    1    2                 alike:     every leaf is one array [T, N, …]; an episode is a slice of it
    time  start ▶ ·                           different: a list of steps, each with the rows of the envs that took it
                  ·    · ◀ start
                  ·    ·    ·
                  end       · ◀ start         ended: env 0 takes its four steps, and its next start is below them

Steps are alike while all envs take them and their leaves keep their keys, shapes and dtypes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from striderl.data import leaf
from striderl.data.batch import Batch
from striderl.data.batch_ops import from_store

Array = np.ndarray[Any, Any]
_FIRST = 64


class StepHistory:
    """Steps that wait; see the picture at the top of this module."""

    def __init__(self, num_envs: int) -> None:
        """Start without steps."""
        self.num_envs = num_envs
        self.clear()

    def clear(self) -> None:
        """Forget all steps."""
        self._arrays: Any = None
        self._count = 0
        self._steps: list[tuple[Batch, dict[int, int] | None]] = []
        self._starts = [0] * self.num_envs

    def append(self, data: Batch, envs: list[int] | None) -> None:
        """Add one step of these envs, or of all in their order for None."""
        if envs is None and not self._steps:
            if not self._count:
                self._arrays = _new(data, _FIRST)
            if self._arrays is not None:
                if self._count == _room(self._arrays):
                    self._arrays = _moved(self._arrays, 0, self._count, 2 * self._count)
                if _write(self._arrays, data, self._count):
                    self._count += 1
                    return
        if not self._steps:
            self._steps = [(_row(self._arrays, time), None) for time in range(self._count)]
            self._arrays = None
        self._steps.append((data, None if envs is None else {env: row for row, env in enumerate(envs)}))
        self._count += 1

    def take(self, env: int, *, without_last: bool = False) -> Batch | None:
        """Return the steps of an env since its start as rows [T, …], or None; its next episode starts after them."""
        start, stop = self._starts[env], self._count
        self._starts[env] = stop
        if self._arrays is not None:
            stop -= without_last
            found = _slice(self._arrays, start, stop, env) if stop > start else None
        else:
            steps = [
                (data, env if rows is None else rows[env])
                for data, rows in self._steps[start:]
                if rows is None or env in rows
            ]
            steps = steps[:-1] if without_last else steps
            found = _gathered([data for data, _ in steps], [row for _, row in steps]) if steps else None
        return found

    def skip(self, env: int) -> None:
        """Drop the steps of an env since its start."""
        self._starts[env] = self._count

    def tidy(self) -> None:
        """Forget, every now and then, steps that no env waits for; arrays that were returned must be used up."""
        unused = min(self._starts)
        if unused == self._count:
            self._count, self._steps = 0, []
        elif unused >= _FIRST and 2 * unused >= self._count:
            self._count -= unused
            if self._arrays is not None:
                self._arrays = _moved(self._arrays, unused, self._count, _room(self._arrays))
            del self._steps[:unused]
        else:
            return
        self._starts = [each - unused for each in self._starts]


# -- arrays [T, N, …], nested in dicts like the steps ------------------------------------------------------------------


def _new(data: Batch, room: int) -> dict[str, Any] | None:
    """Return arrays for steps like this one, or None where it has leaves that are not numbers."""
    out: dict[str, Any] = {}
    for key, value in data.__dict__.items():
        if value.__class__ is Batch:
            out[key] = _new(value, room)
        elif value.__class__ is np.ndarray and value.dtype.kind in leaf.NUMERIC:
            out[key] = np.empty((room, *value.shape), value.dtype)
        else:
            return None
        if out[key] is None:
            return None
    return out


def _write(arrays: dict[str, Any], data: Batch, time: int) -> bool:
    """Write a step, or return False where it is not like the others."""
    store = data.__dict__
    if len(store) != len(arrays):
        return False
    for key, array in arrays.items():
        value = store.get(key)
        if array.__class__ is dict:
            if value.__class__ is not Batch or not _write(array, value, time):
                return False
        elif value.__class__ is not np.ndarray or value.dtype != array.dtype or value.shape != array.shape[1:]:
            return False
        else:
            array[time] = value
    return True


def _room(arrays: dict[str, Any]) -> int:
    for value in arrays.values():
        found = _room(value) if value.__class__ is dict else len(value)
        if found:
            return found
    return 0


def _moved(arrays: dict[str, Any], start: int, count: int, room: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in arrays.items():
        if value.__class__ is dict:
            out[key] = _moved(value, start, count, room)
        else:
            out[key] = np.empty((room, *value.shape[1:]), value.dtype)
            out[key][:count] = value[start : start + count]
    return out


def _row(arrays: dict[str, Any], time: int) -> Batch:
    return from_store(
        Batch, {key: _row(value, time) if value.__class__ is dict else value[time] for key, value in arrays.items()}
    )


def _slice(arrays: dict[str, Any], start: int, stop: int, env: int) -> Batch:
    return from_store(
        Batch,
        {
            key: _slice(value, start, stop, env) if value.__class__ is dict else value[start:stop, env]
            for key, value in arrays.items()
        },
    )


# -- steps of any kind -------------------------------------------------------------------------------------------------


def _gathered(parts: list[Batch], rows: list[int]) -> Batch:
    """Return the rows of one env out of steps, [T, …]; what some steps lack is 0, or None for objects."""
    first = parts[0].__dict__
    if any(part.__dict__.keys() != first.keys() for part in parts):
        return Batch.stack([part[row] if part.__dict__ else Batch() for part, row in zip(parts, rows)])
    out: dict[str, Any] = {}
    for key, value in first.items():
        column = [part.__dict__[key] for part in parts]
        if value.__class__ is Batch and all(each.__class__ is Batch for each in column):
            out[key] = _gathered(column, rows)
            continue
        if value.__class__ is np.ndarray and value.dtype.kind in leaf.NUMERIC:
            joined = _numbers(column, rows)
            if joined is not None and joined.dtype == value.dtype and joined.shape[1:] == value.shape[1:]:
                out[key] = joined
                continue
        out[key] = Batch.stack([_one(each, row) for each, row in zip(column, rows)]).get("one", Batch())
    return from_store(Batch, out)


def _numbers(column: list[Any], rows: list[int]) -> Array | None:
    try:
        return np.array([each[row] for each, row in zip(column, rows)])
    except (ValueError, TypeError):  # shapes that differ, or tensors among them
        return None


def _one(column: Any, row: int) -> Batch:
    if column.__class__ is Batch:
        return Batch() if column.is_empty(recurse=True) else Batch(one=column[row])
    found: Batch = Batch({"one": column})[row]
    return found
