"""Worker processes that fail: errors, restarts, nothing is left behind, and the fault matrix (promises 7 to 10)."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from faulty_envs import Fault, FaultyEnv, FaultyFactory, HostileEnv, StarterEnv

from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.vec_env import ContractError
from striderl.envs.workers.errors import EnvRaised, EnvTimeout, EnvWorkerDied
from striderl.envs.workers.layout import env_seeds
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_worker_that_closes_its_wire_is_as_good_as_dead():
    class Vandal(FaultyEnv):
        def step(self, action: Any) -> Any:
            os.closerange(3, 4096)
            return super().step(action)

    workers = WorkerConfig(num_workers=2, start_method="spawn", deadline=1000.0)
    with GymnasiumEnv([FaultyEnv, Vandal], workers=workers) as env:
        env.reset(0)
        with pytest.raises(EnvWorkerDied, match="worker 1"):
            env.step(idle(2))  # at once, not when the deadline is over: a test may take 300 s


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    workers = WorkerConfig(num_workers=2, start_method="fork", deadline=2.5)
    with GymnasiumEnv(faulty(Fault(kind="sleep", phase="step", at=1)), workers=workers) as env:
        left, right = env.split(2)
        env.reset(0)
        right.step_async(idle(2))
        for _ in range(3):
            left.step(idle(2))
        assert env.wait_any([right], timeout=0.05) == []  # no step has waited until it had timed out
        with pytest.raises(EnvTimeout, match="hang_in_sleep"):
            right.step_wait()
        assert left.step(idle(2)).info["valid"].all()


@pytest.mark.slow
def test_interrupts_from_the_terminal_are_the_trainers_business():
    with GymnasiumEnv(faulty(None), workers=WorkerConfig(num_workers=2, start_method="spawn")) as env:
        env.reset(0)
        for pid in pool_of(env).pids:
            os.kill(pid, signal.SIGINT)
        assert env.step(idle(4)).info["valid"].all()


INTERRUPTED = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the parent left
sys.path.insert(0, {folder!r})
import torch
from faulty_envs import FaultyFactory
from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.workers.pool import WorkerConfig
idle = torch.zeros(2, dtype=torch.int64)
for method in {methods!r}:
    workers = WorkerConfig(num_workers=2, start_method=method, on_failure="restart")
    env = GymnasiumEnv([FaultyFactory(i, 1, None) for i in range(2)], workers=workers)
    env.reset(0)
    server = getattr(env.backend._worker_group.launcher, "_server", None)
    try:
        os.killpg(0, signal.SIGINT)  # what a terminal does at Ctrl-C
        time.sleep(60.0)
        print("was not interrupted")
    except KeyboardInterrupt:
        pass
    valid = [env.step(idle).info["valid"].tolist()]
    os.kill(env.backend.pids[0], signal.SIGKILL)
    valid += [env.step(idle).info["valid"].tolist() for _ in range(2)]
    now = getattr(env.backend._worker_group.launcher, "_server", None)
    same = server is now and (server is None or server.is_alive())
    os.kill(env.backend.pids[0], signal.SIGINT)  # the restarted worker ignores it too
    valid.append(env.step(idle).info["valid"].tolist())
    env.close()
    print(method, valid, same, flush=True)
"""


