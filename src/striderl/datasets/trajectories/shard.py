"""A shard: the file of one writer, records one behind the other, and how it is read.

    shard_000003.trj
    │ head: magic, version, fingerprint of the spec, about the writer │ record │ record │ record │ rec…
                                                                                                   └ a killed writer, or
                                                                                                     one at work

Only whole records count. A writer never touches what is behind it, and the next writer takes a new shard, so what a
killed one left stays unread at the end of its own file. Where a header in the middle is damaged, the next good one is
searched for, and the hole is reported by its place.

One trajectory as bytes: a header with its length, checksums, and chunks of columns.

    offset 0   header    48 bytes   magic │ num_steps │ time_ns │ about │ num_chunks │ body │ flags │ crc of all these
          48   table     8 bytes    for each chunk: its size, its crc
               about     JSON       metadata of this trajectory: {"success": true, …}
               crc       4 bytes    of table and about
               body                 the chunks, column by column, each in the order of time:

                   obs/joints  steps 0…1364 │ steps 1365…1999 │ obs/depth  steps 0…20 │ 21…41 │ … │ act …
                   and with `final_obs`, one last row of each observation column: the observation after the end

               tail      8 bytes    'trj done'

A record is there when its tail is. The header's crc covers the record's own place in the file and the fingerprint of
the spec: bytes that look like a header inside of other data are not taken for one, and a record can be read without
the head of its file.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from striderl.checkpoint import strict_json
from striderl.checkpoint.errors import CheckpointCorrupt
from striderl.checkpoint.file_ops import FileOps
from striderl.datasets.trajectories.codecs import pack
from striderl.datasets.trajectories.spec import (
    METADATA,
    VERSION,
    ColumnPath,
    TrajectoryColumn,
    TrajectoryCorrupt,
    TrajectoryError,
    TrajectoryMismatch,
    TrajectoryMissing,
    TrajectorySpec,
    TrajectoryVersion,
)

SHARD_NAME = re.compile(r"shard_(\d{6,12})\.trj")
"""What shards are called; the numbers go up."""

_SHARD_MAGIC = b"\x89strshd\n"
_HEAD = struct.Struct("<8sIII")
_CRC = struct.Struct("<I")
_SEARCH_BYTES = 1024 * 1024


def shard_head(fingerprint: int, about: Mapping[str, Any]) -> bytes:
    """Return the first bytes of a shard."""
    text = strict_json.encode(dict(about))
    if len(text) > MAX_ABOUT_BYTES:
        raise ValueError(f"what is written about a writer has {len(text)} bytes, at most {MAX_ABOUT_BYTES}")
    fields = _HEAD.pack(_SHARD_MAGIC, VERSION, fingerprint, len(text))
    return fields + text + _CRC.pack(zlib.crc32(fields + text))


class ShardEntry(NamedTuple):
    """Where a trajectory is."""

    offset: int
    header: Header


@dataclass
class ShardScan:
    """A reader's state of a shard."""

    path: Path
    about: dict[str, Any] | None = None
    """The writer's metadata; None before the head was read."""
    position: int = 0
    """Behind the last whole record."""
    size: int = 0
    """Length of the file when it was last looked at."""
    refused: TrajectoryError | None = None
    """Why nothing more of the shard is read; None for a good one."""
    holes: list[str] = field(default_factory=list)
    """Damaged places, each named."""

    @property
    def unfinished_bytes(self) -> int:
        """Bytes behind the last whole record: of a writer at work, or of one that was killed."""
        return self.size - self.position

    def look(self, fingerprint: int) -> list[ShardEntry]:
        """Read on from where the last look ended, and return the trajectories that are new; damage is noted."""
        if self.refused:
            return []
        try:
            with FileOps().open_read(self.path) as file:
                descriptor = file.fileno()
                size = os.fstat(descriptor).st_size
                if size == self.size:
                    return []
                self.size = size
                if self.about is None:
                    self._read_head(descriptor, fingerprint)
                return [] if self.about is None else self._read_records(descriptor, fingerprint)
        except FileNotFoundError:
            self.refused = TrajectoryMissing(f"{str(self.path)!r} went away")
        except OSError as error:
            self.size = -1  # a disk that comes back is looked at again
            self.holes = [*self.holes, f"{str(self.path)!r} cannot be read: {error.strerror or error}"][-10:]
        return []

    def _read_head(self, descriptor: int, fingerprint: int) -> None:
        """Read the shard's head; every version begins with one. Without a good one, look for records."""
        fields = os.pread(descriptor, _HEAD.size, 0)
        magic, version, found, length = _HEAD.unpack(fields) if len(fields) == _HEAD.size else (b"", 0, 0, 0)
        rest = os.pread(descriptor, min(length, MAX_ABOUT_BYTES) + _CRC.size, _HEAD.size)
        text = rest[: -_CRC.size]
        whole = magic == _SHARD_MAGIC and len(text) == length
        if not whole or zlib.crc32(fields + text) != _CRC.unpack(rest[-_CRC.size :])[0]:
            self._do_without_head(descriptor, fingerprint)
        elif version != VERSION:
            self.refused = TrajectoryVersion(
                f"{str(self.path)!r} is in version {version} of the format, this library reads version {VERSION}"
            )
        elif found != fingerprint:
            self.refused = TrajectoryMismatch(
                f"{str(self.path)!r} was recorded with other columns than {METADATA!r} beside it says; "
                "keep recordings with different observations or actions in folders of their own"
            )
        else:
            self.about = _json(text, self.path)
            self.position = _HEAD.size + length + _CRC.size

    def _do_without_head(self, descriptor: int, fingerprint: int) -> None:
        """Begin with the first good record; where there is none, the head may be under way, or this is no shard."""
        first = self._search(descriptor, 0, fingerprint)
        if first is not None:
            self.about = {}
            self._skip_to(first)
        elif self.size >= _HEAD.size and os.pread(descriptor, len(_SHARD_MAGIC), 0) != _SHARD_MAGIC:
            self.refused = TrajectoryCorrupt(self.path, "it does not begin as a file of trajectories does")

    def _read_records(self, descriptor: int, fingerprint: int) -> list[ShardEntry]:
        entries: list[ShardEntry] = []
        while True:
            header = parse_header(os.pread(descriptor, HEADER_BYTES, self.position), self.position, fingerprint)
            if header is not None:
                end = self.position + header.record_bytes
                if end > self.size:
                    return entries  # under way, or cut off here
                if os.pread(descriptor, len(TAIL), end - len(TAIL)) == TAIL:
                    entries.append(ShardEntry(self.position, header))
                    self.position = end
                    continue
                if end == self.size:
                    return entries  # some file systems show the length before the bytes
            following = self._search(descriptor, self.position + 1, fingerprint)
            if following is None:
                return entries
            self._skip_to(following)

    def _skip_to(self, following: int) -> None:
        self.holes.append(f"{str(self.path)!r} is damaged between byte {self.position} and byte {following}")
        self.position = following

    def _search(self, descriptor: int, start: int, fingerprint: int) -> int | None:
        """Return where the next whole record begins, or None."""
        while start < self.size:
            block = os.pread(descriptor, _SEARCH_BYTES + HEADER_BYTES, start)
            place = block.find(MAGIC)
            while place >= 0:
                offset = start + place
                header = parse_header(os.pread(descriptor, HEADER_BYTES, offset), offset, fingerprint)
                if header is not None and offset + header.record_bytes <= self.size:
                    return offset
                place = block.find(MAGIC, place + 1)
            start += _SEARCH_BYTES
        return None


