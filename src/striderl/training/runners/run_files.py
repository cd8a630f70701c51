"""Where a runner's checkpoints lie, and the one place that writes and reads them.

    log_dir/
      model_0/  model_50/  …      one directory each: tensors, plain values and a manifest with checksums
      git/striderl.diff           see `git_state.py`

A checkpoint gets its name after all its bytes are on the disk. A file (.pt) that an older loop has written is read as
far as it holds nothing but tensors and plain containers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from striderl.checkpoint.errors import memory_limit
from striderl.checkpoint.file_ops import FileOps, make_directories
from striderl.checkpoint.folder import Payload, check_replaceable, read_checkpoint, remove_checkpoint, write_checkpoint
from striderl.checkpoint.foreign import read_torch_archive
from striderl.data import tree


def checkpoint_path(log_dir: str | Path, iteration: int) -> Path:
    """Return where the checkpoint of an iteration lies."""
    return Path(log_dir) / f"model_{iteration}"


def save_state(path: str | Path, state: Mapping[str, Any], *, iteration: int) -> Path:
    """Write a nested state under a path; a checkpoint there is replaced once the new one is whole, all else refused."""
    path, ops = Path(path), FileOps()
    payload = Payload(dict(state), None, None)
    check_replaceable(ops, path)
    make_directories(ops, path.parent)
    fresh, old = path.with_name(f".tmp_{path.name}"), path.with_name(f".tmp_old_{path.name}")
    for leftover in (fresh, old):
        if os.path.lexists(leftover):
            remove_checkpoint(ops, leftover)
    write_checkpoint(ops, fresh, payload, step=iteration, best=False)
    replaced = ops.is_directory(path)
    if replaced:
        ops.rename(path, old)
    ops.rename(fresh, path)
    ops.sync_directory(path.parent)
    if replaced:
        remove_checkpoint(ops, old)
    return path


def load_state(path: str | Path, map_location: Any = None) -> dict[str, Any]:
    """Read a state; tensors come on the CPU unless a device is given."""
    path = Path(path)
    if path.is_dir():
        state = read_checkpoint(FileOps(), path, max_bytes=memory_limit()).parts["state"]
    elif path.is_file():
        state = read_torch_archive(path)
    else:
        raise FileNotFoundError(f"there is no checkpoint {str(path)!r}")
    if not isinstance(state, dict):
        raise ValueError(f"{str(path)!r} holds a {type(state).__name__}, wanted the state of a run")
    return state if map_location is None else dict(tree.to(state, device=_device(map_location)))


def _device(map_location: Any) -> torch.device:
    if not isinstance(map_location, (str, torch.device)):
        raise TypeError(f"map_location is a device such as 'cpu' or 'cuda:0', found {map_location!r}")
    return torch.device(map_location)
