"""Worker processes: same data for any number of them, split stepping, failures, restarts, and the fault matrix."""

from __future__ import annotations

import functools
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from faulty_envs import ChainEnv, Fault, FaultyEnv, FaultyFactory, HostileEnv, NestedEnv

from striderl.data.specs import TensorSpec
from striderl.envs.gymnasium_env import GymnasiumEnv
from striderl.envs.vec_env import ContractError
from striderl.envs.worker_errors import EnvRaised, EnvTimeout, EnvWorkerDied
from striderl.envs.worker_layout import env_seeds
from striderl.envs.workers import WorkerConfig, WorkerPool

METHODS = ("fork", "forkserver", "spawn")
ROOT = Path(__file__).resolve().parents[2]


def faulty(fault: Fault | None, num_envs: int = 4) -> list[FaultyFactory]:
    return [FaultyFactory(index, 2, fault) for index in range(num_envs)]


def pool_of(env: GymnasiumEnv) -> WorkerPool:
    assert isinstance(env._backend, WorkerPool)
    return env._backend


def idle(num_envs: int) -> torch.Tensor:
    return torch.zeros(num_envs, dtype=torch.int64)


def random_actions(env: Any, generator: torch.Generator, num_envs: int) -> Any:
    if isinstance(env.action_spec, type(GymnasiumEnv("CartPole-v1", 1).action_spec)):
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


# -- the same data ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("source", ["CartPole-v1", NestedEnv])
def test_data_does_not_depend_on_workers(source: Any, method: str):
    wanted = fingerprint(GymnasiumEnv(source, 5))
    for num_workers in (1, 2, 3, 5):
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


def test_whichever_is_ready_is_stepped():
    with GymnasiumEnv(ChainSleeper, 3, workers=WorkerConfig(num_workers=3, start_method="fork")) as env:
        parts = env.split(3)
        env.reset(0)
        for part in parts:
            part.step_async(torch.zeros(1, dtype=torch.int64))
        with pytest.raises(RuntimeError, match="under way"):
            env.step(idle(3))
        counts, slow = {id(part): 0 for part in parts}, parts[0]
        slow_index = 0
        slow.step_wait()
        slow.step_async(torch.ones(1, dtype=torch.int64))  # this one now takes half a second
        end = time.monotonic() + 0.25
        while time.monotonic() < end:
            for part in env.wait_any(parts, timeout=0.05):
                step = part.step_wait()
                counts[id(part)] += 1
                part.step_async(torch.zeros(1, dtype=torch.int64))
                assert step.obs["obs"][0, 2] >= 1
        assert counts[id(slow)] == slow_index == 0
        assert all(counts[id(part)] > 5 for part in parts[1:])
        assert not slow.is_ready()
        assert env.wait_any([slow], timeout=5.0) == [slow]
        assert slow.is_ready()


class ChainSleeper(ChainEnv):
    """A chain of long episodes in which action 1 takes half a second."""

    def __init__(self) -> None:
        super().__init__(0, length=10_000)

    def step(self, action: Any) -> Any:
        if action == 1:
            time.sleep(0.5)
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


# -- what workers carry ----------------------------------------------------------------------------------------------


class Probe(ChainEnv):
    """Tells what its process has loaded."""

    @property
    def has_torch(self) -> bool:
        return "torch" in sys.modules


def test_worker_module_does_not_load_torch():
    code = "import striderl.envs.worker, striderl.envs.workers, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


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
        "from striderl.envs.workers import WorkerConfig, WorkerPool; "
        "make = lambda: type('P', (faulty_envs.ChainEnv,), {'t2': property(lambda s: 'torch' in sys.modules)})(); "
        f"pool = WorkerPool([make] * 2, WorkerConfig(num_workers=2, start_method={method!r})); "
        "assert pool.get_attr('t2') == [False, False]; pool.close(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


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


# -- failures ----------------------------------------------------------------------------------------------------------


