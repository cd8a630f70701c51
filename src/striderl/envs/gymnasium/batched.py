"""Batches of a vector env, taken apart and checked: observations, actions, infos, flags and rewards of all N envs.

obs {"camera": [N, 8, 8], "arm": {"q": [N, 7]}}   ─▶   [camera [N, 8, 8], arm/q [N, 7]]
info {"height": [N], "_height": bool [N]}         ─▶   rows that have it; the others are 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from striderl.envs.workers.convert import LeafWriter, ObservationWriter, leaf_paths, value_at
from striderl.envs.workers.errors import ContractViolation
from striderl.envs.workers.layout import Array, Layout, Leaf


class BatchedObservation:
    """Takes batched observations apart into the components of a layout."""

    def __init__(self, space: Any, layout: Layout, num_envs: int) -> None:
        self.leaves = layout.observation
        self._paths = list(leaf_paths(space))
        self._num_envs = num_envs
        self._mask = layout.observation[-1] if layout.mask_in_info else None
        self._flags = layout.mask
        self._seen: list[np.dtype[Any] | None] = [None] * len(self.leaves)
        self._final = ObservationWriter(space, layout.observation, num_envs, mask=layout.mask)

    def read(
        self, obs: Any, info: Any, where: str, *, fallback: Sequence[Array] | None = None, rows: Array | None = None
    ) -> list[Array]:
        """Return [N, …] per component; a mask from the info may be missing outside `rows`, where `fallback` counts."""
        arrays = []
        for number, (path, leaf) in enumerate(zip(self._paths, self.leaves)):
            try:
                value = value_at(obs, path)
            except (KeyError, IndexError, TypeError):
                raise ContractViolation(f"component {leaf.name!r}, {where}: missing in the observation") from None
            arrays.append(self._checked(np.asarray(value), leaf, number, where))
        if self._mask is not None:
            arrays.append(self._mask_rows(info, where, fallback[-1] if fallback is not None else None, rows))
        return arrays

    def write_final(self, info: Any, rows: Array, targets: Sequence[Array], where: str, live: Sequence[Any]) -> None:
        """Store info['final_obs'] of the rows that the vector env has already reset.

        `live` are the single envs' own current observations, where they can be had: an env that returns the same array
        every time has overwritten its final observation by now, and nobody can tell what it was.
        """
        final = info.get("final_obs") if isinstance(info, Mapping) else None
        if final is None:
            raise ContractViolation(
                f"info key 'final_obs', {where}: wanted with every end in autoreset mode SAME_STEP, found none"
            )
        for row in np.flatnonzero(rows).tolist():
            if isinstance(final, np.ndarray) and final.dtype == object:
                if len(live) and _share_memory(final[row], live[row], self._paths):
                    raise ContractViolation(
                        f"env {row}, {where}: it returns the same array every time, and autoreset mode SAME_STEP of "
                        "SyncVectorEnv overwrites the final observation in it; use NEXT_STEP, DISABLED or N copies"
                    )
                self._final.write(final[row], targets, row)
            else:  # a batch, as a native vector env may give it
                for path, target in zip(self._paths, targets):
                    target[row] = np.asarray(value_at(final, path))[row]
        if self._mask is not None:
            values, present = column(info.get("final_info", {}), self._mask.name, self._num_envs)
            if values is None or not present[rows].all():
                raise ContractViolation(f"info key {self._mask.name!r}, {where}: missing in info['final_info']")
            targets[-1][rows] = values[rows]

    def _checked(self, array: Array, leaf: Leaf, number: int, where: str) -> Array:
        wanted = (self._num_envs, *leaf.shape)
        seen, flags = self._seen[number], leaf.name == self._flags
        fits = array.dtype.kind in "biu" if flags else np.can_cast(array.dtype, leaf.dtype, "same_kind")
        if array.shape != wanted or not fits:
            raise ContractViolation(
                f"component {leaf.name!r}, {where}: wanted {leaf.dtype} of shape {wanted}, "
                f"found {array.dtype} of shape {array.shape}"
            )
        if seen is not None and seen != array.dtype:
            raise ContractViolation(f"component {leaf.name!r}, {where}: given as {seen} before, found {array.dtype}")
        self._seen[number] = array.dtype
        return array.astype(leaf.dtype)

    def _mask_rows(self, info: Any, where: str, fallback: Array | None, rows: Array | None) -> Array:
        assert self._mask is not None
        values, present = column(info, self._mask.name, self._num_envs)
        needed = np.ones(self._num_envs, np.bool_) if rows is None else rows
        if values is None or not present[needed].all():
            found = sorted(map(str, info)) if isinstance(info, Mapping) else type(info).__name__
            raise ContractViolation(f"info key {self._mask.name!r}, {where}: wanted in every env, found {found}")
        result = np.zeros((self._num_envs, *self._mask.shape), np.bool_) if fallback is None else fallback.copy()
        result[needed] = np.asarray(values)[needed] != 0
        return result


class BatchedActions:
    """Puts stored actions together into what `VectorEnv.step` takes."""

    def __init__(self, space: Any) -> None:
        self._space = space

    def read(self, actions: Sequence[Array]) -> Any:
        """Return the batch of actions, in memory of its own."""
        if type(self._space).__name__ == "Dict":
            inner = self._space.spaces
            return {name: _batch(part, array) for (name, part), array in zip(inner.items(), actions)}
        return _batch(self._space, actions[0])


class InfoColumns:
    """Stores the declared info keys of a batch."""

    def __init__(self, layout: Layout, num_envs: int) -> None:
        self._leaves = layout.infos
        self._writers = [LeafWriter(leaf, num_envs, kind="info key") for leaf in layout.infos]
        self._num_envs = num_envs
        self._missing = {leaf.name for leaf in layout.infos}

    def write(self, info: Any, has_reset: Array, targets: Sequence[Array]) -> None:
        """Store the step's infos; where an env was already reset, they are in info['final_info']."""
        info = info if isinstance(info, Mapping) else {}
        for writer, target in zip(self._writers, targets):
            target[:] = 0
            for source, rows in ((info, ~has_reset), (info.get("final_info", {}), has_reset)):
                values, present = column(source, writer.name, self._num_envs)
                for row in np.flatnonzero(rows & present).tolist() if values is not None else ():
                    writer.write(values[row], target, row)
                    self._missing.discard(writer.name)

    def check_all_came(self) -> None:
        """Refuse a declared key that no step carried until the first end of an episode."""
        if self._missing:
            missing, self._missing = sorted(self._missing), set()
            raise ContractViolation(f"an episode ended and no step carried the info keys {missing}; correct info_keys")


