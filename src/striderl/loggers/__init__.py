"""Loggers of a run's metrics: terminal, files and trackers; and the plots made from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.loggers.console_logger import ConsoleLogger as ConsoleLogger
    from striderl.loggers.file_loggers import CsvLogger as CsvLogger
    from striderl.loggers.file_loggers import JsonlLogger as JsonlLogger
    from striderl.loggers.guarded import guard_all as guard_all
    from striderl.loggers.logger import Logger as Logger
    from striderl.loggers.plots import group_runs as group_runs
    from striderl.loggers.plots import plot_runs as plot_runs
    from striderl.loggers.plots import read_metrics as read_metrics
    from striderl.loggers.tensorboard_logger import TensorBoardLogger as TensorBoardLogger
    from striderl.loggers.trackers import MlflowLogger as MlflowLogger
    from striderl.loggers.trackers import NeptuneLogger as NeptuneLogger
    from striderl.loggers.trackers import TrackioLogger as TrackioLogger
    from striderl.loggers.trackers import WandbLogger as WandbLogger

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "console_logger": ["ConsoleLogger"],
        "file_loggers": ["CsvLogger", "JsonlLogger"],
        "guarded": ["guard_all"],
        "logger": ["Logger"],
        "plots": ["group_runs", "plot_runs", "read_metrics"],
        "tensorboard_logger": ["TensorBoardLogger"],
        "trackers": ["MlflowLogger", "NeptuneLogger", "TrackioLogger", "WandbLogger"],
    },
    unlisted={
        "guarded": ["GuardConfig", "Guarded"],
        "plots": ["RunGroup", "RunMetrics", "seed_curve"],
        "table": ["make_loggers"],
    },
)
