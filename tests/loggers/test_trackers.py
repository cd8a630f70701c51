"""Each tracker is written to offline and read back with its own reader, or from its own file."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tracker_rows import CONFIG, ROWS, film, wandb_rows

from striderl.data.registry import LOGGERS
from striderl.loggers.guarded import Guarded
from striderl.loggers.table import make_loggers
from striderl.loggers.tensorboard_logger import TensorBoardLogger
from striderl.loggers.trackers import MlflowLogger, NeptuneLogger, WandbLogger, run_id_of


@pytest.fixture(autouse=True)
def own_excepthook(monkeypatch):
    """Clients of trackers replace the hook for uncaught exceptions and do not put it back."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


def write_all(logger, tmp_path: Path, *, video: bool = True) -> None:
    """Settings, two rows, a text, a file and a video."""
    (tmp_path / "policy.onnx").write_bytes(b"weights")
    logger.config(CONFIG)
    for step, numbers in ROWS.items():
        logger.log(step, numbers)
    logger.text("stopped", "budget is used up")
    logger.file(tmp_path / "policy.onnx")
    if video:
        logger.video(64, "video/episode", film(tmp_path / "step_64.mp4"))
    logger.close()
    logger.close()


# -- TensorBoard -------------------------------------------------------------------------------------------------------


def events_of(folder):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="tensorboard")
    events = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    events.Reload()
    return events


@pytest.mark.slow
def test_tensorboard(tmp_path):
    pytest.importorskip("imageio", reason="a video needs imageio")
    write_all(TensorBoardLogger(tmp_path / "board"), tmp_path)
    events = events_of(tmp_path / "board")
    found = {name: {event.step: event.value for event in events.Scalars(name)} for name in events.Tags()["scalars"]}
    assert found == {
        "train/kl": {32: 0.25, 64: 0.125},
        "collect/return_mean": {32: 20.0},
        "evaluate/return_mean": {64: 195.5},
    }
    (picture,) = events.Images("video/episode")
    assert picture.step == 64 and picture.encoded_image_string[:4] == b"GIF8"
    assert (picture.height, picture.width) == (64, 96)
    assert events.Tensors("stopped")[0].tensor_proto.string_val == [b"budget is used up"]
    where = events.Tensors("files/policy.onnx")[0].tensor_proto.string_val
    assert where == [str(tmp_path / "policy.onnx").encode()]
    assert '"clip": 0.2' in events.Tensors("config")[0].tensor_proto.string_val[0].decode()


def test_tensorboard_forgets_what_a_resumed_run_writes_again(tmp_path):
    first = TensorBoardLogger(tmp_path)
    for step in (10, 20, 30, 40):
        first.log(step, {"a": float(step)})
    first.close()
    second = TensorBoardLogger(tmp_path)
    second.resume_at(20)
    for step in (30, 40, 50):
        second.log(step, {"a": -float(step)})
    second.close()
    found = [(event.step, event.value) for event in events_of(tmp_path).Scalars("a")]
    assert found == [(10, 10.0), (20, 20.0), (30, -30.0), (40, -40.0), (50, -50.0)]


# -- Weights & Biases --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_wandb_offline(tmp_path):
    pytest.importorskip("wandb", reason="an extra of its own")
    pytest.importorskip("imageio", reason="a video needs imageio")
    folder = tmp_path / "cartpole" / "20261115-101500"
    logger = WandbLogger(folder)
    assert logger.run_id == run_id_of(folder) == "cartpole-20261115-101500"
    write_all(logger, tmp_path)
    rows, settings, summary = wandb_rows(folder)
    kept = {step: {name: value for name, value in row.items() if name in ROWS[step]} for step, row in rows.items()}
    assert kept == ROWS
    assert rows[64]["video/episode/_type"] == "video-file"
    stored = list(folder.rglob(rows[64]["video/episode/path"]))
    assert stored and stored[0].read_bytes() == (tmp_path / "step_64.mp4").read_bytes()
    assert settings["task"] == "cartpole" and settings["ppo"] == {"clip": 0.2}
    assert summary["stopped"] == "budget is used up"
    with pytest.raises(ValueError, match="'offline' or 'online', found 'cloud'"):
        WandbLogger(folder, mode="cloud")


# -- Trackio -----------------------------------------------------------------------------------------------------------

TRACKIO = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tracker_rows import CONFIG, ROWS, film
from striderl.loggers.trackers import TrackioLogger
logger = TrackioLogger("cartpole", "seed3")
logger.config(CONFIG)
for step, numbers in ROWS.items():
    logger.log(step, numbers)
