"""A block of consecutive Gymnasium envs, stepped one after the other, writing into rows of shared arrays.

    env    0   1   2   3   4   5          first_index = 3, three envs, rows 0 to 2 of the block's own arrays
                       └──block──┘
    step:  env 3 ─▶ row 0,   env 4 ─▶ row 1 (ended: final_obs, then reset),   env 5 ─▶ row 2

The same class runs in the trainer's process and in worker processes; that is why the data does not depend on how many
workers there are. Every `step` is one real transition for every env: an env whose episode ends is reset right there,
with no new seed. Nothing here loads torch.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from typing import Any

import numpy as np

from striderl.envs.workers.convert import (
    ActionReader,
    EnvFactory,
    LeafWriter,
    ObservationWriter,
    checked_info,
    checked_result,
    checked_scalars,
    space_difference,
)
from striderl.envs.workers.errors import ContractViolation, MissingPackage, WrongType, WrongValue, traceback_text
from striderl.envs.workers.layout import Array, Buffers, Description, Layout

PHASES = ("idle", "init", "reset", "step", "render", "get_attr", "close")
"""What a block can be doing; its number is written where the trainer can read it."""
_PHASE = {name: number for number, name in enumerate(PHASES)}
_TRUE = b"\x01"
_ARRAY = np.ndarray
_NUMBERS = frozenset({float, int, np.float64, np.float32, np.int64, np.int32})
_STEP_FIELDS = ("observation", "reward", "terminated", "truncated", "info")
_RESET_FIELDS = ("observation", "info")

Progress = MutableSequence[int] | Array
"""[phase number, global env index] of what is going on now; outlives the process when it lies in shared memory."""


class RowNumbers:
    """The numbers of single rows, as memory views: for one number a fifth of the price of a numpy array's."""

    def __init__(self, buffers: Buffers) -> None:
        self.reward = buffers.reward.data
        self.terminated, self.truncated = buffers.terminated.data, buffers.truncated.data
        self.num_steps, self.episode_length = buffers.num_steps.data, buffers.episode_length.data
        self.aged = buffers.aged.data
        self._raised = list(range(len(buffers.reward)))
        """Rows that are marked as ended, or may be: the trainer marks those of a worker that was lost."""

    def raise_flags(self, row: int, terminated: bool, truncated: bool) -> None:
        """Mark the end of an episode, until the row is stepped again."""
        self.terminated[row], self.truncated[row] = terminated, truncated
        self._raised.append(row)

    def lower_flags(self, start: int, stop: int) -> None:
        """Take the marks of these rows away."""
        if self._raised:
            for row in self._raised:
                if start <= row < stop:
                    self.terminated[row] = self.truncated[row] = False
            self._raised = [row for row in self._raised if not start <= row < stop]


