"""Envs of one `VecEnv` in several processes: the data of one process, and failures that are named."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from part_envs import spoilt, too_few

from striderl.data.specs import TensorSpec
from striderl.envs import make
from striderl.envs.check import check_vec_env
from striderl.envs.vec_env import ContractError, VecEnv
from striderl.envs.workers.errors import EnvRaised, EnvTimeout, EnvWorkerDied
from striderl.envs.workers.pool import WorkerConfig
from striderl.envs.workers.shared_tensors import num_bytes, tensors_in
from striderl.envs.workers.vec_env_processes import VecEnvProcesses

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole_and_parts() -> Iterator[tuple[VecEnv, VecEnv]]:
    with make("quadruped", num_envs=5) as whole, make("quadruped", num_envs=5, num_processes=2) as parts:
        yield whole, parts


def assert_steps_agree(one: VecEnv, other: VecEnv, num_steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for number in range(num_steps):
        actions = 3.0 * torch.randn(one.num_envs, 12, generator=generator)  # wild enough to fall
        wanted, found = one.step(actions), other.step(actions)
        for name in ("reward", "terminated", "truncated"):
            assert torch.equal(getattr(wanted, name), getattr(found, name)), (number, name)
        for name, value in wanted.obs.items():
            assert torch.equal(value, found.obs[name]), (number, name)
        assert wanted.final_obs is not None and found.final_obs is not None
        for name, value in wanted.final_obs.items():
            assert torch.equal(value[wanted.done], found.final_obs[name][wanted.done]), (number, name)
        assert wanted.info["log"] == pytest.approx(found.info["log"])
        assert torch.equal(one.episode_length_buf, other.episode_length_buf)


def test_the_data_is_that_of_one_process(whole_and_parts: tuple[VecEnv, VecEnv]) -> None:
    whole, parts = whole_and_parts
    for name, value in whole.reset(seed=3).items():
        assert torch.equal(value, parts.reset(seed=3)[name])
    assert_steps_agree(whole, parts, 40)
    mask = torch.tensor([True, False, False, True, False])
    for name, value in whole.reset_envs(mask).items():
        if name == "actions":  # what was reset keeps no memory of actions
            assert not value[mask].any()
    parts.reset_envs(mask)
    whole.episode_length_buf = parts.episode_length_buf = torch.tensor([0, 990, 3, 4, 998])
    assert_steps_agree(whole, parts, 15)  # over two time limits
    assert {name: value.tolist() for name, value in whole.metrics().items()} == {
        name: value.tolist() for name, value in parts.metrics().items()
    }
    whole_pose, parts_pose = whole.pose(), parts.pose()
    assert whole_pose is not None and parts_pose is not None
    assert torch.equal(whole_pose, parts_pose)
    assert (whole.render(4) == parts.render(4)).all()


def test_the_contract_is_kept_and_a_saved_state_goes_on(whole_and_parts: tuple[VecEnv, VecEnv]) -> None:
    _, parts = whole_and_parts
    assert not check_vec_env(parts, num_steps=30).violations
    state = parts.state_dict()
    actions = torch.full((5, 12), 0.3)
    first = [parts.step(actions).reward for _ in range(5)]
    parts.load_state_dict(state)
    again = [parts.step(actions).reward for _ in range(5)]
    assert torch.equal(torch.stack(first), torch.stack(again))
    with pytest.raises(ValueError, match="saved from 3 processes and cannot be loaded into 2; set num_processes to 3"):
        parts.load_state_dict({**state, "processes": 3})
    with pytest.raises(ValueError, match=r"step: actions: wanted a tensor of shape \[5, 12\], found \[5, 3\]"):
        parts.step(torch.zeros(5, 3))
    with pytest.raises(ValueError, match=r"step: actions: wanted a tensor of shape \[5, 12\], found ndarray"):
        parts.step(np.zeros((5, 12), np.float32))


def test_failures_are_named_and_an_env_that_raised_can_go_on() -> None:
    with VecEnvProcesses(spoilt, 4, WorkerConfig(num_workers=2, deadline=4.0)) as env:
        pids = env.pids
        env.reset(seed=0)
        with pytest.raises(EnvRaised, match=r"envs 2 to 3 \(worker 1, phase step(.|\n)*the joint came off"):
            env.step(torch.tensor([[0.0], [0.0], [2.0], [0.0]]))
        env.reset(seed=0)
        assert env.step(torch.zeros(4, 1)).reward.shape == (4,)
        with pytest.raises(EnvTimeout, match=r"worker 0, phase step(.|\n)*did not finish within 4 s(.|\n)*part_envs"):
            env.step(torch.tensor([[4.0], [0.0], [0.0], [0.0]]))
        with pytest.raises(EnvTimeout):  # a process that is gone stays named
            env.reset(seed=0)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    with pytest.raises(RuntimeError, match="closed"):
        env.step(torch.zeros(4, 1))


def test_a_process_that_dies_is_named_at_once() -> None:
    with VecEnvProcesses(spoilt, 2, WorkerConfig(num_workers=1, deadline=1000.0)) as env:
        env.reset(seed=0)
        with pytest.raises(EnvWorkerDied, match=r"worker 0, phase step(.|\n)*exited with code 7"):
            env.step(torch.full((2, 1), 3.0))  # not when the deadline is over: a test may take 300 s


def test_what_cannot_be_built_is_named() -> None:
    with pytest.raises(ContractError, match="worker 0: 2 envs were asked for, its env has 1"):
        VecEnvProcesses(too_few, 2, WorkerConfig(num_workers=1))
    with pytest.raises(ValueError, match="2 envs want 1 to 2 processes, found 3"):
        VecEnvProcesses(too_few, 2, WorkerConfig(num_workers=3))
    with pytest.raises(ValueError, match="its processes are whole simulators"):
        VecEnvProcesses(too_few, 2, WorkerConfig(num_workers=1, on_failure="restart"))
    with make("cartpole") as env, pytest.raises(ValueError, match="an env object stays where it is"):
        make(env, num_processes=1)


def test_tensors_do_not_overlap() -> None:
    specs = {"a": TensorSpec(shape=(3,)), "b": TensorSpec(dtype="bool"), "c": TensorSpec(dtype="int64")}
    size = num_bytes(specs, 100)  # 1,200, 100 and 800 bytes, each rounded up to a multiple of 256
    assert size == 1280 + 256 + 1024
    found = tensors_in(torch.zeros(size, dtype=torch.uint8), specs, 100)
    for number, tensor in enumerate(found.values(), 1):
        tensor.fill_(number)
    assert found["a"].unique().tolist() == [1.0] and found["b"].all() and found["c"].unique().tolist() == [3]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_envs_of_one_gpu_share_its_memory_and_release_it_before_it_is_freed() -> None:
    program = Path(__file__).parents[2] / "benchmarks" / "gpu_processes.py"
    command = [sys.executable, str(program), "--envs", "64", "--processes", "2", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ms per step of 64 envs") == 2
    assert "Producer process has been terminated" not in done.stderr  # torch's words for memory that is freed too early