def test_contract_errors_arrive_from_workers():
    builders = [HostileEnv, functools.partial(HostileEnv, "observation", np.zeros(5, np.float32), 4)]
    with GymnasiumEnv(builders, workers=WorkerConfig(num_workers=2, start_method="fork")) as env:
        env.reset(0)
        for _ in range(3):
            env.step(idle(2))
        with pytest.raises(ContractError, match=r"env 1, phase step, after 3 steps.*found float32 of shape \(5,\)"):
            env.step(idle(2))
    builders[1] = functools.partial(HostileEnv, shape=(7,))
    with pytest.raises(ContractError, match=r"env 1 has another observation space than env 0"):
        GymnasiumEnv(builders, workers=WorkerConfig(num_workers=2, start_method="fork"))


@pytest.mark.parametrize("method", METHODS)
def test_a_raised_exception_names_everything_and_a_reset_helps(method: str):
    workers = WorkerConfig(num_workers=2, start_method=method)
    with GymnasiumEnv(faulty(Fault(kind="exception", phase="step")), workers=workers) as env:
        env.reset(31)
        env.step(idle(4))
        env.step(idle(4))
        for _ in range(2):  # asking again does not help
            with pytest.raises(
                EnvRaised, match=r"(?s)env 2 \(worker 1, phase step, seed 31.*step 3.*planted exception"
            ):
                env.step(idle(4))
        assert env.reset(31)["obs"][:, 1].tolist() == [0, 0, 0, 0]
        assert env.step(idle(4)).obs["obs"][:, 1].tolist() == [1, 1, 1, 1]


def test_a_dead_worker_stays_dead_without_restarts():
    with GymnasiumEnv(faulty(None), workers=WorkerConfig(num_workers=2, start_method="fork")) as env:
        env.reset(1)
        os.kill(pool_of(env).pids[1], signal.SIGKILL)
        for call in (lambda: env.step(idle(4)), lambda: env.reset(1), lambda: env.get_attr("secret")):
            with pytest.raises(EnvWorkerDied, match=r"envs 2 to 3 \(worker 1.*SIGKILL"):
                call()
    assert not pool_of(env).pids


def test_a_worker_that_closes_its_wire_is_as_good_as_dead():
    class Vandal(FaultyEnv):
        def step(self, action: Any) -> Any:
            os.closerange(3, 64)
            return super().step(action)

    with GymnasiumEnv([FaultyEnv, Vandal], workers=WorkerConfig(num_workers=2, start_method="spawn")) as env:
        env.reset(0)
        before = time.monotonic()
        with pytest.raises(EnvWorkerDied, match="worker 1"):
            env.step(idle(2))
        assert time.monotonic() - before < 2.0


@pytest.mark.parametrize("method", METHODS)
def test_restart_marks_the_lost_step_and_nothing_else(method: str, tmp_path: Path):
    fault = Fault(kind="sigkill", phase="step", stamp=str(tmp_path / "stamp"))
    workers = WorkerConfig(num_workers=2, start_method=method, on_failure="restart")
    plain = GymnasiumEnv(faulty(None))
    plain.reset(9)
    with GymnasiumEnv(faulty(fault), workers=workers) as env:
        env.reset(9)
        for _ in range(2):
            before, wanted = env.step(idle(4)), plain.step(idle(4))
            assert torch.equal(before.obs["obs"], wanted.obs["obs"])
            assert before.info["log"] == {"env_restarts": 0}
        step, wanted = env.step(idle(4)), plain.step(idle(4))
        assert step.info["valid"].tolist() == [True, True, False, False]
        assert step.info["log"] == {"env_restarts": 1} and env.restarts == 1
        assert step.reward.tolist() == [3.0, 3.0, 0.0, 0.0]
        assert step.truncated.tolist() == [False, False, True, True]
        assert not step.terminated.any()
        assert torch.equal(step.final_obs["obs"][2:], before.obs["obs"][2:])  # the last good observation
        assert torch.equal(step.obs["obs"][:2], wanted.obs["obs"][:2])
        for row in (2, 3):  # the first observation of a new stream, a child of the env's own
            twin = FaultyEnv(row)
            assert np.array_equal(twin.reset(seed=int(env_seeds(9, row, 1)[0]))[0], step.obs["obs"][row].numpy())
        assert env.episode_length_buf.tolist() == [3, 3, 0, 0]
        later = env.step(idle(4))
        assert later.info["valid"].all() and later.reward.tolist() == [4.0, 4.0, 1.0, 1.0]