class EnvBlock:
    """Consecutive envs of one process."""

    def __init__(self, factories: Sequence[EnvFactory], first_index: int, progress: Progress) -> None:
        self._first_index = first_index
        self._progress = progress
        self._envs: list[Any] = []
        for env_index, factory in enumerate(factories, first_index):
            self._enter("init", env_index)
            self._envs.append(checked_env(factory(), env_index))
        self.description = self._describe()
        self._leave()

    # -- life --------------------------------------------------------------------------------------------------------

    def bind(self, layout: Layout, buffers: Buffers) -> None:
        """Start to use these arrays, of which only this block's rows are given."""
        num_envs = len(self._envs)
        space = self.description.observation_space
        self._observation = ObservationWriter(space, layout.observation, num_envs, mask=layout.mask)
        self._actions = ActionReader(self.description.action_space)
        self._infos = [LeafWriter(leaf, num_envs, kind="info key") for leaf in layout.infos]
        self._infos_missing = {leaf.name for leaf in layout.infos}
        self._mask = LeafWriter(layout.observation[-1], num_envs, as_flags=True) if layout.mask_in_info else None
        plain = self._observation.plain if self._mask is None else None
        if plain is not None and not plain.shape:
            plain = None  # a row of single numbers is no array to write to
        self._seen = plain.seen if plain is not None else [None] * num_envs
        self._shape = plain.shape if plain is not None else ()
        self.buffers, self.rows = buffers, RowNumbers(buffers)
        self._obs = [[array[slot] for array in buffers.obs] for slot in range(layout.num_slots)]
        self._obs_rows = [list(components[0]) if plain is not None else [] for components in self._obs]

    def close(self, *, pass_on_interrupt: bool) -> list[str]:
        """Close every env and return the tracebacks of those that raised.

        In the trainer's process a KeyboardInterrupt is the user's wish and is passed on, after all envs are closed; in
        a worker, which ignores Ctrl-C, it comes from an env.
        """
        texts, interrupt = [], None
        for env_index, env in enumerate(self._envs, self._first_index):
            self._enter("close", env_index)
            try:
                env.close()
            except BaseException as error:  # noqa: BLE001  (one env's failure must not keep the others open)
                texts.append(f"env {env_index}: {traceback_text(error)}")
                interrupt = error if isinstance(error, KeyboardInterrupt) else interrupt
        self._envs = []
        self._leave()
        if interrupt is not None and pass_on_interrupt:
            raise interrupt
        return texts

    # -- commands ----------------------------------------------------------------------------------------------------

    def reset(self, slot: int, start: int, stop: int, *, seeded: bool) -> None:
        """Start new episodes in the envs start to stop (counted within the block), from their seeds where asked."""
        index = start
        try:
            for index in range(start, stop):
                self._enter("reset", self._first_index + index)
                if seeded:
                    self._seed_spaces(index)
                self._reset_one(index, slot, int(self.buffers.seeds[index, 0]) if seeded else None)
        except ContractViolation as violation:
            raise self._placed(violation, index) from None
        self._leave()

    def reset_masked(self, old_slot: int, slot: int, start: int, stop: int) -> None:
        """Start new episodes where the reset mask is true; the other rows keep their observation."""
        rows = np.arange(start, stop)
        chosen = self.buffers.reset_mask[start:stop]
        if old_slot != slot:
            for old, new in zip(self._obs[old_slot], self._obs[slot]):
                new[rows[~chosen]] = old[rows[~chosen]]
        index = start
        try:
            for index in rows[chosen].tolist():
                self._reset_one(index, slot, None)
        except ContractViolation as violation:
            raise self._placed(violation, index) from None
        self._leave()

    def step(self, slot: int, start: int, stop: int) -> None:
        """Advance the envs start to stop by one step with the actions in the buffers."""
        progress, rows, obs, first = self._progress, self.rows, self._obs[slot], self._first_index
        seen, shape, obs_rows = self._seen, self._shape, self._obs_rows[slot]
        rewards, lengths, counts = rows.reward, rows.episode_length, rows.num_steps
        usual = not self._infos and _TRUE not in rows.aged.tobytes()
        actions = self._actions.read(self.buffers.actions, start, stop)
        rows.lower_flags(start, stop)
        index, ended = start, False
        try:
            progress[0] = _PHASE["step"]
            for index, env, action in zip(range(start, stop), self._envs[start:stop], actions):
                progress[1] = first + index
                result = env.step(action)
                if result.__class__ is not tuple or len(result) != 5:
                    result = checked_result(result, _STEP_FIELDS, "step")
                observation, reward, terminated, truncated, info = result
                # nearly always: nothing has ended, and the reward is a number
                if terminated is not False or truncated is not False or reward.__class__ not in _NUMBERS or not usual:
                    reward, terminated, truncated = self._judged(reward, terminated, truncated, info, index)
                rewards[index] = reward
                if terminated or truncated:
                    self._write(observation, info, self.buffers.final_obs, index)
                    rows.raise_flags(index, terminated, truncated)
                    self._reset_one(index, slot, None)
                    progress[0], ended = _PHASE["step"], True
                else:
                    is_array = observation.__class__ is _ARRAY  # the checks of `LeafWriter.write`, without the call
                    if is_array and observation.dtype is seen[index] and observation.shape == shape:
                        obs_rows[index][...] = observation
                    else:
                        self._write(observation, info, obs, index)
                    lengths[index] += 1
                counts[index] += 1
        except ContractViolation as violation:
            raise self._placed(violation, index) from None
        if ended:
            self._check_infos_came()
        progress[0] = 0

    def render(self, index: int) -> Array:
        """Return the picture of one env, counted within the block, as uint8 [height, width, 3]."""
        self._enter("render", self._first_index + index)
        frame = np.asarray(self._envs[index].render())
        if frame.ndim != 3 or frame.shape[-1] != 3 or frame.dtype != np.uint8:
            violation = ContractViolation(
                f"render: wanted uint8 [height, width, 3], found {frame.dtype} of shape {frame.shape}"
            )
            raise self._placed(violation, index)
        self._leave()
        return frame

    def get_attr(self, name: str) -> list[Any]:
        """Return an attribute of every env, looked up through its wrappers."""
        values = []
        for env_index, env in enumerate(self._envs, self._first_index):
            self._enter("get_attr", env_index)
            values.append(env.get_wrapper_attr(name))
        self._leave()
        return values

    # -- parts -------------------------------------------------------------------------------------------------------

    def _enter(self, phase: str, env_index: int) -> None:
        self._progress[0], self._progress[1] = _PHASE[phase], env_index

    def _leave(self) -> None:
        self._progress[0] = 0

    def _judged(self, reward: Any, terminated: Any, truncated: Any, info: Any, index: int) -> tuple[float, bool, bool]:
        """Return a step's scalars in plain types, store its infos, and end an episode that a runner's clock ends."""
        if reward.__class__ not in _NUMBERS or terminated.__class__ is not bool or truncated.__class__ is not bool:
            reward, terminated, truncated = checked_scalars(reward, terminated, truncated)
        if self._infos:
            self._write_infos(info, index)
        return reward, terminated, truncated or self._is_over_age(index)

    def _reset_one(self, index: int, slot: int, seed: int | None) -> None:
        self._enter("reset", self._first_index + index)
        result = self._envs[index].reset(seed=seed) if seed is not None else self._envs[index].reset()
        observation, info = checked_result(result, _RESET_FIELDS, "reset")
        self._write(observation, info, self._obs[slot], index)
        self.rows.episode_length[index] = 0
        self.rows.aged[index] = False

    def _seed_spaces(self, index: int) -> None:
        _, action_seed, observation_seed = self.buffers.seeds[index].tolist()
        self._envs[index].action_space.seed(action_seed)
        self._envs[index].observation_space.seed(observation_seed)

    def _write(self, observation: Any, info: Any, targets: Sequence[Array], index: int) -> None:
        self._observation.write(observation, targets, index)
        if self._mask is not None:
            found = checked_info(info)
            if self._mask.name not in found:
                raise ContractViolation(
                    f"info key {self._mask.name!r}: wanted the mask of allowed actions with every observation, "
                    f"found {sorted(map(str, found))}"
                )
            self._mask.write(found[self._mask.name], targets[-1], index)

    def _write_infos(self, info: Any, index: int) -> None:
        """Store the declared keys; one that this step does not carry is stored as zeros."""
        found = checked_info(info)
        for writer, target in zip(self._infos, self.buffers.infos):
            if writer.name in found:
                writer.write(found[writer.name], target, index)
                self._infos_missing.discard(writer.name)
            else:
                target[index] = 0

    def _check_infos_came(self) -> None:
        """Raise for a declared key that was missing in a whole episode: it is most likely misspelt."""
        if self._infos_missing:
            missing, self._infos_missing = sorted(self._infos_missing), set()
            raise ContractViolation(
                f"envs {self._first_index} to {self._first_index + len(self._envs) - 1}: an episode ended and the "
                f"declared info keys {missing} were in none of its steps; correct info_keys"
            )

    def _is_over_age(self, index: int) -> bool:
        limit = self.description.limits[index]
        return bool(self.buffers.aged[index] and limit and self.buffers.episode_length[index] + 1 >= limit)

    def _placed(self, violation: ContractViolation, index: int) -> ContractViolation:
        """Return an error that names env, time and step of a broken contract."""
        step, age = int(self.buffers.num_steps[index]), int(self.buffers.episode_length[index])
        phase = PHASES[int(self._progress[0])]
        return ContractViolation(
            f"env {self._first_index + index}, phase {phase}, after {step} steps ({age} in this episode): {violation}"
        )

    def _describe(self) -> Description:
        first = self._envs[0]
        for env_index, env in enumerate(self._envs, self._first_index):
            check_spaces(first, env, self._first_index, env_index)
        return Description(
            observation_space=first.observation_space,
            action_space=first.action_space,
            limits=tuple(step_limit(env) for env in self._envs),
            render_mode=str(getattr(first, "render_mode", None) or ""),
            step_dt=_step_seconds(first),
            render_fps=render_fps_of(first),
        )


