"""Writing steps into the storage of a `ReplayBuffer`: columns made from the first step, nothing written by halves.

    first step    Batch(obs=Batch(id=3), act=0.5)           storage   Batch(obs=Batch(id=int64 [C]), act=float64 [C])
    a later one   Batch(obs=Batch(id=4), act=0.1, info=Batch(k=1))    info.k appears, 0 in the rows before

Numpy values are stored in numpy (or in files), tensors in tensors on their device, other objects in object arrays.

One step on its way into a `ReplayBuffer`: named parts, float rewards, three flags.

Reading frames of a `ReplayBuffer`: stacks of one episode, and the observation after a step.

steps of an episode      s0  s1  s2  s3 E           stack of 3 at s1: [s0 s0 s1]      before its start: the first again
after s1, stack of 3     [s0 s1 s2]                 after s3: [s2 s3 f], f is stored, or kept for a truncated end
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from striderl.checkpoint.safe_files import check_plain, member
from striderl.data import leaf, tree
from striderl.data.batch import Batch
from striderl.data.batch_ops import is_gap
from striderl.data.episode_ends import ends_of
from striderl.data.memory import mapped_file
from striderl.data.naming import unknown

OPEN_KEYS = ("info", "policy")
"""Parts of a step whose keys may come and go."""


class Write(NamedTuple):
    """One checked leaf to write."""

    column: Any
    value: Any


class Plan(NamedTuple):
    """All writes of one step."""

    writes: list[Write]
    columns: list[tuple[Batch, str, Any]]
    """New columns: (where, key, column)."""

    def run(self, place: Any) -> None:
        """Write at these rows."""
        for where, key, column in self.columns:
            where[key] = column
        for write in self.writes:
            if leaf.is_tensor(write.column):
                leaf.write(write.column, leaf.index_for(write.column, place), write.value)
            else:
                write.column[place] = write.value


def plan_rows(storage: Batch, rows: Batch, count: int, capacity: int, folder: Path | None) -> Plan:
    """Check `count` rows against the storage and work out how to write them; nothing is changed."""
    plan = Plan([], [])
    _plan(storage, rows, (), count, capacity, folder, plan)
    return plan


def _plan(
    storage: Batch, rows: Batch, path: tuple[str, ...], count: int, capacity: int, folder: Path | None, plan: Plan
) -> None:
    for key, value in rows.items():
        column = storage.__dict__.get(key)
        if column.__class__ is np.ndarray and value.__class__ is np.ndarray and column.dtype.kind in leaf.NUMERIC:
            fits = value.dtype == column.dtype and value.shape == (count, *column.shape[1:])
            if fits and column.flags.writeable:  # the common case, without the messages of the others
                plan.writes.append(Write(column, value))
                continue
        name = ".".join((*path, key))
        if value is None:
            value = _nothing(storage.get(key), name, count)
        if key not in storage or (is_gap(storage[key], Batch) and not is_gap(value, Batch)):
            if not is_gap(value, Batch):
                plan.columns.append((storage, key, _new(value, (*path, key), count, capacity, folder, plan)))
            elif key not in storage:
                plan.columns.append((storage, key, Batch()))
        elif isinstance(storage[key], Batch):
            if is_gap(value, Batch):
                value = Batch()
            if not isinstance(value, Batch):
                raise ValueError(f"{name!r} has parts {list(storage[key].keys())}; found a {type(value).__name__}")
            _plan(storage[key], value, (*path, key), count, capacity, folder, plan)
        elif not is_gap(value, Batch):
            plan.writes.append(Write(storage[key], _checked(value, storage[key], name, count)))
        else:
            _missing(storage[key], name, path, rows, plan)
    for key in list(storage.keys()):
        if key not in rows and not is_gap(storage[key], Batch):
            if isinstance(storage[key], Batch):
                _plan(storage[key], Batch(), (*path, key), count, capacity, folder, plan)
            else:
                _missing(storage[key], ".".join((*path, key)), path, rows, plan)


def _nothing(column: Any, name: str, count: int) -> Any:
    """Return None in every row for a column of objects, new or there already; other columns cannot hold it."""
    if (isinstance(column, Batch) and not column.is_empty()) or leaf.is_numeric(column):
        found = f"parts {list(column.keys())}" if isinstance(column, Batch) else str(column.dtype)
        raise TypeError(
            f"{name!r} is stored as {found} and cannot hold None; leave the key out where there is no value, then 0 is "
            "stored, or give an object from the first step on"
        )
    return np.full((count, *leaf.shape_of(column)[1:]), None, dtype=object)


def _missing(column: Any, name: str, path: tuple[str, ...], rows: Batch, plan: Plan) -> None:
    """Write nothing-values where a step lacks an open key; other keys may not be missing."""
    if (path or (name,))[0] not in OPEN_KEYS:
        raise KeyError(unknown("key", name.split(".")[-1], rows.keys(), where=f"the step ({name!r} was stored before)"))
    plan.writes.append(Write(column, 0 if leaf.is_numeric(column) else None))


def _new(value: Any, path: tuple[str, ...], count: int, capacity: int, folder: Path | None, plan: Plan) -> Any:
    """Return an empty column for values like this one, and plan to write the value there."""
    if isinstance(value, Batch):
        column = Batch()
        for key, inner in value.items():
            if not is_gap(inner, Batch):
                column[key] = _new(inner, (*path, key), count, capacity, folder, plan)
        return column
    name = ".".join(path)
    value = _nothing(None, name, count) if value is None else value
    shape = _row_shape(value, name, count)
    if leaf.is_tensor(value):
        new: Any = value.new_zeros((capacity, *shape))
    elif leaf.is_numeric(value):
        new = zeros((capacity, *shape), value.dtype, name, folder)
    else:
        new = np.full((capacity, *shape), None, dtype=object)
    plan.writes.append(Write(new, _checked(value, new, name, count)))
    return new


def zeros(shape: tuple[int, ...], dtype: Any, name: str, folder: Path | None) -> Any:
    """Return an empty column, in a file of the folder if there is one."""
    if folder is None:
        return np.zeros(shape, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    path = column_file(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    return mapped_file(path, shape, dtype)


def column_file(folder: Path, name: str) -> Path:
    """Return the file of a column; raise for a name that leaves the folder and a file that is not plain."""
    path = member(folder, f"{name}.bin")
    check_plain(path)
    return path


def _row_shape(value: Any, name: str, count: int) -> tuple[int, ...]:
    shape = leaf.shape_of(value)
    if not shape or shape[0] != count:
        raise ValueError(f"{name!r} wants {count} rows, found shape {shape}")
    return shape[1:]


def _checked(value: Any, column: Any, name: str, count: int) -> Any:
    """Return rows [count, …] ready to be written, or raise: shape and dtype must be the column's."""
    wanted = (count, *column.shape[1:])
    if leaf.shape_of(value) != wanted:
        raise ValueError(f"{name!r} is stored with shape {wanted[1:]}, found {leaf.shape_of(value)[1:]}")
    return leaf.checked(value, wanted, column, repr(name))


