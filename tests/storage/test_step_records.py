"""Steps as records of bytes: where numbers lie, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from striderl.data import tree
from striderl.data.arena import Arena, Placement
from striderl.data.specs import TensorSpec
from striderl.storage.replay.rows import ENDS, SEEN, TERMINATED, TRUNCATED, VALID, PackedRows, RecordArena

FLAG = TensorSpec(dtype="bool")
FLAGS = {"terminated": FLAG, "truncated": FLAG, "valid": FLAG}
SMALL: Any = {**FLAGS, "act": TensorSpec(shape=(6,)), "rew": TensorSpec()}
MANY: Any = {
    **FLAGS,
    "act": TensorSpec(dtype="int64"),
    "rew": TensorSpec(),
    "info": {
        "half": TensorSpec(shape=(3,), dtype="float16"),
        "matrix": TensorSpec(shape=(2, 2), dtype="float64"),
        "nested": {"byte": TensorSpec(dtype="uint8"), "flag": FLAG, "also": FLAG},
    },
    "policy": {},
}


def test_a_record_is_half_a_cache_line() -> None:
    # 6 + 1 floats are 28 bytes; the flags begin at 28, which is a multiple of 4; 31 bytes are rounded up to 32
    arena = RecordArena(SMALL, (5, 2), Placement())
    assert (arena.offsets, arena.records.shape) == ({"float32": 0, "bool": 28}, (10, 32))
    arena.data["rew"][3, 1] = 2.0
    arena.data["valid"][3, 1] = True
    assert arena.records[7, 24:28].view(np.float32).item() == 2.0
    assert arena.records[7, 28:].tolist() == [0, 0, 1, 0]


def test_every_dtype_lies_where_it_can_be_read() -> None:
    # 1 int64 (0:8), 4 float64 (8:40), 1 float32 (40:44), 3 float16 (44:50), 5 bools from 52 on, 1 uint8 at 57; 58 -> 64
    arena = RecordArena(MANY, (3, 1), Placement())
    wanted = {"int64": 0, "float64": 8, "float32": 40, "float16": 44, "bool": 52, "uint8": 57}
    assert arena.offsets == wanted
    assert arena.records.shape == (3, 64)
    assert list(arena.blocks) == list(Arena(MANY, (3, 1)).blocks)


@pytest.mark.parametrize("columns", [SMALL, MANY], ids=["small", "many"])
@pytest.mark.parametrize("shared", [False, True])
def test_records_hold_what_blocks_hold(columns: Any, shared: bool) -> None:
    leading = (4, 3)
    parts = [PackedRows(kind(columns, leading, Placement(shared=shared))) for kind in (RecordArena, Arena)]
    generator = torch.Generator().manual_seed(0)
    for _, column in tree.items(parts[0].arena.data):
        column.copy_(torch.randint(0, 2, column.shape, generator=generator))
    parts[1].arena.load_state_dict(parts[0].arena.state_dict())
    rows = np.array([[11, 0, 7], [5, 5, 2]])
    index = torch.from_numpy(rows.ravel())
    one, other = (part.gather(index) for part in parts)
    assert tree.equal(one, other)
    assert tree.equal(parts[0].gather(index + 12, "wrap"), one)
    with pytest.raises(IndexError):
        parts[0].gather(index + 12)
    for part in parts:
        words = part.words_at(rows)
        assert np.array_equal(words.ravel() & SEEN, part.words(part.take(rows.ravel())) & SEEN)
        assert ((words & TERMINATED) != 0).ravel().tolist() == one["terminated"].tolist()
        assert ((words & TRUNCATED) != 0).ravel().tolist() == one["truncated"].tolist()
        assert ((words & VALID) != 0).ravel().tolist() == one["valid"].tolist()
        assert ((words & ENDS) != 0).ravel().tolist() == (one["terminated"] | one["truncated"]).tolist()
