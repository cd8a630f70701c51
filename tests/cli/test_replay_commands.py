"""Learners from replay and from datasets on the command line: train, resume to the bit, evaluate, export, film."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from striderl.checkpoint.store import CheckpointStore
from striderl.cli.main import main
from striderl.cli.runs import find_run
from striderl.data import tree
from striderl.datasets.offline import all_steps, dataset_about, load_dataset
from striderl.envs.tasks import make
from striderl.training.experiment.run_config import read_run_config

QUIET = ["--stop.metric", "", "--evaluation.num-episodes", "1", "--logging.console", "off", "--evaluation.every", "0"]
NETWORKS = ["--policy.actor-hidden-dims", "8", "--policy.critic-hidden-dims", "8"]
REPLAY = ["--plan.num-steps-per-env", "8", "--plan.learning-starts", "16", "--plan.batch-size", "8"]
OFFLINE = ["--plan.num-updates-per-iteration", "4", "--plan.batch-size", "8"]
ONLINE = {"dqn": "cartpole", "sac": "pendulum", "td3": "pendulum"}
FROM_DATA = {"bc": "cartpole", "td3_bc": "pendulum", "cql": "pendulum", "iql": "cartpole", "bcq": "cartpole"}


@pytest.fixture(autouse=True)
def threads():
    """Runs set torch's threads for their process; other tests get theirs back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """A folder with a dataset of random steps for each of two tasks."""
    root = tmp_path_factory.mktemp("datasets")
    for task in ("cartpole", "pendulum"):
        assert main(["dataset", task, str(root / task), "--kind", "random", "--num-steps", "200"]) == 0
    return root


def trained(name, datasets, root, amount):
    """Train a few steps and return the run's folder."""
    task = {**ONLINE, **FROM_DATA}[name]
    words = ["train", task, "--algorithm", name, *QUIET, *NETWORKS, "--runs", str(root)]
    if name in ONLINE:
        words += [*REPLAY, "--plan.total-steps", str(amount * 8 * (4 if name == "dqn" else 1) + 16)]
    else:
        words += [*OFFLINE, "--plan.total-iterations", str(amount), "--dataset", str(datasets / task)]
    assert main(words) == 0
    return find_run(Path(root) / task)


def learned(folder):
    """Everything that the run has learned and what its replay holds, to the bit."""
    state = CheckpointStore(folder / "checkpoints").load("last").state
    wanted = ("algorithm", "replay", "picker", "num_updates", "env_steps")
    kept = {name: state[name] for name in wanted if name in state}
    kept.get("replay", {}).pop("generation", None)  # how often it was saved
    return [leaf for leaf in tree.leaves(kept) if not isinstance(leaf, str)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ONLINE, *FROM_DATA])
def test_a_resumed_run_is_the_run_that_was_never_stopped(name, datasets, tmp_path):
    whole = trained(name, datasets, tmp_path / "whole", 2)
    part = trained(name, datasets, tmp_path / "part", 1)
    longer = read_run_config(whole).plan
    flag = (
        ["--plan.total-steps", str(longer.total_steps)]
        if name in ONLINE
        else ["--plan.total-iterations", str(longer.total_iterations)]
    )
    assert main(["resume", str(part), *flag]) == 0
    one, two = learned(whole), learned(part)
    assert len(one) == len(two) > 10
    for mine, theirs in zip(one, two):
        assert torch.equal(torch.as_tensor(mine), torch.as_tensor(theirs))
    rows = [json.loads(line) for line in (part / "metrics.jsonl").read_text().splitlines()]
    assert len({row["step"] for row in rows}) == len(rows) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "sac", "td3", "td3_bc", "bcq"])