def _json(text: bytes, path: Path) -> dict[str, Any]:
    """Read the writer's metadata; its checksum is verified already."""
    try:
        content = strict_json.decode(text, path, max_bytes=MAX_ABOUT_BYTES)
    except CheckpointCorrupt:
        return {}
    return content if isinstance(content, dict) else {}


# -- records -----------------------------------------------------------------------------------------------------------


MAGIC = b"\x89trj\r\n\x1a\n"
TAIL = b"trj done"
_FIELDS = struct.Struct("<8sQQIIQI")
_PLACE = struct.Struct("<QI")
HEADER_BYTES = _FIELDS.size + _CRC.size
MAX_ABOUT_BYTES = 1024 * 1024
_FINAL_OBS = 1


class Header(NamedTuple):
    """The header of a record."""

    num_steps: int
    """Steps of the trajectory."""
    time_ns: int
    """When it was written, in nanoseconds since 1970."""
    about_bytes: int
    """Length of the JSON text."""
    num_chunks: int
    """Entries of the table."""
    body_bytes: int
    """Length of all chunks."""
    flags: int
    """1: the body ends with the observation after the last step."""

    @property
    def index_bytes(self) -> int:
        """Length of table, about and their crc."""
        return self.num_chunks * 8 + self.about_bytes + _CRC.size

    @property
    def record_bytes(self) -> int:
        """Length of the whole record."""
        return HEADER_BYTES + self.index_bytes + self.body_bytes + len(TAIL)

    @property
    def final_obs(self) -> bool:
        """Whether the body ends with the observation after the last step."""
        return bool(self.flags & _FINAL_OBS)

    def to_bytes(self, offset: int, fingerprint: int) -> bytes:
        """Return the header of a record at this place in a file of this spec."""
        fields = _FIELDS.pack(MAGIC, *self)
        return fields + _CRC.pack(_place_crc(fields, offset, fingerprint))


