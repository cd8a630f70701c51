"""`TrajectoryStore`: read a folder of trajectories while others write to it.

    demos/
      metadata.json          what every trajectory holds; written once (`spec.py`)
      shard_000000.trj       one file per writer, records one behind the other (`shard.py`)
      shard_000001.trj       the next writer, or the same one after 256 MiB

    store = TrajectoryStore("demos")
    store.wait(10, timeout=60.0)                  until ten are there
    steps = store.read(0)                         {'obs': {'joints': [T, 12]}, 'act': [T, 3], 'rew': [T], …}
    steps = store.read(0, 100, 164)               only the chunks with these steps are read and unpacked
    store.refresh()                               how many came since

Why appended records in one file per writer, and not a file per trajectory: ten thousand short episodes are a few files
instead of ten thousand; a reader finds what is new by the growth of a file; and nothing is ever renamed, rewritten or
deleted, so a writer that is killed at any byte harms no reader. Bytes are read, not mapped into memory: a
file that is cut short under a map ends the process with a bus error; here it is a message.

Indices stay what they are; new trajectories come behind the old ones, and those found together are in order of time.

Read one record of a shard: only the chunks that are wanted, each checked before it is unpacked.

read(steps 60 … 70), chunks of 64 steps        obs/joints │ 0…63 │ 64…127 │ 128…   two chunks, one read
                                                           └──checked──┘  cut to 60…70
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.checkpoint import strict_json
from striderl.checkpoint.errors import CheckpointCorrupt
from striderl.checkpoint.file_ops import FileOps
from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec
from striderl.datasets.trajectories.codecs import unpack
from striderl.datasets.trajectories.shard import (
    HEADER_BYTES,
    MAX_ABOUT_BYTES,
    SHARD_NAME,
    Index,
    ShardEntry,
    ShardScan,
    parse_index,
)
from striderl.datasets.trajectories.spec import (
    Metadata,
    TrajectoryColumn,
    TrajectoryCorrupt,
    TrajectoryError,
    TrajectoryMismatch,
    TrajectoryMissing,
    TrajectorySpec,
    TrajectoryTimeout,
    TrajectoryVersion,
    nested,
    read_metadata,
)

logger = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


class _Found(NamedTuple):
    """One trajectory, and where it is."""

    shard: Path
    entry: ShardEntry


class TrajectoryStore:
    """Read trajectories of one folder; any number of readers and writers may work at the same time."""

    def __init__(self, folder: str | Path) -> None:
        """Look into a folder, which may be empty or missing so far."""
        self.folder = Path(folder)
        self._metadata: Metadata | None = None
        self._shards: dict[Path, ShardScan] = {}
        self._found: list[_Found] = []
        self._num_steps = 0
        self._said: set[str] = set()
        self.refresh()

    # -- what there is -------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> Metadata:
        """The content of metadata.json; raises TrajectoryMissing while there is none."""
        if self._metadata is None:
            self._metadata = read_metadata(self.folder)
        return self._metadata

    @property
    def spec(self) -> TrajectorySpec:
        """Columns, codecs and layout of every trajectory."""
        return self.metadata.spec

    @property
    def about(self) -> dict[str, Any]:
        """The first writer's metadata of the recording."""
        return self.metadata.about

    @property
    def obs_spec(self) -> ObsSpec:
        """Components of the observation, with their groups."""
        return self.spec.obs_spec

    def refresh(self) -> int:
        """Look for trajectories that were completed since the last look, and return how many there are.

        Damage is logged once and kept in `problems`; shards in another version, or with other columns, are an error.
        """
        if self._metadata is None:
            try:
                self._metadata = read_metadata(self.folder)
            except TrajectoryMissing:
                return 0
        fresh: list[_Found] = []
        for path in self._shard_paths():
            scan = self._shards.setdefault(path, ShardScan(path))
            fresh += [_Found(path, entry) for entry in scan.look(self._metadata.spec.fingerprint)]
            if isinstance(scan.refused, (TrajectoryVersion, TrajectoryMismatch)):
                raise scan.refused
        fresh.sort(key=lambda found: (found.entry.header.time_ns, found.shard.name, found.entry.offset))
        self._found += fresh
        self._num_steps += sum(found.entry.header.num_steps for found in fresh)
        self._warn()
        return len(fresh)

    def __len__(self) -> int:
        return len(self._found)

    @property
    def num_steps(self) -> int:
        """Steps of all trajectories together."""
        return self._num_steps

    def lengths(self) -> list[int]:
        """Return the number of steps of each trajectory."""
        return [found.entry.header.num_steps for found in self._found]

    def times(self) -> list[int]:
        """Return when each trajectory was written, in nanoseconds since 1970."""
        return [found.entry.header.time_ns for found in self._found]

    def newest(self, num: int) -> list[int]:
        """Return the indices of the newest `num` trajectories (of all, where there are fewer), oldest of them first."""
        order = sorted(range(len(self._found)), key=lambda index: (self._found[index].entry.header.time_ns, index))
        return order[max(0, len(order) - num) :]

    def name(self, index: int) -> str:
        """Return a name that stays the same in every process: the shard and the place in it."""
        found = self._at(index)
        return f"{found.shard.stem}@{found.entry.offset}"

    def problems(self) -> list[str]:
        """Return everything that is damaged or could not be read, by file and place; empty when all is well."""
        lines = []
        for scan in self._shards.values():
            lines += scan.holes
            if scan.refused is not None:
                lines.append(str(scan.refused))
        return lines

    def unfinished_bytes(self) -> dict[str, int]:
        """Return shard → bytes behind its last whole trajectory: of a writer at work, or of one that was killed."""
        scans = self._shards.values()
        return {scan.path.name: scan.unfinished_bytes for scan in scans if scan.unfinished_bytes > 0}

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(
        self,
        index: int,
        start: int = 0,
        stop: int | None = None,
        *,
        columns: Collection[str] | None = None,
        obs_next: bool = False,
    ) -> dict[str, Any]:
        """Read steps [start, stop) of a trajectory as nested dicts of tensors [T, …].

        columns: the keys to read ('obs', 'act', …); all unless given.
        obs_next: also give the observation that followed each step. Behind the last step that is the final observation
        where there is one (`spec.final_obs`), else the last observation once more.

        Raises TrajectoryCorrupt, with file, trajectory and column, for bytes that are not those that were written.
        """
        found = self._at(index)
        length = found.entry.header.num_steps
        stop = length if stop is None else stop
        if not 0 <= start <= stop <= length:
            raise IndexError(f"trajectory {self.name(index)} has steps 0 to {length}, asked for {start} to {stop}")
        keys = dict.fromkeys(column.path[0] for column in self.spec.columns)
        for name in columns or ():
            if name not in keys:
                raise KeyError(unknown("column", name, keys, where=str(self.folder)))
        wanted = list(keys) if columns is None else [key for key in keys if key in columns]
        with RecordReader(self.spec, found.shard, found.entry) as reader:
            result = reader.steps(wanted, start, stop)
            if obs_next:
                result["obs_next"] = reader.obs_next(start, stop, result.get("obs"))
            return result

    def read_final_obs(self, index: int) -> Any:
        """Read the observation after the last step, [1, …] per component; None where none was recorded."""
        found = self._at(index)
        with RecordReader(self.spec, found.shard, found.entry) as reader:
            return reader.final_obs()

    def read_about(self, index: int) -> dict[str, Any]:
        """Read what was written about one trajectory."""
        found = self._at(index)
        with RecordReader(self.spec, found.shard, found.entry) as reader:
            try:
                content = strict_json.decode(reader.about, found.shard, max_bytes=MAX_ABOUT_BYTES)
            except CheckpointCorrupt as error:
                raise TrajectoryCorrupt(found.shard, error.reason) from None
        return dict(content)

    def verify(self) -> None:
        """Read every byte of every trajectory; raises TrajectoryCorrupt at the first that is not what was written."""
        for index in range(len(self)):
            self.read(index, obs_next=True)
            self.read_about(index)

    def wait(self, num: int = 1, timeout: float = 60.0) -> int:
        """Wait until there are `num` trajectories, and return how many there are.

        Raises TrajectoryTimeout after `timeout` seconds, with what was found instead.
        """
        deadline, pause = time.monotonic() + timeout, _FIRST_PAUSE
        while True:
            self.refresh()
            if len(self) >= num:
                return len(self)
            left = deadline - time.monotonic()
            if left <= 0:
                raise TrajectoryTimeout(self._why_waiting(num, timeout))
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _at(self, index: int) -> _Found:
        if not 0 <= index < len(self._found):
            raise IndexError(f"there are trajectories 0 to {len(self._found) - 1} in {str(self.folder)!r}, not {index}")
        return self._found[index]

    def _shard_paths(self) -> list[Path]:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        return [self.folder / name for name in sorted(names) if SHARD_NAME.fullmatch(name)]

    def _warn(self) -> None:
        for problem in self.problems():
            if problem not in self._said:
                self._said.add(problem)
                logger.warning("%s", problem)

    def _why_waiting(self, num: int, timeout: float) -> str:
        reasons = [f"waited {timeout:g} s for {num} trajectories in {str(self.folder)!r}, found {len(self)}"]
        if self._metadata is None:
            reasons.append("nobody has begun to record there: is a collector running with this save_dir?")
        elif self.unfinished_bytes():
            reasons.append(f"begun and not complete: {', '.join(self.unfinished_bytes())}")
        return "; ".join([*reasons, *self.problems()[:5]])


