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

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from striderl.compat.tianshou.env_workers import DummyEnvWorker, EnvFn, EnvWorker, RayEnvWorker, SubprocEnvWorker
from striderl.data.naming import AssertedValueError

__path__: list[str] = []  # Tianshou's modules env.… are below, see compat/original_paths.py

Array = np.ndarray[Any, Any]

__all__ = [
    "BaseVectorEnv",
    "DummyVectorEnv",
    "MultiAgentEnv",
    "RayVectorEnv",
    "ShmemVectorEnv",
    "SubprocVectorEnv",
]


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
            raise TypeError(
                f"{type(self).__name__} wants a list of functions that build an env each, found {env_fns!r}"
            )
        self.env_num = len(env_fns)
        self.wait_num = self.env_num if wait_num is None else wait_num
        if not 1 <= self.wait_num <= self.env_num:
            raise AssertedValueError(f"wait_num is from 1 to {self.env_num}, the number of envs, found {wait_num}")
        if timeout is not None and timeout <= 0:
            raise AssertedValueError(f"timeout is a positive number of seconds, found {timeout}")
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
        return [int(each) for each in np.atleast_1d(id)]

    def _check_open(self) -> None:
        if self.is_closed:
            raise AssertedValueError(f"this {type(self).__name__} is closed; build another one")

    def _check_ready(self, ids: list[int]) -> None:
        for each in ids:
            if each not in self.ready_id:
                raise AssertedValueError(f"env {each} is still stepping; envs {self.ready_id} are ready")

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
            raise AssertedValueError(f"step wants one action for each of {len(ids)} envs, found {len(action)}")
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
        """Seed all envs: `seed`, `seed` + 1 and so on, or the first numbers of a list."""
        self._check_open()
        if seed is None or isinstance(seed, (int, np.integer)):
            seeds: Sequence[int | None] = [None if seed is None else int(seed) + i for i in range(self.env_num)]
        else:
            seeds = list(seed)
        if len(seeds) < self.env_num:
            raise AssertedValueError(f"seed wants one number for each of {self.env_num} envs, found {len(seeds)}")
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