def test_a_worker_lost_between_steps_costs_one_marked_step():
    workers = WorkerConfig(num_workers=2, start_method="fork", on_failure="restart")
    with GymnasiumEnv(faulty(None), workers=workers) as env:
        env.reset(1)
        good = env.step(idle(4))
        os.kill(pool_of(env).pids[0], signal.SIGKILL)
        lost = env.step(idle(4))
        assert lost.info["valid"].tolist() == [False, False, True, True]
        assert torch.equal(lost.final_obs["obs"][:2], good.obs["obs"][:2])
        assert env.step(idle(4)).info["valid"].all()
        # a reset of some envs that costs the worker shows in the next step, for all envs of that worker
        os.kill(pool_of(env).pids[0], signal.SIGKILL)
        obs = env.reset_envs(torch.tensor([True, False, False, False]))
        lost = env.step(idle(4))
        assert lost.info["valid"].tolist() == [False, False, True, True]
        assert torch.equal(lost.final_obs["obs"][:2], obs["obs"][:2])
        # a full reset has no transition to lose
        os.kill(pool_of(env).pids[1], signal.SIGKILL)
        env.reset(1)
        assert env.step(idle(4)).info["valid"].all() and env.restarts == 3


def test_parts_with_different_numbers_of_restarts_stay_apart():
    workers = WorkerConfig(num_workers=2, start_method="fork", on_failure="restart")
    with GymnasiumEnv(faulty(None), workers=workers) as env:
        left, right = env.split(2)
        env.reset(1)
        left.step(idle(2))
        os.kill(pool_of(env).pids[1], signal.SIGKILL)
        assert left.step(idle(2)).info["valid"].all()
        assert not right.step(idle(2)).info["valid"].any()
        assert env.step(idle(4)).obs["obs"][:, 1].tolist() == [3, 3, 1, 1]


def test_too_many_restarts_raise_the_cause():
    workers = WorkerConfig(num_workers=1, start_method="fork", on_failure="restart", max_restarts=2)
    with GymnasiumEnv(
        [functools.partial(FaultyEnv, 0, Fault(kind="os_exit", phase="step", at=1))], workers=workers
    ) as env:
        env.reset(0)
        for _ in range(2):
            assert not env.step(idle(1)).info["valid"].any()
        with pytest.raises(EnvWorkerDied, match="code 7") as caught:
            env.step(idle(1))
        assert "max_restarts" in caught.value.__notes__[0]


def test_a_broken_contract_is_never_restarted():
    workers = WorkerConfig(num_workers=1, start_method="fork", on_failure="restart")
    with GymnasiumEnv(functools.partial(HostileEnv, "reward", None, 1), 1, workers=workers) as env:
        env.reset(0)
        with pytest.raises(ContractError, match="reward"):
            env.step(idle(1))


def test_timeouts_of_one_part_do_not_hold_up_the_others():
    workers = WorkerConfig(num_workers=2, start_method="fork", deadline=0.5)
    with GymnasiumEnv(faulty(Fault(kind="sleep", phase="step", at=1)), workers=workers) as env:
        left, right = env.split(2)
        env.reset(0)
        right.step_async(idle(2))
        before = time.monotonic()
        for _ in range(3):
            left.step(idle(2))
        assert time.monotonic() - before < 0.4
        assert env.wait_any([right], timeout=0.05) == []
        with pytest.raises(EnvTimeout, match="hang_in_sleep"):
            right.step_wait()
        assert left.step(idle(2)).info["valid"].all()


def test_interrupts_from_the_terminal_are_the_trainers_business():
    with GymnasiumEnv(faulty(None), workers=WorkerConfig(num_workers=2, start_method="spawn")) as env:
        env.reset(0)
        for pid in pool_of(env).pids:
            os.kill(pid, signal.SIGINT)
        assert env.step(idle(4)).info["valid"].all()


def test_bad_configs_are_refused():
    for settings, pattern in (
        ({"start_method": "spwan"}, "Did you mean 'spawn'"),
        ({"on_failure": "ignore"}, "on_failure"),
        ({"num_workers": -1}, "0 or more"),
        ({"deadline": 0.0}, "deadline"),
        ({"on_failure": "restart"}, "wants worker processes"),
    ):
        with pytest.raises(ValueError, match=pattern):
            WorkerConfig(**settings)
    with pytest.raises(ValueError, match="1 to 2 workers"):
        GymnasiumEnv("CartPole-v1", 2, workers=WorkerConfig(num_workers=3))