# -- one record --------------------------------------------------------------------------------------------------------


class RecordReader:
    """One trajectory, open for reading."""

    def __init__(self, spec: TrajectorySpec, shard: Path, entry: ShardEntry) -> None:
        """Open the shard and read the table of chunks."""
        self._spec, self._shard = spec, shard
        self._offset, self._header = entry
        try:
            self._file = FileOps().open_read(shard)
        except FileNotFoundError:
            raise TrajectoryMissing(f"{str(shard)!r} went away") from None
        except OSError as error:
            raise TrajectoryError(f"cannot read {str(shard)!r}: {error.strerror or error}") from error
        try:
            self._index = self._read_index()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> RecordReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def about(self) -> bytes:
        """The JSON text of the record."""
        return self._index.about

    def steps(self, keys: Sequence[str], start: int, stop: int) -> dict[str, Any]:
        """Read steps of the columns under these keys."""
        chosen = [column for column in self._spec.columns if column.path[0] in keys]
        return nested({column.path: self._column(column, start, stop) for column in chosen})

    def obs_next(self, start: int, stop: int, obs: Any = None) -> Any:
        """Read the next observation of each of these steps; `obs` is theirs, where that was read already."""
        obs = self.steps(["obs"], start, stop)["obs"] if obs is None else obs
        if stop <= start:
            return obs
        result = {}
        for column in self._spec.obs_columns:
            seen = obs
            for part in column.path[1:]:
                seen = seen[part]
            result[column.path] = torch.cat([seen[1:], self._row_at(column, stop)])
        return nested(result)["obs"]

    def _row_at(self, column: TrajectoryColumn, step: int) -> Tensor:
        """Read an observation [1, …]; behind the last step, the final one, or without it the last once more."""
        length = self._header.num_steps
        if step == length and self._header.final_obs:
            return self._final(column)
        step = min(step, length - 1)
        return self._column(column, step, step + 1)

    def final_obs(self) -> Any:
        """Read the observation after the last step; None where there is none."""
        if not self._header.final_obs:
            return None
        return nested({column.path: self._final(column) for column in self._spec.obs_columns})["obs"]

    # -- inside --------------------------------------------------------------------------------------------------------

    def _read_index(self) -> Index:
        index = parse_index(self._header, self._bytes(HEADER_BYTES, self._header.index_bytes))
        if index is None:
            raise self._damage("its table is not what was written")
        header = self._header
        planned = sum(column.num_chunks(header.num_steps) for column in self._spec.columns)
        if header.num_chunks != planned + len(self._spec.obs_columns) * header.final_obs:
            raise self._damage(f"it has {header.num_chunks} chunks, which is not what {header.num_steps} steps make")
        return index

    def _column(self, column: TrajectoryColumn, start: int, stop: int) -> Tensor:
        """Read steps [start, stop) of one column."""
        num_steps, size = self._header.num_steps, column.chunk_steps
        first, last = start // size, -(-stop // size)
        before = 0
        for other in self._spec.columns:
            if other.path == column.path:
                break
            before += other.num_chunks(num_steps)
        if stop <= start:
            stored = unpack_nothing(column)
        else:
            pieces = self._chunks(column, before + first, before + last, first * size, min(last * size, num_steps))
            stored = pieces[start - first * size : stop - first * size]
        return column.restored(stored)

    def _final(self, column: TrajectoryColumn) -> Tensor:
        number = self._header.num_chunks - len(self._spec.obs_columns) + self._spec.obs_columns.index(column)
        length = self._header.num_steps
        return column.restored(self._chunks(column, number, number + 1, length, length + 1))

    def _chunks(self, column: TrajectoryColumn, first: int, last: int, start: int, stop: int) -> Tensor:
        """Read chunks [first, last), which are steps [start, stop) of a column and lie beside each other."""
        index = self._index
        begin = int(index.starts[first])
        content = memoryview(
            self._bytes(HEADER_BYTES + self._header.index_bytes + begin, int(index.sizes[first:last].sum()))
        )
        pieces: list[Tensor] = []
        for number in range(first, last):
            place = int(index.starts[number]) - begin
            piece = content[place : place + int(index.sizes[number])]
            low = start + (number - first) * column.chunk_steps
            high = min(low + column.chunk_steps, stop)
            if zlib.crc32(piece) != int(index.crcs[number]):
                raise self._damage(f"column {column.name!r}, steps {low} to {high}: the checksum is wrong")
            if column.coder.deflate:
                pieces.append(self._unpacked(column, piece, low, high))
        if not column.coder.deflate:  # chunks without compression make the column as they lie
            return self._unpacked(column, content, start, stop)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _unpacked(self, column: TrajectoryColumn, content: memoryview, start: int, stop: int) -> Tensor:
        try:
            shape = (stop - start, *column.shape)
            return unpack(content, shape, column.stored_dtype, deflate=column.coder.deflate)
        except ValueError as error:
            raise self._damage(f"column {column.name!r}, steps {start} to {stop}: {error}") from None

    def _bytes(self, start: int, length: int) -> bytes:
        """Read bytes of the record."""
        try:
            self._file.seek(self._offset + start)
            content = self._file.read(length)
        except OSError as error:
            raise TrajectoryError(f"cannot read {str(self._shard)!r}: {error.strerror or error}") from error
        if len(content) != length:
            raise self._damage(f"the file ends {length - len(content)} bytes too early")
        return content

    def _damage(self, reason: str) -> TrajectoryCorrupt:
        return TrajectoryCorrupt(self._shard, f"trajectory {self._shard.stem}@{self._offset}: {reason}")


def unpack_nothing(column: TrajectoryColumn) -> Tensor:
    """Return no steps of a column."""
    return unpack(b"", (0, *column.shape), column.stored_dtype, deflate=False)
