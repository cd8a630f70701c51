"""Cache of trajectory frames on the learner's device: pages of a fixed number of frames, read on demand.

    page_frames = 4               trajectory 7 (6 frames, and the final observation)        trajectory 9 (3 frames)
    pieces                        [7/0 7/1 7/2 7/3] [7/4 7/5 7/6 ·]                         [9/0 9/1 9/2 ·]
    pages on the device           │ page 0: 9/0… │ page 1: 7/4… │ page 2: 7/0… │ … │ one blank row

    row of (7, 5) = page of (7, 5 // 4) · 4 + 5 % 4 = 1 · 4 + 1

All rows of a batch are looked up together with a table of pages and gathered together, one gather per dtype. When the
pages are all in use, the least recently used are replaced. A row of zeros stands for missing frames.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.data import tree
from striderl.data.arena import Arena, Columns, Placement
from striderl.datasets.playback.sources import Numbers

_log = logging.getLogger(__name__)

Read = Callable[[int, int, int], dict[str, Any]]
"""(trajectory, start, stop) → columns [stop - start, …]."""

_LEAST_PAGES = 4


class FramePages:
    """A cache of frames on a device."""

    def __init__(
        self, columns: Columns, read: Read, *, page_frames: int, max_bytes: int, device: torch.device | str
    ) -> None:
        """Hold frames with these columns; `max_bytes` is exceeded only where one batch needs more."""
        if page_frames < 1:
            raise ValueError(f"a page has at least one frame, found {page_frames}")
        self._columns, self._read, self._placement = columns, read, Placement(device=str(device))
        self.page_frames = page_frames
        row_bytes = max(1, Arena(columns, (1,)).num_bytes)
        self.max_pages = max(_LEAST_PAGES, max_bytes // (row_bytes * page_frames))
        """How many pages there are at most, unless one batch needs more."""
        self._arena = Arena(columns, (1,), self._placement)
        self._first_piece: Numbers = np.zeros(1, np.int64)
        self._num_frames: Numbers = np.zeros(0, np.int64)
        self._page_of: Numbers = np.zeros(0, np.int64)
        self._piece_in: Numbers = np.zeros(0, np.int64)
        self._last_use: Numbers = np.zeros(0, np.int64)
        self._clock = 0
        self.num_reads = 0
        """How many pages were read so far."""

    @property
    def num_pages(self) -> int:
        """How many pages there are now."""
        return len(self._piece_in)

    @property
    def num_bytes(self) -> int:
        """How much memory they take."""
        return self._arena.num_bytes

    def know(self, num_frames: Numbers) -> None:
        """Add trajectories with so many frames, after the known ones."""
        pieces = -(-num_frames // self.page_frames)
        firsts = self._first_piece[-1] + np.cumsum(pieces)
        self._first_piece = np.concatenate([self._first_piece, firsts])
        self._num_frames = np.concatenate([self._num_frames, num_frames])
        self._page_of = np.concatenate([self._page_of, np.full(int(pieces.sum()), -1, np.int64)])

    def rows(self, trajectory: Numbers, frame: Numbers) -> Tensor:
        """Return the rows of frames, int64 in their shape on the device; trajectory -1 is the blank row.

        The rows are good until the next call.
        """
        there = trajectory >= 0
        piece = self._first_piece[np.where(there, trajectory, 0)] + frame // self.page_frames
        wanted = np.zeros(len(self._page_of), np.bool_)
        wanted[piece[there]] = True  # several times faster than sorting them
        self._hold(np.flatnonzero(wanted))
        page = self._page_of[np.where(there, piece, 0)] if len(self._page_of) else np.zeros_like(piece)
        row = np.where(there, page * self.page_frames + frame % self.page_frames, self.num_pages * self.page_frames)
        return torch.from_numpy(row).to(self._placement.device, non_blocking=True)

    def gather(self, rows: Tensor) -> dict[str, Any]:
        """Read rows into nested columns with their shape in front."""
        found = self._arena.gather(rows.reshape(-1))
        shaped: dict[str, Any] = tree.map(lambda leaf: leaf.unflatten(0, rows.shape), found)
        return shaped

    # -- which pieces are there ----------------------------------------------------------------------------------------

    def _hold(self, pieces: Numbers) -> None:
        """Load these pieces, in order and each once, into pages."""
        self._clock += 1
        found = self._page_of[pieces]
        self._last_use[found[found >= 0]] = self._clock
        missing = pieces[found < 0]
        if not len(missing):
            return
        self._grow(len(missing), len(pieces))
        # the oldest first; pages that were never used have time 0
        free = np.argsort(self._last_use, kind="stable")[: len(missing)]
        emptied = self._piece_in[free]
        self._page_of[emptied[emptied >= 0]] = -1
        self._page_of[missing], self._piece_in[free], self._last_use[free] = free, missing, self._clock
        try:
            self._fill(missing, free)
        except BaseException:
            # a page whose bytes could not be read must not count as read
            self._page_of[missing], self._piece_in[free], self._last_use[free] = -1, -1, 0
            raise
        self.num_reads += len(missing)

    def _grow(self, num_missing: int, num_wanted: int) -> None:
        """Add pages while there may be more, or where the present batch alone needs them."""
        empty = int((self._piece_in < 0).sum())
        wanted = self.num_pages + max(0, num_missing - empty)
        allowed = max(self.max_pages, num_wanted)
        if wanted <= self.num_pages or self.num_pages >= allowed:
            return
        count = min(allowed, max(wanted, 2 * self.num_pages, _LEAST_PAGES))
        if count > self.max_pages:
            _log.warning(
                "one batch needs %d pages of %d frames, cache_bytes allows %d: more memory is taken",
                num_wanted,
                self.page_frames,
                self.max_pages,
            )
        larger = Arena(self._columns, (count * self.page_frames + 1,), self._placement)
        used = self.num_pages * self.page_frames
        for dtype, block in larger.blocks.items():
            block[:used].copy_(self._arena.blocks[dtype][:used])
        added = count - self.num_pages
        self._arena = larger
        self._piece_in = np.concatenate([self._piece_in, np.full(added, -1, np.int64)])
        self._last_use = np.concatenate([self._last_use, np.zeros(added, np.int64)])

    def _fill(self, pieces: Numbers, pages: Numbers) -> None:
        """Read pieces into pages; neighbours of one trajectory are read at once."""
        owner = np.searchsorted(self._first_piece, pieces, side="right") - 1
        cuts = np.flatnonzero((np.diff(pieces) != 1) | (np.diff(owner) != 0)) + 1
        for at in np.split(np.arange(len(pieces)), cuts):
            trajectory = int(owner[at[0]])
            start = int(pieces[at[0]] - self._first_piece[trajectory]) * self.page_frames
            stop = min(start + len(at) * self.page_frames, int(self._num_frames[trajectory]))
            columns = tree.map(lambda leaf: leaf.to(self._placement.device), self._read(trajectory, start, stop))
            for position, page in enumerate(pages[at]):
                piece = slice(position * self.page_frames, min((position + 1) * self.page_frames, stop - start))
                first = int(page) * self.page_frames
                self._arena.write(slice(first, first + piece.stop - piece.start), tree.index(columns, piece))
