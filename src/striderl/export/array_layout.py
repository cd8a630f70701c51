"""Convert user observations (a dict of arrays, a flat array, one env or many) to named, batched arrays.

    {"joints": [12], "image": [1, 48, 64]}            one env     ──▶ {"joints": [1, 12], "image": [1, 1, 48, 64]}
    {"joints": [7, 12], "image": [7, 1, 48, 64]}      7 envs      ──▶ the same
    [7, 12 + 3]  with segments joints=12, command=3   7 envs      ──▶ {"joints": [7, 12], "command": [7, 3]}

Only numpy is needed here, so that a robot can use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from striderl.data.naming import unknown
from striderl.data.specs import ComponentSpec, ObsSpec, as_shape, flatten_names

Array = np.ndarray[Any, Any]


class ArrayObs(NamedTuple):
    """Observations of N envs."""

    arrays: dict[str, Array]
    """[N, …] by component name, in the spec's order and dtype."""
    num_envs: int
    """N."""
    single: bool
    """Whether one env without a batch dimension was given; then actions are given back without one."""


def read_arrays(obs: Any, spec: ObsSpec, *, required: Iterable[str], where: str) -> ArrayObs:
    """Return the components of `spec` that `obs` holds; what is missing or does not fit is named.

    `obs` is a dict (nested names are joined with '/'; further entries are left alone) or an array: the only component,
    or all components of the spec in a row.
    """
    given = _named(obs, spec, where)
    for name in required:
        if name not in given:
            raise KeyError(unknown("component", name, given, where=where))
    arrays: dict[str, Array] = {}
    leads: dict[str, tuple[int, ...]] = {}
    for name in spec:
        if name in given:
            arrays[name] = _cast(name, given[name], spec[name], where)
            leads[name] = _lead(name, arrays[name], spec[name], where)
    if not arrays:
        raise KeyError(f"{where} has none of the components {list(spec)}")
    first = next(iter(leads))
    for name, lead in leads.items():
        if lead != leads[first]:
            raise ValueError(
                f"{where}: component {name!r} is for {_envs(lead)}, component {first!r} for {_envs(leads[first])}"
            )
    single = leads[first] == ()
    if single:
        arrays = {name: array[np.newaxis] for name, array in arrays.items()}
    return ArrayObs(arrays, 1 if single else leads[first][0], single)


def require_layout(found: Mapping[str, ComponentSpec | int | Sequence[int]], spec: ObsSpec, *, where: str) -> None:
    """Raise unless the components are those of `spec`, in the same order and with the same shapes."""
    shapes = {name: part.shape if isinstance(part, ComponentSpec) else as_shape(part) for name, part in found.items()}
    for name in spec:
        if name not in shapes:
            raise KeyError(unknown("component", name, shapes, where=where))
    for name in shapes:
        if name not in spec:
            raise KeyError(f"{where} has the component {name!r}, which the policy does not take: {list(spec)}")
    for position, (name, wanted) in enumerate(zip(shapes, spec)):
        if name != wanted:
            raise ValueError(
                f"{where} has component {name!r} at position {position}, where the policy wants {wanted!r}; "
                f"the order is {list(spec)}"
            )
    for name, shape in shapes.items():
        if shape != spec[name].shape:
            raise ValueError(f"{where}: component {name!r} wants shape {spec[name].shape}, found {shape}")


def require_dones(dones: Any, num_envs: int) -> Array:
    """Return bool [N] from dones of any dtype and of the shapes [N], [N, 1] or, for one env, a plain number."""
    flat = np.asarray(dones).reshape(-1).astype(bool)
    if flat.shape != (num_envs,):
        raise ValueError(f"dones has {flat.shape[0]} entries for {num_envs} envs; give one per env, or none at all")
    return flat


def _named(obs: Any, spec: ObsSpec, where: str) -> dict[str, Any]:
    if isinstance(obs, Mapping):
        return dict(flatten_names(obs))
    array = np.asarray(obs)
    if len(spec) == 1:
        return {next(iter(spec)): array}
    if array.ndim not in (1, 2) or array.shape[-1] != spec.size:
        sizes = ", ".join(f"{name}={part.size}" for name, part in spec.items())
        raise ValueError(
            f"{where} is an array of shape {array.shape}; wanted a dict of components, "
            f"or a flat array [{spec.size}] or [N, {spec.size}] with {sizes}"
        )
    return spec.split(array)


def _cast(name: str, value: Any, part: ComponentSpec, where: str) -> Array:
    array = np.asarray(value)
    if not np.can_cast(array.dtype, part.dtype, casting="same_kind"):
        raise TypeError(f"{where}: component {name!r} wants {part.dtype}, found {array.dtype}; convert it on purpose")
    cast = np.array(array, dtype=part.dtype, order="C")  # a copy, because what was given may be read-only
    if array.dtype.kind in "iu" and cast.dtype.kind in "iu" and not np.array_equal(cast, array):
        found = f"{array.dtype} from {array.min()} to {array.max()}"
        raise TypeError(f"{where}: component {name!r} wants {part.dtype}, found {found}; convert it on purpose")
    return cast


def _lead(name: str, array: Array, part: ComponentSpec, where: str) -> tuple[int, ...]:
    """Return () for one env and (N,) for many."""
    num_lead = array.ndim - len(part.shape)
    if num_lead not in (0, 1) or array.shape[num_lead:] != part.shape:
        raise ValueError(
            f"{where}: component {name!r} wants shape {part.shape} for one env or "
            f"{('N', *part.shape)} for many, found {array.shape}"
        )
    return tuple(array.shape[:num_lead])


def _envs(lead: tuple[int, ...]) -> str:
    return f"{lead[0]} envs" if lead else "one env without a batch dimension"
