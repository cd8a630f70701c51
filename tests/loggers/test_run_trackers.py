"""A run of the command line gives every tracker its curves, videos, config and report; clients are stood in for."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from striderl.cli.main import main
from striderl.loggers.trackers import WandbLogger

TINY = [
    *("--env.num-envs", "4", "--plan.num-steps-per-env", "8", "--plan.total-steps", "64", "--stop.metric", ""),
    *("--evaluation.num-episodes", "1", "--policy.actor-hidden-dims", "8", "--algorithm.num-mini-batches", "2"),
    *("--logging.console", "off", "--logging.video-every", "99", "--logging.video-seconds", "0.1"),
]


class Calls:
    """What a client was told, by the kind of call."""

    def __init__(self):
        self.rows, self.config, self.files, self.opened, self.closed = {}, {}, [], {}, 0
        self.videos = []


def fake_wandb(calls):
    module = ModuleType("wandb")
    run = SimpleNamespace(
        log=lambda row, step: calls.rows.setdefault(step, {}).update(row),
        summary={},
        config=SimpleNamespace(update=lambda values, allow_val_change: calls.config.update(values)),
        save=lambda path, base_path, policy: calls.files.append(path),
        finish=lambda: setattr(calls, "closed", calls.closed + 1),
    )
    module.Settings = lambda **values: values
    module.Video = lambda path: calls.videos.append(path) or path
    module.init = lambda **values: calls.opened.update(values) or run
    return {"wandb": module}


def fake_trackio(calls):
    module, storage = ModuleType("trackio"), ModuleType("trackio.sqlite_storage")
    storage.SQLiteStorage = SimpleNamespace(get_last_step=lambda project, run: None)
    run = SimpleNamespace(
        log=lambda row, step: calls.rows.setdefault(step, {}).update(row),
        log_artifact=lambda path, name, type: calls.files.append(path),
        finish=lambda: setattr(calls, "closed", calls.closed + 1),
    )
    module.Markdown = str
    module.Video = lambda path, caption: calls.videos.append(path) or path

    def init(**values):
        calls.opened.update(values)
        calls.config.update(values["config"])
        return run

    module.init = init
    return {"trackio": module, "trackio.sqlite_storage": storage}


def fake_mlflow(calls):
    module, tracking, entities = (ModuleType(name) for name in ("mlflow", "mlflow.tracking", "mlflow.entities"))
    entities.Metric = lambda key, value, time, step: ("metric", step, key, value)
    entities.Param = lambda key, value: ("param", key, value)

    class MlflowClient:
        def __init__(self, tracking_uri):
            calls.opened["uri"] = tracking_uri

        def get_experiment_by_name(self, name):
            return None

        def create_experiment(self, name, place):
            return "1"

        def search_runs(self, numbers, filter_string, max_results):
            return []

        def create_run(self, number, run_name):
            return SimpleNamespace(info=SimpleNamespace(run_id="r"))

        def get_run(self, run_id):
            return SimpleNamespace(data=SimpleNamespace(params={}))

        def get_metric_history(self, run_id, name):
            return []

        def log_batch(self, run_id, metrics=(), params=()):
            for _, step, key, value in metrics:
                calls.rows.setdefault(step, {})[key] = value
            calls.config.update({key: value for _, key, value in params})

        def set_tag(self, run_id, name, value):
            pass

        def log_artifact(self, run_id, path, folder):
            (calls.videos if folder == "videos" else calls.files).append(path)

        def set_terminated(self, run_id):
            calls.closed += 1

    tracking.MlflowClient = MlflowClient
    return {"mlflow": module, "mlflow.tracking": tracking, "mlflow.entities": entities}


FAKES = {"wandb": fake_wandb, "trackio": fake_trackio, "mlflow": fake_mlflow}


@pytest.mark.parametrize("name", FAKES)
def test_curves_videos_config_and_report_reach_the_tracker(tmp_path, monkeypatch, name):
    calls = Calls()
    for module, fake in FAKES[name](calls).items():
        monkeypatch.setitem(sys.modules, module, fake)
    threads = torch.get_num_threads()
    words = ["train", "cartpole", *TINY, "--runs", str(tmp_path), "--name", "x", "--logging.trackers", name]
    assert main(words) == 0
    torch.set_num_threads(threads)
    folder = tmp_path / "cartpole" / "x"
    wanted = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert sorted(calls.rows) == [row["step"] for row in wanted] == [32, 64]
    assert calls.rows[64]["evaluate/return_mean"] == wanted[-1]["evaluate/return_mean"]
    settings = json.dumps(calls.config, default=str)
    assert "cartpole" in settings and "64" in settings
    assert calls.files == [str(folder / "report.html")] and calls.closed == 1
    assert calls.videos == [str(folder / "videos" / "step_64.mp4")]


def test_curves_videos_config_and_report_reach_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = ["train", "cartpole", *TINY, "--runs", str(tmp_path), "--name", "x", "--logging.trackers", "tensorboard"]
    threads = torch.get_num_threads()
    assert main(words) == 0
    torch.set_num_threads(threads)
    folder = tmp_path / "cartpole" / "x"
    (events,) = folder.rglob("events.out.tfevents.*")
    found = EventAccumulator(str(events.parent), size_guidance={"scalars": 0, "images": 0, "tensors": 0}).Reload()
    wanted = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curve = [(each.step, each.value) for each in found.Scalars("evaluate/return_mean")]
    assert curve == [(64, pytest.approx(wanted[-1]["evaluate/return_mean"]))]
    assert [each.step for each in found.Images("video/episode")] == [64]
    texts = {name: found.Tensors(name)[0].tensor_proto.string_val[0].decode() for name in found.Tags()["tensors"]}
    assert any("cartpole" in text for text in texts.values()), texts
    assert any(str(folder / "report.html") in text for text in texts.values()), texts


@pytest.mark.parametrize(
    ("variable", "given", "mode"),
    [("", "", "offline"), ("online", "", "online"), ("online", "offline", "offline"), ("", "online", "online")],
)
def test_weights_and_biases_is_online_when_chosen(tmp_path, monkeypatch, variable, given, mode):
    calls = Calls()
    for module, fake in fake_wandb(calls).items():
        monkeypatch.setitem(sys.modules, module, fake)
    monkeypatch.setenv("WANDB_MODE", variable)
    logger = WandbLogger(tmp_path / "run", mode=given)
    logger.log(1, {"x": 1.0})
    logger.close()
    assert calls.opened["mode"] == mode and calls.rows == {1: {"x": 1.0}}


def test_an_unknown_mode_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "cloud")
    with pytest.raises(ValueError, match="found 'cloud'"):
        WandbLogger(tmp_path)
