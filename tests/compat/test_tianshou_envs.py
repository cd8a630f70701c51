"""Vector envs in the words of Tianshou: synchronous, in processes, with shared observations, some at a time."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from striderl.compat.tianshou.env import DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv
from striderl.compat.tianshou.env_workers import SubprocEnvWorker

KINDS = [DummyVectorEnv, SubprocVectorEnv, ShmemVectorEnv]


class Counting(gymnasium.Env[Any, Any]):
    """Counts to `size`; observations are nested, random numbers are those of the seed."""

    def __init__(self, size: int = 3, fails: bool = False) -> None:
        box = gymnasium.spaces.Box(0, 100, (1,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(
            {"count": box, "pair": gymnasium.spaces.Tuple((box, gymnasium.spaces.Discrete(5)))}
        )
        self.action_space = gymnasium.spaces.Discrete(2)
        self.size, self.fails, self.count = size, fails, 0

    def _obs(self) -> Any:
        return {"count": np.array([self.count], np.float32), "pair": (np.full(1, self.draw, np.float32), self.count)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.draw = 0, self.np_random.integers(100)
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        if self.fails:
            raise OverflowError("the env is broken")
        self.count += int(action)
        return self._obs(), 0.5, False, self.count == self.size, {"count": self.count}


class Old:
    """An env of older Gym."""

    observation_space, action_space = gymnasium.spaces.Box(0, 9, (1,)), gymnasium.spaces.Discrete(2)

    def seed(self, seed: int | None) -> list[int | None]:
        self.seeded = seed
        return [seed]

    def reset(self) -> Any:
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> Any:
        return np.ones(1, np.float32), 1, True, {"TimeLimit.truncated": True}

    def close(self) -> None:
        return


@pytest.mark.parametrize("kind", KINDS)
def test_all_envs_step_and_some_are_reset(kind: Any) -> None:
    envs = kind([lambda size=size: Counting(size) for size in (1, 2, 3)])
    assert len(envs) == envs.env_num == 3 and envs.size == [1, 2, 3] and len(envs.action_space) == 3
    envs.seed(7)
    first = envs.reset()
    again = DummyVectorEnv([Counting] * 3)
    again.seed([7, 8, 9])
    assert [each["pair"][0] for each in again.reset()] == [each["pair"][0] for each in first]
    obs, rew, done, info = envs.step([1, 1, 0])
    assert [each["count"].tolist() for each in obs] == [[1], [1], [0]] and rew.tolist() == [0.5] * 3
    assert done.tolist() == [True, False, False] and [each["env_id"] for each in info] == [0, 1, 2]
    assert [each["TimeLimit.truncated"] for each in info] == [True, False, False]
    assert [int(each["count"][0]) for each in envs.reset([0, 2])] == [0, 0]
    obs, _, _, info = envs.step([1, 1], [1, 2])
    assert [int(each["count"][0]) for each in obs] == [2, 1] and [each["env_id"] for each in info] == [1, 2]
    assert obs[0]["pair"][1] == 2
    envs.close()
    with pytest.raises(AssertionError, match="is closed"):
        envs.reset()


def test_envs_of_older_gym() -> None:
    envs = DummyVectorEnv([Old, Old])
    assert envs.seed(3) == [[3], [4]] and envs.seeded == [3, 4]
    assert envs.reset().shape == (2, 1)
    obs, rew, done, info = envs.step([0, 1])
    assert obs.tolist() == [[1], [1]] and done.all() and rew.tolist() == [1, 1] and info[1]["TimeLimit.truncated"]

    class Three(Old):
        def step(self, action: Any) -> Any:
            return 0, 1, True

    with pytest.raises(ValueError, match=r"Three\.step must return .*, found 3 values"):
        DummyVectorEnv([Three]).step([0])


def test_envs_that_are_ready_come_first() -> None:
    envs = SubprocVectorEnv([Counting] * 4, wait_num=2)
    assert envs.is_async
    envs.reset()
    seen: list[int] = []
    _, _, _, info = envs.step([1] * 4)
    while len(seen) < 12 or set(seen) != {0, 1, 2, 3}:  # on busy cores a worker may be passed over for a while
        ids = [each["env_id"] for each in info]
        assert len(ids) >= 2 and not set(ids) & set(envs.waiting_id)
        seen += ids
        for busy in envs.waiting_id[:1]:
            with pytest.raises(AssertionError, match=f"env {busy} is still stepping"):
                envs.step([1], [busy])
            with pytest.raises(AssertionError, match="still stepping"):
                envs.reset([busy])
            with pytest.raises(RuntimeError, match="still stepping"):
                envs.render()
        _, _, _, info = envs.step([1] * len(ids), ids)
    envs.close()


def test_dummy_envs_with_wait_num_return_all() -> None:
    envs = DummyVectorEnv([Counting] * 3, wait_num=1)
    envs.reset()
    assert len(envs.step([1] * 3)[1]) == 3


def test_an_error_in_a_process_is_raised_here() -> None:
    envs = SubprocVectorEnv([lambda: Counting(fails=True)])
    envs.reset()
    with pytest.raises(OverflowError, match="the env is broken"):
        envs.step([0])
    envs.close()


def test_closing_ends_the_processes() -> None:
    envs = ShmemVectorEnv([Counting] * 2)
    processes = [worker.process for worker in envs.workers if isinstance(worker, SubprocEnvWorker)]
    assert len(processes) == 2 and all(process.is_alive() for process in processes)
    envs.close()
    assert not any(process.is_alive() for process in processes)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"wait_num": 3}, "wait_num is from 1 to 2"),
        ({"wait_num": 0}, "wait_num is from 1 to 2"),
        ({"timeout": 0.0}, "timeout is a positive number"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        DummyVectorEnv([Counting] * 2, **settings)


def test_wrong_calls_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = DummyVectorEnv([Counting] * 2)
    with pytest.raises(AssertionError, match="one action for each of 2 envs, found 3"):
        envs.step([0, 0, 0])
    with pytest.raises(AssertionError, match="one number for each of 2 envs"):
        envs.seed([1])
    with pytest.raises(TypeError, match="a list of functions"):
        DummyVectorEnv([Counting()])
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match="pip install ray"):
        RayVectorEnv([Counting])
