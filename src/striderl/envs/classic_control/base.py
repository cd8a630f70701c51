"""The part that all classic-control tasks share: clocks, resets, saved state; a task adds its physics.

The physical state of all envs is one float64 array, one row per quantity, so that numpy's vector loops run along envs:

    state            env 0   env 1   env 2          episode   3  0  1      episodes each env has finished or abandoned
      x              0.02   -0.01    0.00           started  40 52 49      the clock when the episode began
      x_dot          0.31    0.00   -0.17           clock    52            so the episodes are 12, 0 and 3 steps old
      theta         -0.04    0.03    0.01
      theta_dot     -0.22    0.01    0.05
        │ .T.astype(float32)
        ▼
    observation [N, 4]

Counting the clock instead of N episode lengths makes a step without an ending as cheap as the physics: the lengths are
looked at only when the earliest possible time-out has come.

Where episodes start: first states that depend only on the seed, the env's global index and its episode.

One call of the counter-based generator costs the same for one episode as for a hundred, so starts are prepared several
episodes ahead. How far ahead changes no number.

    pool [N * 4, S]     env 0 is in episode 6 and was last supplied at 5: its four rows hold the starts of 5 6 7 8
                        env 1 is in episode 2 and was last supplied at 0: its four rows hold those of 0 1 2 3

When an env has used up its rows, every env that has used up half of its rows is refilled, so that envs whose
episodes are about as long share the cost of one call.

Draw simple pictures with numpy alone: bars, boxes, discs and graphs in world coordinates, with smooth edges.

(0, height)                                  a shape is a signed distance in pixels, negative inside;
    ▲                                        coverage = clip(1/2 - distance, 0, 1) smooths its edge
    │    ●────── bar from a to b
    └───────▶ metres
(left, bottom)
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from striderl.data.actions import BoxSpec, DiscreteSpec
from striderl.data.checked_fields import check_field_types
from striderl.data.noise import uniform
from striderl.data.specs import ObsSpec
from striderl.envs.vec_env import (
    Actions,
    Obs,
    Step,
    VecEnv,
    action_array,
    check_ages,
    check_env_index,
    check_mask,
    check_saved_task,
    not_ready,
    require_open,
)

_TRUE = b"\x01"
_NEGATIVE = b"\xff"
_NEVER = 2**62
_ONE = np.array(1)


@dataclass(frozen=True, kw_only=True)
class StateLayout:
    """The sizes and names of one classic task."""

    name: str
    """Gymnasium's id of the task; also the name of its random stream."""
    state_size: int
    """How many numbers describe one env."""
    obs_size: int
    """How many numbers one env observes."""
    num_draws: int
    """How many uniform numbers start an episode."""
    action_spec: BoxSpec | DiscreteSpec
    """What `step` takes."""
    step_dt: float
    """Seconds per step; 0 where the task gives its time no unit."""


