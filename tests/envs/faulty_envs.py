"""Small Gymnasium envs with known transitions, and envs that fail in every way a test wants.

Nothing here loads torch, because worker processes import this module.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

DEATHS = ("sigkill", "sigsegv", "os_exit")
HANGS = ("sleep", "gil", "lock", "stop")
RAISES = ("exception", "keyboard_interrupt", "system_exit", "unpicklable", "huge")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong, when, and for how long it is remembered."""

    kind: str
    """One of DEATHS, HANGS or RAISES."""
    phase: str
    """'init', 'reset', 'step', 'idle', 'render', 'get_attr' or 'close'."""
    at: int = 3
    """The how-many-th step goes wrong, where the phase is 'step' or 'idle'; 'reset' fails the second time when > 1."""
    stamp: str = ""
    """A file that gets the time of the fault; while it exists the fault does not happen again."""


class PlantedError(RuntimeError):
    """What a faulty env raises."""


class UnpicklableError(RuntimeError):
    """An exception that cannot travel as an object."""

    def __init__(self) -> None:
        super().__init__("planted unpicklable")
        self.lock = threading.Lock()

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled, on purpose")


def hang_in_sleep() -> None:
    time.sleep(3600.0)


def hang_in_c_code() -> None:
    sum(range(10**15))


def hang_in_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def go_wrong(kind: str) -> None:
    """Fail in the way named."""
    if kind == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "sigsegv":
        ctypes.string_at(0)
    elif kind == "os_exit":
        os._exit(7)
    elif kind == "sleep":
        hang_in_sleep()
    elif kind == "gil":
        hang_in_c_code()
    elif kind == "lock":
        hang_in_lock()
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "exception":
        raise PlantedError("planted exception")
    elif kind == "keyboard_interrupt":
        raise KeyboardInterrupt("planted interrupt")
    elif kind == "system_exit":
        raise SystemExit("planted exit")
    elif kind == "unpicklable":
        raise UnpicklableError
    elif kind == "huge":
        raise PlantedError("planted huge " + "x" * 50_000_000)
    else:
        raise ValueError(f"unknown kind {kind!r}")