@pytest.mark.slow
def test_after_ctrl_c_in_the_terminal_workers_can_still_be_restarted():
    script = INTERRUPTED.format(folder=str(ROOT / "tests" / "envs"), methods=METHODS)
    command = [sys.executable, "-W", "ignore", "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, start_new_session=True)
    all_valid, one_lost = [True, True], [False, True]
    wanted = [f"{method} {[all_valid, one_lost, all_valid, all_valid]} True" for method in METHODS]
    assert result.stdout.splitlines() == wanted, result.stderr
    assert "Traceback" not in result.stderr and "KeyboardInterrupt" not in result.stderr


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


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.slow
def test_descriptors_stay_flat_over_opening_closing_and_restarting():
    def once() -> None:
        workers = WorkerConfig(num_workers=2, start_method="fork", on_failure="restart")
        with GymnasiumEnv(faulty(None), workers=workers) as env:
            env.reset(0)
            os.kill(pool_of(env).pids[0], signal.SIGKILL)
            env.step(idle(4))

    once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(4):
        once()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_forgotten_env_is_ended():
    env = GymnasiumEnv(faulty(None), workers=WorkerConfig(num_workers=2, start_method="fork"))
    pids = pool_of(env).pids
    assert len(pids) == 2 and all(is_running(pid) for pid in pids)
    del env
    assert not any(is_running(pid) for pid in pids)


def test_parts_keep_their_env_alive():
    left, right = GymnasiumEnv(faulty(None), workers=WorkerConfig(num_workers=2, start_method="fork")).split(2)
    left.reset(0)
    right.reset(0)
    assert left.step(idle(2)).info["valid"].all() and right.step(idle(2)).info["valid"].all()


@pytest.mark.slow
def test_workers_outlive_the_thread_that_built_them():
    made: list[GymnasiumEnv] = []

    def build() -> None:
        configs = [WorkerConfig(num_workers=1, start_method=method) for method in METHODS]
        made.extend(GymnasiumEnv(faulty(None), workers=config) for config in configs)

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


PAUSED = """
import sys, time
sys.path.insert(0, {folder!r})
from faulty_envs import ChainEnv
from striderl.envs.workers.layout import make_layout
from striderl.envs.workers.pool import WorkerConfig, WorkerPool
class Slow(ChainEnv):
    def step(self, action):
        time.sleep(0.6)
        return super().step(action)
pool = WorkerPool([Slow], WorkerConfig(num_workers=1, deadline=2.5))
layout = dict(num_envs=1, num_slots=2, info_keys={{}}, mask="", mask_size=0, keep_float64=False)
pool.bind(make_layout(pool.description, **layout))
pool.reset(0, 0, 1)
pool.send_step(0, 1)
print("under way", flush=True)
pool.wait_step(0, 1)
pool.close()
print("done", flush=True)
"""


@pytest.mark.slow
def test_a_pause_of_the_whole_job_does_not_use_up_the_deadline():
    script = PAUSED.format(folder=str(ROOT / "tests" / "envs"))
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "under way\n"
        time.sleep(0.2)
        os.killpg(job.pid, signal.SIGSTOP)  # Ctrl-Z, with the step half done
        time.sleep(2.7)
        os.killpg(job.pid, signal.SIGCONT)
        assert job.stdout.readline() == "done\n"


LEFT_OPEN = """
import sys, os
sys.path.insert(0, {folder!r})
import torch
from faulty_envs import Fault, FaultyFactory
from striderl.envs.gymnasium.env import GymnasiumEnv
from striderl.envs.workers.pool import WorkerConfig
for method, fault, end in {cases!r}:
    child = os.fork()  # each ends as an interpreter of its own; importing takes most of one's time
    if child:
        os.waitpid(child, 0)
        print("ended", flush=True)
        continue
    env = GymnasiumEnv([FaultyFactory(i, 1, eval(fault)) for i in range(2)],
                       workers=WorkerConfig(num_workers=2, start_method=method, deadline=1000.0))
    env.reset(0)
    print(*env.backend.pids, flush=True)
    exec(end)
    break
"""
ENDS = [
    ("spawn", "None", ""),
    ("fork", "None", "raise SystemExit"),
    ("forkserver", "Fault(kind='sleep', phase='close')", ""),
    ("spawn", "Fault(kind='gil', phase='step', at=1)", "env.step_async(torch.zeros(2, dtype=torch.int64))"),
]


@pytest.mark.slow
def test_interpreter_exit_without_close():
    script = LEFT_OPEN.format(folder=str(ROOT / "tests" / "envs"), cases=ENDS)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        for case in ENDS:
            pids = [int(word) for word in started.stdout.readline().split()]
            assert len(pids) == 2, case
            # a few seconds alone; the deadline, and the fault, go on for longer than a test may take
            assert started.stdout.readline() == "ended\n", case
            assert not any(is_running(pid) for pid in pids), case
    assert started.returncode == 0


# -- what an env starts ends with its worker --------------------------------------------------------------------------


def started_by_envs(folder: Path) -> list[int]:
    return [int(file.read_text()) for file in sorted(folder.glob("*.pid"))]


def are_gone(pids: list[int], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(is_running(pid) for pid in pids)


def starters(how: str, folder: Path) -> list[Any]:
    return [functools.partial(StarterEnv, how, str(folder), index) for index in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["child", "daemon"])
@pytest.mark.parametrize("method", METHODS)
def test_what_an_env_starts_ends_with_close(method: str, how: str, tmp_path: Path):
    with GymnasiumEnv(starters(how, tmp_path), workers=WorkerConfig(num_workers=2, start_method=method)) as env:
        env.reset(0)
        started = started_by_envs(tmp_path)
        assert len(started) == 2 and all(is_running(pid) for pid in started)
    assert not any(is_running(pid) for pid in started)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["child", "daemon"])
@pytest.mark.parametrize("method", METHODS)
def test_what_an_env_starts_ends_when_its_worker_is_killed(method: str, how: str, tmp_path: Path):
    workers = WorkerConfig(num_workers=2, start_method=method)
    with GymnasiumEnv(starters(how, tmp_path), workers=workers) as env:
        env.reset(0)
        lost, kept = started_by_envs(tmp_path)
        os.kill(pool_of(env).pids[0], signal.SIGKILL)
        assert are_gone([lost]) and is_running(kept)
        with pytest.raises(EnvWorkerDied, match=r"worker 0.*SIGKILL"):
            env.step(idle(2))


def test_what_an_env_starts_ends_after_a_time_out(tmp_path: Path):
    class Hanging(StarterEnv):
        def step(self, action: Any) -> Any:
            time.sleep(1000.0)

    workers = WorkerConfig(num_workers=1, start_method="fork", deadline=2.0)
    with GymnasiumEnv([functools.partial(Hanging, "daemon", str(tmp_path))], workers=workers) as env:
        env.reset(0)
        with pytest.raises(EnvTimeout, match="did not finish"):
            env.step(idle(1))
        assert are_gone(started_by_envs(tmp_path))


STARTERS = """
import functools, sys, time
sys.path.insert(0, {folder!r})
from faulty_envs import StarterEnv
from striderl.envs.workers.pool import WorkerConfig, WorkerPool
makers = [functools.partial(StarterEnv, {how!r}, {notes!r}, index) for index in range(2)]
pool = WorkerPool(makers, WorkerConfig(num_workers=2, start_method={method!r}))
print(*pool.pids, flush=True)
time.sleep(1000.0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["child", "daemon"])
@pytest.mark.parametrize("method", METHODS)
def test_what_an_env_starts_ends_when_the_trainer_is_killed(method: str, how: str, tmp_path: Path):
    script = STARTERS.format(folder=str(ROOT / "tests" / "envs"), how=how, notes=str(tmp_path), method=method)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        workers = [int(word) for word in trainer.stdout.readline().split()]
        started = started_by_envs(tmp_path)
        assert len(started) == 2 and all(is_running(pid) for pid in [*workers, *started])
        trainer.kill()
        assert are_gone([*workers, *started])


def test_a_signal_to_the_group_of_the_trainer_does_not_reach_the_workers():
    # a terminal that closes, `timeout` and batch systems signal a whole group; the trainer decides what becomes of it
    with GymnasiumEnv(faulty(None), workers=WorkerConfig(num_workers=2, start_method="fork")) as env:
        groups = {os.getpgid(pid) for pid in pool_of(env).pids}
        assert os.getpgid(0) not in groups and len(groups) == 2


PLANTED_BUGS = """
import sys
sys.path.insert(0, {tools!r})
import fault_matrix
for bug in ("liveness", "deadline", "lifeline"):
    rows = fault_matrix.run_with_bug(bug)
    print(bug, any(row.broken for row in rows), flush=True)
"""


@pytest.mark.slow
def test_a_tenth_of_the_fault_matrix_holds_and_the_harness_catches_planted_bugs(capsys: pytest.CaptureFixture[str]):
    # all mostly wait: for deadlines, and for what a planted bug lets hang
    tools = ROOT / "tools"
    words = [str(tools / "fault_matrix.py"), "--small", "--patience", "3", "--rows"]
    rows = ["hangs"], ["restarts"], ["deaths", "exceptions", "trainer", "slow_learner"]
    programs = [*([*words, *names] for names in rows), ["-c", PLANTED_BUGS.format(tools=str(tools))]]
    started = [
        subprocess.Popen([sys.executable, *each], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for each in programs
    ]
    try:
        *said, caught = [process.communicate(timeout=280)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    with capsys.disabled():
        print("\npromises 7 to 10\n" + "".join(said))
    lines = [line for text in said for line in text.splitlines()[1:-1]]
    counts = {line[:13].strip(): int(line[13:].split()[0]) for line in lines if not line.startswith("BROKEN")}
    assert [process.returncode for process in started[:-1]] == [0, 0, 0]
    assert counts["deaths"] >= 10 and counts["hangs"] >= 4 and counts["trainer kills"] >= 10
    assert counts["exceptions"] >= 9 and counts["restarts"] >= 4
    assert caught.splitlines() == ["liveness True", "deadline True", "lifeline True"]
