"""Progress of a recording, and summary.json: what people want to know of a folder of trajectories at a glance.

Readers need metadata.json and the shards alone. The summary is replaced as a whole each time it is written; its totals
are what the folder holds, whoever recorded it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from striderl.checkpoint.errors import FileRefused
from striderl.checkpoint.safe_files import replacing
from striderl.datasets.trajectories.spec import TrajectoryError

SUMMARY = "summary.json"
"""The file's name."""


class Progress(NamedTuple):
    """How far a recording is."""

    total_timesteps: int
    """Steps in the folder."""
    total_trajectories: int
    """Trajectories in the folder."""
    left_out: int
    """Episodes that this saver has not written because they failed."""
    steps_per_second: float
    """Steps taken in all envs together, over the time since the last line."""
    fraction: float
    """How far the slower of the two thresholds is reached, in [0, 1]."""

    def __str__(self) -> str:
        return (
            f"{self.total_timesteps} steps in {self.total_trajectories} trajectories ({100 * self.fraction:.0f} %), "
            f"{self.left_out} left out, {self.steps_per_second:.0f} steps/s"
        )


def fraction_of(timesteps: int, trajectories: int, min_timesteps: float, min_episodes: float) -> float:
    """Return how far the slower of two thresholds is reached, in [0, 1]."""
    shares = [
        1.0 if wanted <= 0 else min(1.0, found / wanted)
        for found, wanted in ((timesteps, min_timesteps), (trajectories, min_episodes))
    ]
    return min(shares)


def write_summary(folder: Path, content: Mapping[str, Any]) -> None:
    """Replace the summary, whole or not at all."""
    text = json.dumps(plain_data(content), indent=1) + "\n"
    try:
        with replacing(folder / SUMMARY, several_writers=True) as file:
            file.write(text.encode())
    except (OSError, FileRefused) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise TrajectoryError(f"cannot write {str(folder / SUMMARY)!r}: {reason}") from error


def plain_data(value: Any) -> Any:
    """Return settings as JSON has them: tuples as lists, arrays as numbers, what is not finite or unknown as words."""
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_data(item) for item in value]
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return plain_data(value.tolist())
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)


def reduced(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of each name over the rows that have it, without NaN; for '_max' and '_min' the extreme."""
    values: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    numbers: dict[str, float] = {}
    for name, found in values.items():
        array = np.array([float(torch.as_tensor(value, dtype=torch.float64).mean()) for value in found])
        array = array[np.isfinite(array)]
        if array.size:
            reduce = np.max if "_max" in name else np.min if "_min" in name else np.mean
            numbers[name] = float(reduce(array))
    return numbers
