"""The tree functions over every kind of container."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch

from striderl import Batch
from striderl.data import tree
from striderl.data.named_tuples import NamedArrayTupleSchema, namedarraytuple

Plain = namedtuple("Plain", ["x", "y"])
Arrays = namedarraytuple("Arrays", ["x", "y"])
Schema = NamedArrayTupleSchema("Schema", ["x", "y"])


def tensordict(values):
    module = pytest.importorskip("tensordict")
    return module.TensorDict({key: torch.as_tensor(value) for key, value in values.items()}, batch_size=[3])


MAKERS = {
    "dict": dict,
    "ordered": OrderedDict,
    "batch": Batch,
    "namedtuple": lambda values: Plain(**values),
    "namedarraytuple": lambda values: Arrays(**values),
    "schema": lambda values: Schema(**values),
    "tuple": lambda values: tuple(values.values()),
    "list": lambda values: list(values.values()),
    "tensordict": tensordict,
}


@pytest.fixture(params=list(MAKERS))
def make(request):
    return MAKERS[request.param]


def values(offset=0.0):
    return {"x": np.arange(3.0) + offset, "y": np.arange(6.0).reshape(3, 2) + offset}


def leaf_values(structure):
    return [np.asarray(leaf) for leaf in tree.leaves(structure)]


def test_map_keeps_the_container(make):
    made = make(values())
    doubled = tree.map(lambda leaf: leaf * 2, made)
    assert type(doubled) is type(made)
    for found, wanted in zip(leaf_values(doubled), values().values()):
        np.testing.assert_array_equal(found, wanted * 2)


def test_index_and_assign(make):
    made = make(values())
    np.testing.assert_array_equal(leaf_values(tree.index(made, slice(1, 3)))[1], values()["y"][1:])
    np.testing.assert_array_equal(leaf_values(tree.index(made, np.array([2, 0])))[0], [2, 0])
    tree.assign(made, 0, tree.index(make(values(10.0)), 2))
    np.testing.assert_array_equal(leaf_values(made)[0], [12, 1, 2])
    tree.assign(made, slice(None), 7.0)
    assert all((leaf == 7).all() for leaf in leaf_values(made))


def test_stack_cat_and_leading_dims(make):
    one, two = make(values()), make(values(1.0))
    assert tree.leading_dims(one) == (3,)
    assert [leaf.shape for leaf in leaf_values(tree.stack([one, two]))] == [(2, 3), (2, 3, 2)]
    assert [leaf.shape for leaf in leaf_values(tree.cat([one, two]))] == [(6,), (6, 2)]


def test_conversion_copy_and_equality(make):
    made = make(values())
    assert all(isinstance(leaf, torch.Tensor) for leaf in tree.leaves(tree.to_torch(made)))
    assert tree.leaves(tree.to(tree.to_torch(made), dtype=torch.float16))[0].dtype is torch.float16
    copied = tree.copy(made)
    assert tree.equal(made, copied)
    tree.assign(copied, 1, 99.0)
    assert not tree.equal(made, copied)


def test_paths_and_none():
    nested = {"obs": Batch(joints=np.zeros(2)), "rest": (None, [np.ones(1)])}
    assert [path for path, _ in tree.items(nested)] == ["obs/joints", "rest/1/0"]
    mapped = tree.map(lambda leaf: leaf + 1, nested)
    assert mapped["rest"][0] is None and mapped["rest"][1][0][0] == 2
    assert tree.map(lambda leaf: leaf, None) is None and tree.equal(None, None) and not tree.equal(None, np.zeros(1))
    assert tree.leaves(np.zeros(2))[0].shape == (2,)


def test_map_of_several_goes_by_key_not_by_order():
    total = tree.map(lambda a, b: a - b, {"a": 5, "b": 7}, {"b": 1, "a": 2})
    assert total == {"a": 3, "b": 6}


@pytest.mark.parametrize(
    ("one", "two", "text"),
    [
        ({"a": {"b": 1}}, {"a": {"c": 1}}, r"a: the two sides differ; missing \['b'\], unexpected \['c'\]"),
        ({"a": {"b": 1}}, {"a": 3}, "a has parts"),
        ({"a": None}, {"a": 3}, "a is None on one side"),
        ((1, 2), (1, 2, 3), "the top: the two sides differ"),
    ],
)
def test_structures_that_differ_are_named_by_path(one, two, text):
    with pytest.raises(tree.StructureError, match=text):
        tree.map(lambda a, b: a, one, two)


@pytest.mark.parametrize(
    ("loc", "value", "error", "text"),
    [
        (5, 1.0, IndexError, "obs/a has shape"),
        (0, {"obs": {"a": 1.0, "b": [1.0, 2.0]}}, ValueError, "obs/b wants shape"),
        (0, {"obs": {"a": 1.0, "b": None}}, TypeError, "None cannot be written|differ|None"),
        (0, {"obs": {"a": 1.0, "c": 2.0}}, tree.StructureError, "missing"),
    ],
)
def test_assign_is_all_or_nothing(loc, value, error, text):
    target = {"obs": {"a": np.arange(3.0), "b": torch.arange(3.0)}}
    before = tree.copy(target)
    with pytest.raises(error, match=text):
        tree.assign(target, loc, value)
    assert tree.equal(target, before)


def test_leading_dims_errors():
    with pytest.raises(ValueError, match="'a' has \\(3,\\), 'b' has \\(2,\\)"):
        tree.leading_dims({"a": np.zeros(3), "b": np.zeros(2)})
    with pytest.raises(ValueError, match="at least 2 leading"):
        tree.leading_dims({"a": np.zeros(3)}, 2)
    with pytest.raises(ValueError, match="without leaves"):
        tree.leading_dims({"a": None})
    with pytest.raises(ValueError, match="at least one structure"):
        tree.stack([])
