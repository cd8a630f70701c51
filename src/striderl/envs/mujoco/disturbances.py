"""Randomisation during an episode: pushes, observation noise, delayed actions and delayed observations.

Latency keeps the last values in a ring; env i reads the slot that is `delay[i]` steps old:

    ring [slots, N, …]     slot 0   slot 1   slot 2        newest is written at step % slots
                            t=9      t=10     t=8          delay 0 reads t=10, delay 2 reads t=8
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from striderl.data.naming import unknown
from striderl.envs.mujoco.randomize import LiveTerm, Randomization, Scene, check_range
from striderl.envs.mujoco.simulation import Arrays, Float, Int
from striderl.envs.mujoco.streams import Range, Streams

_NOISE_BLOCK = 8  # steps of noise drawn in one call; part of the stream's key, so it must be constant


@dataclass(frozen=True, kw_only=True)
class Push(Randomization):
    """Kicks to the base, a random velocity added now and then; `env.randomized` has this step's kick, [N, dofs]."""

    interval: tuple[int, int]
    """Range of the number of steps until the first push and between pushes, both ends included."""
    velocity: tuple[float, ...] = (0.5, 0.5)
    """Largest kick per degree of freedom, m/s or rad/s; each is drawn between minus this and this."""
    dofs: tuple[int, ...] = (0, 1)
    """Which degrees of freedom (columns of qvel) are kicked: 0, 1, 2 are a free joint's x, y, z."""
    name: str = "push"
    """See `Randomization`."""

    def __post_init__(self) -> None:
        check_range("Push.interval", self.interval, above=1)
        if len(self.velocity) != len(self.dofs):
            raise ValueError(f"Push: {len(self.velocity)} velocities for {len(self.dofs)} dofs")

    def attach(self, scene: Scene) -> LiveTerm:
        """Give every env its own timetable."""
        return _LivePush(self, scene)


class _LivePush(LiveTerm):
    def __init__(self, term: Push, scene: Scene) -> None:
        num_envs, num_dofs = scene.simulation.qvel.shape
        if max(term.dofs) >= num_dofs or min(term.dofs) < 0:
            raise ValueError(f"Push.dofs={term.dofs}, but the model has degrees of freedom 0 to {num_dofs - 1}")
        self._term, self._streams, self._qvel = term, scene.streams, scene.simulation.qvel
        self.values = np.zeros((num_envs, len(term.dofs)))
        self._next = np.zeros(num_envs, np.int64)
        self._draws = np.zeros(num_envs, np.int64)
        self.memory = {"values": self.values, "next": self._next, "draws": self._draws}

    def begin(self, ids: Int) -> None:
        self.values[ids] = 0.0
        self._draws[ids] = 0
        self._next[ids] = self._interval(ids)

    def disturb(self, episode_length: Int) -> None:
        self.values[:] = 0.0
        due = np.flatnonzero(episode_length >= self._next)
        if not len(due):
            return
        limit = np.asarray(self._term.velocity)
        kick = self._draw("kick", due, len(limit), low=-limit, high=limit)
        self._qvel[due[:, None], self._term.dofs] += kick
        self.values[due] = kick
        self._next[due] = episode_length[due] + self._interval(due)

    def _interval(self, ids: Int) -> Int:
        low, high = self._term.interval
        steps = self._draw("interval", ids, 1, low=low, high=high + 1)[:, 0].astype(np.int64)
        self._draws[ids] += 1
        return np.minimum(steps, high)

    def _draw(self, what: str, ids: Int, count: int, *, low: Any, high: Any) -> Float:
        # 16 bits for the pushes of one episode leave the env 65,536 episodes before its occasions repeat
        occasion = (self._streams.episode[ids] << 16) + self._draws[ids]
        return self._streams.uniform(f"{self._term.stream}/{what}", ids, count, low=low, high=high, occasion=occasion)


@dataclass(frozen=True, kw_only=True)
class ObservationNoise(Randomization):
    """Noise on one observation component, new in every step; `env.randomized` has the noise of the last step."""

    component: str
    """Name of the component."""
    std: float = 0.0
    """Standard deviation of normal noise; give this or `uniform`."""
    uniform: float = 0.0
    """Half width of uniform noise."""
    name: str = ""
    """See `Randomization`; empty means 'noise/<component>'."""

    def __post_init__(self) -> None:
        if (self.std > 0.0) == (self.uniform > 0.0) or min(self.std, self.uniform) < 0.0:
            raise ValueError(f"ObservationNoise wants std or uniform, found std={self.std}, uniform={self.uniform}")
        object.__setattr__(self, "name", self.name or f"noise/{self.component}")

    def attach(self, scene: Scene) -> LiveTerm:
        """Give every env its own noise."""
        return _LiveNoise(self, scene)


