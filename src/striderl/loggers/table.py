"""The names of the loggers, as the command line and configs write them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from striderl.data.naming import unknown
from striderl.loggers.console_logger import ConsoleLogger
from striderl.loggers.file_loggers import CsvLogger, JsonlLogger
from striderl.loggers.logger import Logger
from striderl.loggers.tensorboard_logger import TensorBoardLogger
from striderl.loggers.trackers import MlflowLogger, NeptuneLogger, TrackioLogger, WandbLogger, run_id_of

_log = logging.getLogger(__name__)


def _task(folder: Path) -> str:
    """Return the task of a run folder runs/<task>/<time>."""
    return folder.absolute().parent.name or "striderl"


LOGGERS: Mapping[str, Callable[[Path], Logger]] = {
    "console": lambda folder: ConsoleLogger(title=_task(folder)),
    "csv": lambda folder: CsvLogger(folder / "metrics.csv"),
    "jsonl": lambda folder: JsonlLogger(folder / "metrics.jsonl"),
    "tensorboard": lambda folder: TensorBoardLogger(folder / "tensorboard"),
    "wandb": lambda folder: WandbLogger(folder),
    "trackio": lambda folder: TrackioLogger(_task(folder), folder.name),
    "mlflow": lambda folder: MlflowLogger(folder, experiment=_task(folder), run=folder.name),
    "neptune": lambda folder: NeptuneLogger(run_id_of(folder)),
}
"""Name to a function that makes the logger of a run folder, with its usual settings."""


def make_loggers(names: Iterable[str], folder: str | Path) -> list[Logger]:
    """Make loggers by name for a run folder; nothing is opened yet.

    One that cannot be made (no package, no rights, no credentials) costs a warning and its own rows, as one does that
    fails later; a name that is in no table raises.
    """
    made = []
    for name in names:
        if name not in LOGGERS:
            raise KeyError(unknown("logger", name, LOGGERS, where="striderl.loggers"))
        logger = make_logger(name, LOGGERS[name], Path(folder))
        made += [] if logger is None else [logger]
    return made


def make_logger(name: str, make: Callable[[Path], Logger], folder: Path) -> Logger | None:
    """Make one logger by a function, or warn why there is none and return None."""
    try:
        return make(folder)
    # whatever a tracker's client throws, a library that calls sys.exit included: training must not notice
    except (Exception, SystemExit) as error:  # noqa: BLE001
        _log.warning("logger %s cannot be made: %s: %s. Training goes on without it", name, type(error).__name__, error)
        return None
