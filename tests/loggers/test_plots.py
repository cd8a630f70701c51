"""Curves: reading runs, grouping seeds, the interval, and a picture that can be opened."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from striderl.loggers.file_loggers import CsvLogger, JsonlLogger
from striderl.loggers.plots import group_curve, group_runs, legend_of, plot_runs, read_metrics, seed_curve


def write_run(folder, *, config=None, offset=0.0, rows=5, kind=JsonlLogger):
    logger = kind(folder / ("metrics.jsonl" if kind is JsonlLogger else "metrics.csv"))
    for number in range(1, rows + 1):
        numbers = {"collect/return_mean": number + offset, "train/value_loss": 1.0 / number}
        if number % 2 == 0:
            numbers["evaluate/return_mean"] = 10.0 * number
        logger.log(100 * number, numbers)
    logger.close()
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("kind", [JsonlLogger, CsvLogger])
def test_metrics_are_read_with_gaps(tmp_path, kind):
    run = read_metrics(write_run(tmp_path, kind=kind))
    assert run.steps.tolist() == [100, 200, 300, 400, 500]
    assert run.columns["collect/return_mean"].tolist() == [1, 2, 3, 4, 5]
    assert math.isnan(run.columns["evaluate/return_mean"][0])
    steps, values = run.curve("evaluate/return_mean")
    assert steps.tolist() == [200, 400] and values.tolist() == [20, 40]
    assert [len(part) for part in run.curve("surely/not")] == [0, 0]


def test_torn_and_repeated_rows(tmp_path, caplog):
    lines = [
        '{"step": 1, "a": 1}',
        '{"step": 2, "a": 2}',
        '{"step": 2, "a": 3}',
        '{"step": 3, "a": null}',
        '{"step": 4',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    run = read_metrics(tmp_path)
    assert run.steps.tolist() == [1, 2, 3] and run.columns["a"][:2].tolist() == [1, 3]
    assert caplog.text == "", "a torn last line is nothing special"
    (tmp_path / "metrics.jsonl").write_text("x\n[]\n" + "\n".join(lines))
    assert read_metrics(tmp_path).steps.tolist() == [1, 2, 3] and "3 lines could not be read" in caplog.text
    csv = tmp_path / "other"
    csv.mkdir()
    (csv / "metrics.csv").write_text("step,a,b\n1,1.0,\n2,2.0,nan\n3,3.")
    assert read_metrics(csv).columns["a"].tolist() == [1, 2]


def test_a_folder_without_metrics_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no metrics.jsonl and no metrics.csv; wanted a run folder"):
        read_metrics(tmp_path)


def test_seeds_of_one_setting_are_put_together(tmp_path):
    def config(seed, clip):
        return {"task": "cartpole", "seed": seed, "ppo": {"clip": clip, "lam": 0.95}, "collector": {"seed": seed}}

    folders = [
        write_run(tmp_path / "cartpole" / str(number), config=config(seed, clip))
        for number, (seed, clip) in enumerate([(0, 0.2), (1, 0.2), (0, 0.1), (2, 0.2)])
    ]
    groups = group_runs(folders)
    assert [group.label for group in groups] == ["cartpole, ppo.clip=0.2", "cartpole, ppo.clip=0.1"]
    assert [[run.folder.name for run in group.runs] for group in groups] == [["0", "1", "3"], ["2"]]
    (alone,) = group_runs(folders[:2])
    assert alone.label == "cartpole", "nothing to be told from"


@pytest.mark.slow
def test_runs_of_one_seed_are_no_further_seeds(tmp_path, caplog):
    # two copies of seed 0 with returns 1 … 5 and 3 … 7, and seed 1 with 2 … 6: seed 0 is 2 … 6 as well
    folders = [
        write_run(tmp_path / name, config={"task": "cartpole", "seed": seed}, offset=offset)
        for name, seed, offset in (("a", 0, 0.0), ("b", 0, 2.0), ("c", 1, 1.0))
    ]
    (copies,) = group_runs(folders[:2])
    assert legend_of(copies) == "cartpole (mean of 2 runs, all of seed 0: no interval)"
    assert group_curve(copies, "collect/return_mean").half_width.tolist() == [0.0] * 5
    (mixed,) = group_runs(folders)
    assert legend_of(mixed) == "cartpole (mean of 2 seeds in 3 runs, 95 % interval)"
    found = group_curve(mixed, "collect/return_mean")
    assert found.mean.tolist() == [2, 3, 4, 5, 6] and found.half_width.tolist() == [0.0] * 5
    plot_runs(folders, tmp_path / "curves.png")
    assert "a and b have the same settings and the same seed 0" in caplog.text
    (seeds,) = group_runs(folders[1:])
    assert legend_of(seeds) == "cartpole (mean of 2 seeds, 95 % interval)"
    assert group_curve(seeds, "collect/return_mean").half_width.min() > 0.0


def test_runs_without_settings_stand_alone(tmp_path):
    folders = [write_run(tmp_path / "ant" / name) for name in ("monday", "tuesday")]
    assert [group.label for group in group_runs(folders)] == ["ant, monday", "ant, tuesday"]


def test_the_interval_of_three_seeds():
    # at step 2: values 1, 2, 6, mean 3, deviation sqrt((4 + 1 + 9) / 2) = 2.6458, t = 4.3027 for two degrees of freedom
    steps = np.array([1.0, 3.0])
    curve = seed_curve(
        [(steps, np.array([1.0, 1.0])), (steps, np.array([1.0, 3.0])), (np.array([1.0, 2.0]), np.array([1.0, 6.0]))]
    )
    assert curve.steps.tolist() == [1.0, 2.0], "as far as all of them go"
    assert curve.mean.tolist() == [1.0, 3.0]
    assert curve.half_width == pytest.approx([0.0, 4.302653 * math.sqrt(7.0) / math.sqrt(3.0)])
    one = seed_curve([(steps, np.array([1.0, 3.0]))])
    assert one.mean.tolist() == [1.0, 3.0] and one.half_width.tolist() == [0.0, 0.0]
    assert len(seed_curve([(np.zeros(0), np.zeros(0))]).steps) == 0
    many = seed_curve([(np.arange(5000.0), np.arange(5000.0))] * 30)
    assert len(many.steps) == 400 and many.mean == pytest.approx(many.steps)


@pytest.mark.slow
def test_plots(tmp_path):
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    imageio = pytest.importorskip("imageio.v3", reason="reading the picture needs imageio")
    folders = [
        write_run(tmp_path / "cartpole" / str(seed), config={"task": "cartpole", "seed": seed}, offset=seed)
        for seed in range(3)
    ]
    drawn = plot_runs(folders, tmp_path / "out" / "curves.png")
    assert drawn == ["evaluate/return_mean", "collect/return_mean", "train/value_loss"]
    picture = imageio.imread(tmp_path / "out" / "curves.png")
    assert picture.shape[1] > 1200
    blue = (np.abs(picture[..., :3].astype(int) - (0x00, 0x72, 0xB2)).max(axis=-1) < 30).any(axis=0)
    thirds = np.array_split(blue, 3)
    assert all(third.any() for third in thirds), "a curve in each of the three panels"
    assert plot_runs(folders[:1], tmp_path / "one.png", metrics=["train/value_loss"]) == ["train/value_loss"]
    with pytest.raises(
        KeyError, match=r"no run has \['train/loss'\]. Did you mean 'train/value_loss'\? Available: .*train"
    ):
        plot_runs(folders, tmp_path / "none.png", metrics=["train/loss"])
    with pytest.raises(ValueError, match="at least one run folder"):
        plot_runs([], tmp_path / "none.png")


def test_an_empty_run_says_that_there_is_nothing(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(KeyError, match=r"a metric to draw\. Available: nothing"):
        plot_runs([tmp_path], tmp_path / "none.png")
