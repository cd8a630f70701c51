"""One run in two processes: torchrun makes one folder, learns what one process would, and resumes exactly."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from free_ports import free_port
from striderl.algorithms.terms.estimation import Estimation, EstimatorConfig
from striderl.checkpoint.store import CheckpointStore
from striderl.cli.main import main
from striderl.data import tree
from striderl.datasets.offline import replay_of, save_dataset
from striderl.envs.tasks import make
from striderl.recipes.table import recipe
from striderl.training.callbacks.ranks import pooled_numbers
from striderl.training.experiment.assembly import check_ranks
from striderl.training.experiment.run_config import read_run_config

pytestmark = pytest.mark.timeout(400)

LIMIT = 120
"""Seconds for a start of two processes on cores that are busy with others; it takes about ten."""
STEPS = 8 * 16 * 24
SMALL = [
    *("--env.num-envs", "8", "--plan.num-steps-per-env", "16", "--policy.actor-hidden-dims", "8"),
    *("--evaluation.num-episodes", "2", "--evaluation.every", "6", "--stop.metric", "", "--checkpoints.every", "5"),
]
QUICK = ["--algorithm.num-learning-epochs", "2", "--algorithm.num-mini-batches", "2"]
WITH_RND = ["train", "cartpole", *SMALL, *QUICK, "--plan.total-steps", str(STEPS), "--terms", "rnd"]


def run_torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "striderl", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment())


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def take_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


HERE = Path(__file__).resolve().parent
KILLS_ITSELF, WITHOUT_DATASET = HERE / "killed_rank.py", HERE / "rank_without_dataset.py"
"""Programs that run `striderl`: the first kills rank 1 once, in the second rank 1 finds no folder called 'gone'."""
NOTED_EVALUATION = HERE / "noted_evaluation.py"
REPLAY = [
    *("--env.num-envs", "4", "--plan.num-steps-per-env", "8", "--plan.learning-starts", "64", "--plan.batch-size", "8"),
    *("--plan.total-steps", str(64 + 8 * 32), "--policy.actor-hidden-dims", "8", "--evaluation.every", "0"),
    *("--evaluation.at-end", "False", "--stop.metric", ""),
]


def start_ranks(*words: str, program: Sequence[str] = ("-m", "striderl")) -> list[subprocess.Popen[str]]:
    """Start both processes without torchrun, which keeps their exit codes to itself and is a third process."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, *program, *words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [
        subprocess.Popen(
            command,
            env=environment(**shared, RANK=str(rank), LOCAL_RANK=str(rank)),
            preexec_fn=take_signals,
            **pipes,
        )
        for rank in range(2)
    ]


def the_run(root: Path) -> Path:
    (folder,) = (root / "cartpole").iterdir()
    return folder


def rows_of(folder: Path) -> list[dict[str, float]]:
    file = folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def state_of(folder: Path) -> Any:
    return without_times(CheckpointStore(folder / "checkpoints").load("last").state)


def without_times(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: without_times(value) for name, value in state.items() if not str(name).endswith("seconds")}
    return [without_times(value) for value in state] if isinstance(state, list) else state


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline, "the run did not get there"
        time.sleep(0.02)


def wait_for_rows(root: Path, count: int) -> None:
    wait_for(lambda: any(len(rows_of(folder)) >= count for folder in root.glob("cartpole/*")))