def make_env(spec: Any, arguments: Mapping[str, Any]) -> Any:
    """Build an env from a Gymnasium id or spec, without Gymnasium's per-step checker.

    An error in the request itself has a one-line message; what the env's own code raises keeps its traceback.
    """
    import gymnasium
    from gymnasium.error import DependencyNotInstalled, DeprecatedEnv, UnregisteredEnv

    name = spec if isinstance(spec, str) else spec.id
    try:
        return gymnasium.make(spec, disable_env_checker=True, **arguments)
    except (UnregisteredEnv, DeprecatedEnv) as error:
        raise WrongValue(f"Gymnasium has no env {name!r}: {error}") from None
    except (DependencyNotInstalled, ImportError) as error:
        raise MissingPackage(f"the Gymnasium env {name!r} needs something that is not installed: {error}") from None
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        found = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        said = str(error).split(" was raised from the environment creator")[0]
        raise WrongType(f"the Gymnasium env {name!r} does not take all of ({found}): {said}") from None


def checked_env(env: Any, env_index: int) -> Any:
    """Return what a builder made, or raise if it is not a Gymnasium env."""
    import gymnasium

    if isinstance(env, gymnasium.Env):
        return env
    found = f"the class {env.__name__}, not an object of it" if isinstance(env, type) else type(env).__name__
    raise WrongType(f"env {env_index}: its builder wants to return a gymnasium.Env, found {found}")


