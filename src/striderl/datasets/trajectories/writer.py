"""`TrajectoryWriter`: append whole trajectories to a shard of its own.

    with TrajectoryWriter("demos", spec) as writer:
        writer.add(steps, final_obs=last, about={"success": True})       steps: nested tensors [T, …]

    shard_000004.trj  │ head │ record │ record │ header table about body ▌            killed here: two trajectories are
                                               └ not visible before its tail           whole, the third was never there

Each writer makes a new shard and appends to nothing else, so several may write to one folder, and one that comes after
a crash does not touch what the crash left. A record is handed to the system in order, its tail last. Where the system
refuses (a full disk), the shard is cut back to its last whole trajectory and the error is raised.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.checkpoint.file_ops import FileOps
from striderl.datasets.trajectories.shard import SHARD_NAME, ShardRecord, make_record, shard_head
from striderl.datasets.trajectories.spec import ColumnPath, TrajectoryError, TrajectorySpec, agree_on_metadata

SHARD_BYTES = 256 * 1024 * 1024
"""Above this size a writer goes on in a new shard, so that old ones can be moved or deleted."""


class TrajectoryWriter:
    """Append trajectories to a folder."""

    def __init__(
        self,
        folder: str | Path,
        spec: TrajectorySpec,
        *,
        about: Mapping[str, Any] | None = None,
        shard_bytes: int = SHARD_BYTES,
        ops: FileOps | None = None,
    ) -> None:
        """Check that the folder has the same spec; a shard is made with the first trajectory.

        `about` is plain data about this recording. The first writer's is kept in metadata.json, each one's in the head
        of its shards.
        """
        self.folder = Path(folder)
        self.spec = agree_on_metadata(self.folder, spec, about or {}).spec
        self._fingerprint = self.spec.fingerprint
        self.num_trajectories = 0
        """Trajectories that this writer has written."""
        self.num_steps = 0
        """Steps that this writer has written."""
        self._about = dict(about or {})
        self._shard_bytes = shard_bytes
        self._ops = ops if ops is not None else FileOps()
        self._descriptor: int | None = None
        self._path = self.folder
        self._end, self._synced = 0, 0
        self._time_ns = 0
        self._closed = False

    def add(
        self,
        steps: Mapping[str, Any],
        *,
        final_obs: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> str:
        """Write one trajectory of nested columns [T, …], and return its name.

        `final_obs` is the observation after the last step, [1, …] per component; required if `spec.final_obs`.
        """
        return self.add_squeezed(self.spec.squeezed(steps), final=self.squeezed_final(final_obs), about=about)

    def add_squeezed(
        self,
        stored: Mapping[ColumnPath, Tensor],
        *,
        final: Mapping[ColumnPath, Tensor] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> str:
        """Write one trajectory whose columns went through `spec.squeezed` already."""
        if self._closed:
            raise TrajectoryError(f"this writer of {str(self.folder)!r} is closed")
        if (final is not None) != self.spec.final_obs:
            wanted = "wants" if self.spec.final_obs else "does not hold"
            raise ValueError(f"the recording {wanted} the observation after the end (spec.final_obs)")
        # two trajectories of one writer in the same instant still have an order
        self._time_ns = max(time.time_ns(), self._time_ns + 1)
        record = make_record(self.spec, stored, final, about or {}, time_ns=self._time_ns)
        if self._descriptor is not None and self._end + record.header.record_bytes > self._shard_bytes:
            self._finish_shard()
        name = self._append(record)
        self.num_trajectories += 1
        self.num_steps += record.header.num_steps
        return name

    def squeezed_final(self, final_obs: Mapping[str, Any] | None) -> dict[ColumnPath, Tensor] | None:
        """Return what is stored of a final observation [1, …]."""
        if final_obs is None:
            return None
        columns = {column.path: column for column in self.spec.obs_columns}
        found = {path: _at(final_obs, path) for path in columns}
        for path, value in found.items():
            if value.shape[:1] != (1,):
                raise ValueError(f"the observation after the end is [1, …], found {list(value.shape)} in {path[-1]!r}")
        return {path: columns[path].squeezed(value) for path, value in found.items()}

    def flush(self) -> None:
        """Wait until everything written so far is on the disk: after that not even a power cut loses it."""
        if self._descriptor is not None and self._synced != self._end:
            try:
                self._ops.sync(self._descriptor)
            except OSError as error:
                raise self._error(error) from error
            self._synced = self._end

    def close(self) -> None:
        """Sync everything to the disk and close the shard; calling it twice is fine."""
        self._closed = True
        self._finish_shard()

    def __enter__(self) -> TrajectoryWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _append(self, record: ShardRecord) -> str:
        try:
            if self._descriptor is None:
                self._new_shard()
            assert self._descriptor is not None
            for buffer in record.to_buffers(self._end, self._fingerprint):
                self._ops.write(self._descriptor, memoryview(buffer))
        except OSError as error:
            self._cut_back()
            raise self._error(error) from error
        except BaseException:  # an interrupt between two writes
            self._cut_back()
            raise
        name = f"{self._path.stem}@{self._end}"
        self._end += record.header.record_bytes
        return name

    def _new_shard(self) -> None:
        """Make the shard with the next number; another writer may take it first."""
        numbers = [int(match[1]) for name in os.listdir(self.folder) if (match := SHARD_NAME.fullmatch(name))]
        number = max(numbers, default=-1) + 1
        while True:
            path = self.folder / f"shard_{number:06d}.trj"
            try:
                self._descriptor = self._ops.create(path)
                break
            except FileExistsError:
                number += 1
        self._path, self._end, self._synced = path, 0, 0
        head = shard_head(self._fingerprint, self._about)
        self._ops.write(self._descriptor, memoryview(head))
        self._end = len(head)
        self._ops.sync_directory(self.folder)

    def _cut_back(self) -> None:
        """Take an unfinished record out of the shard; where that is refused as well, leave the shard for good."""
        if self._descriptor is None:
            return
        try:
            os.ftruncate(self._descriptor, self._end)
            os.lseek(self._descriptor, self._end, os.SEEK_SET)
            broken = self._end == 0  # not even the head was written
        except OSError:
            broken = True
        if broken:
            descriptor, self._descriptor = self._descriptor, None
            try:
                self._ops.close(descriptor)
            except OSError:  # the first error is the one to raise
                return

    def _finish_shard(self) -> None:
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        try:
            self._ops.sync(descriptor)
            self._ops.close(descriptor)
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> TrajectoryError:
        return TrajectoryError(
            f"a trajectory could not be written to {str(self._path)!r}: {error.strerror or error}; "
            f"the {self.num_trajectories} before it are untouched"
        )


def _at(values: Mapping[str, Any], path: ColumnPath) -> Tensor:
    """Return the tensor of a column of the observation; a plain observation is the tensor itself."""
    found: Any = values
    for part in path[1:]:
        if not isinstance(found, Mapping) or part not in found:
            raise KeyError(f"the observation after the end has no component {'/'.join(path[1:])!r}")
        found = found[part]
    return torch.as_tensor(found)