def ends_of(processes: list[subprocess.Popen[str]]) -> tuple[list[int], list[str], list[str]]:
    found = [process.communicate(timeout=LIMIT) for process in processes]
    return [process.returncode for process in processes], [each[0] for each in found], [each[1] for each in found]


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The folder of a run that two processes of torchrun made, undisturbed."""
    root = tmp_path_factory.mktemp("whole")
    done = run_torchrun(*WITH_RND, "--runs", str(root))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ended: the plan is fulfilled") == 1 and "in 2 processes" in done.stdout
    return the_run(root)


# -- one run -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_make_one_run_in_one_folder(whole):
    assert [row["step"] for row in rows_of(whole)] == [128 * count for count in range(1, 25)]
    assert read_run_config(whole).env.num_envs == 8  # those of both
    state = state_of(whole)
    assert state["env_steps"] == STEPS and len(state["ranks"]) == 1
    # what is learned is there once; of the second process, what it has of its own
    assert all("running_return" in path for path, _ in state["ranks"][0]["algorithm"])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "reinforce", "impala"])
def test_two_processes_learn_what_one_with_as_many_envs_learns(algorithm, tmp_path):
    words = ["train", "cartpole", "--algorithm", algorithm, *SMALL, "--plan.total-steps", "384"]
    words += ["--policy.normalize-obs", "True"]
    if algorithm == "ppo":
        words += ["--algorithm.num-mini-batches", "1"]
    processes = start_ranks(*words, "--runs", str(tmp_path / "two"))
    assert main([*words, "--runs", str(tmp_path / "one"), "--logging.console", "off"]) == 0
    codes, _, errors = ends_of(processes)
    assert codes == [0, 0], errors
    one, two = (the_run(tmp_path / name) for name in ("one", "two"))
    found = dict(tree.items(state_of(two)["algorithm"]["policy"]))
    for path, wanted in tree.items(state_of(one)["algorithm"]["policy"]):
        torch.testing.assert_close(found[path], wanted, rtol=1e-4, atol=1e-5, msg=lambda text, path=path: path + text)
    for ours, theirs in zip(rows_of(two), rows_of(one), strict=True):
        for name in ("step", "collect/episodes", "collect/return_mean", "collect/return_std", "collect/return_max"):
            assert ours.get(name) == pytest.approx(theirs.get(name), rel=1e-6), name
        assert ours.keys() == theirs.keys()


# -- signals and resume ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_and_the_resumed_run_has_the_same_bits(whole, tmp_path):
    processes = start_ranks(*WITH_RND, "--runs", str(tmp_path))
    wait_for_rows(tmp_path, 3)
    processes[1].send_signal(signal.SIGINT)
    codes, outputs, errors = ends_of(processes)
    assert codes == [130, 130], errors
    assert outputs[1] == "" and "SIGINT" not in errors[1] and errors[0].count("SIGINT: saved") == 1
    folder = the_run(tmp_path)
    assert 3 <= len(rows_of(folder)) < 24
    codes, _, errors = ends_of(start_ranks("resume", str(folder)))
    assert codes == [0, 0], errors
    assert tree.equal(state_of(folder), state_of(whole))
    assert [row["step"] for row in rows_of(folder)] == [row["step"] for row in rows_of(whole)]


@pytest.mark.slow
def test_a_signal_in_an_evaluation_stops_both(tmp_path):
    # the second process waits for the metrics of rank 0, which are not to come
    words = [*WITH_RND, "--evaluation.every", "3", "--evaluation.num-episodes", "100000", "--runs", str(tmp_path)]
    begun = tmp_path / "begun"
    processes = start_ranks(str(begun), *words, program=[str(NOTED_EVALUATION)])
    wait_for(begun.exists)
    processes[0].send_signal(signal.SIGTERM)
    codes, _, errors = ends_of(processes)
    assert codes == [143, 143], errors
    state = state_of(the_run(tmp_path))
    assert (state["phase"], state["iteration"]) == ("consume", 3) == (state["ranks"][0]["phase"], 3)
    assert state["record"] is not None and state["ranks"][0]["record"] is not None


@pytest.mark.slow
def test_a_run_of_two_processes_is_resumed_by_one_with_what_was_learned(whole, tmp_path, caplog):
    copied = shutil.copytree(whole, tmp_path / "cartpole" / "copied")
    before = state_of(copied)
    assert main(["resume", str(copied), "--plan.total-steps", str(STEPS + 128), "--logging.console", "off"]) == 0
    assert "was trained by 2 processes and goes on with 1" in caplog.text
    state = state_of(copied)
    assert state["iteration"] == before["iteration"] + 1 and "ranks" not in state
    kept = [path for path, leaf in tree.items(state["algorithm"]) if path.endswith("running_return")]
    assert kept and all(len(dict(tree.items(state["algorithm"]))[path]) == 8 for path in kept)  # the envs of both


# -- lost processes ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_process_is_named_and_rank_0_saves_what_was_learned(tmp_path):
    never = ["--checkpoints.every", "0", "--plan.total-steps", "0", "--switch-at", "never"]  # else it begins to compile
    processes = start_ranks(*WITH_RND, *never, "--runs", str(tmp_path))
    wait_for_rows(tmp_path, 3)
    processes[1].kill()
    killed = time.monotonic()
    codes, _, errors = ends_of(processes)
    assert codes == [1, -signal.SIGKILL] and time.monotonic() - killed < 60.0
    assert "rank 1 of 2 no longer answers, says rank 0" in errors[0] and "Traceback" not in errors[0]
    folder = the_run(tmp_path)
    assert state_of(folder)["iteration"] >= 3
    steps = str(int(state_of(folder)["env_steps"]) + 256)
    codes, _, errors = ends_of(start_ranks("resume", str(folder), "--plan.total-steps", steps))
    assert codes == [0, 0], errors
    assert "was trained by 1 processes and goes on with 2" in errors[0]


@pytest.mark.slow
def test_torchrun_starts_a_killed_run_again_from_its_last_checkpoint(tmp_path):
    words = ["train", "cartpole", "--algorithm", "dqn", "--runs", str(tmp_path), *REPLAY, "--checkpoints.every", "2"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    command += ["--monitor-interval", "0.1", str(KILLS_ITSELF), str(tmp_path / "once"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT, env=environment())
    assert done.returncode == 0, done.stderr
    assert "rank 1 of 2 no longer answers, says rank 0" in done.stderr
    folder = the_run(tmp_path)  # one folder, and the note is gone
    assert [row["step"] for row in rows_of(folder)] == [64 + 32 * count for count in range(1, 9)]
    assert len(state_of(folder)["ranks"]) == 1 and not list(tmp_path.glob(".torchrun*"))


@pytest.mark.slow
def test_a_dataset_that_one_process_lacks_is_named_by_rank_0(tmp_path):
    env, count = make("pendulum", num_envs=1), 8
    obs = {name: torch.zeros(count, 1, *part.shape) for name, part in env.obs_spec.items()}
    ended = torch.zeros(count, 1, dtype=torch.bool)
    steps = {"obs": obs, "act": torch.zeros(count, 1, 1), "rew": torch.zeros(count, 1), "terminated": ended}
    replay = replay_of({**steps, "obs_next": obs}, env.obs_spec, env.action_spec)
    save_dataset(tmp_path / "gone", replay, env.obs_spec, env.action_spec)
    words = ["train", "pendulum", "--algorithm", "iql", "--dataset", str(tmp_path / "gone")]
    processes = start_ranks(*words, "--runs", str(tmp_path / "runs"), program=[str(WITHOUT_DATASET)])
    codes, outputs, errors = ends_of(processes)
    assert codes == [2, 2] and outputs == ["", ""] and not list((tmp_path / "runs").glob("*/*"))
    said = errors[0].strip().splitlines()[-1]
    assert said.startswith(f"striderl: rank 1 on {socket.gethostname()}: there is no dataset '{tmp_path / 'gone'}'")
    assert "striderl:" not in errors[1] and "Traceback" not in "".join(errors)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_cannot_learn_in_ranks_is_refused_by_all_before_a_folder_is_made(tmp_path):
    processes = start_ranks("train", "cartpole", "--num-envs", "1", "--runs", str(tmp_path / "runs"))
    codes, outputs, errors = ends_of(processes)
    assert codes == [2, 2] and outputs == ["", ""] and not (tmp_path / "runs").exists()
    assert errors[0].strip().splitlines()[-1].startswith("striderl: 1 envs cannot be shared by 2 processes")
    assert "striderl:" not in errors[1] and "Traceback" not in "".join(errors)


def test_every_refusal_is_one_sentence(monkeypatch):
    monkeypatch.setattr(Estimation, "learns_in_ranks", False)  # as of a term of one's own
    config = recipe("cartpole", "ppo")
    check_ranks(config, 2)
    check_ranks(recipe("pendulum", "sac"), 1)
    sac = replace(recipe("pendulum", "sac"), env=replace(config.env, task="pendulum", num_envs=4))
    check_ranks(sac, 2)
    for wrong, said in (
        (replace(config, terms={"estimation": EstimatorConfig()}), "estimation does not set learns_in_ranks, so it"),
        (replace(sac, env=replace(sac.env, num_envs=3)), "3 envs cannot be shared evenly by 2 processes"),
        (replace(sac, plan=replace(sac.plan, batch_size=7)), "plan.batch_size 7 cannot be shared evenly"),
        (replace(config, device="cuda:1"), "write --device cuda, found 'cuda:1'"),
        (replace(config, env=replace(config.env, num_envs=1)), "1 envs cannot be shared by 2 processes"),
    ):
        with pytest.raises(ValueError, match=said):
            check_ranks(wrong, 2)


def test_other_commands_run_in_rank_0_alone(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert main(["list", "tasks"]) == 0 and main(["plot", "nowhere"]) == 0
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("RANK", "0")
    assert main(["list", "tasks"]) == 0 and "cartpole" in capsys.readouterr().out


def test_a_timeout_of_ranks_wants_ranks(capsys):
    assert main(["train", "cartpole", "--rank-timeout", "5"]) == 2
    assert "--rank-timeout has no effect in one process" in capsys.readouterr().err


def test_numbers_of_all_processes_are_pooled():
    # returns 0 and 4 in one process, 8 in the other: mean 4, variance (16 + 0 + 16) / 3
    parts = [
        {"collect/episodes": 2.0, "collect/return_mean": 2.0, "collect/return_std": 2.0, "collect/return_min": 0.0},
        {"collect/episodes": 1.0, "collect/return_mean": 8.0, "collect/return_std": 0.0, "collect/return_min": 8.0},
    ]
    logged = [{"collect/speed": 1.0, "faults/bad_samples": 2.0}, {"collect/speed": 3.0, "faults/bad_samples": 5.0}]
    found = pooled_numbers([{**part, **more} for part, more in zip(parts, logged)])
    assert found == {
        "collect/return_min": 0.0,
        "collect/return_std": pytest.approx((32 / 3) ** 0.5),
        "collect/speed": 2.0,
        "faults/bad_samples": 7.0,
    }
    assert pooled_numbers([]) == {}
