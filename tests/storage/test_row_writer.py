"""The quick writer of a rollout: the same memory as `Arena.write`, or a refusal that changes nothing."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from striderl.data.arena import Arena
from striderl.data.specs import TensorSpec
from striderl.storage.rollout import RowWriter

COLUMNS = {
    "obs": {"joints": TensorSpec(shape=(3,)), "image": TensorSpec(shape=(1, 2, 2), dtype="uint8")},
    "rew": TensorSpec(),
    "done": TensorSpec(dtype="bool"),
    "policy": {"memo": {}},
}


def row(number: float, num_envs: int = 4) -> dict:
    return {
        "obs": {
            "joints": torch.arange(num_envs * 3.0).view(num_envs, 3) + number,
            "image": torch.full((num_envs, 1, 2, 2), 7, dtype=torch.uint8),
        },
        "rew": torch.arange(float(num_envs)) - number,
        "done": torch.arange(num_envs) % 2 == 0,
        "policy": {"memo": {}},
    }


def blocks(arena: Arena) -> list[torch.Tensor]:
    return [block.clone() for block in arena.blocks.values()]


@pytest.mark.parametrize("envs", [slice(0, 4), slice(1, 3)])
def test_it_writes_what_the_arena_writes(envs):
    quick, slow = Arena(COLUMNS, (5, 4)), Arena(COLUMNS, (5, 4))
    values = row(10.0, envs.stop - envs.start)
    assert RowWriter().write(quick, 2, envs, values)
    slow.write((2, envs), values)
    assert all(torch.equal(one, two) for one, two in zip(blocks(quick), blocks(slow)))
    assert quick.data["obs"]["joints"][2, envs.start].tolist() == [10.0, 11.0, 12.0]


WRONG = {
    "another dtype": lambda values: values | {"rew": values["rew"].double()},
    "another shape": lambda values: values | {"rew": values["rew"].unsqueeze(-1)},
    "too few envs": lambda values: values | {"done": values["done"][:2]},
    "a column missing": lambda values: {name: values[name] for name in values if name != "done"},
    "a column too many": lambda values: values | {"extra": values["rew"]},
    "another name": lambda values: values | {"obs": {"joints": values["obs"]["joints"], "picture": values["rew"]}},
    "a tensor for a group": lambda values: values | {"obs": values["rew"]},
    "an array": lambda values: values | {"rew": values["rew"].numpy()},
    "a gradient": lambda values: values | {"rew": values["rew"].requires_grad_()},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_is_refused_whole(wrong):
    arena = Arena(COLUMNS, (5, 4))
    assert not RowWriter().write(arena, 0, slice(0, 4), WRONG[wrong](row(1.0)))
    assert all(not block.any() for block in blocks(arena))


def test_memory_without_a_numpy_form_is_refused():
    arena = Arena({"x": TensorSpec(dtype="bfloat16")}, (2, 3))
    assert not RowWriter().write(arena, 0, slice(0, 3), {"x": torch.ones(3, dtype=torch.bfloat16)})


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_writes_into_its_own_arena(copied):
    arena, writer = Arena(COLUMNS, (5, 4)), RowWriter()
    assert writer.write(arena, 0, slice(0, 4), row(1.0))
    other, other_writer = copied((arena, writer))
    assert other_writer.write(other, 1, slice(0, 4), row(2.0))
    assert other.data["rew"][1].tolist() == [-2.0, -1.0, 0.0, 1.0]
    assert arena.data["rew"][1].tolist() == [0.0] * 4
