"""Workers of the vector envs: one env each, in this process, in one of its own, or in an actor of ray.

StepReader          an env of Gymnasium (five values per step) or older Gym (four) as (obs, rew, done, info); actions
                    are clipped to a Box before the env sees them, as at every boundary to an env that is not ours
EnvWorker           send_action(action) begins a step, get_result() waits for it, wait(workers, …) for some of many
"""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

import gymnasium
import numpy as np

from striderl.data import leaf
from striderl.data.actions import BoxSpec
from striderl.data.episode_ends import TIME_LIMIT
from striderl.data.memory import shared_array

EnvFn = Callable[[], Any]


class StepReader:
    """Steps one env, of Gymnasium or of older Gym, and returns (obs, rew, done, info)."""

    def __init__(self, env: Any) -> None:
        """Take the env; a seed waits for the next reset where the env takes seeds there."""
        self.env = env
        self._seed: int | None = None
        self._step = env.step
        self._clip = clip_to(getattr(env, "action_space", None))

    def reset(self) -> Any:
        """Return the first observation."""
        if self._seed is None:
            found = self.env.reset()
        else:
            found = self.env.reset(seed=self._seed)
            self._seed = None
        pair = type(found) is tuple and len(found) == 2 and isinstance(found[1], dict)
        return found[0] if pair and not isinstance(self.env.observation_space, gymnasium.spaces.Tuple) else found

    def step(self, action: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Take one step."""
        found = self._step(action if self._clip is None else self._clip(action))
        if len(found) == 5:
            obs, rew, terminated, truncated, info = found
            info = dict(info)
            info[TIME_LIMIT] = bool(truncated) and not terminated
            return obs, rew, bool(terminated or truncated), info
        if len(found) == 4:
            return found  # type: ignore[no-any-return]
        raise ValueError(
            f"{type(self.env).__name__}.step must return (obs, reward, terminated, truncated, info), or (obs, reward, "
            f"done, info) as older Gym, found {len(found)} values"
        )

    def seed(self, seed: int | None) -> Any:
        """Seed the env: at once by its `seed`, or with the next reset; an env that takes no seeds is left alone."""
        if hasattr(self.env, "seed"):
            return self.env.seed(seed)
        parameters = inspect.signature(self.env.reset).parameters.values()
        if not any(each.name == "seed" or each.kind is each.VAR_KEYWORD for each in parameters):
            return None
        self._seed = seed
        if seed is not None and hasattr(self.env.action_space, "seed"):
            self.env.action_space.seed(seed)
        return None if seed is None else [seed]

    def render(self, **kwargs: Any) -> Any:
        """Render the env where it can."""
        return self.env.render(**kwargs) if hasattr(self.env, "render") else None


class BoxClip:
    """Clip an action to the bounds of a Box; its shape, its dtype and its kind of array stay, and NaN stays NaN."""

    def __init__(self, spec: BoxSpec) -> None:
        """Take the Box."""
        self._spec = spec
        self._bounds: dict[Any, tuple[Any, Any]] = {}

    def __call__(self, action: Any) -> Any:
        """Return the clipped action; what has not one number per entry of the Box is left to the env."""
        given = action if action.__class__ is np.ndarray else np.asarray(leaf.to_array(action))
        low, high = self._bounds.get(given.dtype) or self._bounds_in(given.dtype)
        if given.dtype.kind not in "fiu" or given.size != low.size:
            return action
        if given.shape != low.shape:
            low, high = low.reshape(given.shape), high.reshape(given.shape)
        clipped = np.minimum(np.maximum(given, low), high)
        return leaf.like(clipped.astype(given.dtype, copy=False), action)

    def _bounds_in(self, dtype: Any) -> tuple[Any, Any]:
        found = self._bounds[dtype] = self._spec.clip_bounds(dtype)
        return found


def clip_to(space: Any) -> Callable[[Any], Any] | None:
    """Return what clips an action to a Box, or to those in a Dict of spaces; None where no bound is finite."""
    kind = type(space).__name__  # of Gymnasium or of older Gym
    if kind == "Box":
        spec = BoxSpec(shape=tuple(space.shape), low=tuple(space.low.reshape(-1)), high=tuple(space.high.reshape(-1)))
        return BoxClip(spec) if spec.is_bounded else None
    if kind != "Dict":
        return None
    clips = {name: clip for name, part in space.spaces.items() if (clip := clip_to(part)) is not None}

    def clip_parts(action: Any) -> Any:
        clipped = copy.copy(action)
        for name, clip in clips.items():
            clipped[name] = clip(action[name])
        return clipped

    return clip_parts if clips else None


# -- workers -----------------------------------------------------------------------------------------------------------


class EnvWorker(ABC):
    """One env somewhere; `send_action` begins a step and `get_result` waits for it."""

    def __init__(self, env_fn: EnvFn) -> None:
        """Remember what builds the env."""
        self._env_fn = env_fn
        self.is_closed = False

    @abstractmethod
    def get_env_attr(self, key: str) -> Any:
        """Return an attribute of the env."""

    @abstractmethod
    def reset(self) -> Any:
        """Return the first observation of an episode."""

    @abstractmethod
    def send_action(self, action: Any) -> None:
        """Begin a step."""

    @abstractmethod
    def get_result(self) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Return (obs, rew, done, info) of the step."""

    @staticmethod
    @abstractmethod
    def wait(workers: list[Any], wait_num: int, timeout: float | None = None) -> list[Any]:
        """Return the workers whose step has ended: when there are `wait_num` of them, or after `timeout` seconds."""

    @abstractmethod
    def seed(self, seed: int | None = None) -> Any:
        """Seed the env."""

    @abstractmethod
    def render(self, **kwargs: Any) -> Any:
        """Render the env."""

    @abstractmethod
    def close_env(self) -> None:
        """Close the env."""

    def step(self, action: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Take one step."""
        self.send_action(action)
        return self.get_result()

    def close(self) -> None:
        """Close the env once."""
        if not self.is_closed:
            self.is_closed = True
            self.close_env()


class DummyEnvWorker(EnvWorker):
    """An env of this process."""

    def __init__(self, env_fn: EnvFn) -> None:
        """Build the env."""
        super().__init__(env_fn)
        self.env = env_fn()
        self._reader = StepReader(self.env)

    def get_env_attr(self, key: str) -> Any:
        """Return an attribute of the env."""
        if isinstance(self.env, gymnasium.Wrapper) and not hasattr(self.env, key):
            return self.env.get_wrapper_attr(key)
        return getattr(self.env, key)

    def reset(self) -> Any:
        """Return the first observation of an episode."""
        return self._reader.reset()

    def seed(self, seed: int | None = None) -> Any:
        """Seed the env."""
        return self._reader.seed(seed)

    def render(self, **kwargs: Any) -> Any:
        """Render the env."""
        return self._reader.render(**kwargs)

    def send_action(self, action: Any) -> None:
        """Take the step."""
        self.result = self._reader.step(action)

    def step(self, action: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Take one step."""
        return self._reader.step(action)

    def get_result(self) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Return what the step gave."""
        return self.result

    @staticmethod
    def wait(workers: list[Any], wait_num: int, timeout: float | None = None) -> list[Any]:
        """Return all: their steps have ended."""
        return list(workers)

    def close_env(self) -> None:
        """Close the env."""
        self.env.close()


class SubprocEnvWorker(EnvWorker):
    """An env in a process of its own; with `share_memory` observations come back through shared memory."""

    def __init__(self, env_fn: EnvFn, share_memory: bool = False) -> None:
        """Start the process: a copy of this one where the system can, else a new one that gets the builder."""
        super().__init__(env_fn)
        forks = "fork" in multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        self.parent_remote, child = context.Pipe()
        self._shared = _shared_columns(env_fn) if share_memory else None
        build = env_fn if forks else _Pickled(env_fn)
        self.process = context.Process(
            target=_serve, args=(self.parent_remote, child, build, self._shared), daemon=True
        )
        self.process.start()
        child.close()

    def _ask(self, command: str, data: Any = None) -> Any:
        self.parent_remote.send((command, data))
        return self._answer()

    def _answer(self) -> Any:
        found, error = self.parent_remote.recv()
        if error is not None:
            raise error
        return found

    def get_env_attr(self, key: str) -> Any:
        """Return an attribute of the env."""
        return self._ask("getattr", key)

    def reset(self) -> Any:
        """Return the first observation of an episode."""
        return self._observation(self._ask("reset"))

    def send_action(self, action: Any) -> None:
        """Begin a step."""
        self.parent_remote.send(("step", action))

    def get_result(self) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Wait for the step and return what it gave."""
        obs, rew, done, info = self._answer()
        return self._observation(obs), rew, done, info

    def _observation(self, obs: Any) -> Any:
        return obs if self._shared is None else _copied(self._shared)

    @staticmethod
    def wait(workers: list[Any], wait_num: int, timeout: float | None = None) -> list[Any]:
        """Return the workers whose step has ended."""
        waiting = {worker.parent_remote: worker for worker in workers}
        ready: list[Any] = []
        end = None if timeout is None else time.monotonic() + timeout
        while waiting and len(ready) < wait_num:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                break
            ready += [waiting.pop(remote) for remote in connection.wait(list(waiting), timeout=left)]
        return ready

    def seed(self, seed: int | None = None) -> Any:
        """Seed the env."""
        return self._ask("seed", seed)

    def render(self, **kwargs: Any) -> Any:
        """Render the env."""
        return self._ask("render", kwargs)

    def close_env(self) -> None:
        """Close the env and end the process."""
        try:
            self.parent_remote.send(("close", None))
            self.parent_remote.close()
        except (BrokenPipeError, OSError):
            pass
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.terminate()


class RayEnvWorker(EnvWorker):
    """An env in an actor of ray."""

    def __init__(self, env_fn: EnvFn) -> None:
        """Start the actor."""
        super().__init__(env_fn)
        import ray

        self._ray = ray
        self._actor = ray.remote(DummyEnvWorker).remote(_Pickled(env_fn))

    def get_env_attr(self, key: str) -> Any:
        """Return an attribute of the env."""
        return self._ray.get(self._actor.get_env_attr.remote(key))

    def reset(self) -> Any:
        """Return the first observation of an episode."""
        return self._ray.get(self._actor.reset.remote())

    def send_action(self, action: Any) -> None:
        """Begin a step."""
        self.future = self._actor.step.remote(action)

    def get_result(self) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Wait for the step and return what it gave."""
        found: tuple[Any, Any, Any, dict[str, Any]] = self._ray.get(self.future)
        return found

    @staticmethod
    def wait(workers: list[Any], wait_num: int, timeout: float | None = None) -> list[Any]:
        """Return the workers whose step has ended."""
        futures = {worker.future: worker for worker in workers}
        ready, _ = workers[0]._ray.wait(list(futures), num_returns=min(wait_num, len(workers)), timeout=timeout)
        return [futures[each] for each in ready]

    def seed(self, seed: int | None = None) -> Any:
        """Seed the env."""
        return self._ray.get(self._actor.seed.remote(seed))

    def render(self, **kwargs: Any) -> Any:
        """Render the env."""
        return self._ray.get(self._actor.render.remote(**kwargs))

    def close_env(self) -> None:
        """Close the env."""
        self._ray.get(self._actor.close_env.remote())


class _Pickled:
    """A builder that can be sent to another process, lambdas too."""

    def __init__(self, env_fn: EnvFn) -> None:
        self.env_fn = env_fn

    def __call__(self) -> Any:
        return self.env_fn()

    def __getstate__(self) -> bytes:
        import cloudpickle  # type: ignore[import-untyped]

        return bytes(cloudpickle.dumps(self.env_fn))

    def __setstate__(self, state: bytes) -> None:
        import cloudpickle

        self.env_fn = cloudpickle.loads(state)


def _serve(parent: Any, remote: Any, build: EnvFn, shared: Any) -> None:
    """Answer the commands of a `SubprocEnvWorker` until the pipe closes."""
    parent.close()
    env = build()
    reader = StepReader(env)

    def seen(obs: Any) -> Any:
        if shared is None:
            return obs
        _write_shared(shared, obs)
        return None

    def step(action: Any) -> Any:
        obs, rew, done, info = reader.step(action)
        return seen(obs), rew, done, info

    commands: dict[str, Callable[[Any], Any]] = {
        "step": step,
        "reset": lambda _: seen(reader.reset()),
        "seed": reader.seed,
        "render": lambda kwargs: reader.render(**kwargs),
        "getattr": lambda key: getattr(env, key, None),
    }
    try:
        while True:
            command, data = remote.recv()
            if command == "close":
                break
            try:
                remote.send((commands[command](data), None))
            except Exception as error:  # noqa: BLE001  it is raised again in the process that asked
                remote.send((None, error))
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        pass
    finally:
        env.close()
        remote.close()


# -- shared observations -----------------------------------------------------------------------------------------------


def _shared_columns(env_fn: EnvFn) -> Any:
    """Build the env once for its observation space, and return shared arrays nested like an observation."""
    env = env_fn()
    space = env.observation_space
    env.close()
    return _shared_of(space)


def _shared_of(space: Any) -> Any:
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _shared_of(part) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(_shared_of(part) for part in space.spaces)
    return shared_array(space.shape, space.dtype)


def _write_shared(shared: Any, obs: Any) -> None:
    if isinstance(shared, dict):
        for key, part in shared.items():
            _write_shared(part, obs[key])
    elif isinstance(shared, tuple):
        for part, value in zip(shared, obs, strict=True):
            _write_shared(part, value)
    else:
        shared[...] = obs


def _copied(shared: Any) -> Any:
    """Return ordinary arrays: the next step writes over the shared ones."""
    if isinstance(shared, dict):
        return {key: _copied(part) for key, part in shared.items()}
    if isinstance(shared, tuple):
        return tuple(_copied(part) for part in shared)
    return np.array(shared, subok=False)
