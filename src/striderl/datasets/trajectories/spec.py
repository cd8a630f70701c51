"""What every trajectory of a folder holds: columns by path, with shape, dtype and codec; kept in metadata.json.

    {"format": "striderl trajectories", "version": 1,
     "columns": [{"path": ["obs", "joints"], "shape": [12], "dtype": "float32", "codec": "raw", "chunk_steps": 1365},
                 {"path": ["obs", "depth"], "shape": [1, 48, 64], "dtype": "float32", "codec": "normalized_image", …},
                 {"path": ["act"], …}, {"path": ["rew"], …}, {"path": ["terminated"], …}, …],
     "final_obs": true,
     "layout": {"observations": […], "actions": […]},
     "about": {…}}

A path is a list because names of components may hold a '/' themselves ('critic/scan'). The file is written once, whole,
by the first writer, and never changed: a reader cannot see it half done, and all writers agree on it.

What can go wrong with recorded trajectories; every message names the file, the place in it and the reason.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from striderl.checkpoint import strict_json
from striderl.checkpoint.errors import MAX_JSON_BYTES, CheckpointCorrupt
from striderl.checkpoint.file_ops import FileOps, make_directories
from striderl.checkpoint.layout import compare, describe
from striderl.data.actions import ActionSpec
from striderl.data.arena import Columns
from striderl.data.naming import unknown
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec, torch_dtype
from striderl.datasets.trajectories.codecs import Codec, codec_named

ColumnPath = tuple[str, ...]
"""Where a column is in the nested columns of a step: ('obs', 'joints'), ('rew',), …"""

FORMAT = "striderl trajectories"
VERSION = 1
METADATA = "metadata.json"
"""The file that describes a folder."""

CHUNK_BYTES = 64 * 1024
"""About how many bytes of a column are packed, checked and read as one."""

REQUIRED = ("rew", "terminated", "truncated")
"""Columns that every trajectory has, besides observations and actions."""


@dataclass(frozen=True, kw_only=True)
class TrajectoryColumn(TensorSpec):
    """One column."""

    path: ColumnPath
    """Where it is in a step."""
    codec: str = "raw"
    """How its values are kept; a name of `CODECS`."""
    chunk_steps: int = 0
    """How many steps make a chunk; 0: as many as come to about 64 KiB."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path or not all(isinstance(part, str) and part for part in self.path):
            raise ValueError(f"the path of a column is made of non-empty names, found {self.path!r}")
        row_bytes = self.size * torch_dtype(self.stored_dtype).itemsize
        if self.chunk_steps == 0:
            object.__setattr__(self, "chunk_steps", max(1, CHUNK_BYTES // max(1, row_bytes)))
        if self.chunk_steps < 1 or self.chunk_steps * row_bytes >= 2**31:
            raise ValueError(f"column {self.name!r}: {self.chunk_steps} steps of {row_bytes} bytes make no chunk")

    @property
    def name(self) -> str:
        """The path in one word, for messages."""
        return "/".join(self.path)

    @property
    def coder(self) -> Codec:
        """The codec itself."""
        return codec_named(self.codec)

    @property
    def stored_dtype(self) -> str:
        """The dtype that is stored."""
        return self.coder.dtype_on_disk(self.dtype)

    def num_chunks(self, num_steps: int) -> int:
        """Return how many chunks so many steps make."""
        return -(-num_steps // self.chunk_steps)

    def squeezed(self, values: Tensor) -> Tensor:
        """Return what is stored of values [..., *shape]; raises where they do not fit."""
        if tuple(values.shape[values.ndim - len(self.shape) :]) != self.shape or values.ndim <= len(self.shape):
            raise ValueError(f"column {self.name!r} wants [T, {list(self.shape)}], found {list(values.shape)}")
        if values.dtype != torch_dtype(self.dtype):
            raise TypeError(f"column {self.name!r} wants {self.dtype}, found {values.dtype}")
        try:
            return self.coder.squeeze(values)
        except ValueError as error:
            raise ValueError(f"column {self.name!r}: {error}") from None

    def restored(self, stored: Tensor) -> Tensor:
        """Return the values again."""
        return self.coder.restore(stored, self.dtype)


@dataclass(frozen=True, kw_only=True)
class TrajectorySpec:
    """What every trajectory of a folder holds."""

    columns: tuple[TrajectoryColumn, ...]
    """In the order in which they are written."""
    final_obs: bool = False
    """Whether each trajectory also has the observation after its last step."""
    layout: Mapping[str, Any] = field(default_factory=dict)
    """What observations and actions are made of, as `checkpoint.layout.describe` returns it; {} where unknown."""

    def __post_init__(self) -> None:
        paths = [column.path for column in self.columns]
        for path in paths:
            if paths.count(path) > 1 or any(path != other and other[: len(path)] == path for other in paths):
                raise ValueError(f"two columns are called {'/'.join(path)!r}, or one is inside of it")
        missing = [name for name in REQUIRED if (name,) not in paths]
        if missing or not any(path[0] == "act" for path in paths) or not self.obs_columns:
            raise ValueError(
                f"a trajectory has obs, act and {', '.join(REQUIRED)}; found {sorted(map('/'.join, paths))}"
            )

    @classmethod
    def from_columns(
        cls,
        columns: Columns,
        *,
        codecs: Mapping[str, str] | None = None,
        final_obs: bool = False,
        obs_spec: ObsSpec | None = None,
        action_spec: ActionSpec | None = None,
    ) -> TrajectorySpec:
        """Describe trajectories of steps with these nested columns.

        `codecs` names the columns that are not stored raw, by an observation component's name or by a path such as
        'policy/log_prob'.
        """
        leaves = dict(_leaves(columns))
        chosen = _choose(codecs or {}, list(leaves))
        found = tuple(
            TrajectoryColumn(path=path, shape=spec.shape, dtype=spec.dtype, codec=chosen.get(path, "raw"))
            for path, spec in leaves.items()
        )
        layout = {} if obs_spec is None or action_spec is None else describe(obs_spec, action_spec)
        return cls(columns=found, final_obs=final_obs, layout=layout)

    @property
    def obs_columns(self) -> tuple[TrajectoryColumn, ...]:
        """The columns of the observation."""
        return tuple(column for column in self.columns if column.path[0] == "obs")

    @property
    def obs_spec(self) -> ObsSpec:
        """What an observation is made of: the layout's groups where there is one, else all in group 'policy'."""
        said = {entry["name"]: entry for entry in self.layout.get("observations", [])}
        parts = {}
        for column in self.obs_columns:
            name = "/".join(column.path[1:]) or "obs"
            entry = said.get(name, {})
            parts[name] = ComponentSpec(
                shape=column.shape,
                dtype=column.dtype,
                group=str(entry.get("group", "policy")),
                scale=float(entry.get("scale", 1.0)),
            )
        return ObsSpec(parts)

    @property
    def obs_segments(self) -> dict[str, tuple[int, ...]]:
        """Component → shape, in order."""
        return {name: part.shape for name, part in self.obs_spec.items()}

    @property
    def fingerprint(self) -> int:
        """A number that differs for specs that differ; every shard carries it."""
        return zlib.crc32(strict_json.encode(self.plain()))

    def squeezed(self, steps: Mapping[str, Any]) -> dict[ColumnPath, Tensor]:
        """Return what is stored of nested columns [..., shape], by path; missing and unexpected ones are errors."""
        found = dict(_leaves(steps))
        wanted = [column.path for column in self.columns]
        if set(found) != set(wanted):
            missing = ["/".join(path) for path in wanted if path not in found]
            extra = ["/".join(path) for path in found if path not in wanted]
            raise ValueError(f"a trajectory wants its columns and no others: missing {missing}, unexpected {extra}")
        return {column.path: column.squeezed(found[column.path]) for column in self.columns}

    # -- as a file -----------------------------------------------------------------------------------------------------

    def plain(self) -> dict[str, Any]:
        """Return the spec as JSON has it."""
        columns = [
            {
                "path": list(column.path),
                "shape": list(column.shape),
                "dtype": column.dtype,
                "codec": column.codec,
                "chunk_steps": column.chunk_steps,
            }
            for column in self.columns
        ]
        return {"columns": columns, "final_obs": self.final_obs, "layout": _words(self.layout)}

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> TrajectorySpec:
        """Read a spec; raises KeyError, TypeError or ValueError for what `plain` did not make."""
        columns = [
            TrajectoryColumn(
                path=tuple(entry["path"]),
                shape=tuple(entry["shape"]),
                dtype=str(entry["dtype"]),
                codec=str(entry["codec"]),
                chunk_steps=_positive(entry["chunk_steps"]),
            )
            for entry in content["columns"]
        ]
        layout = _numbers(content["layout"])
        return cls(columns=tuple(columns), final_obs=bool(content["final_obs"]), layout=layout)

    def differences(self, other: TrajectorySpec) -> list[str]:
        """Return in sentences how another spec differs from this one."""
        mine, theirs = ({column.path: column for column in spec.columns} for spec in (self, other))
        lines = [f"column {column.name!r} is missing" for path, column in mine.items() if path not in theirs]
        lines += [f"column {column.name!r} is new" for path, column in theirs.items() if path not in mine]
        for path, column in mine.items():
            now = theirs.get(path, column)
            for what in ("shape", "dtype", "codec", "chunk_steps"):
                before, after = (vars(each)[what] for each in (column, now))
                if before != after:
                    lines.append(f"column {column.name!r}: {what} is {after!r}, was {before!r}")
        if not lines and list(mine) != list(theirs):
            lines.append(f"the columns are in another order: {[*map('/'.join, theirs)]}, were {[*map('/'.join, mine)]}")
        if self.final_obs != other.final_obs:
            lines.append(f"final_obs is {other.final_obs}, was {self.final_obs}")
        return lines + compare(self.layout, other.layout)


def nested(values: Mapping[ColumnPath, Any]) -> dict[str, Any]:
    """Return values by path as nested dicts."""
    result: dict[str, Any] = {}
    for path, value in values.items():
        place = result
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    return result


def _leaves(columns: Mapping[str, Any], path: ColumnPath = ()) -> Iterator[tuple[ColumnPath, Any]]:
    for name, value in columns.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _choose(codecs: Mapping[str, str], paths: Sequence[ColumnPath]) -> dict[ColumnPath, str]:
    """Return path → codec for what is named by its component or by its whole path."""
    names = {"/".join(path): path for path in paths}
    names |= {"/".join(path[1:]): path for path in paths if path[0] == "obs" and len(path) > 1}
    chosen = {}
    for name, codec in codecs.items():
        if name not in names:
            raise KeyError(unknown("column", name, names, where="a codec is chosen for a column; the recording"))
        chosen[names[name]] = codec_named(codec).name
    return chosen


def _positive(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"chunk_steps is a positive whole number, found {value!r}")
    return value


def _words(layout: Mapping[str, Any]) -> dict[str, Any]:
    """Return a layout with infinite bounds as words, because JSON has none."""
    return _bounds(layout, lambda bound: str(bound) if isinstance(bound, float) and not math.isfinite(bound) else bound)


def _numbers(layout: Mapping[str, Any]) -> dict[str, Any]:
    return _bounds(layout, lambda bound: float(bound) if bound in ("inf", "-inf") else bound)


def _bounds(layout: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a layout with its bounds changed, one number or a list of them each."""

    def changed(key: str, value: Any) -> Any:
        if key not in ("low", "high"):
            return value
        return [change(bound) for bound in value] if isinstance(value, (list, tuple)) else change(value)

    return {
        section: [{key: changed(key, value) for key, value in entry.items()} for entry in entries]
        for section, entries in layout.items()
    }


# -- metadata.json -----------------------------------------------------------------------------------------------------


class Metadata(NamedTuple):
    """The content of metadata.json."""

    spec: TrajectorySpec
    about: dict[str, Any]
    """The first writer's metadata of the recording."""


def read_metadata(folder: Path) -> Metadata:
    """Read metadata.json of a folder; raises TrajectoryMissing where nothing was recorded yet."""
    path = folder / METADATA
    try:
        with FileOps().open_read(path) as file:
            text = file.read(MAX_JSON_BYTES + 1)
    except FileNotFoundError:
        raise TrajectoryMissing(f"there are no trajectories in {str(folder)!r}: it has no {METADATA}") from None
    except OSError as error:
        raise TrajectoryError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    try:
        content = strict_json.decode(text, path, max_bytes=MAX_JSON_BYTES)
    except CheckpointCorrupt as error:
        raise TrajectoryCorrupt(path, error.reason) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise TrajectoryCorrupt(
            path,
            f"it does not say format {FORMAT!r}. A recording of trajectory_*/traj_*.pickle files is brought over with "
            "'striderl import-trajectories'",
        )
    if content.get("version") != VERSION:
        raise TrajectoryVersion(
            f"{str(path)!r} is in version {content.get('version')!r} of the format, this library reads {VERSION}"
        )
    try:
        return Metadata(TrajectorySpec.from_plain(content), dict(content["about"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TrajectoryCorrupt(path, f"it is not what this library writes ({error})") from None


def agree_on_metadata(folder: Path, spec: TrajectorySpec, about: Mapping[str, Any]) -> Metadata:
    """Write metadata.json, or, where it exists, check that it has the same spec."""
    try:
        return _same(folder, spec)
    except TrajectoryMissing:
        pass
    content = {"format": FORMAT, "version": VERSION, **spec.plain(), "about": dict(about)}
    text = json.dumps(content, indent=1, allow_nan=False).encode("ascii") + b"\n"
    ops = FileOps()
    try:
        make_directories(ops, folder)
        temporary = folder / f".{METADATA}.{secrets.token_hex(6)}.tmp"
        descriptor = ops.create(temporary)
        try:
            ops.write(descriptor, memoryview(text))
            ops.sync(descriptor)
        finally:
            ops.close(descriptor)
        try:
            _give_name(temporary, folder / METADATA)
        finally:
            temporary.unlink(missing_ok=True)
        ops.sync_directory(folder)
    except OSError as error:
        raise TrajectoryError(f"cannot write {str(folder / METADATA)!r}: {error.strerror or error}") from error
    return _same(folder, spec)


def _give_name(temporary: Path, path: Path) -> None:
    """Give a finished file its name unless another writer was faster; a link, unlike a rename, replaces nothing."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        # a file system without links: two first writers in the same instant could replace each other's file
        if not path.exists():
            os.replace(temporary, path)


def _same(folder: Path, spec: TrajectorySpec) -> Metadata:
    metadata = read_metadata(folder)
    differences = metadata.spec.differences(spec)
    if differences or metadata.spec.fingerprint != spec.fingerprint:
        lines = "".join(f"\n  - {line}" for line in differences or ["the layout is spelled differently"])
        raise TrajectoryMismatch(
            f"{str(folder)!r} holds trajectories with other columns; record these in a folder of their own:{lines}"
        )
    return metadata


# -- errors ------------------------------------------------------------------------------------------------------------


class TrajectoryError(Exception):
    """A recording could not be written or read."""


class TrajectoryCorrupt(TrajectoryError):  # noqa: N818  (says what is wrong)
    """Bytes of a recording are not those that were written, or not what this library writes."""

    def __init__(self, path: str | Path, reason: str) -> None:
        """Name the file and the reason."""
        super().__init__(f"{str(path)!r} is damaged: {reason}")
        self.path = Path(path)
        self.reason = reason


class TrajectoryRefused(TrajectoryError):  # noqa: N818  (says what is wrong)
    """A foreign file would have to be executed to be read."""

    def __init__(self, path: str | Path, reason: str) -> None:
        """Name the file and the reason."""
        super().__init__(f"{str(path)!r} is refused: {reason}")
        self.path = Path(path)
        self.reason = reason


class TrajectoryVersion(TrajectoryError):  # noqa: N818  (says what is wrong)
    """A recording is in an unknown version of the format."""


class TrajectoryMissing(TrajectoryError):  # noqa: N818  (says what is wrong)
    """There is no recording, or it went away while it was read."""


class TrajectoryTimeout(TrajectoryError):  # noqa: N818  (says what is wrong)
    """A reader waited for trajectories that did not come."""


class TrajectoryMismatch(TrajectoryError):  # noqa: N818  (says what is wrong)
    """A folder holds trajectories with other columns."""
