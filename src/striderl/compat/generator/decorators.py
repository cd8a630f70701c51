"""`logger`: a decorator of `Trainer.__call__` that writes each log_data to TensorBoard, Weights & Biases or files.

    class OwnTrainer(Trainer):
        __call__ = logger("tensorboard", "wandb", folder="runs/cartpole")(Trainer.__call__)

    {"log_type": "train", "sample_step": 128, "logs": {"loss": 0.5}}  ──▶  train/loss = 0.5 at step 128

What is decorated is any generator of log_data, of our `Trainer` or of a class of one's own; what comes out is the same
log_data, unchanged. So a decorator of one's own is a function of a generator function:

    def only_evaluations(call):
        def decorated(trainer):
            for log_data in call(trainer):
                if log_data["log_type"] == "evaluate":
                    yield log_data
        return decorated

    Trainer.__call__ = only_evaluations(Trainer.__call__)          for all trainers; in a subclass, for its own
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from striderl.data.registry import LOGGERS
from striderl.loggers.logger import Logger

LogData = Generator[dict[str, Any], None, None]
Call = Callable[..., LogData]
"""A generator function of a trainer, such as `Trainer.__call__`."""


def logger(*names: str | Logger, folder: str | Path = "runs") -> Callable[[Call], Call]:
    """Return a decorator that logs to these: 'tensorboard', 'wandb' (offline), 'csv', 'jsonl', …, or Loggers.

    Files go below `folder`. What cannot be opened, a package that is not installed included, raises at the first step.
    """
    if not names:
        raise TypeError("logger wants at least one name, such as logger('tensorboard', folder='runs/cartpole')")
    for name in names:
        if isinstance(name, str):
            LOGGERS.get(name)  # an unknown name raises here, with those that there are
        elif not isinstance(name, Logger):
            raise TypeError(f"logger wants names or Loggers, found {type(name).__name__}; logger('tensorboard')(call)")

    def decorate(call: Call) -> Call:
        @functools.wraps(call)
        def decorated(trainer: Any, *args: Any, **kwargs: Any) -> LogData:
            opened = [LOGGERS.get(name)(Path(folder)) if isinstance(name, str) else name for name in names]
            settings = _settings(getattr(trainer, "kwargs", {}))
            try:
                for each in opened:
                    each.config(settings)
                for log_data in call(trainer, *args, **kwargs):
                    row = _row(log_data)
                    for each in opened if row else ():
                        each.log(int(log_data["sample_step"]), row)
                    yield log_data
            finally:
                for each in opened:
                    each.close()

        return decorated

    return decorate


def _row(log_data: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a log_data as 'log_type/name'; arrays and texts have no place in a curve."""
    found = {}
    for name, value in log_data.get("logs", {}).items():
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        if array.size == 1 and array.dtype.kind in "biuf":
            found[f"{log_data['log_type']}/{name}"] = float(array.reshape(()))
    return found


def _settings(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, (bool, int, float, str, type(None))) else str(value)
        for name, value in kwargs.items()
    }
