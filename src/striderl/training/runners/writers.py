"""Where a runner's numbers go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from striderl.data.registry import LOGGERS
from striderl.loggers.file_loggers import JsonlLogger
from striderl.loggers.guarded import Guarded
from striderl.loggers.logger import Logger
from striderl.loggers.table import make_logger
from striderl.loggers.tensorboard_logger import TensorBoardLogger
from striderl.training.runners.runner_config import NO_LOGGER


class NoLogger(Logger):
    """Takes everything and keeps nothing, for runs without a folder."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Do nothing."""


def make_writer(name: str, log_dir: Path | None) -> Logger:
    """Make the logger of a run; whatever goes wrong in it, training goes on."""
    if log_dir is None or name == NO_LOGGER:
        return NoLogger()
    # event files lie in the run's folder itself, where people who come from rsl_rl look for them
    make = TensorBoardLogger if name == "tensorboard" else LOGGERS.get(name)
    logger = make_logger(name, make, log_dir)
    return NoLogger() if logger is None else Guarded(logger)


def make_table(log_dir: Path | None) -> Logger:
    """Make metrics.jsonl, by whose names `striderl plot` draws; whatever goes wrong in it, training goes on."""
    if log_dir is None:
        return NoLogger()
    logger = make_logger("jsonl", lambda folder: JsonlLogger(folder / "metrics.jsonl"), log_dir)
    return NoLogger() if logger is None else Guarded(logger)
