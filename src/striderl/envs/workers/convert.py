"""Convert an env's values to rows of arrays, and rows of arrays to an env's actions.

    {"camera": uint8 [8, 8], "arm": {"q": float64 [7]}}   ─▶   camera[row] = …, arm/q[row] = …    (float32)

Every observation is compared with the space, and its dtype with the one that the same env gave first, so an env
whose dtype changes at step 1000 is caught there. The check is two comparisons per component when all is well.
Nothing here loads torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from striderl.envs.workers.errors import ContractViolation
from striderl.envs.workers.layout import Array, Leaf

_NUMBERS = (float, int, bool, np.floating, np.integer, np.bool_)


class LeafWriter:
    """Checks and stores one component of the observation, or one info key, for a block of envs."""

    def __init__(self, leaf: Leaf, num_envs: int, *, kind: str = "component", as_flags: bool = False) -> None:
        self.name = leaf.name
        self._kind = kind
        self.shape = leaf.shape
        """Of one env's value."""
        self._dtype = np.dtype(leaf.dtype)
        self._as_flags = as_flags
        self.seen: list[np.dtype[Any] | None] = [None] * num_envs
        """The dtype that each env gave first; None where every value has to be looked at."""

    def write(self, value: Any, target: Array, row: int) -> None:
        """Store one env's value; raise `ContractViolation` when its shape or dtype is not as before."""
        if value.__class__ is not np.ndarray or value.dtype is not self.seen[row] or value.shape != self.shape:
            value = self._checked(value, row)
        target[row] = value

    def _checked(self, value: Any, row: int) -> Array:
        try:
            array = np.asarray(value)
        except ValueError as error:  # nested lists of unequal lengths
            raise ContractViolation(
                f"{self._wanted()}, found {type(value).__name__} without a shape: {error}"
            ) from None
        if array.shape != self.shape or not self._fits(array.dtype):
            raise ContractViolation(f"{self._wanted()}, found {array.dtype} of shape {array.shape}")
        if not np.can_cast(array.dtype, self._dtype) and array.dtype.kind in "iu" and not self._as_flags:
            refuse_wrapped(array, self._dtype, self._wanted())
        elif isinstance(value, np.ndarray):
            seen = self.seen[row]
            if seen is not None and seen != array.dtype:
                raise ContractViolation(f"{self._wanted()} and so far given as {seen}, found {array.dtype}")
            self.seen[row] = array.dtype
        return array

    def _fits(self, found: np.dtype[Any]) -> bool:
        if self._as_flags:
            return found.kind in "biu"
        return found.kind in "biuf" and np.can_cast(found, self._dtype, "same_kind")

    def _wanted(self) -> str:
        dtype = "0 or 1" if self._as_flags else self._dtype
        return f"{self._kind} {self.name!r}: wanted {dtype} of shape {self.shape}"


def refuse_wrapped(array: Array, dtype: Any, wanted: str) -> None:
    """Raise where whole numbers would become others in a narrower dtype, such as 1000 in uint8."""
    if not np.array_equal(array.astype(dtype), array):
        raise ContractViolation(f"{wanted}, found {array.dtype} from {array.min()} to {array.max()}")


class ObservationWriter:
    """Takes observations of a Gymnasium space apart into the components of a layout."""

    def __init__(self, space: Any, leaves: Sequence[Leaf], num_envs: int, *, mask: str) -> None:
        self._paths = list(leaf_paths(space))
        self._containers = list(containers(space))
        self._writers = [LeafWriter(leaf, num_envs, as_flags=leaf.name == mask) for leaf in leaves[: len(self._paths)]]
        self.plain = self._writers[0] if self._paths == [()] else None
        """The only writer of a space without parts."""

    def write(self, observation: Any, targets: Sequence[Array], row: int) -> None:
        """Store one env's observation in its row of the targets, one array per component."""
        if self.plain is not None:
            self.plain.write(observation, targets[0], row)
            return
        for path, keys in self._containers:
            check_container(value_at(observation, path), path, keys)
        for path, writer, target in zip(self._paths, self._writers, targets):
            writer.write(value_at(observation, path), target, row)


class ActionReader:
    """Puts rows of stored actions together into what each env's `step` takes."""

    def __init__(self, space: Any) -> None:
        self._space = space
        self._kind = type(space).__name__
        self._parts = [ActionReader(inner) for inner in space.spaces.values()] if self._kind == "Dict" else []

    def read(self, actions: Sequence[Array], start: int, stop: int) -> Iterable[Any]:
        """Return one action per env, to be taken one by one: each is in memory of its own, an env may keep it."""
        if self._kind == "Dict":
            columns = [part.read([array], start, stop) for part, array in zip(self._parts, actions)]
            names = list(self._space.spaces)
            return [dict(zip(names, row)) for row in zip(*columns)]
        rows = actions[0][start:stop]
        if rows.ndim == 1:
            return rows  # single numbers are copies
        rows = rows.copy()
        if self._kind in ("MultiDiscrete", "MultiBinary"):
            rows = rows.astype(self._space.dtype).reshape(stop - start, *self._space.shape)
        return rows