def as_rows(value: Any, name: str) -> Any:
    """Return one step's value with a leading dimension of 1."""
    if isinstance(value, Batch):
        return _rows_of(value, name)
    if value is None:
        return None
    if leaf.is_tensor(value):
        return value.detach().unsqueeze(0)
    return (value if isinstance(value, np.ndarray) else leaf.object_or_number(value))[None]


def _rows_of(batch: Batch, name: str) -> Batch:
    out = Batch()
    for key, value in batch.items():
        out.__dict__[key] = as_rows(value, f"{name}.{key}")
    return out


def leaves(batch: Batch, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ('obs.id', column) for every column of a storage; a dot within a key is written '%2E'."""
    for key, value in batch.items():
        name = prefix + key.replace("%", "%25").replace(".", "%2E")
        if isinstance(value, Batch):
            yield from leaves(value, f"{name}.")
        elif value is not None:
            yield name, value


def keys_of(name: str) -> list[str]:
    """Return the keys of a column that `leaves` has named."""
    return [key.replace("%2E", ".").replace("%25", "%") for key in name.split(".")]


def take_rows(column: Any, array: NDArray[np.int64]) -> Any:
    """Return rows of a column; an int index drops the leading dimension."""
    if isinstance(column, Batch):
        return tree.map(lambda inner: take_rows(inner, array), column)
    if leaf.is_tensor(column):
        import torch

        return column[torch.from_numpy(np.atleast_1d(array)).to(column.device)].reshape(*array.shape, *column.shape[1:])
    return np.asarray(column[array]) if array.ndim == 0 and column.dtype != object else column[array]


def like_index(result: NDArray[np.int64], index: Any) -> Any:
    """Return indices in the type of `index`: an int, an array, or a tensor."""
    if leaf.is_tensor(index):
        return leaf.to_tensor(np.asarray(result), device=index.device)
    return int(result) if isinstance(index, (int, np.integer)) else np.asarray(result)


# -- one step ----------------------------------------------------------------------------------------------------------


KEYS = ("obs", "act", "rew", "done", "terminated", "truncated", "obs_next", "info", "policy")


def given_step(
    obs: Any, act: Any, rew: Any, done: Any, obs_next: Any, info: Any, policy: Any, terminated: Any, truncated: Any
) -> dict[str, Any]:
    """Return the parts by name; `obs` may be a Batch or mapping that holds all of them."""
    if act is None and isinstance(obs, (Batch, Mapping)):
        return dict(obs.items())
    given = {"obs": obs, "act": act, "rew": rew, "done": done, "obs_next": obs_next, "info": info}
    return given | {"policy": policy, "terminated": terminated, "truncated": truncated}


def step_of(given: Mapping[str, Any]) -> Batch:
    """Return a step with parsed values, `rew` as float and the three flags as bool, or raise."""
    unexpected = [key for key in given if key not in KEYS]
    if unexpected:
        raise KeyError(unknown("key", unexpected[0], KEYS, where="a step"))
    for key in ("obs", "act", "rew"):
        if given.get(key) is None:
            raise ValueError(f"a step wants {key!r}; found {[name for name in given if given[name] is not None]}")
    terminated, truncated = ends_of(given)
    values = {key: given.get(key) for key in ("obs", "act", "rew", "obs_next", "info", "policy")}
    step = Batch({key: value for key, value in values.items() if value is not None})
    if not leaf.is_numeric(step.rew):
        raise TypeError(f"'rew' is a number or an array of numbers, found {type(step.rew).__name__}")
    rew = step.rew if str(step.rew.dtype).removeprefix("torch.").startswith("float") else _floats(step.rew)
    ordered = {"obs": step.obs, "act": step.act, "rew": rew, "done": terminated | truncated}
    ordered |= {"terminated": terminated, "truncated": truncated}
    ordered |= {"obs_next": step.obs_next} if "obs_next" in step else {}
    return Batch({**ordered, "info": step.get("info", Batch()), "policy": step.get("policy", Batch())})


def _floats(value: Any) -> Any:
    return value.float() if leaf.is_tensor(value) else value.astype(np.float64)


# -- frames ------------------------------------------------------------------------------------------------------------


def last_frame(obs: Any) -> Any:
    """Return the last of the frames that an observation came in: the last item, of every part of a nested one."""
    if isinstance(obs, (Batch, Mapping)):
        return {key: last_frame(value) for key, value in obs.items()}
    return obs[-1]


def last_frames(rows: Batch) -> Batch:
    """Return rows [n, …] with the last frame of their observations."""
    changed = {
        key: tree.map(lambda frames: frames[:, -1], rows[key])
        for key in ("obs", "obs_next")
        if rows.get(key) is not None
    }
    return Batch(rows, **changed)


def stacked(buffer: Any, column: Any, array: NDArray[np.int64], count: int) -> Any:
    """Return `count` frames of a column up to these steps, stacked right after the index dimensions."""
    frames = []
    for _ in range(count):
        frames.append(take_rows(column, array))
        array = buffer.prev(array)
    return tree.stack(frames[::-1], axis=array.ndim)


def following(buffer: Any, array: NDArray[np.int64], count: int) -> Any:
    """Return the observations after these steps, with the frames before them."""
    stores = buffer.stores_obs_next
    newest = take_rows(buffer._data["obs_next"], array) if stores else _walked(buffer, array)
    if count == 1:
        return newest
    # at an end without a known next one, the frames before it are those of the step's own
    known = np.asarray(True if stores else (buffer.next(array) != array) | _has_final(buffer, array))
    frames: list[Any] = [newest]
    place = np.where(known, array, buffer.prev(array))
    for _ in range(count - 1):
        before = buffer.prev(place)
        frames.append(_one_before(buffer, place, before) if stores else take_rows(buffer._data["obs"], place))
        place = before
    return tree.stack(frames[::-1], axis=array.ndim)


def _one_before(buffer: Any, place: NDArray[np.int64], before: NDArray[np.int64]) -> Any:
    """Return the stored frames that precede `obs_next` of these steps: the `obs` that an episode begins with."""
    first = before == place
    if first.all():
        return take_rows(buffer._data["obs"], place)
    frames = tree.copy(take_rows(buffer._data["obs_next"], before))
    if first.any():
        tree.assign(frames, first, take_rows(buffer._data["obs"], place[first]))
    return frames


def _has_final(buffer: Any, array: NDArray[np.int64]) -> Any:
    return np.isin(array, list(buffer._finals))


def _walked(buffer: Any, array: NDArray[np.int64]) -> Any:
    """Return the observations one place on, and the final ones where episodes were truncated."""
    found = take_rows(buffer._data["obs"], buffer.next(array))
    if not buffer._finals:
        return found
    found = tree.copy(found)
    for place in np.argwhere(_has_final(buffer, array)):
        where = tuple(place.tolist())
        final = buffer._finals[int(array[where])]
        if where:
            tree.assign(found, where, final)
        else:
            found = tree.copy(final)
    return found