# -- nothing is left ---------------------------------------------------------------------------------------------------


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_descriptors_stay_flat_over_opening_closing_and_restarting():
    def once() -> None:
        workers = WorkerConfig(num_workers=2, start_method="fork", on_failure="restart")
        with GymnasiumEnv(faulty(None), workers=workers) as env:
            env.reset(0)
            os.kill(pool_of(env).pids[0], signal.SIGKILL)
            env.step(idle(4))

    once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        once()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_forgotten_env_is_ended():
    env = GymnasiumEnv(faulty(None), workers=WorkerConfig(num_workers=2, start_method="fork"))
    pids = pool_of(env).pids
    assert len(pids) == 2 and all(is_running(pid) for pid in pids)
    del env
    assert not any(is_running(pid) for pid in pids)


def test_workers_outlive_the_thread_that_built_them():
    made: list[GymnasiumEnv] = []

    def build() -> None:
        for method in METHODS:
            made.append(GymnasiumEnv(faulty(None), workers=WorkerConfig(num_workers=1, start_method=method)))

    thread = threading.Thread(target=build)
    thread.start()
    thread.join()
    time.sleep(0.2)
    for env in made:
        env.reset(0)
        assert env.step(idle(4)).info["valid"].all()
        env.close()


def test_a_forked_copy_of_the_trainer_leaves_the_workers_alone():
    with GymnasiumEnv(faulty(None), workers=WorkerConfig(num_workers=1, start_method="fork")) as env:
        env.reset(0)
        copy = os.fork()
        if copy == 0:
            env.close()
            os._exit(0)
        os.waitpid(copy, 0)
        assert env.step(idle(4)).info["valid"].all()


SCRIPT = """
import sys, os
sys.path.insert(0, {folder!r})
import torch
from faulty_envs import Fault, FaultyFactory
from striderl.envs.gymnasium_env import GymnasiumEnv
from striderl.envs.workers import WorkerConfig
env = GymnasiumEnv([FaultyFactory(i, 1, {fault}) for i in range(2)],
                   workers=WorkerConfig(num_workers=2, start_method={method!r}, deadline=100.0))
env.reset(0)
print(*env._backend.pids, flush=True)
{end}
"""


@pytest.mark.parametrize(
    ("method", "fault", "end"),
    [
        ("spawn", "None", ""),
        ("fork", "None", "raise SystemExit"),
        ("forkserver", "Fault(kind='sleep', phase='close')", ""),
        ("spawn", "Fault(kind='gil', phase='step', at=1)", "env.step_async(torch.zeros(2, dtype=torch.int64))"),
    ],
)
def test_interpreter_exit_without_close(method: str, fault: str, end: str):
    script = SCRIPT.format(folder=str(ROOT / "tests" / "envs"), method=method, fault=fault, end=end)
    started = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    pids = [int(word) for word in started.stdout.readline().split()]
    before = time.monotonic()
    started.wait(timeout=30.0)
    started.stdout.close()
    assert len(pids) == 2
    assert time.monotonic() - before < 6.0
    assert not any(is_running(pid) for pid in pids)


# -- the fault matrix --------------------------------------------------------------------------------------------------


def run_matrix_tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "fault_matrix.py"), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=110)


@pytest.mark.slow
def test_a_tenth_of_the_fault_matrix_holds(capsys: pytest.CaptureFixture[str]):
    result = run_matrix_tool("--small")
    with capsys.disabled():
        print(f"\npromises 7 to 10\n{result.stdout}")
    counts = {line[:13].strip(): int(line[13:].split()[0]) for line in result.stdout.splitlines()[1:7]}
    assert result.returncode == 0
    assert counts["deaths"] >= 10 and counts["hangs"] >= 4 and counts["trainer kills"] >= 10
    assert counts["exceptions"] >= 9 and counts["restarts"] >= 4


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["liveness", "deadline", "lifeline"])
def test_the_harness_catches_a_planted_bug(bug: str):
    result = run_matrix_tool("--plant-bug", bug)
    assert result.returncode == 1
    assert "BROKEN" in result.stdout
