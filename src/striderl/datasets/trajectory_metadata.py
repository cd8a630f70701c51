"""metadata.json: written once, by whichever writer comes first; read by everybody."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from striderl.checkpoint import strict_json
from striderl.checkpoint.errors import MAX_JSON_BYTES, CheckpointCorrupt
from striderl.checkpoint.file_ops import FileOps, make_directories
from striderl.datasets.trajectory_errors import (
    TrajectoryCorrupt,
    TrajectoryError,
    TrajectoryMismatch,
    TrajectoryMissing,
    TrajectoryVersion,
)
from striderl.datasets.trajectory_spec import FORMAT, METADATA, VERSION, TrajectorySpec


class Metadata(NamedTuple):
    """What metadata.json says."""

    spec: TrajectorySpec
    about: dict[str, Any]
    """What the first writer said about the recording."""


def read_metadata(folder: Path) -> Metadata:
    """Read what a folder of trajectories says of itself; raises TrajectoryMissing where nothing was recorded yet."""
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
    """Write metadata.json, or, where it is there already, make sure that it says the same spec."""
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
