"""Read a run folder: its config and its newest weights, without ever executing code from a file.

    run/
      config.json              {"policy": {…}, "control": {"action_scale": 0.25}, …}
      model_100.pt
      model_1500.safetensors   the newest: numbers are compared as numbers, so 1500 comes after 900

Weights are tensors by name, from safetensors or from a `.pt` file that holds nothing but tensors and plain containers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from striderl.checkpoint.errors import CheckpointError, FileRefused
from striderl.checkpoint.foreign import read_torch_archive
from striderl.checkpoint.safe_files import read_json
from striderl.checkpoint.tensor_file import read_safetensors

CONFIG = "config.json"
"""The file with the settings of a run."""

WEIGHTS = "model_state_dict"
"""The key of the policy's weights in a checkpoint that also has counters and optimisers."""

_MODEL = re.compile(r".*model.*?(\d*)\.(pt|pth|safetensors)")


class RunFiles(NamedTuple):
    """The contents of a run folder."""

    config: dict[str, Any]
    """The settings."""
    weights: dict[str, Tensor]
    """The newest weights, by parameter name, on the CPU."""


def read_run(folder: str | Path) -> RunFiles:
    """Read config and newest weights of a run; raise for missing or damaged files."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no run folder {str(folder)!r}; give the folder that holds {CONFIG}")
    return RunFiles(read_config(folder), read_weights(newest_model(folder)))


def read_config(folder: str | Path) -> dict[str, Any]:
    """Read the settings of a run."""
    path = Path(folder) / CONFIG
    if not os.path.lexists(path):
        raise FileNotFoundError(f"the run folder has no {CONFIG}: {str(path)!r}; it is written when a run starts")
    try:
        config = read_json(path)
    except FileRefused as error:
        raise ValueError(f"{str(path)!r} is damaged or not JSON: {error.reason}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{str(path)!r} wants a table of settings, found {type(config).__name__}")
    return config


def newest_model(folder: str | Path) -> Path:
    """Return the model file with the highest iteration number; of two with the same, the one in safetensors."""
    found: list[tuple[int, bool, str]] = []
    names = sorted(path.name for path in Path(folder).iterdir())
    for name in names:
        match = _MODEL.fullmatch(name)
        if match:
            found.append((int(match[1] or -1), match[2] == "safetensors", name))
    if not found:
        raise FileNotFoundError(
            f"the run folder {str(folder)!r} has no model file such as 'model_1500.pt' or 'model_1500.safetensors'; "
            f"it has {names}"
        )
    return Path(folder) / max(found)[2]


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read the weights in a file, on the CPU."""
    path = Path(path)
    try:
        content = read_safetensors(path) if path.suffix == ".safetensors" else read_torch_archive(path)
    except CheckpointError as error:
        raise ValueError(str(error)) from error
    inside = content.get(WEIGHTS, content)
    if not isinstance(inside, Mapping) or not all(isinstance(value, Tensor) for value in inside.values()):
        raise ValueError(
            f"{str(path)!r} holds no weights: wanted tensors by name, or {WEIGHTS!r} among its entries, "
            f"found {sorted(str(key) for key in content)}"
        )
    return {str(name): value for name, value in inside.items()}
