"""Sampling from a replay inside a CUDA graph: what changes from step to step lies in tensors.

    host, now and then                            device, in every step
    block of uniform numbers [K, B] ──copy──▶     numbers [K, B]  row [1] ─▶ numbers[row] ─▶ row index ─▶ view ─▶ data
    how many steps there are        ──fill──▶     total, size                                           row += 1

A graph reads fixed addresses and never syncs with the host, so the numbers of the next K draws lie in memory that
stays, and which of them is next is a number on the device. They are those that `Replay.sample` would use: sampling
in a graph and step by step may be mixed, and a saved run resumes the same either way.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from striderl.storage.replay.reader import ReplayReader
from striderl.storage.replay.replay import Replay, View
from striderl.storage.replay.ring import RingCursor
from striderl.storage.replay.rows import PackedRows
from striderl.storage.replay.samplers import Uniform


class DeviceCursor:
    """The step counts of a ring of equally far envs, as tensors; has what a `ReplayReader` reads of a `RingCursor`."""

    even = True

    def __init__(self, cursor: RingCursor, device: torch.device) -> None:
        """Copy the cursor's counts."""
        self.num_envs, self.rows = cursor.num_envs, cursor.rows
        self.total = torch.zeros((), dtype=torch.int64, device=device)
        """Number of steps every env has written."""
        self.size = torch.zeros((), dtype=torch.int64, device=device)
        """Number of them that are stored."""
        self._version = -1
        self.follow(cursor)

    def follow(self, cursor: RingCursor) -> None:
        """Copy the cursor's counts again, without a device sync."""
        if cursor.version != self._version:
            self.total.fill_(cursor.total)
            self.size.fill_(cursor.size)
            self._version = cursor.version


class RowsAhead:
    """Blocks [K, …] of which a CUDA graph reads one row after the other.

    The host loads a new block when the last one is used up, or when another row than the next is needed.
    """

    def __init__(self, device: torch.device) -> None:
        """Start empty."""
        self.row = torch.zeros(1, dtype=torch.int64, device=device)
        """The row that is taken next."""
        self.blocks: dict[str, Tensor] = {}
        """The rows by name, at addresses that stay."""
        self._next = 0
        self._of: Any = None

    @torch.no_grad()
    def load(self, of: Any, blocks: dict[str, Tensor], row: int) -> None:
        """Load these blocks, identified by `of`, with this row as the next one."""
        if of != self._of:
            if not self.blocks:
                self.blocks = {name: block.clone() for name, block in blocks.items()}
            else:
                for name, block in blocks.items():
                    self.blocks[name].copy_(block)
            self._of = of
        if row != self._next:
            self.row.fill_(row)
        self._next = row

    def current(self) -> dict[str, Tensor]:
        """Return the row that is next, of every block."""
        return {name: block.index_select(0, self.row).squeeze(0) for name, block in self.blocks.items()}

    def advance(self) -> None:
        """Advance to the next row, on the device, inside the graph."""
        self.row.add_(1)

    def advanced(self) -> None:
        """Advance the host's counter after a replay of the graph."""
        self._next += 1


class DeviceSampler:
    """Samples uniformly from a replay, on the device alone; see the picture at the top of this module."""

    def __init__(self, replay: Replay, batch_size: int) -> None:
        """Prepare; the replay's sampler is `Uniform` and its envs are equally far."""
        if not isinstance(replay.sampler, Uniform):
            raise TypeError(f"DeviceSampler picks uniformly, found {type(replay.sampler).__name__}")
        self.replay, self.batch_size, self._sampler = replay, batch_size, replay.sampler
        device = replay.read.device
        self._cursor = DeviceCursor(replay.cursor, device)
        self._reader = device_reader(replay, self._cursor)
        self._numbers = RowsAhead(device)

    def ready(self) -> None:
        """Copy the host's step and draw counts before each graph replay, without a sync."""
        self._cursor.follow(self.replay.cursor)
        of, block, row = self._sampler.block(self.batch_size)
        self._numbers.load(of, {"numbers": block}, row)

    def sample(self) -> tuple[dict[str, Any], Tensor]:
        """Return data and rows [B] that `Replay.sample` would; reads tensors only, and changes none."""
        read, cursor = self._reader, self._cursor
        numbers = self._numbers.current()["numbers"]
        first = (cursor.total - cursor.size) % cursor.rows * cursor.num_envs
        index = ((numbers * (cursor.size * cursor.num_envs)).long() + first) % read.num_rows
        view: View | None = self.replay.view
        return (read.rows(index) if view is None else view(read, index)), index

    def advance(self) -> None:
        """Advance to the next draw, on the device, inside the graph."""
        self._numbers.advance()

    def advanced(self) -> None:
        """Advance the host's counter and the sampler after a replay of the graph."""
        self._numbers.advanced()
        self._sampler.skip()


class DeviceRows:
    """The rows of an arena as a `ReplayReader` reads them, with torch alone (on the CPU the reader uses numpy)."""

    fast = False

    def __init__(self, rows: PackedRows) -> None:
        """Read the same memory."""
        self.arena, self._rows = rows.arena, rows
        self._count = math.prod(rows.arena.leading)

    def gather(self, index: Tensor, mode: str = "raise") -> dict[str, Any]:
        """Read rows by number into nested dicts [B, …]; with mode 'wrap', numbers beyond the last row go round."""
        return self.arena.gather(index % self._count if mode == "wrap" else index)

    def one(self, path: tuple[str, ...], index: Tensor) -> Tensor:
        """Read one column of these rows."""
        return self._rows.one(path, index)

    def flat(self, path: tuple[str, ...]) -> Tensor:
        """Return one column of all rows, as a view [rows, …]."""
        return self._rows.flat(path)


def device_reader(replay: Replay, cursor: DeviceCursor) -> ReplayReader:
    """Return a reader of the same rows that takes the ring's counts from tensors and reads rows with torch alone."""
    # both have what a reader uses while envs are equally far: even, total, size, rows, num_envs; gather, one, flat
    follows = cast(RingCursor, cursor)
    steps, frames, finals = (
        cast(PackedRows, DeviceRows(rows)) for rows in (replay.steps, replay.frames, replay.finals)
    )
    return ReplayReader(follows, steps, frames, finals, None, None)
