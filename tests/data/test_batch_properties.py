"""Batch and tree against plain numpy, on random nested structures, with numpy and torch leaves."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from striderl import Batch
from striderl.data import tree

DTYPES = [np.float32, np.float64, np.int64, np.int32, np.uint8, bool]
KEYS = st.sampled_from(["obs", "act", "rew", "a", "b", "policy", "x_1", "Z"])


def leaf_arrays(rows: int):
    shapes = st.lists(st.integers(1, 3), max_size=2)
    return st.builds(
        lambda shape, dtype, seed: (np.random.default_rng(seed).random((rows, *shape)) * 100).astype(dtype),
        shapes,
        st.sampled_from(DTYPES),
        st.integers(0, 2**16),
    )


def nested_dicts(rows: int):
    """Random dicts of arrays with this many rows, up to three levels deep, each with at least one leaf."""
    return st.recursive(
        st.dictionaries(KEYS, leaf_arrays(rows), min_size=1, max_size=3),
        lambda inner: st.dictionaries(KEYS, st.one_of(leaf_arrays(rows), inner), min_size=1, max_size=3),
        max_leaves=6,
    )


def flatten(nested, prefix=""):
    if isinstance(nested, (dict, Batch)):
        return {k: v for key, value in nested.items() for k, v in flatten(value, f"{prefix}{key}/").items()}
    return {prefix: np.asarray(nested)}


def same(batch, expected: dict) -> None:
    found = flatten(batch)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)
        assert found[key].shape == np.shape(value)


def both_kinds(nested):
    """The same data with numpy leaves and with torch leaves."""
    return [Batch(copy.deepcopy(nested)), Batch(copy.deepcopy(nested)).to_torch()]


ROWS = 5
INDICES = st.one_of(
    st.integers(-ROWS, ROWS - 1),
    st.slices(ROWS),
    st.lists(st.integers(-ROWS, ROWS - 1), min_size=1, max_size=7).map(np.array),
    st.lists(st.booleans(), min_size=ROWS, max_size=ROWS).map(np.array),
)


def for_torch(loc, batch):
    """Torch has no negative steps; use the same rows as an index array."""
    if isinstance(loc, slice) and (loc.step or 1) < 0:
        return np.arange(ROWS)[loc]
    return loc


@pytest.mark.slow
@given(nested_dicts(ROWS), INDICES)
def test_indexing_equals_numpy(nested, loc):
    flat = flatten(nested)
    for batch in both_kinds(nested):
        loc_ = for_torch(loc, batch)
        same(batch[loc_], {key: value[loc_] for key, value in flat.items()})
        same(tree.index(batch, loc_), {key: value[loc_] for key, value in flat.items()})


@pytest.mark.slow
@given(nested_dicts(ROWS), INDICES, st.integers(0, 2**16))
def test_assignment_equals_numpy(nested, loc, seed):
    rng = np.random.default_rng(seed)
    new = tree.map(lambda leaf: rng.permutation(leaf), nested)
    loc = for_torch(loc, None)
    expected = flatten(copy.deepcopy(nested))
    for key, value in flatten(new).items():
        expected[key][loc] = value[loc]
    for batch, value in zip(both_kinds(nested), both_kinds(new)):
        batch[loc] = value[loc]
        same(batch, expected)
    for batch, value in zip(both_kinds(nested), both_kinds(new)):
        tree.assign(batch, loc, value[loc])
        same(batch, expected)


@pytest.mark.slow
@given(nested_dicts(ROWS), st.integers(1, 4))
def test_stack_then_index_gives_the_parts_back(nested, count):
    parts = [tree.map(lambda leaf, i=i: np.roll(leaf, i, axis=0), nested) for i in range(count)]
    for kind in (lambda part: Batch(part), lambda part: Batch(part).to_torch()):
        stacked = Batch.stack([kind(part) for part in parts])
        for position, part in enumerate(parts):
            same(stacked[position], flatten(part))
            same(tree.stack([kind(p) for p in parts])[position], flatten(part))


@pytest.mark.slow
@given(nested_dicts(ROWS), st.integers(1, 7))
def test_split_then_cat_gives_the_whole_back(nested, size):
    for batch in both_kinds(nested):
        parts = list(batch.split(size, shuffle=False))
        assert sum(len(part) for part in parts) == ROWS
        same(Batch.cat(parts), flatten(nested))
        same(tree.cat(parts), flatten(nested))
        merged = list(batch.split(size, shuffle=False, merge_last=True))
        assert all(len(part) >= min(size, ROWS) for part in merged)
        same(Batch.cat(merged), flatten(nested))


@pytest.mark.slow
@given(nested_dicts(ROWS), st.floats(-10, 10))
def test_arithmetic_equals_numpy(nested, number):
    floats = tree.map(lambda leaf: leaf.astype(np.float64), nested)
    flat = flatten(floats)
    for batch in both_kinds(floats):
        same(batch + number, {key: value + number for key, value in flat.items()})
        same(batch * batch, {key: value * value for key, value in flat.items()})
        same(number - batch, {key: number - value for key, value in flat.items()})
        changed = batch.copy()
        changed += number
        same(changed, {key: value + number for key, value in flat.items()})


@pytest.mark.slow
@given(nested_dicts(ROWS))
def test_conversions_round_trip(nested):
    batch = Batch(nested)
    assert batch.to_torch().to_numpy() == batch
    assert batch.copy() == batch and tree.equal(batch.to_torch(), batch)
    assert len(batch) == ROWS == tree.leading_dims(batch)[0]


@pytest.mark.slow
@given(nested_dicts(ROWS), nested_dicts(ROWS))
def test_cat_of_different_keys_pads_with_zeros(one, two):
    shared = flatten(one).keys() & flatten(two).keys()
    try:
        joined = Batch.cat([Batch(one), Batch(two)])
    except (ValueError, TypeError):
        # allowed only when a key is a leaf on one side and a batch or another shape on the other
        clash = any(
            np.shape(flatten(one)[key])[1:] != np.shape(flatten(two)[key])[1:] for key in shared
        ) or _kinds_clash(one, two)
        assert clash
        return
    flat = flatten(joined)
    assert flat.keys() == flatten(one).keys() | flatten(two).keys()
    for key, value in flat.items():
        assert len(value) == 2 * ROWS
        first = flatten(one).get(key)
        np.testing.assert_array_equal(value[:ROWS], 0 if first is None else first)


def _kinds_clash(one, two) -> bool:
    return any(
        isinstance(one[key], dict) != isinstance(two[key], dict)
        or (isinstance(one[key], dict) and _kinds_clash(one[key], two[key]))
        for key in one.keys() & two.keys()
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_numpy_and_torch_agree_on_axes(axis):
    parts = [{"a": np.arange(6).reshape(2, 3) + i} for i in range(3)]
    for join in (Batch.stack, Batch.cat):
        ours = join([Batch(part) for part in parts], axis=axis)
        theirs = join([Batch(part).to_torch() for part in parts], axis=axis)
        np.testing.assert_array_equal(ours.a, theirs.a.numpy())
        assert isinstance(theirs.a, torch.Tensor)
