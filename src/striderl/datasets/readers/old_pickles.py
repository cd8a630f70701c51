"""Convert recordings of st_rl and parkour: `trajectory_*/traj_*.pickle`, read without executing the pickles.

    old/metadata.json                              new/metadata.json
    old/trajectory_7/traj_000000_000064.pickle ──▶ new/shard_000000.trj     one trajectory of 139 steps
    old/trajectory_7/traj_000064_000128.pickle
    old/trajectory_7/traj_000128_000139.pickle

    observations [n, D], or obs_<component> [n, …]   ──▶ obs/<segment>; 'normalized_image' stays one byte per pixel
    privileged_observations [n, Dp]                  ──▶ obs/critic/<segment>, or obs/critic/obs; group 'critic'
    actions, rewards [n, 1], dones [n, 1], timeouts  ──▶ act, rew, terminated (done and no time-out), truncated

`array_pickle.py` reads the files.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from striderl.checkpoint.safe_files import read_json
from striderl.data import tree
from striderl.data.actions import BoxSpec
from striderl.data.arena import Columns
from striderl.data.episode_ends import TIME_LIMIT
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec, dtype_name
from striderl.datasets.readers.array_pickle import BrokenPickle, read_arrays
from striderl.datasets.trajectories.codecs import decompress_normalized_image
from striderl.datasets.trajectories.shard import SHARD_NAME
from striderl.datasets.trajectories.spec import (
    METADATA,
    TrajectoryError,
    TrajectoryMismatch,
    TrajectoryMissing,
    TrajectorySpec,
)
from striderl.datasets.trajectories.store import TrajectoryStore
from striderl.datasets.trajectories.writer import TrajectoryWriter

Array = np.ndarray[Any, Any]

_FOLDER = re.compile(r"trajectory_(\d+)")
_FILE = re.compile(r"traj_(\d+)_(\d+)\.pickle")
_IMAGE = "normalized_image"
_CRITIC = "critic/"


class Imported(NamedTuple):
    """Result of an import."""

    num_trajectories: int
    num_steps: int
    left_out: tuple[str, ...]
    """Trajectories that were not converted, each with its reason."""


def import_old_trajectories(folder: str | Path, save_dir: str | Path) -> Imported:
    """Convert a folder of pickles to a new folder; damaged trajectories are skipped and named.

    Raises TrajectoryRefused, before anything more is read, for a pickle that needs anything but arrays of numbers. An
    import that fails leaves nothing in a folder that was empty before.
    """
    source, target = Path(folder), Path(save_dir)
    if len(TrajectoryStore(target)):
        raise TrajectoryError(f"{str(target)!r} holds trajectories already; import into a new folder")
    metadata = _old_metadata(source)
    untouched = not target.exists() or not any(target.iterdir())
    writer: TrajectoryWriter | None = None
    left_out: list[str] = []
    whole = False
    try:
        for number, files in _old_trajectories(source):
            name = f"trajectory_{number}"
            try:
                steps = _steps(_joined(files), metadata)
            except BrokenPickle as error:
                left_out.append(f"{name}: {error}")
                continue
            if writer is None:
                writer = TrajectoryWriter(target, _spec(steps, metadata), about={"imported_from": dict(metadata)})
            try:
                for episode in _episodes(steps):
                    writer.add(episode, about={"imported_from": name})
            except (ValueError, TypeError) as error:
                raise TrajectoryMismatch(f"{name} has other columns than those before it: {error}") from None
        whole = True
    finally:
        if writer is not None:
            writer.close()
            if not whole and untouched:  # half an import would be in the way of the next one
                _remove_shards(target)
    if writer is None:
        reasons = "; ".join(left_out[:5]) or "its folders hold no traj_000000_000064.pickle"
        raise TrajectoryMissing(f"nothing could be imported from {str(source)!r}: {reasons}")
    return Imported(writer.num_trajectories, writer.num_steps, tuple(left_out))


def _remove_shards(folder: Path) -> None:
    """Remove what a writer has made; whatever else came into the folder in the meantime stays."""
    for path in folder.iterdir():
        if path.name == METADATA or SHARD_NAME.fullmatch(path.name):
            path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _old_metadata(folder: Path) -> dict[str, Any]:
    """Read metadata.json of an old recording; {} where there is none, or where it was cut off."""
    try:
        content = read_json(folder / METADATA, constant=str)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _old_trajectories(folder: Path) -> Iterator[tuple[int, list[tuple[int, int, Path]]]]:
    """Yield (number, its files as (start, end, path) in order) for each trajectory with files."""
    if not folder.is_dir():
        raise TrajectoryMissing(f"there is no folder {str(folder)!r}")
    folders = [path.name for path in folder.iterdir() if path.is_dir()]
    numbers = sorted(int(match[1]) for name in folders if (match := _FOLDER.fullmatch(name)))
    if not numbers:
        raise TrajectoryMissing(f"{str(folder)!r} has no folders trajectory_0, trajectory_1, …")
    for number in numbers:
        names = [path for path in (folder / f"trajectory_{number}").iterdir()]
        files = [(int(match[1]), int(match[2]), path) for path in names if (match := _FILE.fullmatch(path.name))]
        if files:
            yield number, sorted(files)


def _joined(files: Sequence[tuple[int, int, Path]]) -> dict[str, Array]:
    """Join the files of a trajectory, which must follow each other without a gap."""
    expected = 0
    chunks: list[dict[str, Array]] = []
    for start, end, path in files:
        if start != expected:
            raise BrokenPickle(f"steps {expected} to {start} are missing")
        chunk = read_arrays(path)
        lengths = {name: len(value) for name, value in chunk.items()}
        if set(lengths.values()) != {end - start}:
            raise BrokenPickle(f"{path.name} should have {end - start} steps, found {lengths}")
        if chunks and chunk.keys() != chunks[0].keys():
            raise BrokenPickle(f"{path.name} has {sorted(chunk)}, the file before it {sorted(chunks[0])}")
        expected = end
        chunks.append(chunk)
    if not expected:
        raise BrokenPickle("it has no steps")
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _steps(arrays: Mapping[str, Array], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of this library."""
    missing = [name for name in ("actions", "rewards", "dones") if name not in arrays]
    if missing:
        raise BrokenPickle(f"it has no {missing}, only {sorted(arrays)}")
    length = len(arrays["dones"])
    done = torch.from_numpy(arrays["dones"].reshape(length) != 0)
    timeout = torch.zeros_like(done)
    for name in ("timeouts", "timeout", TIME_LIMIT):  # writer and reader did not agree on the name
        if name in arrays:
            timeout = torch.from_numpy(arrays[name].reshape(length) != 0)
    truncated = done & timeout
    truncated[-1] |= ~done[-1]  # the recording stopped in the middle of an episode
    return {
        "obs": _observations(arrays, metadata),
        "act": _floats(arrays["actions"]),
        "rew": _floats(arrays["rewards"]).reshape(length),
        "terminated": done & ~timeout,
        "truncated": truncated,
        "valid": torch.ones_like(done),
    }