def test_what_was_learned_is_evaluated_filmed_and_exported(name, datasets, tmp_path, capsys):
    folder = trained(name, datasets, tmp_path, 1)
    capsys.readouterr()
    assert main(["evaluate", str(folder), "--episodes", "2", "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["episodes"] == 2.0 and numbers["step"] == {"dqn": 48, "sac": 24, "td3": 24}.get(name, 4)
    assert main(["record", str(folder), "--seconds", "0.1", "--output", str(tmp_path / "film.mp4")]) == 0
    assert (tmp_path / "film.mp4").stat().st_size > 0
    if name in ("sac", "bcq"):
        assert main(["export", str(folder), "--output", str(tmp_path / "bundle"), "--formats", "torch"]) == 0
        assert "differs from the policy by" in capsys.readouterr().out


@pytest.mark.slow
def test_play_writes_a_video_where_there_is_no_display(datasets, tmp_path, monkeypatch):
    from striderl.cli.play import NoDisplayError

    class Nothing:
        def __init__(self, title):
            raise NoDisplayError("no $DISPLAY")

    monkeypatch.setattr("striderl.cli.play.Window", Nothing)
    folder = trained("td3", datasets, tmp_path, 1)
    assert main(["play", str(folder), "--seconds", "0.1"]) == 0
    assert list((folder / "videos").glob("play_*.mp4"))


# -- datasets ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_dataset_of_a_run(datasets, tmp_path, capsys):
    run = trained("sac", datasets, tmp_path, 1)
    assert main(["dataset", str(run), str(tmp_path / "data"), "--num-steps", "30", "--num-envs", "3"]) == 0
    assert "30 steps of pendulum" in capsys.readouterr().out
    env = make("pendulum")
    assert len(all_steps(load_dataset(tmp_path / "data", env.obs_spec, env.action_spec))["rew"]) == 30
    assert dataset_about(tmp_path / "data") == {"task": "pendulum", "run": run.name, "step": 24, "seed": 0}
    assert main(["dataset", str(run), str(tmp_path / "other"), "--kind", "expert"]) == 2
    assert "--kind is for a task" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "pendulum", "--algorithm", "td3_bc"], "add --dataset FOLDER; 'striderl dataset pendulum FOLDER'"),
        (["train", "pendulum", "--algorithm", "iql", "--dataset", "nowhere"], "there is no dataset"),
        (["train", "pendulum", "--algorithm", "cql", "--dataset", "."], "is not the folder of a dataset"),
        (["train", "pendulum", "--dataset", "DATA/pendulum"], "dataset has no effect with ppo"),
        (["train", "cartpole", "--algorithm", "bc", "--dataset", "DATA/pendulum"], "another layout"),
        (
            ["train", "pendulum", "--algorithm", "bc", "--dataset", "DATA/pendulum", "--env.num-envs", "4"],
            "env.num_envs: these settings have no effect",
        ),
        (
            ["train", "pendulum", "--algorithm", "td3_bc", "--dataset", "DATA/pendulum"]
            + ["--algorithm.exploration-std", "0.3"],
            "exploration_std has no effect",
        ),
        (["train", "pendulum", "--algorithm", "sac", "--terms", "rnd"], "RND on replay wants normalize_reward=False"),
        (["dataset", "pendulum", "DATA/pendulum"], "exists; a dataset is saved to a folder of its own"),
        (["dataset", "pendulum", "new", "--kind", "meduim"], "Did you mean 'medium'?"),
        (["dataset", "pendulun", "new"], "neither a task nor a run 'pendulun'. Did you mean 'pendulum'?"),
        (["dataset", "runs/pendulum", "new"], "the run 'runs/pendulum' does not exist"),
        (["dataset", "pendulum", "/proc/none/new"], "no place for the dataset: no such file or directory"),
        (["dataset", "pendulum", "new", "--num-steps", "0"], "num_steps and num_envs are at least 1"),
    ],
)
def test_mistakes_are_named(words, said, datasets, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([word.replace("DATA", str(datasets)) for word in words]) == 2
    text = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert said in text and "Traceback" not in text
    assert not (tmp_path / "new").exists() and not list(tmp_path.glob("runs/*/*"))


def test_a_run_goes_on_with_its_own_dataset_alone(datasets, tmp_path, capsys):
    run = trained("td3_bc", datasets, tmp_path, 1)
    other = str(tmp_path / "other")
    assert main(["dataset", "pendulum", other, "--kind", "random", "--num-steps", "200", "--seed", "5"]) == 0
    assert main(["resume", str(run), "--dataset", other, "--plan.total-iterations", "2"]) == 2
    assert "learned from another dataset" in capsys.readouterr().err