def column(info: Any, key: str, num_envs: int) -> tuple[Any, Array]:
    """Return one entry of a vector env's info, and which envs it is meant for."""
    values = info.get(key) if isinstance(info, Mapping) else None
    if values is None:
        return None, np.zeros(num_envs, np.bool_)
    return values, np.asarray(info.get(f"_{key}", np.ones(num_envs, np.bool_)), np.bool_)


def as_flags(value: Any, num_envs: int, field: str, where: str) -> Array:
    """Return end flags as bool [N]; whole numbers 0 and 1 will do."""
    array = np.asarray(value)
    if array.shape != (num_envs,) or array.dtype.kind not in "biu" or not np.isin(array, (0, 1)).all():
        raise ContractViolation(
            f"field {field!r}, {where}: wanted bool of shape {(num_envs,)}, found {array.dtype} of shape {array.shape}"
        )
    return array.astype(np.bool_)


def as_rewards(value: Any, num_envs: int, where: str) -> Array:
    """Return rewards as float32 [N]."""
    array = np.asarray(value)
    if array.shape != (num_envs,) or array.dtype.kind not in "biuf":
        raise ContractViolation(
            f"field 'reward', {where}: wanted numbers of shape {(num_envs,)}, found {array.dtype} of {array.shape}"
        )
    return array.astype(np.float32)


def _share_memory(first: Any, second: Any, paths: Sequence[tuple[Any, ...]]) -> bool:
    pairs = [(value_at(first, path), value_at(second, path)) for path in paths]
    return any(
        isinstance(one, np.ndarray)
        and isinstance(other, np.ndarray)
        and one.size > 0
        and np.may_share_memory(one, other)
        for one, other in pairs
    )


def _batch(space: Any, array: Array) -> Array:
    return array.astype(space.dtype).reshape(len(array), *space.shape)