class _LiveNoise(LiveTerm):
    def __init__(self, term: ObservationNoise, scene: Scene) -> None:
        self._term, self._streams = term, scene.streams
        self._shape = _component_shape(term.component, scene, where="ObservationNoise")
        self._size = int(np.prod(self._shape))
        self.values = np.zeros((scene.simulation.num_envs, *self._shape))
        self.memory = {"values": self.values}
        self._everyone = np.arange(scene.simulation.num_envs)
        self._block_key = (-1, -1)
        self._block = np.zeros(0)

    def filter_obs(self, obs: Arrays, rows: slice | Int, *, begun: bool, step_count: int) -> Arrays:
        if isinstance(rows, slice) and not begun:
            noise = self._of_step(step_count)
        else:
            # the last observation of one episode and the first of the next are made in one step: two streams
            ids = self._everyone[rows]
            noise = self._draw(f"{self._term.stream}/first", ids, 1, self._streams.episode[ids])[:, 0]
        self.values[rows] = noise
        return {**obs, self._term.component: obs[self._term.component] + noise}

    def _of_step(self, step_count: int) -> Float:
        block, place = divmod(step_count, _NOISE_BLOCK)
        if self._block_key != (self._streams.seed, block):
            self._block = self._draw(self._term.stream, self._everyone, _NOISE_BLOCK, block)
            self._block_key = (self._streams.seed, block)
        return self._block[:, place]

    def _draw(self, name: str, ids: Int, steps: int, occasion: Int | int) -> Float:
        count = steps * self._size
        if self._term.std > 0.0:
            numbers = self._term.std * self._streams.normal(name, ids, count, occasion=occasion)
        else:
            width = self._term.uniform
            numbers = self._streams.uniform(name, ids, count, low=-width, high=width, occasion=occasion)
        return numbers.reshape(len(ids), steps, *self._shape)


class _Ring:
    """The last values of every env, and each env's delay in steps."""

    def __init__(self, name: str, steps: Range, shape: tuple[int, ...], streams: Streams) -> None:
        self._name, self._steps, self._streams = name, steps, streams
        num_envs = len(streams.env_index)
        self.slots: NDArray[Any] = np.zeros((int(steps[1]) + 1, num_envs, *shape))
        self.delay = np.zeros((num_envs, 1))
        self.cursor = np.zeros(1, np.int64)
        self.everyone = np.arange(num_envs)

    def begin(self, ids: Int) -> None:
        """Draw the delays of these envs' new episodes."""
        low, high = self._steps
        drawn = np.floor(self._streams.uniform(self._name, ids, 1, low=low, high=high + 1))
        self.delay[ids] = np.minimum(drawn, high)

    def fill(self, ids: Int, value: Any) -> None:
        """Fill the whole history of these envs with this value."""
        self.slots[:, ids] = value

    def pass_through(self, value: NDArray[Any]) -> NDArray[Any]:
        """Write the newest value of all envs and return each env's delayed one."""
        self.cursor[0] = (self.cursor[0] + 1) % len(self.slots)
        self.slots[self.cursor[0]] = value
        place = (self.cursor[0] - self.delay[:, 0].astype(np.int64)) % len(self.slots)
        return np.asarray(self.slots[place, self.everyone])

    def arrays(self) -> Arrays:
        """Return what must be saved."""
        return {"slots": self.slots, "delay": self.delay, "cursor": self.cursor}


@dataclass(frozen=True, kw_only=True)
class ActionLatency(Randomization):
    """Actions that take effect some steps later, after zeros at the start; `env.randomized` has the steps, [N, 1]."""

    min_steps: int = 0
    """Fewest steps of delay."""
    max_steps: int = 1
    """Most steps of delay."""
    name: str = "action_latency"
    """See `Randomization`."""

    def __post_init__(self) -> None:
        check_range("ActionLatency (min_steps, max_steps)", (self.min_steps, self.max_steps), above=0)

    def attach(self, scene: Scene) -> LiveTerm:
        """Give every env its own delay."""
        return _LiveActionLatency(self, scene)


class _LiveActionLatency(LiveTerm):
    def __init__(self, term: ActionLatency, scene: Scene) -> None:
        self._ring = _Ring(term.stream, (term.min_steps, term.max_steps), scene.actions.shape[1:], scene.streams)
        self.values, self.memory = self._ring.delay, self._ring.arrays()

    def begin(self, ids: Int) -> None:
        self._ring.begin(ids)
        self._ring.fill(ids, 0.0)

    def filter_action(self, actions: Float) -> Float:
        return self._ring.pass_through(actions)


@dataclass(frozen=True, kw_only=True)
class ObservationLatency(Randomization):
    """One observation component with a delay of some steps; `env.randomized` has the steps, [N, 1]."""

    component: str
    """Name of the component."""
    min_steps: int = 0
    """Fewest steps of delay."""
    max_steps: int = 1
    """Most steps of delay."""
    name: str = ""
    """See `Randomization`; empty means 'latency/<component>'."""

    def __post_init__(self) -> None:
        check_range("ObservationLatency (min_steps, max_steps)", (self.min_steps, self.max_steps), above=0)
        object.__setattr__(self, "name", self.name or f"latency/{self.component}")

    def attach(self, scene: Scene) -> LiveTerm:
        """Give every env its own delay."""
        return _LiveObservationLatency(self, scene)


class _LiveObservationLatency(LiveTerm):
    def __init__(self, term: ObservationLatency, scene: Scene) -> None:
        self._component = term.component
        shape = _component_shape(term.component, scene, where="ObservationLatency")
        self._ring = _Ring(term.stream, (term.min_steps, term.max_steps), shape, scene.streams)
        self.values, self.memory = self._ring.delay, self._ring.arrays()

    def begin(self, ids: Int) -> None:
        self._ring.begin(ids)

    def filter_obs(self, obs: Arrays, rows: slice | Int, *, begun: bool, step_count: int) -> Arrays:
        seen = obs[self._component]
        if begun:
            self._ring.fill(self._ring.everyone[rows], seen)
            return obs
        return {**obs, self._component: self._ring.pass_through(seen)}


def _component_shape(component: str, scene: Scene, *, where: str) -> tuple[int, ...]:
    if component not in scene.obs_spec:
        raise ValueError(unknown("component", component, scene.obs_spec, where=f"{where}: the observation"))
    return scene.obs_spec[component].shape
