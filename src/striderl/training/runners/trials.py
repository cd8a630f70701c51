"""Telling an Optuna trial how a run goes."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from typing import Any

_log = logging.getLogger(__name__)


def report_to_trial(trial: Any, value: float | None, step: int) -> bool:
    """Report a number and ask whether the trial is hopeless; there may be none yet, before an episode has finished.

    A trial that is to be pruned raises `optuna.TrialPruned` where Optuna is installed; else True is returned.
    """
    if value is None:
        return False
    trial.report(value, step)
    if not trial.should_prune():
        return False
    _log.info("the trial was pruned after iteration %d", step)
    if importlib.util.find_spec("optuna") is None:
        return True
    raise importlib.import_module("optuna").TrialPruned(f"after iteration {step}, with {value}")
