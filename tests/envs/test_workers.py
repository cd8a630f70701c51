"""Worker processes: the same data for any number of them, split stepping, and what travels (promise 13)."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from faulty_envs import ChainEnv, Fault, FaultyEnv, FaultyFactory, NestedEnv

from striderl.data.actions import DiscreteSpec
from striderl.data.specs import TensorSpec
from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.workers.pool import WorkerConfig, WorkerPool

METHODS = ("fork", "forkserver", "spawn")


ROOT = Path(__file__).resolve().parents[2]


def faulty(fault: Fault | None, num_envs: int = 4) -> list[FaultyFactory]:
    return [FaultyFactory(index, 2, fault) for index in range(num_envs)]


def pool_of(env: GymnasiumEnv) -> WorkerPool:
    assert isinstance(env.backend, WorkerPool)
    return env.backend


def idle(num_envs: int) -> torch.Tensor:
    return torch.zeros(num_envs, dtype=torch.int64)


def random_actions(env: Any, generator: torch.Generator, num_envs: int) -> Any:
    if isinstance(env.action_spec, DiscreteSpec):
        return torch.randint(0, 2, (num_envs,), generator=generator)
    return {
        "gear": torch.randint(0, 3, (num_envs,), generator=generator),
        "torque": torch.randn(num_envs, 2, generator=generator),
    }


def fingerprint(env: GymnasiumEnv, num_steps: int = 60) -> str:
    """Hash all that an env gives over some steps, with a masked reset and a set age in between."""
    digest, generator = hashlib.sha256(), torch.Generator().manual_seed(0)

    def add(tensors: Any) -> None:
        for name in sorted(tensors):
            digest.update(name.encode() + tensors[name].numpy().tobytes())

    with env:
        add(env.reset(123))
        for number in range(num_steps):
            step = env.step(random_actions(env, generator, env.num_envs))
            add(step.obs)
            add(step.final_obs)
            fields = ("reward", "terminated", "truncated")
            add({**{field: getattr(step, field) for field in fields}, "valid": step.info["valid"]})
            if number == 20:
                add(env.reset_envs(torch.arange(env.num_envs) % 3 == 1))
            if number == 30:
                env.episode_length_buf = torch.arange(env.num_envs)
                add(env.reset())
    return digest.hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("source", ["CartPole-v1", NestedEnv])
def test_data_does_not_depend_on_workers(source: Any, method: str):
    counts: tuple[int, ...] = (1, 2, 3, 5)
    if os.environ.get("HYPOTHESIS_PROFILE") != "deep":  # every two of the three, if not all
        counts = (1, 3) if (source == "CartPole-v1") == (method != "fork") else (2, 5)
    wanted = fingerprint(GymnasiumEnv(source, 5))
    for num_workers in counts:
        workers = WorkerConfig(num_workers=num_workers, start_method=method)
        assert fingerprint(GymnasiumEnv(source, 5, workers=workers)) == wanted, f"{num_workers} workers"
    assert fingerprint(GymnasiumEnv(source, 5, first_env_index=1)) != wanted


def test_declared_infos_come_from_workers():
    keys = {"height": TensorSpec(), "pair": TensorSpec(shape=(2,), dtype="int64")}
    builders = [functools.partial(ChainEnv, index) for index in range(3)]
    with GymnasiumEnv(builders, workers=WorkerConfig(num_workers=2, start_method="fork"), info_keys=keys) as env:
        env.reset(0)
        info = env.step(idle(3)).info
        assert info["height"].tolist() == [1.0, 1.0, 1.0]
        assert info["pair"].tolist() == [[0, 1], [1, 1], [2, 1]]
        assert info["log"] == {}


@pytest.mark.slow
def test_halves_stepped_alternately_equal_the_whole():
    def steps_of(part: Any, count: int, rows: slice) -> list[torch.Tensor]:
        found = []
        for number in range(count):
            part.step_async(torch.full((rows.stop - rows.start,), number % 2))
            found.append(part.step_wait())
        return found

    whole = GymnasiumEnv("CartPole-v1", 4)
    whole.reset(5)
    wanted = steps_of(whole, 50, slice(0, 4))
    with GymnasiumEnv("CartPole-v1", 4, workers=WorkerConfig(num_workers=4, start_method="fork")) as env:
        left, right = env.split(2)
        left.reset(5)
        right.reset(5)
        right.step_async(idle(2))
        for number in range(50):
            left.step_async(torch.full((2,), number % 2))
            ours_right = right.step_wait()
            ours_left = left.step_wait()
            if number < 49:
                right.step_async(torch.full((2,), (number + 1) % 2))
            for ours, rows in ((ours_left, slice(0, 2)), (ours_right, slice(2, 4))):
                assert torch.equal(ours.obs["obs"], wanted[number].obs["obs"][rows])
                assert torch.equal(ours.final_obs["obs"], wanted[number].final_obs["obs"][rows])
                assert torch.equal(ours.done, wanted[number].done[rows])
        assert right.first_env_index == 2
        # the halves are at the same step now, and the whole goes on from there
        assert torch.equal(env.step(idle(4)).obs["obs"], whole.step(idle(4)).obs["obs"])
        with pytest.raises(ValueError, match="1 to 4 parts"):
            env.split(5)


@pytest.mark.slow
def test_whichever_is_ready_is_stepped(tmp_path: Path):
    gate = tmp_path / "gate"
    gated = functools.partial(ChainGated, gate)
    with GymnasiumEnv(gated, 3, workers=WorkerConfig(num_workers=3, start_method="fork")) as env:
        parts = env.split(3)
        env.reset(0)
        for part in parts:
            part.step_async(torch.zeros(1, dtype=torch.int64))
        with pytest.raises(RuntimeError, match="under way"):
            env.step(idle(3))
        counts, slow = {id(part): 0 for part in parts}, parts[0]
        slow.step_wait()
        slow.step_async(torch.ones(1, dtype=torch.int64))  # this one now takes until the gate is opened
        end = time.monotonic() + 60.0
        while min(counts[id(part)] for part in parts[1:]) <= 5:
            assert time.monotonic() < end, f"after a minute the parts have made {list(counts.values())} steps"
            for part in env.wait_any(parts, timeout=0.05):
                step = part.step_wait()
                counts[id(part)] += 1
                part.step_async(torch.zeros(1, dtype=torch.int64))
                assert step.obs["obs"][0, 2] >= 1
        assert counts[id(slow)] == 0
        assert not slow.is_ready()
        gate.touch()
        assert env.wait_any([slow], timeout=280.0) == [slow]
        assert slow.is_ready()


class ChainGated(ChainEnv):
    """A chain of long episodes in which action 1 takes until a file is there."""

    def __init__(self, gate: Path) -> None:
        super().__init__(0, length=10_000)
        self.gate = gate

    def step(self, action: Any) -> Any:
        while action == 1 and not self.gate.exists():
            time.sleep(0.005)
        return super().step(action)


def test_in_process_parts_follow_the_same_interface():
    env = GymnasiumEnv("CartPole-v1", 4)
    left, right = env.split(2)
    obs = env.reset(3)["obs"]
    assert torch.equal(torch.cat([left.reset(3)["obs"], right.reset(3)["obs"]]), obs)
    left.step_async(idle(2))
    assert left.is_ready() and not right.is_ready()
    assert env.wait_any([left, right]) == [left]
    left.step_wait()
    with pytest.raises(RuntimeError, match="under way"):
        env.wait_any([left, right])


def test_worker_module_does_not_load_torch():
    code = "import striderl.envs.workers.child, striderl.envs.workers.pool, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_running_workers_have_not_loaded_torch(method: str):
    gymnasium.register("striderl-tests/Closure-v0", entry_point=lambda: ChainEnv(length=3), max_episode_steps=9)
    try:
        # registered only here: the worker gets the spec, not just the name
        with GymnasiumEnv(
            "striderl-tests/Closure-v0", 2, workers=WorkerConfig(num_workers=1, start_method=method)
        ) as env:
            assert env.max_episode_length == 9
    finally:
        gymnasium.registry.pop("striderl-tests/Closure-v0")
    code = (
        "import sys; sys.path.insert(0, 'tests/envs'); import faulty_envs; "
        "from striderl.envs.workers.pool import WorkerConfig, WorkerPool; "
        "make = lambda: type('P', (faulty_envs.ChainEnv,), {'t2': property(lambda s: 'torch' in sys.modules)})(); "
        f"pool = WorkerPool([make] * 2, WorkerConfig(num_workers=2, start_method={method!r})); "
        "assert pool.get_attr('t2') == [False, False]; pool.close(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_closures_pictures_and_attributes(method: str):
    length = 5
    workers = WorkerConfig(num_workers=2, start_method=method)
    with GymnasiumEnv(faulty(None), render_mode="rgb_array", workers=workers) as env:
        env.reset(0)
        assert [int(env.render(index).max()) for index in range(4)] == [0, 1, 2, 3]
        assert env.get_attr("secret") == [40, 41, 42, 43]
    with GymnasiumEnv(lambda: ChainEnv(length=length), 2, workers=workers) as env:
        assert env.get_attr("length") == [5, 5]


def test_large_pictures_and_answers_fit():
    class Large(FaultyEnv):
        def render(self) -> Any:
            return np.full((700, 900, 3), 7, np.uint8)

    with GymnasiumEnv(Large, 1, workers=WorkerConfig(num_workers=1, start_method="spawn")) as env:
        env.reset(0)
        assert env.render(0).shape == (700, 900, 3) and int(env.render(0).min()) == 7