def as_reward(value: Any) -> float:
    """Return a reward as a number; anything but a single real number is refused."""
    if isinstance(value, _NUMBERS) or (
        isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "fiub"
    ):
        return float(value)
    raise ContractViolation(f"field 'reward': wanted one number, found {_seen(value)}")


def as_flag(value: Any, field: str) -> bool:
    """Return an end flag as a bool; 0 and 1 will do, anything else is refused."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    whole = isinstance(value, (int, np.integer)) or (
        isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "biu"
    )
    if whole and int(value) in (0, 1):
        return bool(value)
    raise ContractViolation(f"field {field!r}: wanted True or False, found {_seen(value)}")


def checked_scalars(reward: Any, terminated: Any, truncated: Any) -> tuple[float, bool, bool]:
    """Return a step's three scalars in plain types, or refuse them."""
    return as_reward(reward), as_flag(terminated, "terminated"), as_flag(truncated, "truncated")


def space_difference(wanted: Any, found: Any, where: str = "") -> str:
    """Describe where two spaces differ, component by component; empty when they are equal."""
    if wanted == found:
        return ""
    if type(wanted).__name__ == "Dict" and type(found).__name__ == "Dict":
        lines = []
        for name in dict.fromkeys([*wanted.spaces, *found.spaces]):
            path = f"{where}/{name}" if where else str(name)
            if name not in found.spaces:
                lines.append(f"{path!r}: missing")
            elif name not in wanted.spaces:
                lines.append(f"{path!r}: not in the first env")
            else:
                lines.append(space_difference(wanted.spaces[name], found.spaces[name], path))
        return "; ".join(line for line in lines if line)
    return (f"{where!r}: " if where else "") + f"wanted {wanted}, found {found}"


def mask_size(space: Any) -> int:
    """Return how many choices a mask of this action space covers."""
    kind = type(space).__name__
    if kind == "Discrete":
        return int(space.n)
    if kind == "MultiDiscrete":
        return int(np.sum(space.nvec))
    if kind == "MultiBinary":
        return 2 * int(np.prod(space.shape))
    raise ValueError(f"action_mask: a {kind} action space has no choices to mask; use Discrete or MultiDiscrete")


def checked_info(info: Any) -> Mapping[str, Any]:
    """Return an info dict, an empty one for None."""
    if info is None:
        return {}
    if not isinstance(info, Mapping):
        raise ContractViolation(f"field 'info': wanted a dict, found {type(info).__name__}")
    return info


def checked_result(result: Any, fields: Sequence[str], method: str) -> tuple[Any, ...]:
    """Return what `reset` or `step` gave as a tuple of the right length."""
    if not isinstance(result, tuple) or len(result) != len(fields):
        found = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise ContractViolation(f"{method} wants to return ({', '.join(fields)}), found {found}")
    return result


def leaf_paths(space: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each leaf of a space, in the order of `space_leaves`."""
    for key, inner in _children(space):
        for path in leaf_paths(inner):
            yield (key, *path)
    if type(space).__name__ not in ("Dict", "Tuple"):
        yield ()


def containers(space: Any) -> Iterator[tuple[tuple[Any, ...], list[Any]]]:
    """Yield (way, keys) of each Dict and Tuple in a space."""
    children = list(_children(space))
    if type(space).__name__ in ("Dict", "Tuple"):
        yield (), [key for key, _ in children]
    for key, inner in children:
        for path, keys in containers(inner):
            yield (key, *path), keys


def _children(space: Any) -> Sequence[tuple[Any, Any]]:
    kind = type(space).__name__
    if kind == "Dict":
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if kind == "Tuple" else []


def value_at(observation: Any, path: tuple[Any, ...]) -> Any:
    """Return the part of a nested value at the end of a way."""
    for key in path:
        observation = observation[key]
    return observation


def check_container(value: Any, path: tuple[Any, ...], keys: list[Any]) -> None:
    """Raise unless a nested part of an observation has just the names that its space has."""
    named = isinstance(value, Mapping)
    nested = named or isinstance(value, (tuple, list))
    if nested and len(value) == len(keys) and (not named or all(key in value for key in keys)):
        return
    where = "/".join(str(key) for key in path) or "the observation"
    found = sorted(str(key) for key in value) if named else f"{type(value).__name__} {np.shape(value)}"
    raise ContractViolation(f"component {where!r}: wanted the parts {[str(key) for key in keys]}, found {found}")


def _seen(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    return f"{str(value)[:80]} ({type(value).__name__})"


EnvFactory = Callable[[], Any]
"""Builds one Gymnasium env."""