def _episodes(steps: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the episodes of a trajectory; usually it is one."""
    start = 0
    for last in (steps["terminated"] | steps["truncated"]).nonzero().squeeze(1).tolist():
        yield dict(tree.index(steps, slice(start, last + 1)))
        start = last + 1


def _observations(arrays: Mapping[str, Array], metadata: Mapping[str, Any]) -> dict[str, Tensor]:
    segments = dict(metadata.get("obs_segments") or {})
    parts: dict[str, Tensor] = {}
    if "observations" in arrays:
        parts |= _split(arrays["observations"], segments)
    for key, array in arrays.items():
        if key.startswith("obs_"):
            name = key.removeprefix("obs_")
            values = torch.from_numpy(array.copy())
            if (metadata.get("obs_disassemble_mapping") or {}).get(name) == _IMAGE and values.dtype == torch.uint8:
                values = decompress_normalized_image(values)
            parts[name] = values.reshape(len(array), *_shape(segments.get(name), values))
    if "privileged_observations" in arrays:
        theirs = _split(arrays["privileged_observations"], dict(metadata.get("privileged_obs_segments") or {}))
        parts |= {f"{_CRITIC}{name}": values for name, values in theirs.items()}
    if not parts:
        raise BrokenPickle(f"it has no observations, only {sorted(arrays)}")
    order = [name for name in segments if name in parts]
    return {name: parts[name] for name in [*order, *(name for name in parts if name not in order)]}


def _split(array: Array, segments: Mapping[str, Any]) -> dict[str, Tensor]:
    """Cut a flat observation into its segments; without any, or with ones that do not fit, it is one component."""
    values = _floats(array)
    if values.ndim == 2 and segments:
        spec = ObsSpec.from_segments({str(name): shape for name, shape in segments.items()})
        if spec.size == values.shape[1]:
            return {name: part.contiguous() for name, part in spec.split(values).items()}
    return {"obs": values}


def _shape(segment: Any, values: Tensor) -> tuple[int, ...]:
    """Return the shape of one step: the segment's where it fits."""
    found = tuple(values.shape[1:])
    if segment is None:
        return found
    wanted = (int(segment),) if isinstance(segment, int) else tuple(int(size) for size in segment)
    return wanted if int(np.prod(wanted)) == int(np.prod(found)) else found


def _floats(array: Array) -> Tensor:
    return torch.from_numpy(np.asarray(array, np.float32).copy())


def _spec(steps: Mapping[str, Any], metadata: Mapping[str, Any]) -> TrajectorySpec:
    images = [name for name, codec in (metadata.get("obs_disassemble_mapping") or {}).items() if codec == _IMAGE]
    parts = {
        name: ComponentSpec(
            shape=tuple(values.shape[1:]),
            dtype=dtype_name(values.dtype),
            group="critic" if name.startswith(_CRITIC) else "policy",
        )
        for name, values in steps["obs"].items()
    }
    columns: Columns = {
        "obs": dict(parts),
        **{
            name: TensorSpec(shape=tuple(steps[name].shape[1:]), dtype=dtype_name(steps[name].dtype))
            for name in ("act", "rew", "terminated", "truncated", "valid")
        },
    }
    return TrajectorySpec.from_columns(
        columns,
        codecs={name: _IMAGE for name in images if name in parts},
        obs_spec=ObsSpec(parts),
        action_spec=BoxSpec(shape=tuple(steps["act"].shape[1:])),
    )
