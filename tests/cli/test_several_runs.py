"""Several runs: `--seeds`, `--tags`, names of groups, and `striderl list runs`."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from striderl.cli.main import main
from striderl.cli.runs import find_run, find_runs
from striderl.cli.seeds import train_seeds
from striderl.cli.seeing.list_names import listed
from striderl.training.experiment.run_folder import RunFolder
from striderl.training.signals import StopSignals

TINY = [
    *("--env.num-envs", "4", "--plan.num-steps-per-env", "8", "--plan.total-steps", "64", "--stop.metric", ""),
    *("--evaluation.num-episodes", "1", "--policy.actor-hidden-dims", "8", "--algorithm.num-mini-batches", "2"),
]


def write_run(folder, *, seed=0, returned=1.0, tags=(), steps=100, changed=0.0):
    folder.mkdir(parents=True)
    config = {"seed": seed, "algorithm_name": "ppo", "env": {"task": "cartpole"}}
    (folder / "config.json").write_text(json.dumps(config))
    rows = [{"step": steps // 2, "evaluate/return_mean": 0.0}, {"step": steps, "collect/return_mean": returned}]
    if returned is not None:
        rows[1]["evaluate/return_mean"] = returned
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "labels.json").write_text(json.dumps({"tags": list(tags)}))
    os.utime(folder / "metrics.jsonl", (changed, changed))


@pytest.fixture
def runs(tmp_path):
    root = tmp_path / "runs"
    write_run(root / "cartpole" / "b", seed=1, returned=5.0, tags=["first", "slow"], steps=300, changed=1000.0)
    write_run(root / "cartpole" / "a", seed=2, returned=7.0, tags=["first"], steps=100, changed=3000.0)
    write_run(root / "cartpole" / "group" / "seed_0", returned=6.0, steps=200, changed=2000.0)
    return root


@pytest.mark.parametrize(
    ("flags", "order"),
    [
        ([], ["a", "seed_0", "b"]),
        (["--sort", "return"], ["a", "seed_0", "b"]),
        (["--sort", "steps"], ["b", "seed_0", "a"]),
        (["--sort", "name"], ["a", "b", "seed_0"]),
        (["--tags", "first"], ["a", "b"]),
        (["--tags", "first", "slow"], ["b"]),
    ],
)
def test_runs_are_listed(runs, flags, order, capsys):
    assert main(["list", "runs", "--folder", str(runs), *flags]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0].rpartition("/")[2] for line in lines] == order


def test_a_damaged_or_hostile_run_is_listed_too(runs, capsys):
    folder = runs / "cartpole" / "a"
    (folder / "config.json").write_text('{"env": {"task": "\\u001b[2J"}}')
    (folder / "metrics.jsonl").write_bytes(b"\xff\n{}\n[1]\n" + b'{"step": 3}')
    assert main(["list", "runs", "--runs", str(runs)]) == 0  # the flag of train is another name of --folder
    text = capsys.readouterr().out
    assert "\x1b" not in text and "?[2J" in text and listed(folder).steps == 3


def test_the_return_of_a_long_log_is_read_from_its_end(tmp_path):
    write_run(tmp_path / "run")
    rows = "".join(
        json.dumps({"step": step, "x" * 100: 0.0, "evaluate/return_mean": step}) + "\n" for step in range(9000)
    )
    (tmp_path / "run" / "metrics.jsonl").write_text(rows)
    assert (listed(tmp_path / "run").steps, listed(tmp_path / "run").returned) == (8999, 8999)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["list", "runs", "--sort", "retrn"], "Did you mean 'return'"),
        (["list", "tasks", "--tags", "x"], "striderl list runs"),
        (["train", "cartpole", "--seeds", "none"], "--seeds is a positive whole number, found 'none'"),
        (["train", "cartpole", "--jobs", "2"], "--jobs has no effect here"),
        (["train", "--resume", "x", "--seeds", "2"], "--seeds has no effect here"),
        (["train", "cartpole", "--seeds", "2", "--name", "a/b"], "is that of the group"),
        (["train", "cartpole", "--seeds", "2", "--algorithm.gama", "1"], "--algorithm.gamma"),
        (["train", "cartpole", "--name", "a/b/c"], "NAME or GROUP/NAME"),
        (["train", "cartpole", "--name", "../x"], "NAME or GROUP/NAME"),
        (["train", "cartpole", "--name", "/x"], "NAME or GROUP/NAME"),
        (["train", "cartpole", "--tag", "x"], "Did you mean --tags?"),
    ],
)
def test_mistakes(words, hint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert hint in capsys.readouterr().err
    assert not list(tmp_path.rglob("config.json"))


def test_a_reader_that_has_seen_enough_is_no_error(runs, monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["list", "runs", "--folder", str(runs)]) == 141
        monkeypatch.undo()


def test_an_unknown_run_names_the_newest(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("z", "y", "x", "w")):  # by time, not by the alphabet
        folder = tmp_path / "runs" / "cartpole" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        os.utime(folder / "config.json", (1000 + age, 1000 + age))
    assert main(["evaluate", "runs/nothing"]) == 2
    newest = "Newest runs: runs/cartpole/w, runs/cartpole/x, runs/cartpole/y, … ('striderl list runs' lists all)"
    assert newest in capsys.readouterr().err


def test_no_runs_yet(tmp_path, capsys):
    assert main(["list", "runs", "--folder", str(tmp_path)]) == 0
    assert "there are no runs" in capsys.readouterr().out


def test_the_newest_run_among_groups(tmp_path):
    for name in ("2026-01-01_10-00-00/seed_0", "2026-01-01_10-00-00/seed_1", "2026-01-02_10-00-00"):
        write_run(tmp_path / "cartpole" / name)
    assert find_run(tmp_path / "cartpole").name == "2026-01-02_10-00-00"
    assert find_run(tmp_path / "cartpole" / "2026-01-01_10-00-00").name == "seed_1"
    assert len(find_runs(tmp_path / "cartpole")) == 3 and len(find_runs(tmp_path)) == 3
    write_run(tmp_path / "cartpole" / "an_older_one")
    os.utime(tmp_path / "cartpole" / "an_older_one" / "config.json", (1000, 1000))
    assert find_run(tmp_path / "cartpole").name == "2026-01-02_10-00-00"  # though its name comes later
    (tmp_path / "cartpole" / "an_older_one" / "metrics.jsonl").unlink()
    assert len(find_runs(tmp_path)) == 3  # nothing was logged in it


@pytest.mark.slow
def test_seeds_are_trained_side_by_side_and_one_that_fails_stops_no_other(tmp_path, capfd):
    taken = tmp_path / "cartpole" / "both" / "seed_4"
    taken.mkdir(parents=True)  # so this seed cannot start
    words = ["train", "cartpole", *TINY, "--runs", str(tmp_path), "--seed", "4", "--seeds", "2", "--name", "both"]
    assert main([*words, "--tags", "quick", "test"]) == 2
    text, errors = capfd.readouterr()
    folder = tmp_path / "cartpole" / "both" / "seed_5"
    assert "seed 5: ended: the plan is fulfilled" in text
    assert "seed 4 ended with code 2" in errors and "exists; choose another name" in errors
    labels = RunFolder(folder).labels()
    assert labels.tags == ("quick", "test") and labels.group == "both" and "--seed 5" in labels.command
    assert json.loads((folder / "config.json").read_text())["seed"] == 5
    assert "interquartile mean over distinct seeds" in text
    assert text.splitlines()[-1] == f"report: {tmp_path / 'cartpole' / 'both' / 'report.html'}"


def test_no_seed_is_started_after_a_signal(tmp_path, capsys):
    signals = StopSignals()
    signals.follow(signal.SIGTERM)
    code = train_seeds(["cartpole"], seeds=range(3), jobs=1, group="g", runs=tmp_path, signals=signals)
    assert code == 143 and "SIGTERM" in capsys.readouterr().err
