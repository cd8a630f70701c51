"""Minibatches: every sample once per epoch, in the order of the generator, filled up with nothing that counts."""

from __future__ import annotations

import pytest
import torch

from striderl.execution.epochs import ShuffledMinibatches


def cut(count: int, num_mini_batches: int, num_epochs: int = 1, *, padded: bool = False, dim: int = 0):
    row = torch.arange(1, count + 1)
    columns = {
        "x": row if dim == 0 else row.expand(3, count),
        "nested": {"y": torch.stack([row, -row], dim=1)},
        "valid": torch.ones(count, dtype=torch.bool),
    }
    generator = torch.Generator().manual_seed(0)
    dims = {"x": dim, "nested": 0, "valid": 0}
    return list(
        ShuffledMinibatches(
            columns, dims, num_mini_batches=num_mini_batches, num_epochs=num_epochs, generator=generator, padded=padded
        )
    )


def test_every_sample_comes_once_per_epoch_in_the_order_of_the_generator():
    found = cut(7, 3, 2)
    assert [len(each["x"]) for each in found] == [3, 2, 2, 3, 2, 2]
    generator = torch.Generator().manual_seed(0)
    for epoch in (found[:3], found[3:]):
        wanted = torch.randperm(7, generator=generator) + 1
        assert torch.equal(torch.cat([each["x"] for each in epoch]), wanted)
        assert torch.equal(torch.cat([each["nested"]["y"][:, 1] for each in epoch]), -wanted)


def test_filled_minibatches_have_one_shape_and_the_same_order():
    plain, filled = cut(7, 3, 2), cut(7, 3, 2, padded=True)
    assert all(each["x"].shape == (3,) and each["nested"]["y"].shape == (3, 2) for each in filled)
    for one, other in zip(plain, filled):
        size = len(one["x"])
        assert torch.equal(other["x"][:size], one["x"]) and bool(other["valid"][:size].all())
        assert not other["valid"][size:].any() and not other["x"][size:].any()


def test_nothing_is_filled_where_sizes_are_equal():
    assert [each["x"].tolist() for each in cut(6, 3)] == [each["x"].tolist() for each in cut(6, 3, padded=True)]


def test_sequences_are_cut_along_envs():
    for each in cut(5, 2, dim=1):
        assert each["x"].shape == (3, len(each["valid"])) and torch.equal(each["x"][0], each["nested"]["y"][:, 0])


def test_columns_of_different_size_are_named():
    columns = {"x": torch.zeros(3), "y": torch.zeros(4)}
    with pytest.raises(ValueError, match=r"must have one size, found \{'x': 3, 'y': 4\}"):
        next(
            ShuffledMinibatches(
                columns, {"x": 0, "y": 0}, num_mini_batches=1, num_epochs=1, generator=torch.Generator()
            )
        )


@pytest.mark.parametrize(("count", "parts", "epochs", "together"), [(12, 4, 5, 20), (10, 3, 2, 6), (40, 10, 7, 14)])
def test_rows_of_many_are_the_rows_of_each_in_pieces_of_one_size(count, parts, epochs, together, monkeypatch):
    monkeypatch.setattr("striderl.execution.epochs.MOST_AT_ONCE", 20)
    minibatches = ShuffledMinibatches(
        {"x": torch.arange(count)},
        {"x": 0},
        num_mini_batches=parts,
        num_epochs=epochs,
        generator=torch.Generator().manual_seed(0),
        padded=True,
    )
    many = list(minibatches.rows_of_many())
    assert {len(rows) for rows in many} == {together}
    assert torch.equal(torch.cat(many), torch.stack(list(minibatches.rows())))
