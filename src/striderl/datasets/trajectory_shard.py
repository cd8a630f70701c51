"""A shard: the file of one writer, records one behind the other; and how a reader finds its way in it.

    shard_000003.trj
    │ head: magic, version, fingerprint of the spec, about the writer │ record │ record │ record │ rec…
                                                                                                   └ a killed writer, or
                                                                                                     one at work

Only whole records count. A writer never touches what is behind it, and the next writer takes a new shard, so what a
killed one left stays unread at the end of its own file. Where a header in the middle is damaged, the next good one is
searched for, and the hole is reported by its place.
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

from striderl.checkpoint import strict_json
from striderl.checkpoint.errors import CheckpointCorrupt
from striderl.checkpoint.file_ops import FileOps
from striderl.datasets.trajectory_errors import (
    TrajectoryCorrupt,
    TrajectoryError,
    TrajectoryMismatch,
    TrajectoryMissing,
    TrajectoryVersion,
)
from striderl.datasets.trajectory_record import HEADER_BYTES, MAGIC, MAX_ABOUT_BYTES, TAIL, Header, parse_header
from striderl.datasets.trajectory_spec import METADATA, VERSION

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


class Entry(NamedTuple):
    """Where a trajectory is."""

    offset: int
    header: Header


@dataclass
class ShardScan:
    """What a reader knows of a shard so far."""

    path: Path
    about: dict[str, Any] | None = None
    """What the writer said of itself; None before the head was read."""
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

    def look(self, fingerprint: int) -> list[Entry]:
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
        """Read who wrote the shard; every version begins with such a head. Without a good one, look for records."""
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

    def _read_records(self, descriptor: int, fingerprint: int) -> list[Entry]:
        entries: list[Entry] = []
        while True:
            header = parse_header(os.pread(descriptor, HEADER_BYTES, self.position), self.position, fingerprint)
            if header is not None:
                end = self.position + header.record_bytes
                if end > self.size:
                    return entries  # under way, or cut off here
                if os.pread(descriptor, len(TAIL), end - len(TAIL)) == TAIL:
                    entries.append(Entry(self.position, header))
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
    """Read what a writer said of itself; its checksum is good already."""
    try:
        content = strict_json.decode(text, path, max_bytes=MAX_ABOUT_BYTES)
    except CheckpointCorrupt:
        return {}
    return content if isinstance(content, dict) else {}