class FaultyEnv(gymnasium.Env[Any, Any]):
    """Counts its steps, draws one random number per step, and goes wrong as told."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space = spaces.Box(-1e6, 1e6, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, index: int = 0, fault: Fault | None = None, render_mode: str | None = "rgb_array") -> None:
        self.index = index
        self.render_mode = render_mode
        self._fault = fault
        self._steps = 0
        self._resets = 0
        self._maybe("init")

    def _maybe(self, phase: str, *, now: bool = True) -> None:
        fault = self._fault
        if fault is None or fault.phase != phase or not now or (fault.stamp and os.path.exists(fault.stamp)):
            return
        if fault.stamp:
            with open(fault.stamp, "w") as file:
                file.write(repr(time.monotonic()))
        go_wrong(fault.kind)

    def _obs(self) -> np.ndarray:
        return np.array([self.index, self._steps, self.np_random.random()], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._resets += 1
        self._maybe("reset", now=self._fault is not None and (self._fault.at <= 1 or self._resets > 1))
        self._steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._maybe("step", now=self._fault is not None and self._steps == self._fault.at)
        if self._fault is not None and self._fault.phase == "idle" and self._steps == self._fault.at:
            threading.Timer(0.1, self._maybe, args=("idle",)).start()
        return self._obs(), float(self._steps), False, self._steps >= 50, {}

    def render(self) -> np.ndarray:
        self._maybe("render")
        return np.full((4, 5, 3), self.index, np.uint8)

    @property
    def secret(self) -> int:
        self._maybe("get_attr")
        return 40 + self.index

    def close(self) -> None:
        self._maybe("close")


class FaultyFactory:
    """Builds env `index`, faulty if it is the chosen one."""

    def __init__(self, index: int, chosen: int, fault: Fault | None) -> None:
        self._arguments = (index, fault if index == chosen else None)

    def __call__(self, **kwargs: Any) -> FaultyEnv:
        return FaultyEnv(*self._arguments, **kwargs)


class ChainEnv(gymnasium.Env[Any, Any]):
    """A chain whose every number is known: obs = [index, episode, t], reward = 10 * t + action.

    Episode e of env i has (length + i + e) steps; it is terminated when e is even and truncated when it is odd.
    """

    observation_space = spaces.Box(-1e6, 1e6, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, index: int = 0, length: int = 2, reuse: bool = True, render_mode: str | None = None) -> None:
        self.index = index
        self.length = length
        self.reuse = reuse
        self.render_mode = render_mode
        self.episode = -1
        self.t = 0
        self._buffer = np.zeros(3, np.float32)

    def _obs(self) -> np.ndarray:
        self._buffer[:] = self.index, self.episode, self.t
        return self._buffer if self.reuse else self._buffer.copy()  # careless envs return the same array every time

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        return self._obs(), {"height": 100.0}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        ended = self.t >= self.length + self.index + self.episode
        even = self.episode % 2 == 0
        info = {"height": float(self.t), "pair": np.array([self.index, self.t])}
        return self._obs(), 10.0 * self.t + float(action), ended and even, ended and not even, info


class NestedEnv(gymnasium.Env[Any, Any]):
    """Nested observations of every kind: float64, an image, a Discrete value; hybrid actions; masks in the info."""

    observation_space = spaces.Dict(
        {
            "arm": spaces.Dict({"q": spaces.Box(-9, 9, (2,), np.float64), "mode": spaces.Discrete(5)}),
            "camera": spaces.Box(0, 255, (2, 2, 1), np.uint8),
            "pair": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([3, 4]))),
        }
    )
    action_space = spaces.Dict({"gear": spaces.Discrete(3), "torque": spaces.Box(-1, 1, (2,), np.float64)})

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.t = 0

    def _obs(self) -> dict[str, Any]:
        return {
            "arm": {"q": self.np_random.random(2), "mode": int(self.np_random.integers(5))},
            "camera": np.full((2, 2, 1), self.t % 256, np.uint8),
            "pair": (np.array([0, 1], np.int8), np.array([self.t % 3, 1])),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], None]:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), None

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], Any, Any, Any, None]:
        assert action["torque"].dtype == np.float64 and action["torque"].shape == (2,)
        assert isinstance(action["gear"], np.int64)
        self.t += 1
        reward = np.float64(action["torque"].sum() + action["gear"])
        action["torque"][:] = 99.0  # an env may write to what it is given
        return self._obs(), reward, np.bool_(self.t >= 7), 0, None


class HostileEnv(gymnasium.Env[Any, Any]):
    """Well-behaved until step `at`, then gives something else in one field."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, field: str = "", value: Any = None, at: int = 1000, shape: tuple[int, ...] = (2,)) -> None:
        self.field = field
        self.value = value
        self.at = at
        self.observation_space = spaces.Box(-1, 1, shape, np.float32)
        self.t = 0

    def _given(self, field: str, normal: Any) -> Any:
        return self.value if field == self.field and self.t >= self.at else normal

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._given("reset", (np.zeros(self.observation_space.shape, np.float32), {}))

    def step(self, action: Any) -> Any:
        self.t += 1
        fields = ("observation", "reward", "terminated", "truncated", "info")
        normal = (np.zeros(self.observation_space.shape, np.float32), 0.0, False, False, {})
        result = tuple(self._given(field, value) for field, value in zip(fields, normal))
        return self._given("step", result)


class MaskedEnv(gymnasium.Env[Any, Any]):
    """Three choices of which one is forbidden, told in the info or in the observation."""

    action_space = spaces.Discrete(3)

    def __init__(self, in_obs: bool = False) -> None:
        self.in_obs = in_obs
        number = spaces.Box(-100, 100, (1,), np.float32)
        mask = spaces.MultiBinary(3)
        self.observation_space = spaces.Dict({"allowed": mask, "x": number}) if in_obs else number
        self.t = 0

    def _both(self) -> Any:
        mask = np.ones(3, np.int8)
        mask[self.t % 3] = 0
        x = np.array([self.t], np.float32)
        return ({"allowed": mask, "x": x}, {}) if self.in_obs else (x, {"allowed": mask})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._both()

    def step(self, action: Any) -> Any:
        self.t += 1
        obs, info = self._both()
        return obs, 0.0, self.t >= 4, False, info


class StarterEnv(FaultyEnv):
    """Starts a process that never ends by itself, and writes its number to a file.

    how: 'child' starts it the usual way; 'daemon' forks twice into a session of its own, as a service does.
    """

    def __init__(self, how: str, folder: str, index: int = 0) -> None:
        super().__init__(index)
        if how == "child":
            started = subprocess.Popen(["sleep", "1000"]).pid
        else:
            started = _start_daemon()
        with open(os.path.join(folder, f"{index}.pid"), "w") as file:
            file.write(str(started))


def _start_daemon() -> int:
    reader, writer = os.pipe()
    first = os.fork()
    if first == 0:
        os.setsid()
        second = os.fork()
        if second:
            os.write(writer, str(second).encode())
            os._exit(0)
        os.closerange(0, 256)
        while True:
            time.sleep(1000.0)
    os.waitpid(first, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        return int(pipe.read())