def parse_header(content: bytes, offset: int, fingerprint: int) -> Header | None:
    """Read a header at a place in a file of a spec; None when these bytes are none."""
    if len(content) < HEADER_BYTES or content[: len(MAGIC)] != MAGIC:
        return None
    fields = content[: _FIELDS.size]
    if _CRC.unpack_from(content, _FIELDS.size)[0] != _place_crc(fields, offset, fingerprint):
        return None
    header = Header(*_FIELDS.unpack(fields)[1:])
    return header if header.about_bytes <= MAX_ABOUT_BYTES else None


def _place_crc(fields: bytes, offset: int, fingerprint: int) -> int:
    return zlib.crc32(_PLACE.pack(offset, fingerprint), zlib.crc32(fields))


class Chunk(NamedTuple):
    """Where some steps of a column are in the body."""

    column: TrajectoryColumn
    start: int
    """First step."""
    stop: int
    """Behind the last step."""
    final: bool
    """Whether this is the row after the end."""


def planned_chunks(spec: TrajectorySpec, num_steps: int, *, final_obs: bool) -> list[Chunk]:
    """Return the chunks of a trajectory in the order of the body; spec and length decide it."""
    chunks = [
        Chunk(column, start, min(start + column.chunk_steps, num_steps), False)
        for column in spec.columns
        for start in range(0, num_steps, column.chunk_steps)
    ]
    if final_obs:
        chunks += [Chunk(column, num_steps, num_steps + 1, True) for column in spec.obs_columns]
    return chunks


@dataclass(frozen=True)
class ShardRecord:
    """A trajectory in bytes, complete but for its place in a file."""

    header: Header
    index: bytes
    """Table, about and crc."""
    chunks: list[bytes]

    def to_buffers(self, offset: int, fingerprint: int) -> list[bytes]:
        """Return all bytes in order, the tail by itself as the last."""
        return [self.header.to_bytes(offset, fingerprint), self.index, *self.chunks, TAIL]


def make_record(
    spec: TrajectorySpec,
    stored: Mapping[ColumnPath, Tensor],
    final: Mapping[ColumnPath, Tensor] | None,
    about: Mapping[str, Any],
    *,
    time_ns: int,
) -> ShardRecord:
    """Pack a trajectory: `stored` are encoded columns [T, …] by path, `final` the rows [1, …] after the end."""
    num_steps = _length(stored)
    pieces = []
    for chunk in planned_chunks(spec, num_steps, final_obs=final is not None):
        path = chunk.column.path
        values = final[path] if chunk.final and final is not None else stored[path][chunk.start : chunk.stop]
        pieces.append(pack(values, deflate=chunk.column.coder.deflate))
    text = strict_json.encode(dict(about))
    if len(text) > MAX_ABOUT_BYTES:
        raise ValueError(f"what is written about a trajectory has {len(text)} bytes, at most {MAX_ABOUT_BYTES}")
    table = np.array([(len(piece), zlib.crc32(piece)) for piece in pieces], "<u4").tobytes()
    header = Header(
        num_steps=num_steps,
        time_ns=time_ns,
        about_bytes=len(text),
        num_chunks=len(pieces),
        body_bytes=sum(map(len, pieces)),
        flags=_FINAL_OBS if final is not None else 0,
    )
    return ShardRecord(header, table + text + _CRC.pack(zlib.crc32(table + text)), pieces)


class Index(NamedTuple):
    """What stands between header and body."""

    sizes: np.ndarray[Any, Any]
    """Bytes of each chunk."""
    crcs: np.ndarray[Any, Any]
    """Checksum of each chunk."""
    starts: np.ndarray[Any, Any]
    """Where each chunk begins in the body."""
    about: bytes
    """The JSON text."""


def parse_index(header: Header, content: bytes) -> Index | None:
    """Read table and about; None when they are not what was written."""
    if len(content) != header.index_bytes:
        return None
    covered = content[: -_CRC.size]
    if _CRC.unpack(content[-_CRC.size :])[0] != zlib.crc32(covered):
        return None
    table = np.frombuffer(covered, "<u4", count=2 * header.num_chunks).reshape(-1, 2).astype(np.int64)
    sizes, crcs = table[:, 0], table[:, 1]
    ends = np.cumsum(sizes)
    if header.num_chunks and int(ends[-1]) != header.body_bytes:
        return None
    return Index(sizes, crcs, ends - sizes, covered[8 * header.num_chunks :])


def _length(stored: Mapping[ColumnPath, Tensor]) -> int:
    lengths = {"/".join(path): values.shape[0] for path, values in stored.items()}
    found = set(lengths.values())
    if len(found) != 1:
        raise ValueError(f"the columns of a trajectory are equally long, found {lengths}")
    length = int(found.pop())
    if length < 1:
        raise ValueError("a trajectory has at least one step, found none")
    return length