@dataclass(frozen=True, kw_only=True)
class ClassicConfig:
    """The setting that every classic task has."""

    max_episode_length: int
    """Steps after which an episode is truncated; 0 for never."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.max_episode_length < 0:
            raise ValueError(f"max_episode_length is 0 (no limit) or positive, found {self.max_episode_length}")


ConfigT = TypeVar("ConfigT", bound=ClassicConfig)


class ClassicControl(VecEnv, Generic[ConfigT]):
    """N copies of one small task that is stepped with numpy on the CPU; tensors come and go on any device.

    A subclass names its `layout` and `default_config` and fills in four functions: how an episode starts, how the state
    advances, its observation, and how it is drawn. The first `reset` uses seed 0 if it is given none.
    """

    layout: ClassVar[StateLayout]
    default_config: ConfigT

    def __init__(
        self,
        num_envs: int,
        device: str | torch.device = "cpu",
        *,
        config: ConfigT | None = None,
        first_env_index: int = 0,
    ) -> None:
        self.config: ConfigT = self.default_config if config is None else config
        if num_envs < 1:
            raise ValueError(f"{type(self).__name__} wants at least one env, found num_envs={num_envs}")
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.obs_spec = ObsSpec.from_flat(self.layout.obs_size)
        self.action_spec = self.layout.action_spec
        self.info_spec = {}
        self.gives_final_obs = True
        self.max_episode_length = self.config.max_episode_length
        self.step_dt = self.layout.step_dt
        self.first_env_index = first_env_index
        self._state = np.zeros((self.layout.state_size, num_envs))
        self._episode = np.zeros(num_envs, np.int64)
        self._started = np.zeros(num_envs, np.int64)
        self._clock = 0
        self._deadline = _NEVER
        self._ready = False
        self._closed = False
        env_index = first_env_index + np.arange(num_envs)
        self._starts = EpisodeStarts(self.layout.name, self.layout.num_draws, env_index, self._start)
        self._action_shape = (num_envs, *self.layout.action_spec.tensor.shape)
        self._action_dtype = np.dtype(self.layout.action_spec.tensor.dtype)
        # an array that is handed out is never written to again, so a tensor may share its memory
        self._tensor: Callable[[Array], Tensor] = torch.from_numpy if self.device.type == "cpu" else self._upload
        self._false = np.zeros(num_envs, np.bool_)
        self._allocate_work()

    # -- what a task fills in ----------------------------------------------------------------------------------------

    def _allocate_work(self) -> None:
        """Make the arrays that every step writes to, where a task is fast enough to need them."""

    @abstractmethod
    def _start(self, draws: Array) -> Array:
        """Turn uniform numbers [n, num_draws] into the first states [state_size, n] of n episodes."""

    @abstractmethod
    def _advance(self, actions: Array) -> tuple[Array, Array]:
        """Move `self._state` one step on; return new arrays: the reward, float32 [N], and terminated, bool [N]."""

    @abstractmethod
    def _observe(self, state: Array) -> Array:
        """Return the observations of states [state_size, n] as a new, contiguous float32 array [n, obs_size]."""

    @abstractmethod
    def _picture(self, state: Array) -> Array:
        """Draw one env's state [state_size] as uint8 [height, width, 3]."""

    # -- the contract ------------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env; with a seed, episode 0 of that seed's streams."""
        require_open(self, closed=self._closed)
        if seed is not None or not self._ready:
            self._episode[:] = 0
            self._starts.seek(seed or 0, self._episode)
            self._ready = True
        else:
            self._episode += 1
        self._begin(np.arange(self.num_envs))
        self._set_deadline()
        return {"obs": self._tensor(self._observe(self._state))}

    def step(self, actions: Actions) -> Step:
        """Advance every env; the cost of an ending is only paid in steps in which an episode ends."""
        reward, terminated = self._advance(self._checked(actions))
        self._clock += 1
        ended = _TRUE in terminated.tobytes()  # a quarter of the price of numpy's any()
        truncated = self._false.copy()
        if self._clock >= self._deadline:
            ended |= self._mark_timeouts(truncated)
        tensor = self._tensor
        final = tensor(self._observe(self._state))
        current = final  # where nothing ended final_obs is unused, so both may be one tensor
        if ended:
            self._next_episode((terminated | truncated).nonzero()[0])
            current = tensor(self._observe(self._state))
        flags = tensor(terminated), tensor(truncated)
        return Step({"obs": current}, tensor(reward), *flags, {"obs": final}, {"log": {}})

    def reset_envs(self, mask: Tensor) -> Obs:
        """Abandon the masked episodes, start new ones, and return the observation of all envs."""
        self._require_reset()
        check_mask(mask, self.num_envs)
        rows = mask.cpu().numpy().nonzero()[0]
        self._next_episode(rows)
        return {"obs": self._tensor(self._observe(self._state))}

    @property
    def episode_length_buf(self) -> Tensor:
        """Steps taken so far in each env's episode, int64 [N]; a copy."""
        return self._tensor(self._clock - self._started)

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        check_ages(value, self.num_envs)
        self._started[:] = self._clock - value.cpu().numpy().astype(np.int64)
        self._set_deadline()

    def state_dict(self) -> dict[str, Any]:
        """Return physics, clocks and the position in the random streams; all the rest follows from them."""
        self._require_reset()
        return {
            "task": self.layout.name,
            "state": torch.from_numpy(self._state.T.copy()),
            "episode": torch.from_numpy(self._episode.copy()),
            "episode_length": torch.from_numpy(self._clock - self._started),
            "seed": self._starts.seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Obs:
        """Continue from a saved state of the same task and as many envs."""
        require_open(self, closed=self._closed)
        check_saved_task(state, self.layout.name)
        physics = state["state"].cpu().numpy()
        if physics.shape != self._state.T.shape:
            raise ValueError(
                f"{type(self).__name__} wants a state {list(self._state.T.shape)} (envs, numbers), "
                f"found {list(physics.shape)}; build it with as many envs as were saved"
            )
        self._state[...] = physics.T
        self._episode[:] = state["episode"].cpu().numpy()
        self._starts.seek(int(state["seed"]), self._episode)
        self._ready = True
        self.episode_length_buf = state["episode_length"]
        return {"obs": self._tensor(self._observe(self._state))}

    def render(self, env_index: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Draw one env as it is now."""
        check_env_index(env_index, self.num_envs)
        self._require_reset()
        return self._picture(self._state[:, env_index])

    def close(self) -> None:
        """Close the env; later calls raise."""
        self._ready, self._closed = False, True

    @property
    def state(self) -> Array:
        """The physical state of every env, float64 [N, state_size]; a copy."""
        return self._state.T.copy()

    # -- the parts of a step -----------------------------------------------------------------------------------------

    def _checked(self, actions: Actions) -> Array:
        """Return the actions as an array of the declared shape and dtype, or raise."""
        self._require_reset()
        array: Array = action_array(self, actions, self._action_shape)
        if array.dtype != self._action_dtype:
            if array.dtype.kind not in ("iub" if self._action_dtype.kind == "i" else "iuf"):
                raise TypeError(f"{type(self).__name__} wants {self._action_dtype} actions, found {array.dtype}")
            array = array.astype(self._action_dtype)
        return array

    def _chosen(self, table: Array, actions: Array) -> Array:
        """Look up the discrete actions in a table of forces; a choice that does not exist is an error."""
        # a negative int64 has 0xff as its top byte and no small choice has; a choice too high fails in the look-up
        if _NEGATIVE not in actions.tobytes():
            try:
                chosen: Array = table[actions]
                return chosen
            except IndexError:
                pass
        row = int(((actions < 0) | (actions >= len(table))).argmax())
        raise ValueError(f"{type(self).__name__} has choices 0 to {len(table) - 1}; env {row} got {actions[row]}")

    def _next_episode(self, rows: Array) -> None:
        """Begin the next episode of these envs."""
        self._episode[rows] = np.add(self._episode.take(rows), _ONE)
        self._begin(rows)

    def _begin(self, rows: Array) -> None:
        """Begin the episodes that these envs stand at."""
        self._state.T[rows] = self._starts.take(rows, self._episode)
        self._started[rows] = self._clock

    def _mark_timeouts(self, truncated: Array) -> bool:
        """Mark the episodes that have reached the limit, return whether there are any, and set the next check."""
        np.greater_equal(self._clock - self._started, self.max_episode_length, truncated)
        if _TRUE in truncated.tobytes():
            self._deadline = self._clock + 1
            return True
        self._set_deadline()
        return False

    def _set_deadline(self) -> None:
        """Set the earliest clock at which an episode can time out; resets only move it later, so it may be early."""
        if self.max_episode_length:
            self._deadline = int(self._started.min()) + self.max_episode_length

    def _upload(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def __getstate__(self) -> object:
        # a copy of arrays and of views of them would no longer share memory, and the copy would stand still
        raise TypeError(f"{type(self).__name__} is not copied or pickled; build another one and load its state_dict()")

    def _require_reset(self) -> None:
        if not self._ready:
            raise not_ready(self, closed=self._closed)


def scalar_square(values: Array) -> Array:
    """Square each number of [n] as numpy squares a single one: with libm's pow.

    For about one number in a thousand its last bit differs from x * x, and Gymnasium's tasks square single numbers.
    """
    if values.dtype == np.float64:
        return np.array([math.pow(number, 2.0) for number in values.tolist()])
    return np.array([number**2 for number in values], values.dtype)


# -- starts ------------------------------------------------------------------------------------------------------------


Array = np.ndarray[Any, np.dtype[Any]]


class EpisodeStarts:
    """The first states of each env's episodes, prepared several episodes ahead.

    `start` turns uniform numbers [n, count] into first states [S, n].
    """

    def __init__(self, name: str, count: int, env_index: Array, start: Callable[[Array], Array]) -> None:
        self.seed = 0
        self._name, self._count, self._env_index, self._start = name, count, env_index, start
        self._ahead = min(512, max(4, 32768 // len(env_index)))
        self._place = np.arange(len(env_index)) * self._ahead
        self._supplied = np.zeros(len(env_index), np.int64)
        self._pool: Array = np.empty((0, 0))

    def seek(self, seed: int, episode: Array) -> None:
        """Supply every env from the episode [N] in which it stands, for this seed."""
        self.seed = seed
        self._supplied[:] = episode
        self._pool = self._prepare(self._env_index, episode)

    def take(self, rows: Array, episode: Array) -> Array:
        """Return the first states [len(rows), S] of these envs; episode [N] counts those of all, one on at most."""
        slot = episode.take(rows) - self._supplied.take(rows)
        if self._ahead in slot.tolist():
            self._supply(episode)
            slot = episode.take(rows) - self._supplied.take(rows)
        taken: Array = self._pool.take(self._place.take(rows) + slot, 0)
        return taken

    def _supply(self, episode: Array) -> None:
        short = (episode - self._supplied > self._ahead // 2).nonzero()[0]
        self._supplied[short] = episode[short]
        places = (self._place[short][:, None] + np.arange(self._ahead)).reshape(-1)
        self._pool[places] = self._prepare(self._env_index[short], episode[short])

    def _prepare(self, env_index: Array, episode: Array) -> Array:
        """Draw the starts [n * ahead, S] of n envs, from these episodes on."""
        occasion = (episode[:, None] + np.arange(self._ahead)).reshape(-1)
        who = np.repeat(env_index, self._ahead)
        numbers = uniform(self._name, seed=self.seed, env_index=who, occasion=occasion, count=self._count)
        return np.ascontiguousarray(self._start(numbers).T)


# -- pictures ----------------------------------------------------------------------------------------------------------


Pixels = np.ndarray[Any, np.dtype[Any]]
Point = tuple[float, float]
Colour = tuple[int, int, int]

WHITE, BLACK, GREY = (255, 255, 255), (0, 0, 0), (130, 130, 130)
RED, BLUE, BROWN, YELLOW, TEAL = (204, 77, 77), (129, 132, 203), (202, 152, 101), (204, 204, 0), (0, 190, 190)


class Canvas:
    """A picture that shows `metres` of the world across its width, from (left, bottom) upwards."""

    def __init__(self, *, width: int, height: int, left: float, bottom: float, metres: float) -> None:
        self.pixels: Pixels = np.zeros((height, width, 3), np.uint8)
        self._scale = width / metres
        self._x = (left + (np.arange(width) + 0.5) / self._scale)[None, :]
        self._y = (bottom + (height - 0.5 - np.arange(height)) / self._scale)[:, None]

    def fill(self, colour: Colour) -> None:
        """Paint everything in one colour."""
        self.pixels[...] = colour

    def disc(self, centre: Point, radius: float, colour: Colour) -> None:
        """Draw a filled circle."""
        self._paint(np.hypot(self._x - centre[0], self._y - centre[1]) - radius, colour)

    def bar(self, start: Point, end: Point, width: float, colour: Colour) -> None:
        """Draw a straight bar with round ends."""
        along_x, along_y = end[0] - start[0], end[1] - start[1]
        length_squared = max(along_x * along_x + along_y * along_y, 1e-12)
        x, y = self._x - start[0], self._y - start[1]
        along = np.clip((x * along_x + y * along_y) / length_squared, 0.0, 1.0)
        self._paint(np.hypot(x - along * along_x, y - along * along_y) - 0.5 * width, colour)

    def box(self, centre: Point, width: float, height: float, colour: Colour) -> None:
        """Draw a filled, upright rectangle."""
        outside_x = np.abs(self._x - centre[0]) - 0.5 * width
        outside_y = np.abs(self._y - centre[1]) - 0.5 * height
        self._paint(np.maximum(outside_x, outside_y), colour)

    def graph(self, height: Callable[[Pixels], Pixels], width: float, colour: Colour) -> None:
        """Draw the line y = height(x)."""
        line = height(self._x[0])
        steepness = np.gradient(line, self._x[0])
        self._paint(np.abs(self._y - line) / np.sqrt(1.0 + steepness**2) - 0.5 * width, colour)

    def _paint(self, distance: Pixels, colour: Colour) -> None:
        coverage = np.clip(0.5 - distance * self._scale, 0.0, 1.0)[..., None]
        mixed = self.pixels * (1.0 - coverage) + np.asarray(colour, np.float64) * coverage
        self.pixels[...] = np.rint(mixed)
