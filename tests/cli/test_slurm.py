"""Jobs of Slurm: what is submitted (to a fake sbatch), and preemption with submitit's local executor.

There is no Slurm here. submitit's local executor starts the same jobs, sends the same signal and requeues them; what
Slurm itself does with the submitted file is not tested.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

submitit = pytest.importorskip("submitit", reason="jobs of Slurm need the extra 'slurm'")

from striderl.checkpoint.store import CheckpointStore  # noqa: E402
from striderl.cli.launch import SlurmJob, minutes, slurm_parameters  # noqa: E402
from striderl.cli.main import main  # noqa: E402
from striderl.cli.terminal import UsageError  # noqa: E402
from striderl.data import tree  # noqa: E402

TINY = [
    *("--env.num-envs", "2", "--plan.num-steps-per-env", "8", "--plan.total-steps", "96", "--stop.metric", ""),
    *("--evaluation.num-episodes", "1", "--evaluation.every", "2", "--policy.actor-hidden-dims", "4"),
    *("--policy.critic-hidden-dims", "4", "--algorithm.num-mini-batches", "1", "--logging.console", "off"),
]


@pytest.fixture(autouse=True)
def threads():
    """Runs set torch's threads for their process; other tests get theirs back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """A folder with an `sbatch` and an `srun` that only keep what they are given; returns where sbatch keeps it."""
    kept = tmp_path / "submitted.sh"
    for name in ("sbatch", "srun"):
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\ncp "$1" {kept} 2>/dev/null\necho "Submitted batch job 4711"\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return kept


def states_of(*runs: Path):
    return [CheckpointStore(run / "checkpoints").load("last").state["algorithm"] for run in runs]


# -- what is submitted -------------------------------------------------------------------------------------------------


def test_a_job_array_of_seeds(sbatch, tmp_path, capsys):
    words = ["--runs", str(tmp_path / "runs"), "--name", "many", "--seeds", "3", "--seed", "7"]
    given = "partition=gpu,time=4:00:00,gpus_per_node=1,cpus_per_task=8,mem=16GB,account=lab"
    assert main(["train", "cartpole", *TINY, *words, "--slurm", given]) == 0
    script = sbatch.read_text()
    for line in ("partition=gpu", "time=240", "gpus-per-node=1", "cpus-per-task=8", "mem=16GB", "account=lab"):
        assert f"#SBATCH --{line}\n" in script
    assert "#SBATCH --array=0-2%" in script and "#SBATCH --signal=USR2@90" in script
    assert "#SBATCH --job-name=striderl-cartpole" in script
    shown = capsys.readouterr().out
    assert [f"many/seed_{seed}" in shown for seed in (7, 8, 9)] == [True] * 3 and "job 4711_2" in shown
    assert not list((tmp_path / "runs").rglob("config.json")), "nothing is trained here"


def test_jobs_that_work_on_a_sweep(sbatch, tmp_path, capsys):
    pytest.importorskip("optuna", reason="sweeps need the extra 'tune'")
    words = ["--space", "algorithm.gamma=0.9:0.99", "--sweeps", str(tmp_path / "sweeps"), "--name", "one"]
    assert main(["sweep", "cartpole", *TINY, *words, "--slurm", "partition=cpu,time=30", "--jobs", "2"]) == 0
    assert "--array=0-1%" in sbatch.read_text() and "job 4711_1" in capsys.readouterr().out
    assert (tmp_path / "sweeps" / "one" / "sweep.json").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--slurm", "partition"], "KEY=VALUE"),
        (["--slurm", "partitoin=gpu"], "partitoin"),
        (["--slurm", "time=soon"], "time is minutes"),
        (["--slurm", "cluster=lokal"], "'slurm', or 'local'"),
        (["--slurm", "time=5", "--seeds", "3", "--jobs", "2"], "--jobs has no effect with --slurm"),
        (["--slurm", "time=5", "--seeds", "none"], "how many runs"),
        (["--slurm", "time=5", "--algorithm.gama", "1"], "Did you mean --algorithm.gamma"),
    ],
)
def test_mistakes_are_named_before_a_job_is_submitted(words, message, sbatch, tmp_path, capsys):
    assert main(["train", "cartpole", *words, "--runs", str(tmp_path / "runs")]) == 2
    assert message in capsys.readouterr().err and not sbatch.exists()


def test_without_slurm_there_is_a_plain_message(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["train", "cartpole", "--slurm", "time=5", "--runs", str(tmp_path)]) == 2
    assert "srun" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "found"), [("90", 90), ("4:00:00", 240), ("0:10:30", 11), ("2-12:00:00", 3600), ("10:30", 11)]
)
def test_times_of_slurm_are_minutes(text, found):
    assert minutes(text) == found


def test_parameters_have_the_names_of_submitit():
    cluster, found = slurm_parameters("partition=gpu,time=60,nodes=2,tasks_per_node=4,mem_gb=8,cluster=local")
    assert cluster == "local"
    assert found == {"slurm_partition": "gpu", "timeout_min": 60, "nodes": 2, "tasks_per_node": 4, "mem_gb": 8}
    with pytest.raises(UsageError, match="time is minutes"):
        slurm_parameters("time=1h")


# -- preemption --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_preempted_run_is_requeued_and_goes_on_exactly(tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("STRIDERL_TEST_MARKER", str(marker))
    monkeypatch.setenv("PYTHONPATH", path)
    words = ["cartpole", *TINY, "--callbacks", "sweep_parts:Preempted", "--runs", str(tmp_path)]
    run = tmp_path / "cartpole" / "preempted"
    job = SlurmJob(["train", *words, "--name", "preempted"], ["resume", str(run)], str(run / "config.json"))
    executor = submitit.AutoExecutor(folder=tmp_path / "jobs", cluster="local")
    executor.update_parameters(timeout_min=5)
    submitted = executor.submit(job)
    assert submitted.result() == 0
    log = submitted.stderr() + submitted.stdout()
    assert marker.exists() and "Requeued job" in log and "SIGTERM: saved" in log
    assert main(["train", *words, "--name", "whole"]) == 0
    assert tree.equal(*states_of(run, tmp_path / "cartpole" / "whole"))
    assert (run / "metrics.csv").read_text().count("\n") == (tmp_path / "cartpole/whole/metrics.csv").read_text().count(
        "\n"
    )


@pytest.mark.slow
def test_two_tasks_are_the_ranks_of_one_run_and_are_requeued_together(tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("STRIDERL_TEST_MARKER", str(marker))
    monkeypatch.setenv("PYTHONPATH", path)
    run = tmp_path / "cartpole" / "ranks"
    words = ["train", "cartpole", *TINY, "--callbacks", "sweep_parts:Preempted", "--runs", str(tmp_path)]
    words += ["--name", "ranks", "--rank-timeout", "120"]
    executor = submitit.AutoExecutor(folder=tmp_path / "jobs", cluster="local")
    executor.update_parameters(timeout_min=5, tasks_per_node=2)
    submitted = executor.submit(SlurmJob(words, ["resume", str(run)], str(run / "config.json")))
    assert submitted.results() == [0, 0]
    assert marker.exists() and "in 2 processes" in submitted.task(0).stdout()
    rows = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows == list(range(16, 97, 16)), "as without the requeue"


def test_a_job_that_fails_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    job = SlurmJob(["train", "cartpol"], [], str(tmp_path / "never"))
    with pytest.raises(RuntimeError, match="'striderl train cartpol' ended with 2"):
        job()
