"""Vector envs in the words of Tianshou: `DummyVectorEnv`, `SubprocVectorEnv`, `ShmemVectorEnv`, `RayVectorEnv`.

    envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(8)])
    envs.seed(0)                                  env i gets seed i; a list gives each its own
    obs = envs.reset()                            [N, …]; reset([0, 5]) resets two of them
    obs, rew, done, info = envs.step(act)         [N, …] each, info an array of dicts with "env_id"
    obs, rew, done, info = envs.step(act, ids)    these envs alone

Envs of Gymnasium (five values per step) and of older Gym (four) are both taken: `done` is terminated or truncated, and
`info["TimeLimit.truncated"]` is true where the clock alone ended an episode. With `wait_num` or `timeout`, a step
returns when so many envs are ready, or after so many seconds; `info[i]["env_id"]` names them, and those that still step
are asked again by the next call.
"""

from __future__ import annotations

import multiprocessing
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any

import gymnasium
import numpy as np

from striderl.data.episode_ends import TIME_LIMIT
from striderl.data.memory import shared_array
from striderl.data.naming import AssertedValue

Array = np.ndarray[Any, Any]
EnvFn = Callable[[], Any]


class StepReader:
    """Steps one env, of Gymnasium or of older Gym, and returns (obs, rew, done, info)."""

    def __init__(self, env: Any) -> None:
        """Take the env; a seed waits for the next reset where the env takes seeds there."""
        self.env = env
        self._seed: int | None = None
        self._step = env.step
        self._plain = isinstance(env, gymnasium.Env)

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
        found = self._step(action)
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
        """Seed the env: at once by its `seed`, or with the next reset."""
        if hasattr(self.env, "seed"):
            return self.env.seed(seed)
        self._seed = seed
        if seed is not None and hasattr(self.env.action_space, "seed"):
            self.env.action_space.seed(seed)
        return None if seed is None else [seed]

    def render(self, **kwargs: Any) -> Any:
        """Render the env where it can."""
        return self.env.render(**kwargs) if hasattr(self.env, "render") else None


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
        self.reset, self.seed = self._reader.reset, self._reader.seed  # type: ignore[method-assign]
        self.render = self._reader.render  # type: ignore[method-assign]

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
        self.process = context.Process(target=_serve, args=(self.parent_remote, child, build, self._shared), daemon=True)
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
            for remote in connection.wait(list(waiting), timeout=left):
                ready.append(waiting.pop(remote))  # type: ignore[call-overload]
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
        self._actor = ray.remote(_RemoteEnv).remote(_Pickled(env_fn))

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


class _RemoteEnv(DummyEnvWorker):
    """A dummy worker whose builder came through a pickle."""


class _Pickled:
    """A builder that can be sent to another process, lambdas too."""

    def __init__(self, env_fn: EnvFn) -> None:
        self.env_fn = env_fn

    def __call__(self) -> Any:
        return self.env_fn()

    def __getstate__(self) -> bytes:
        import cloudpickle

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
            except Exception as error:  # it is raised again in the process that asked
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


# -- vector envs -------------------------------------------------------------------------------------------------------


