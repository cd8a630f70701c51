"""The columns of a step as one record of bytes, so that reading a step touches one stretch of memory.

    columns    act float32 (6,), rew float32 (), terminated, truncated, valid bool ()
    record     │ act 0:24               │ rew 24:28 │ T U V 28:31 │ ·│     32 bytes, half a cache line

    memory uint8 [R, N, 32];  blocks: float32 [R, N, 7] in bytes 0:28 and bool [R, N, 3] in bytes 28:31

Larger dtypes come first and every record is a multiple of the largest, so each number lies where its dtype wants it.
The bools begin at a multiple of four bytes: three flags and one byte more are a word, which is compared at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from striderl.data.arena import Arena, Columns, Placement
from striderl.data.specs import TensorSpec, torch_dtype

WORD = 4
"""Bytes of a word of flags."""


class RecordArena(Arena):
    """An arena whose blocks are strided parts of one memory; everything else is as in any arena."""

    def __init__(self, columns: Columns, leading: tuple[int, ...], placement: Placement) -> None:
        """Allocate zeros for every record."""
        super().__init__(columns, (0, *leading[1:]))  # works out where the columns lie within their dtype
        widths = {dtype: int(block.shape[-1]) for dtype, block in self.blocks.items()}
        self.offsets, size = _offsets(widths)
        """Dtype → the byte of the record where its columns begin."""
        record = TensorSpec(shape=(size,), dtype="uint8")
        memory = Arena({"record": record}, leading, placement).blocks["uint8"]
        self.records: NDArray[np.uint8] = memory.view(-1, size).numpy()
        """The bytes of all rows, [R · N, size]."""
        blocks = {}
        for dtype, width in widths.items():
            start = self.offsets[dtype]
            stop = start + width * np.dtype(dtype).itemsize
            blocks[dtype] = memory[..., start:stop].view(torch_dtype(dtype))
        self._attach(columns, leading, placement, self._places, blocks)


def _offsets(widths: dict[str, int]) -> tuple[dict[str, int], int]:
    """Return where each dtype begins in a record, and how long a record is."""
    sizes = {dtype: np.dtype(dtype).itemsize for dtype in widths}
    offsets: dict[str, int] = {}
    end = 0
    for dtype in sorted(widths, key=lambda dtype: (-sizes[dtype], dtype != "bool")):
        start = _up(end, WORD if dtype == "bool" else sizes[dtype])
        offsets[dtype] = start
        end = start + widths[dtype] * sizes[dtype]
    return offsets, _up(end, max(WORD, *sizes.values()))


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
