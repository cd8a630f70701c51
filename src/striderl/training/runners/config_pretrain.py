"""What a config says about learning from recordings first, in the words of st_rl and a few of ours.

{"pretrain_iterations": 500, "pretrain_dataset": {"data_dir": "demos", "dataset_loops": 0, …},         st_rl
 "pretrain_target": "mse_sum", "pretrain_weight": 1.0, "pretrain_learning_rate": 1e-3}                 ours
"""

from __future__ import annotations

from typing import Any

from striderl.training.runners.config_keys import Keys
from striderl.training.runners.runner_config import PretrainSettings

_WANTED = ("pretrain_iterations", "pretrain_dataset")
_FURTHER = ("pretrain_target", "pretrain_weight", "pretrain_learning_rate")


def read_pretrain(keys: Keys) -> PretrainSettings | None:
    """Take what belongs to the first stage out of a config; None where there is none."""
    given: dict[str, Any] = keys.take_all((*_WANTED, *_FURTHER))
    if not given:
        return None
    missing = [name for name in _WANTED if name not in given]
    if missing:
        raise ValueError(f"{keys.where} has {sorted(given)} without {missing}; learning from recordings wants both")
    return PretrainSettings(**{name.removeprefix("pretrain_"): value for name, value in given.items()})