def check_spaces(first: Any, other: Any, first_index: int, index: int) -> None:
    """Raise for an env whose spaces differ from the first one's; both need `observation_space` and `action_space`."""
    pairs = {
        "observation": (first.observation_space, other.observation_space),
        "action": (first.action_space, other.action_space),
    }
    for kind, (wanted, found) in pairs.items():
        difference = space_difference(wanted, found)
        if difference:
            raise ContractViolation(f"env {index} has another {kind} space than env {first_index}: {difference}")


def step_limit(env: Any) -> int:
    """Return after how many steps the env's own TimeLimit truncates, 0 when it has none."""
    from gymnasium import Wrapper
    from gymnasium.wrappers import TimeLimit

    limits, layer = [], env
    while isinstance(layer, Wrapper):
        if isinstance(layer, TimeLimit):
            limits.append(int(layer._max_episode_steps))
        layer = layer.env
    return min(limits, default=0)


def render_fps_of(env: Any) -> float:
    """Return how many steps a second the env is meant to be shown at; 0 where its metadata does not tell."""
    fps = (getattr(env, "metadata", None) or {}).get("render_fps", 0.0)
    return float(fps) if isinstance(fps, (int, float)) and not isinstance(fps, bool) and 0.0 < fps < 1e6 else 0.0


def _step_seconds(env: Any) -> float:
    """Return the simulated time of one step where the env has it as `dt`, as MuJoCo envs do."""
    dt = getattr(env.unwrapped, "dt", 0.0)
    return float(dt) if isinstance(dt, (int, float)) else 0.0