logger.video(64, "video/episode", film(Path(sys.argv[1]) / "step_64.mp4"))
logger.text("stopped", "budget is used up")
page = Path(sys.argv[1]) / "report.html"
page.write_text("<p>a page")
logger.file(page)
logger.close()
again = TrackioLogger("cartpole", "seed3")
again.config(CONFIG)
again.resume_at(32)
again.log(64, {"train/kl": 0.125})
again.log(96, {"train/kl": 0.5})
again.close()
"""


@pytest.mark.slow
def test_trackio(tmp_path, monkeypatch):
    """In a process of its own: Trackio decides on its folder when it is imported."""
    pytest.importorskip("trackio", reason="an extra of its own")
    pytest.importorskip("imageio", reason="a video needs imageio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "store"))
    arguments = [sys.executable, "-c", TRACKIO, str(tmp_path), str(Path(__file__).parent)]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    with sqlite3.connect(tmp_path / "store" / "cartpole.db") as base:
        rows = [(step, json.loads(values)) for step, values in base.execute("select step, metrics from metrics")]
        (settings,) = base.execute("select config from configs").fetchone()
    scalars = [(s, v) for s, v in rows if not any(isinstance(value, dict) for value in v.values())]
    assert scalars == [*ROWS.items(), (96, {"train/kl": 0.5})], "row 64 is there once"
    (video,) = [values["video/episode"] for _, values in rows if "video/episode" in values]
    copies = list((tmp_path / "store").rglob(Path(video["file_path"]).name))
    assert copies and copies[0].read_bytes() == (tmp_path / "step_64.mp4").read_bytes()
    assert json.loads(settings)["ppo.clip"] == 0.2 and "budget is used up" in str(rows)
    kept = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert any(path.read_bytes() == b"<p>a page" for path in kept)


# -- MLflow ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_mlflow(tmp_path):
    pytest.importorskip("mlflow", reason="an extra of its own: 600 MB with all it needs")
    pytest.importorskip("imageio", reason="a video needs imageio")
    from mlflow.tracking import MlflowClient

    folder = tmp_path / "run"
    write_all(MlflowLogger(folder, experiment="cartpole", run="it's seed 3"), tmp_path)
    again = MlflowLogger(folder, experiment="cartpole", run="it's seed 3")
    again.config(CONFIG)
    again.resume_at(32)
    again.log(64, ROWS[64])
    again.log(96, {"train/kl": 0.5})
    again.close()
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("cartpole").experiment_id])
    history = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "train/kl")]
    assert sorted(history) == [(32, 0.25), (64, 0.125), (96, 0.5)], "row 64 is there once"
    assert run.data.params == {"task": "cartpole", "seed": "3", "ppo.clip": "0.2"}
    assert run.data.tags["stopped"] == "budget is used up"
    (video,) = (folder / "mlflow_artifacts").rglob("step_64.mp4")
    assert video.read_bytes() == (tmp_path / "step_64.mp4").read_bytes()
    assert [item.path for item in client.list_artifacts(run.info.run_id, "files")] == ["files/policy.onnx"]


# -- Neptune -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_neptune_offline(tmp_path, monkeypatch):
    pytest.importorskip("neptune", reason="an extra of its own; its hosted service is gone")
    pytest.importorskip("imageio", reason="a video needs imageio")
    monkeypatch.setenv("NEPTUNE_DATA_DIRECTORY", str(tmp_path / "neptune"))
    logger = NeptuneLogger("cartpole-seed3")
    logger.log(16, {"train/kl": float("nan")})
    write_all(logger, tmp_path)
    (log,) = (tmp_path / "neptune").rglob("data-*.log")
    operations = [json.loads(line)["obj"] for line in log.read_text().splitlines()]
    found: dict[int, dict[str, float]] = {}
    for operation in operations:
        if operation["type"] == "LogFloats":
            for value in operation["values"]:
                found.setdefault(value["step"], {})["/".join(operation["path"])] = value["value"]
    assert found == ROWS
    values = {"/".join(operation["path"]): operation.get("value") for operation in operations}
    assert values["config/ppo/clip"] == 0.2 and values["stopped"] == "budget is used up"
    uploads = {"/".join(o["path"]): o["file_path"] for o in operations if o["type"] == "UploadFile"}
    assert uploads["video/episode/step_64"] == str(tmp_path / "step_64.mp4")


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_name_makes_a_logger_without_opening_anything(tmp_path):
    loggers = make_loggers(LOGGERS.names(), tmp_path / "cartpole" / "time")
    assert [type(logger).__name__.removesuffix("Logger").lower() for logger in loggers] == list(LOGGERS.names())
    for logger in loggers:
        guarded = Guarded(logger)
        guarded.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyError, match=r"has no logger 'tensorbord'\. Did you mean 'tensorboard'"):
        make_loggers(["tensorbord"], tmp_path)
