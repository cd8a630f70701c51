"""Read one record of a shard: only the chunks that are wanted, each checked before it is unpacked.

read(steps 60 … 70), chunks of 64 steps        obs/joints │ 0…63 │ 64…127 │ 128…   two chunks, one read
                                                           └──checked──┘  cut to 60…70
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.checkpoint.file_ops import FileOps
from striderl.datasets.trajectory_codecs import unpack
from striderl.datasets.trajectory_errors import TrajectoryCorrupt, TrajectoryError, TrajectoryMissing
from striderl.datasets.trajectory_record import HEADER_BYTES, Index, parse_index
from striderl.datasets.trajectory_shard import Entry
from striderl.datasets.trajectory_spec import TrajectoryColumn, TrajectorySpec, nested


class RecordReader:
    """One trajectory, open for reading."""

    def __init__(self, spec: TrajectorySpec, shard: Path, entry: Entry) -> None:
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
        """Read what followed each of these steps; `obs` is what was seen in them, where that was read already."""
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