class BaseVectorEnv:
    """Several envs behind one `reset` and one `step`; see the top of this module.

    An attribute that it has not itself is read from every env and returned as a list.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        worker_fn: Callable[[EnvFn], EnvWorker],
        wait_num: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Build all envs; `wait_num` or `timeout` make steps asynchronous."""
        if not env_fns or not all(callable(each) for each in env_fns):
            raise TypeError(f"{type(self).__name__} wants a list of functions that build an env each, found {env_fns!r}")
        self.env_num = len(env_fns)
        self.wait_num = self.env_num if wait_num is None else wait_num
        if not 1 <= self.wait_num <= self.env_num:
            raise AssertedValue(f"wait_num is from 1 to {self.env_num}, the number of envs, found {wait_num}")
        if timeout is not None and timeout <= 0:
            raise AssertedValue(f"timeout is a positive number of seconds, found {timeout}")
        self.timeout = timeout
        self.is_async = self.wait_num != self.env_num or timeout is not None
        self.is_closed = False
        self.workers = [worker_fn(each) for each in env_fns]
        self.worker_class = type(self.workers[0])
        self.waiting_conn: list[EnvWorker] = []
        self.waiting_id: list[int] = []
        """The envs whose step was begun and not yet returned."""
        self.ready_id = list(range(self.env_num))
        """The envs that may be stepped or reset."""

    def __len__(self) -> int:
        return self.env_num

    def __getattr__(self, key: str) -> list[Any]:
        workers = self.__dict__.get("workers")
        if workers is None or key.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {key!r}")
        return [worker.get_env_attr(key) for worker in workers]

    def _ids(self, id: Any) -> list[int]:
        if id is None:
            return list(range(self.env_num))
        return [int(id)] if np.isscalar(id) else [int(each) for each in id]

    def _check_open(self) -> None:
        if self.is_closed:
            raise AssertedValue(f"this {type(self).__name__} is closed; build another one")

    def _check_ready(self, ids: list[int]) -> None:
        for each in ids:
            if each not in self.ready_id:
                raise AssertedValue(f"env {each} is still stepping; envs {self.ready_id} are ready")

    def reset(self, id: Any = None) -> Any:
        """Begin new episodes in these envs (all by default) and return the first observations [n, …]."""
        self._check_open()
        ids = self._ids(id)
        if self.is_async:
            self._check_ready(ids)
        return _stacked([self.workers[each].reset() for each in ids])

    def step(self, action: Any, id: Any = None) -> tuple[Any, Array, Array, Array]:
        """Step these envs (all by default); `action` has one row for each. See the top of this module."""
        self._check_open()
        ids = self._ids(id)
        if action is not None and len(action) != len(ids):
            raise AssertedValue(f"step wants one action for each of {len(ids)} envs, found {len(action)}")
        results = self._step_some(action, ids) if self.is_async else self._step_all(action, ids)
        obs, rew, done, info = zip(*results)
        infos = np.empty(len(info), object)
        infos[:] = info
        return _stacked(obs), np.array(rew), np.array(done), infos

    def _step_all(self, action: Any, ids: list[int]) -> list[Any]:
        for act, each in zip(action, ids):
            self.workers[each].send_action(act)
        results = [self.workers[each].get_result() for each in ids]
        for each, result in zip(ids, results):
            result[3]["env_id"] = each
        return results

    def _step_some(self, action: Any, ids: list[int]) -> list[Any]:
        if action is not None:
            self._check_ready(ids)
            for act, each in zip(action, ids):
                self.workers[each].send_action(act)
                self.waiting_conn.append(self.workers[each])
                self.waiting_id.append(each)
            self.ready_id = [each for each in self.ready_id if each not in ids]
        ready: list[EnvWorker] = []
        while not ready:
            ready = self.worker_class.wait(self.waiting_conn, self.wait_num, self.timeout)
        results = []
        for worker in ready:
            place = self.waiting_conn.index(worker)
            self.waiting_conn.pop(place)
            each = self.waiting_id.pop(place)
            result = worker.get_result()
            result[3]["env_id"] = each
            results.append(result)
            self.ready_id.append(each)
        return results

    def seed(self, seed: int | Sequence[int] | None = None) -> list[Any]:
        """Seed all envs: `seed`, `seed` + 1, … or one of a list for each."""
        self._check_open()
        if seed is None or isinstance(seed, (int, np.integer)):
            seeds: Sequence[int | None] = [None if seed is None else int(seed) + i for i in range(self.env_num)]
        else:
            seeds = list(seed)
        if len(seeds) != self.env_num:
            raise AssertedValue(f"seed wants one number for each of {self.env_num} envs, found {len(seeds)}")
        return [worker.seed(each) for worker, each in zip(self.workers, seeds)]

    def render(self, **kwargs: Any) -> list[Any]:
        """Render all envs."""
        self._check_open()
        if self.waiting_id:
            raise RuntimeError(f"envs {self.waiting_id} are still stepping and cannot be rendered now")
        return [worker.render(**kwargs) for worker in self.workers]

    def close(self) -> None:
        """Close all envs; none of the other methods can be called then."""
        self._check_open()
        for worker in self.workers:
            worker.close()
        self.is_closed = True

    def __del__(self) -> None:
        if not self.__dict__.get("is_closed", True):
            self.close()


def _stacked(values: Sequence[Any]) -> Any:
    """Return one array [n, …]; nested observations as an array of them."""
    first = values[0]
    if isinstance(first, (dict, tuple)):
        found = np.empty(len(values), object)
        found[:] = values
        return found
    return np.array(values) if isinstance(first, np.ndarray) else np.stack(values)


class DummyVectorEnv(BaseVectorEnv):
    """Envs of this process, one after the other."""

    def __init__(self, env_fns: Sequence[EnvFn], wait_num: int | None = None, timeout: float | None = None) -> None:
        """Build all envs here."""
        super().__init__(env_fns, DummyEnvWorker, wait_num, timeout)
        self._steps = [worker.step for worker in self.workers]

    def _step_all(self, action: Any, ids: list[int]) -> list[Any]:
        results = []
        for act, each in zip(action, ids):
            result = self._steps[each](act)
            result[3]["env_id"] = each
            results.append(result)
        return results


class SubprocVectorEnv(BaseVectorEnv):
    """Envs in a process each."""

    def __init__(self, env_fns: Sequence[EnvFn], wait_num: int | None = None, timeout: float | None = None) -> None:
        """Start the processes."""
        super().__init__(env_fns, SubprocEnvWorker, wait_num, timeout)


class ShmemVectorEnv(BaseVectorEnv):
    """Envs in a process each, with observations in shared memory."""

    def __init__(self, env_fns: Sequence[EnvFn], wait_num: int | None = None, timeout: float | None = None) -> None:
        """Start the processes."""
        super().__init__(env_fns, _sharing_worker, wait_num, timeout)


def _sharing_worker(env_fn: EnvFn) -> SubprocEnvWorker:
    return SubprocEnvWorker(env_fn, share_memory=True)


class RayVectorEnv(BaseVectorEnv):
    """Envs in actors of ray, on one machine or many."""

    def __init__(self, env_fns: Sequence[EnvFn], wait_num: int | None = None, timeout: float | None = None) -> None:
        """Start the actors."""
        try:
            import ray
        except ImportError:
            raise ImportError("RayVectorEnv wants the package ray: pip install ray; or use SubprocVectorEnv") from None
        if not ray.is_initialized():
            ray.init()
        super().__init__(env_fns, RayEnvWorker, wait_num, timeout)


class MultiAgentEnv(gymnasium.Env[Any, Any]):
    """An env in which agents take turns.

    `reset` returns {"obs": …, "agent_id": whose turn it is, from 1, "mask": which actions are legal}; `step(action)`
    returns (such a dict, reward of every agent, done, info), or five values as in Gymnasium.
    """
