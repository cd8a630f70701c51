"""`striderl compare` and what `plot` prints: rows, sentences, JSON, and mistakes."""

from __future__ import annotations

import json
import re

import pytest

from striderl.cli.main import main


def write_runs(root, scores, gamma):
    for seed, score in enumerate(scores):
        folder = root / "cartpole" / f"gamma{gamma}_seed{seed}"
        folder.mkdir(parents=True)
        config = {"seed": seed, "env": {"task": "cartpole"}, "algorithm": {"gamma": gamma}}
        (folder / "config.json").write_text(json.dumps(config))
        rows = [{"step": step, "evaluate/return_mean": score * step / 200} for step in (100, 200)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def runs(tmp_path):
    write_runs(tmp_path, [10.0, 11.0, 12.0, 13.0, 14.0], 0.9)
    write_runs(tmp_path, [20.0, 21.0, 22.0, 23.0, 24.0], 0.99)
    write_runs(tmp_path, [20.5, 21.5, 22.5, 23.5, 24.5], 0.999)
    return tmp_path / "cartpole"


def test_all_runs_of_a_folder_are_compared(runs, capsys):
    assert main(["compare", str(runs)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"algorithm.gamma=0.9 +5 +12  \[10", text)  # of 10 … 14 the mean of 11, 12, 13
    assert "algorithm.gamma=0.99 is better than cartpole, algorithm.gamma=0.9\n" in text
    assert "against cartpole, algorithm.gamma=0.99: probability of improvement 0.60" in text  # 15 of 25 pairs are won
    assert text.count(": not distinguishable\n") == 1


def test_as_json_and_at_a_step(runs, capsys):
    assert main(["compare", str(runs), str(runs / "gamma0.9_seed0"), "--json", "--at-step", "150"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["candidates"][-1]["scores"] == [5.0, 5.5, 6.0, 6.5, 7.0] and len(found["pairs"]) == 3


def test_plot_tells_what_is_not_distinguishable(runs, tmp_path, capsys):
    folders = [str(path) for path in sorted(runs.iterdir()) if "gamma0.99" in path.name]
    assert main(["plot", *folders, "--output", str(tmp_path / "x.png")]) == 0
    assert "not distinguishable" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "name at least one run"),
        (["--at-step", "-1", "RUNS"], "--at-step is not negative"),
        (["RUNS", "--metric", "evaluate/retrn_mean"], "Did you mean 'evaluate/return_mean'"),
        (["RUNS", "--at-step", "50"], "up to step 50"),
    ],
)
def test_mistakes(runs, words, hint, capsys):
    assert main(["compare", *(str(runs) if word == "RUNS" else word for word in words)]) == 2
    assert hint in capsys.readouterr().err
