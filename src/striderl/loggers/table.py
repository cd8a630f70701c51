"""How each logger is made for a run folder; their names are in `data/registry.py`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from striderl.data.registry import LOGGERS
from striderl.loggers.console_logger import ConsoleLogger
from striderl.loggers.file_loggers import CsvLogger, JsonlLogger
from striderl.loggers.logger import Logger
from striderl.loggers.tensorboard_logger import TensorBoardLogger
from striderl.loggers.trackers import MlflowLogger, NeptuneLogger, TrackioLogger, WandbLogger, run_id_of

_log = logging.getLogger(__name__)


def _task(folder: Path) -> str:
    """Return the task of a run folder runs/<task>/<time>."""
    return folder.absolute().parent.name or "striderl"


def make_console(folder: Path) -> Logger:
    """Print to the terminal."""
    return ConsoleLogger(title=_task(folder))


def make_csv(folder: Path) -> Logger:
    """Write metrics.csv."""
    return CsvLogger(folder / "metrics.csv")


def make_jsonl(folder: Path) -> Logger:
    """Write metrics.jsonl."""
    return JsonlLogger(folder / "metrics.jsonl")


def make_tensorboard(folder: Path) -> Logger:
    """Write TensorBoard's event files."""
    return TensorBoardLogger(folder / "tensorboard")


def make_wandb(folder: Path) -> Logger:
    """Log to Weights & Biases."""
    return WandbLogger(folder)


def make_trackio(folder: Path) -> Logger:
    """Log to trackio."""
    return TrackioLogger(_task(folder), folder.name)


def make_mlflow(folder: Path) -> Logger:
    """Log to MLflow."""
    return MlflowLogger(folder, experiment=_task(folder), run=folder.name)


def make_neptune(folder: Path) -> Logger:
    """Log to Neptune."""
    return NeptuneLogger(run_id_of(folder))


def make_loggers(names: Iterable[str], folder: str | Path) -> list[Logger]:
    """Make loggers by name for a run folder; nothing is opened yet.

    One that cannot be made (no package, no rights, no credentials) logs a warning and loses its rows, like one that
    fails later; a name that is in no table raises. 'module:Class' is one's own, called with the folder.
    """
    made = []
    for name in names:
        logger = make_logger(name, LOGGERS.get(name), Path(folder))
        made += [] if logger is None else [logger]
    return made


def make_logger(name: str, make: Callable[[Path], Logger], folder: Path) -> Logger | None:
    """Make one logger by a function, or warn why there is none and return None."""
    try:
        return make(folder)
    # whatever a tracker's client raises, a library that calls sys.exit included: training must not be affected
    except (Exception, SystemExit) as error:  # noqa: BLE001
        _log.warning("logger %s cannot be made: %s: %s. Training goes on without it", name, type(error).__name__, error)
        return None
