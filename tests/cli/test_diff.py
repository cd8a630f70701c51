"""`striderl diff`: the first setting, checkpoint, tensor and row in which two runs differ."""

from __future__ import annotations

import json

import pytest
import torch

from striderl.checkpoint.store import CheckpointStore
from striderl.cli.main import main
from striderl.cli.seeing.diff import tensor_difference


def write_run(root, name, *, weights, kl, gamma=0.9, seconds=1.0):
    """A run with one checkpoint per weight, at steps 100, 200, …, and one row per kl."""
    folder = root / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"algorithm": {"gamma": gamma}}))
    store = CheckpointStore(folder / "checkpoints", keep_last=9)
    for number, weight in enumerate(weights, 1):
        tensor = torch.zeros(2, 3)
        tensor[1, 2] = weight
        state = {"algorithm": {"policy": {"head": tensor}, "count": torch.tensor(number)}, "seed": 0}
        store.save({**state, "record": {"learning_seconds": seconds}}, step=100 * number)
    rows = [{"step": 100 * n, "train/kl": value, "time/learning_seconds": seconds} for n, value in enumerate(kl, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def test_equal_runs(tmp_path, capsys):
    one = write_run(tmp_path, "one", weights=[1.0, 2.0], kl=[0.1, None])
    two = write_run(tmp_path, "two", weights=[1.0, 2.0], kl=[0.1, None], seconds=9.0)
    assert main(["diff", one, two]) == 0
    text = capsys.readouterr().out
    assert "settings: equal" in text and "checkpoints: equal at steps 100, 200" in text
    assert "metrics: equal in all 2 rows that both have" in text


def test_where_they_part(tmp_path, capsys):
    one = write_run(tmp_path, "one", weights=[1.0, 2.0, 3.0], kl=[0.1, 0.2, 0.3])
    two = write_run(tmp_path, "two", weights=[1.0, 2.5, 3.5], kl=[0.1, 0.25, 0.35], gamma=0.99)
    assert main(["diff", one, two]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "settings: algorithm.gamma 0.9 → 0.99"
    assert lines[3] == "checkpoints: equal at step 100; part at step 200, in 1 places"
    assert lines[4] == "  step 200: algorithm/policy/head [2, 3]: 1 of 6 numbers, most at [1, 2]: 2 → 2.5"
    assert lines[5:] == ["metrics: equal up to step 100; part at step 200", "  step 200: train/kl 0.2 → 0.25"]


def test_other_lengths_and_no_shared_checkpoint(tmp_path, capsys):
    one = write_run(tmp_path, "one", weights=[1.0], kl=[0.1])
    two = write_run(tmp_path, "two", weights=[], kl=[0.1, 0.2])
    assert main(["diff", one, two]) == 0
    text = capsys.readouterr().out
    assert "none of a step that both have: A [100], B []" in text and "A ends at 100, B at 200" in text


def test_a_damaged_checkpoint_is_named_and_the_next_compared(tmp_path, capsys):
    one = write_run(tmp_path, "one", weights=[1.0, 2.0], kl=[])
    two = write_run(tmp_path, "two", weights=[1.0, 5.0], kl=[])
    path = tmp_path / "one" / "checkpoints" / "step_000000000100" / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["diff", one, two]) == 1
    text = capsys.readouterr().out
    assert "step 100 cannot be compared" in text and "part at step 200" in text


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]), ""),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 2.0]), "[2]: 1 of 2 numbers, most at [1]: nan → 2"),
        (torch.tensor(3), torch.tensor(4), "[]: 1 of 1 numbers, most: 3 → 4"),
        (torch.tensor([True]), torch.tensor([False]), "[1]: 1 of 1 numbers, most at [0]: 1 → 0"),
        (torch.zeros(2), torch.zeros(3), "float32 [2] → float32 [3]"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "float32 [2] → float64 [2]"),
    ],
)
def test_how_tensors_differ(one, other, wanted):
    assert tensor_difference(one, other) == wanted


def test_a_wrong_name_is_a_mistake(tmp_path, capsys):
    assert main(["diff", str(tmp_path / "no"), str(tmp_path / "no")]) == 2
    assert "does not exist" in capsys.readouterr().err
