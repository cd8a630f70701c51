"""Columns packed by dtype: views, packed reads, and the four places the memory can be."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
import torch

from striderl.data import tree
from striderl.data.arena import Arena, Placement
from striderl.data.noise import NoiseSpec
from striderl.data.specs import TensorSpec

COLUMNS = {
    "obs": {"joints": TensorSpec(shape=(12,)), "image": TensorSpec(shape=(1, 4, 4), dtype="uint8")},
    "act": TensorSpec(shape=(3,)),
    "rew": TensorSpec(),
    "done": TensorSpec(dtype="bool"),
    "noise": NoiseSpec(shape=(2,)).tensor,
}


def row(num_envs: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    return {
        "obs": {
            "joints": torch.rand(num_envs, 12, generator=generator),
            "image": torch.randint(0, 255, (num_envs, 1, 4, 4), generator=generator, dtype=torch.uint8),
        },
        "act": torch.rand(num_envs, 3, generator=generator),
        "rew": torch.rand(num_envs, generator=generator),
        "done": torch.rand(num_envs, generator=generator) > 0.5,
        "noise": torch.rand(num_envs, 2, generator=generator),
    }


@pytest.fixture(params=["memory", "shared", "file", pytest.param("cuda", marks=pytest.mark.gpu)])
def placement(request, tmp_path):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    return {
        "memory": Placement(),
        "shared": Placement(shared=True),
        "file": Placement(folder=tmp_path / "arena"),
        "cuda": Placement(device="cuda"),
    }[request.param]


def test_one_block_per_dtype_and_columns_are_views(placement):
    arena = Arena(COLUMNS, (5, 2), placement)
    assert {dtype: tuple(block.shape) for dtype, block in arena.blocks.items()} == {
        "float32": (5, 2, 12 + 3 + 1 + 2),
        "uint8": (5, 2, 16),
        "bool": (5, 2, 1),
    }
    arena.data["act"][2, 1, 0] = 7
    assert float(arena.blocks["float32"][2, 1, 12]) == 7
    assert arena.data["obs"]["image"].shape == (5, 2, 1, 4, 4) and arena.data["rew"].shape == (5, 2)
    assert arena.num_bytes == 5 * 2 * (18 * 4 + 16 + 1)


def test_write_select_and_gather(placement):
    arena = Arena(COLUMNS, (5, 2), placement)
    device = arena.blocks["bool"].device
    for step in range(5):
        arena.write(step, tree.to(row(2, step), device))
    wanted = row(2, 3)
    found = arena.select(3)
    assert torch.equal(found["obs"]["image"].cpu(), wanted["obs"]["image"])
    flat = arena.gather(torch.tensor([7, 0], device=device))  # step 3 env 1, step 0 env 0
    assert torch.equal(flat["act"][0].cpu(), wanted["act"][1])
    assert torch.equal(flat["obs"]["joints"][1].cpu(), row(2, 0)["obs"]["joints"][0])
    window = arena.select((slice(1, 4), torch.tensor([1], device=device)))
    assert window["rew"].shape == (3, 1) and window["obs"]["image"].shape == (3, 1, 1, 4, 4)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda r: r.pop("act"), KeyError, "no column 'act'"),
        (lambda r: r.update(extra=torch.zeros(2)), KeyError, "no column 'extra'"),
        (lambda r: r.update(act=torch.zeros(2, 4)), ValueError, "'act' wants shape"),
        (lambda r: r.update(done=torch.zeros(2)), TypeError, "'done' holds torch.bool"),
    ],
)
def test_a_bad_row_is_refused_whole(change, error, text):
    arena = Arena(COLUMNS, (3, 2))
    bad = row(2, 0)
    change(bad)
    with pytest.raises(error, match=text):
        arena.write(0, bad)
    assert all(not block.any() for block in arena.blocks.values())


def test_state_round_trip_and_mismatch():
    arena, other = Arena(COLUMNS, (3, 2)), Arena(COLUMNS, (3, 2))
    arena.write(1, row(2, 5))
    other.load_state_dict({key: value.clone() for key, value in arena.state_dict().items()})
    assert torch.equal(other.data["noise"], arena.data["noise"])
    with pytest.raises(ValueError, match="wanted"):
        Arena(COLUMNS, (4, 2)).load_state_dict(arena.state_dict())
    with pytest.raises(ValueError, match="dtypes"):
        Arena({"a": TensorSpec()}, (3, 2)).load_state_dict(arena.state_dict())


def _fill(arena: Arena) -> None:
    arena.data["rew"][:] = 3.0
    arena.data["obs"]["image"][0, 1] = 9


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_shared_arena_is_one_memory_in_two_processes(method):
    arena = Arena(COLUMNS, (4, 2), Placement(shared=True))
    process = multiprocessing.get_context(method).Process(target=_fill, args=(arena,), daemon=True)
    process.start()
    process.join(120)
    assert process.exitcode == 0
    assert bool((arena.data["rew"] == 3).all()) and int(arena.data["obs"]["image"][0, 1, 0, 0, 0]) == 9


def test_files_are_kept_and_foreign_files_refused(tmp_path):
    place = Placement(folder=tmp_path)
    Arena(COLUMNS, (4, 2), place).data["act"][1, 1] = 5.0
    assert float(Arena(COLUMNS, (4, 2), place).data["act"][1, 1, 2]) == 5.0
    with pytest.raises(ValueError, match="belongs to another arena"):
        Arena(COLUMNS, (5, 2), place)
    assert np.fromfile(tmp_path / "float32.bin", np.float32).size == 4 * 2 * 18


def test_contradictory_placements_and_columns():
    with pytest.raises(ValueError, match="choose one"):
        Placement(device="cuda", shared=True)
    with pytest.raises(TypeError, match="bfloat16"):
        Arena({"a": TensorSpec(dtype="bfloat16")}, (2,), Placement(shared=True))
    with pytest.raises(TypeError, match="wanted a TensorSpec"):
        Arena({"a": (3,)}, (2,))


def test_a_value_on_another_device_is_named():
    arena = Arena({"act": TensorSpec(shape=(3,))}, (2, 4))
    with pytest.raises(ValueError, match="column 'act' is on cpu, the value on meta"):
        arena.write(0, {"act": torch.zeros(4, 3, device="meta")})
