"""An existing `gymnasium.vector.VectorEnv` as a back end without phantom transitions.

    mode        after an episode ended, Gymnasium …                     here
    SAME_STEP   has already reset; the end is in info["final_obs"]      taken from there
    DISABLED    waits for reset(options={"reset_mask": mask})           called in the same step
    NEXT_STEP   would ignore the next action and reset instead          the masked reset comes first, in the same step

So every step is one real transition for every env, whatever the mode. In NEXT_STEP mode only Gymnasium's own
SyncVectorEnv and AsyncVectorEnv are known to take a masked reset in place of the phantom step; another class is
refused in that mode, because stepping it would lose a transition of some env or invent one. In SAME_STEP mode an env
that returns the same array every time loses its final observation inside Gymnasium; with SyncVectorEnv that is detected
and raises, with AsyncVectorEnv it cannot be detected.

Batches of a vector env, taken apart and checked: observations, actions, infos, flags and rewards of all N envs.

obs {"camera": [N, 8, 8], "arm": {"q": [N, 7]}}   ─▶   [camera [N, 8, 8], arm/q [N, 7]]
info {"height": [N], "_height": bool [N]}         ─▶   rows that have it; the others are 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from striderl.envs.workers.block import render_fps_of, step_limit
from striderl.envs.workers.convert import LeafWriter, ObservationWriter, leaf_paths, refuse_wrapped, value_at
from striderl.envs.workers.errors import ContractViolation, EnvRaised, Place, traceback_text
from striderl.envs.workers.layout import Array, Description, Layout, Leaf, env_seeds

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv


class VectorBackend:
    """Steps a ready-made vector env; it is one piece and cannot be split."""

    num_slots = 1
    runs_ahead = False
    restarts = 0

    def __init__(self, env: VectorEnv[Any, Any, Any], *, first_env_index: int = 0) -> None:
        self.num_envs = int(env.num_envs)
        self.borders = [0, self.num_envs]
        self.seed: int | None = None
        self.closed = False
        self._env = env
        self._first_env_index = first_env_index
        self._mode = _autoreset_mode(env)
        self._takes_mask = _takes_reset_mask(env, self._mode)
        if self._mode == "NextStep" and not self._takes_mask:
            raise ContractViolation(
                f"{env}: autoreset mode NEXT_STEP ignores the action after each episode's end, and this class is not "
                "known to reset some of its envs instead; build it with autoreset_mode SAME_STEP or DISABLED"
            )
        self.description = Description(
            observation_space=env.single_observation_space,
            action_space=env.single_action_space,
            limits=_limits(env),
            render_mode=str(env.render_mode or ""),
            step_dt=0.0,
            render_fps=render_fps_of(env),
        )

    # -- the back end ------------------------------------------------------------------------------------------------

    def bind(self, layout: Layout) -> None:
        """Make the buffers."""
        self.buffers = layout.buffers(np.zeros(layout.num_bytes, np.uint8))
        self.valid: Array = np.ones(self.num_envs, np.bool_)
        self._observation = BatchedObservation(self.description.observation_space, layout, self.num_envs)
        self._actions = BatchedActions(self.description.action_space)
        self._infos = InfoColumns(layout, self.num_envs)

    def reset(self, seed: int | None, start: int, stop: int) -> None:
        """Start new episodes in all envs."""
        if seed is None:
            obs, info = self._call("reset", self._env.reset)
        else:
            self.seed = seed
            for row in range(self.num_envs):
                self.buffers.seeds[row] = env_seeds(seed, self._first_env_index + row)
            seeds = self.buffers.seeds[:, 0].tolist()
            # A native vector env has one random stream for all its envs: it gets the first env's.
            given = seeds if _is_built_of_envs(self._env) else seeds[0]
            self._env.action_space.seed(int(self.buffers.seeds[0, 1]))
            obs, info = self._call("reset", self._env.reset, seed=given)
        self._store(self._observation.read(obs, info, f"after {self._num_steps()} steps, in reset"))
        self.buffers.episode_length[:], self.buffers.aged[:] = 0, False

    def reset_masked(self, start: int, stop: int) -> None:
        """Start new episodes where the mask is true."""
        current = [array[0].copy() for array in self.buffers.obs]
        self._store(self._reset_some(self.buffers.reset_mask.copy(), current))

    def send_step(self, start: int, stop: int) -> None:
        """Do nothing yet: `wait_step` does the work."""

    def wait_step(self, start: int, stop: int) -> None:
        """Take one step, and reset what ended."""
        actions = self._actions.read(self.buffers.actions)
        obs, reward, terminated, truncated, info = self._call("step", self._env.step, actions)
        where = f"in step {self._num_steps() + 1}"
        ends = as_flags(terminated, self.num_envs, "terminated", where)
        stops = as_flags(truncated, self.num_envs, "truncated", where)
        over = self._over_age() & ~(ends | stops)
        self._step_buffers(as_rewards(reward, self.num_envs, where), ends, stops | over)
        same = self._mode == "SameStep"
        has_reset = (ends | stops) if same else np.zeros(self.num_envs, np.bool_)
        arrays = self._observation.read(obs, info, where)
        self._infos.write(info, has_reset, self.buffers.infos)
        done = ends | stops | over
        if done.any():
            self._infos.check_all_came()
            for final, array in zip(self.buffers.final_obs, arrays):
                final[done] = array[done]
            if has_reset.any():
                live = getattr(self._env.unwrapped, "_env_obs", ()) if _is_built_of_envs(self._env) else ()
                self._observation.write_final(info, has_reset, self.buffers.final_obs, where, live)
            if (done & ~has_reset).any():
                arrays = self._reset_some(done & ~has_reset, arrays)
            self.buffers.episode_length[done], self.buffers.aged[done] = 0, False
        self._store(arrays)

    def is_ready(self, start: int, stop: int) -> bool:
        """Return True: no other process has to finish first."""
        return True

    def wait_any(self, ranges: Sequence[tuple[int, int]], timeout: float | None) -> list[bool]:
        """Return True for every part."""
        return [True] * len(ranges)

    def pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return the only slot."""
        return [(0, start, stop)]

    def render(self, row: int) -> Array:
        """Return the picture of one env."""
        frames = self._call("render", self._env.render)
        if frames is None:
            raise ContractViolation("render: wanted one picture per env, found None")
        return np.asarray(frames[row])

    def get_attr(self, name: str) -> list[Any]:
        """Return an attribute of every env; only vector envs that are built of single envs have them."""
        inner: Any = self._env.unwrapped
        if not _is_built_of_envs(self._env):
            raise ContractViolation(f"get_attr: {self._env} is not built of single envs that could have {name!r}")
        return list(self._call("get_attr", inner.get_attr, name))

    def close(self) -> list[str]:
        """Close the vector env."""
        self.closed = True
        try:
            self._env.close()
        except (Exception, SystemExit) as error:  # noqa: BLE001  (told to the user after all is released)
            return [f"{self._env}: {traceback_text(error)}"]
        return []

    # -- parts -------------------------------------------------------------------------------------------------------

    def _reset_some(self, mask: Array, before: list[Array]) -> list[Array]:
        """Reset the envs of a mask and return all observations; the others must come back as they were."""
        if not self._takes_mask:
            raise ContractViolation(
                f"{self._env} is not known to reset some of its envs; build it with autoreset_mode DISABLED to use "
                "reset_envs or to set episode_length_buf"
            )
        obs, info = self._call("reset", self._env.reset, options=_KeptOptions(reset_mask=mask))
        after = self._observation.read(obs, info, "in a reset of some envs", fallback=before, rows=mask)
        for leaf, old, new in zip(self._observation.leaves, before, after):
            if not np.array_equal(old[~mask], new[~mask], equal_nan=old.dtype.kind == "f"):
                raise ContractViolation(
                    f"{self._env}: component {leaf.name!r}: a reset with options['reset_mask'] changed envs outside "
                    "the mask; it seems to ignore the mask"
                )
        self.buffers.episode_length[mask], self.buffers.aged[mask] = 0, False
        return after

    def _store(self, arrays: Sequence[Array]) -> None:
        for target, array in zip(self.buffers.obs, arrays):
            target[0] = array

    def _step_buffers(self, reward: Array, ends: Array, stops: Array) -> None:
        self.buffers.reward[:], self.buffers.terminated[:], self.buffers.truncated[:] = reward, ends, stops
        self.buffers.num_steps[:] += 1
        self.buffers.episode_length[:] += 1

    def _over_age(self) -> Array:
        limits = np.asarray(self.description.limits)
        over: Array = self.buffers.aged & (limits > 0) & (self.buffers.episode_length + 1 >= limits)
        return over

    def _num_steps(self) -> int:
        return int(self.buffers.num_steps[0])

    def _call(self, phase: str, function: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call the vector env; what it raises is passed on as `EnvRaised`."""
        try:
            return function(*arguments, **keywords)
        except (Exception, SystemExit) as error:
            place = Place(
                env_index=self._first_env_index,
                last_env_index=self._first_env_index + self.num_envs - 1,
                worker_index=-1,
                phase=phase,
                seed=self.seed,
                env_seed=None,
                step=self._num_steps() + (phase == "step"),
                episode_step=0,
            )
            raise EnvRaised(f"{place} raised {type(error).__name__}:\n{traceback_text(error)}", place) from error


class _KeptOptions(dict[str, Any]):
    """Reset options that survive being read.

    SyncVectorEnv removes the mask from the options it is given, and the wrappers around it, which look for it
    afterwards (RecordEpisodeStatistics), then act as if every env was reset.
    """

    def pop(self, key: str, *default: Any) -> Any:
        """Return an entry and leave it where it is."""
        return self.get(key, *default)


def _autoreset_mode(env: VectorEnv[Any, Any, Any]) -> str:
    mode = (env.metadata or {}).get("autoreset_mode")
    name = str(getattr(mode, "value", mode))
    if name not in ("NextStep", "SameStep", "Disabled"):
        raise ContractViolation(
            f"{env}: metadata['autoreset_mode']: wanted an AutoresetMode, found {mode!r}; without it nobody can tell "
            "which observations begin an episode"
        )
    return name


def _is_built_of_envs(env: VectorEnv[Any, Any, Any]) -> bool:
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    return isinstance(env.unwrapped, (SyncVectorEnv, AsyncVectorEnv))


def _takes_reset_mask(env: VectorEnv[Any, Any, Any], mode: str) -> bool:
    """Return whether some envs can be reset. An AsyncVectorEnv without shared memory still does its own reset."""
    from gymnasium.vector import AsyncVectorEnv

    inner = env.unwrapped
    if isinstance(inner, AsyncVectorEnv) and mode == "NextStep":
        return bool(inner.shared_memory)
    return mode == "Disabled" or _is_built_of_envs(env)


def _limits(env: VectorEnv[Any, Any, Any]) -> tuple[int, ...]:
    """Return each env's time limit, where it can be found out."""
    from gymnasium.vector import SyncVectorEnv

    inner: Any = env.unwrapped
    if isinstance(inner, SyncVectorEnv):
        return tuple(step_limit(single) for single in inner.envs)
    specs = inner.get_attr("spec") if _is_built_of_envs(env) else [env.spec] * env.num_envs
    return tuple(int((spec.max_episode_steps if spec is not None else 0) or 0) for spec in specs)


# -- batches -----------------------------------------------------------------------------------------------------------


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
        every time has overwritten its final observation by now, and it is lost.
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
        if array.dtype.kind in "iu" and not flags:
            refuse_wrapped(array, leaf.dtype, f"component {leaf.name!r}, {where}: wanted {leaf.dtype}")
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
