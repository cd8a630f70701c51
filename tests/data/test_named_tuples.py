import copy
import multiprocessing
import pickle
import subprocess
import sys
from collections import OrderedDict, namedtuple
from typing import NamedTuple as TypingNamedTuple

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from striderl.data import tree
from striderl.data.named_tuples import (
    NamedArrayTuple,
    NamedArrayTupleSchema,
    NamedArrayTupleSchema_like,
    NamedTuple,
    NamedTupleSchema,
    is_namedarraytuple,
    is_namedarraytuple_class,
    is_namedtuple,
    is_namedtuple_class,
    namedarraytuple,
    namedarraytuple_like,
)

P = namedarraytuple("P", ["x", "y"])
Q = namedarraytuple("Q", "x,y")
Inner = namedarraytuple("Inner", "a b")
Outer = namedarraytuple("Outer", ["inner", "z"])
S = NamedArrayTupleSchema("S", "x y")
Plain = namedtuple("Plain", ["x", "y"])


class Typed(TypingNamedTuple):
    x: int
    y: int


def point():
    return P(x=np.arange(3), y=np.arange(6.0).reshape(3, 2))


def nested():
    return Outer(inner=Inner(a=np.arange(4), b=None), z=np.arange(8.0).reshape(4, 2))


def unchanged(value, before):
    assert tree.equal(value, before)


# -- a tuple of its fields ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [P, S])
def test_it_is_a_real_tuple_of_its_fields(make):
    x, y = np.zeros(3), np.ones(3)
    p = make(x, y=y)
    assert isinstance(p, tuple) and len(p) == 2
    assert p.x is x and p.y is y
    first, second = p
    assert first is x and second is y
    assert list(p)[1] is y and next(iter(p)) is x and type(tuple(p)) is tuple
    assert (lambda *fields: fields[1])(*p) is y
    assert p.get(0) is x and p.get(-1) is y
    assert next(reversed(p)) is y
    assert [name for name, _ in p.items()] == ["x", "y"] and dict(p.items())["y"] is y
    assert "x" in p and "z" not in p and 0 not in p
    assert p._fields == ("x", "y")
    assert type(p).__name__ == ("P" if make is P else "S")


@pytest.mark.parametrize("make", [P, S])
def test_replace_asdict_and_make_work_as_in_a_namedtuple(make):
    p = make(1, 2)
    assert tuple(p._replace(y=5)) == (1, 5) and tuple(p) == (1, 2)
    assert type(p._replace(y=5)) is type(p)
    assert p._asdict() == {"x": 1, "y": 2}
    assert tuple(p._make([3, 4])) == (3, 4) and type(p._make([3, 4])) is type(p)
    assert tuple(make._make((3, 4))) == (3, 4)
    assert repr(p) == f"{type(p).__name__}(x=1, y=2)"
    with pytest.raises(ValueError, match=r"has no field 'yy'. Did you mean 'y'\?"):
        p._replace(yy=1)
    with pytest.raises(TypeError, match="Expected 2 arguments, got 1"):
        p._make([1])
    with pytest.raises(TypeError, match=r"^[PS]\.?.*missing.*'y'"):
        make(1)
    with pytest.raises(IndexError, match="has 2 fields, found position 2"):
        p.get(2)


@pytest.mark.parametrize("make", [P, S])
def test_attributes_cannot_be_changed(make):
    p = make(1, 2)
    for name in ("x", "other"):
        with pytest.raises(AttributeError):
            setattr(p, name, 3)
    with pytest.raises(AttributeError):
        del p.x
    with pytest.raises(AttributeError, match="other"):
        _ = p.other


def test_a_schema_is_a_constant():
    assert S._fields == ("x", "y") and S._typename == "S" and S(1, 2)._typename == "S"
    same = NamedArrayTupleSchema("S", ["x", "y"])
    assert same == S and hash(same) == hash(S)
    for other in (NamedArrayTupleSchema("S", "x z"), NamedArrayTupleSchema("T", "x y"), NamedTupleSchema("S", "x y")):
        assert other != S
    assert repr(S) == "NamedArrayTupleSchema('S', ['x', 'y'])"
    with pytest.raises(AttributeError, match=r"cannot be changed.*_fields"):
        S._fields = ("a",)
    with pytest.raises(AttributeError, match="cannot be changed"):
        del S._typename


# -- field names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [namedarraytuple, NamedArrayTupleSchema, NamedTupleSchema])
def test_names_are_split_at_spaces_or_at_commas(make):
    assert make("T", "a b")._fields == ("a", "b")
    assert make("T", "a,b")._fields == ("a", "b")
    assert make("T", "alone")._fields == ("alone",)
    assert make("T", iter(["a", "b"]))._fields == ("a", "b")
    assert make("T", [])._fields == ()
    with pytest.raises(ValueError, match=r"T: field names 'a, b' have commas and spaces"):
        make("T", "a, b")


@pytest.mark.parametrize(
    ("make", "name", "allowed"),
    [(make, name, False) for make in (namedarraytuple, NamedArrayTupleSchema) for name in ("get", "items")]
    + [(make, name, False) for make in (NamedTupleSchema, NamedArrayTupleSchema) for name in ("index", "count")]
    + [(namedarraytuple, name, True) for name in ("index", "count")]
    + [(NamedTupleSchema, name, True) for name in ("get", "items")],
)
def test_a_field_cannot_hide_a_method(make, name, allowed):
    if allowed:
        value = make("T", ["a", name])(1, 2)
        assert value._asdict() == {"a": 1, name: 2}
    else:
        with pytest.raises(ValueError, match=rf"T\.{name}: a field cannot have the name"):
            make("T", ["a", name])


@pytest.mark.parametrize("make", [namedarraytuple, NamedArrayTupleSchema, NamedTupleSchema])
@pytest.mark.parametrize("names", [["_a"], ["a", "a"], ["class"], ["1a"]])
def test_bad_field_names_are_errors_that_name_the_class(make, names):
    with pytest.raises(ValueError, match=rf"^T: .*'{names[-1]}'"):
        make("T", names)


def test_names_must_be_strings():
    with pytest.raises(TypeError, match="T: field names are strings, found 3"):
        namedarraytuple("T", ["a", 3])
    with pytest.raises(TypeError, match="the name of a tuple class is a string, found 3"):
        namedarraytuple(3, ["a"])


# -- reading by index --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [P, S])
def test_an_index_goes_to_every_field(make):
    p = make(np.arange(3), np.arange(6.0).reshape(3, 2))
    row = p[1]
    assert type(row) is type(p) and row.x == 1 and row.y.tolist() == [2.0, 3.0]
    assert p[-1].y.tolist() == [4.0, 5.0]
    assert p[:2].x.tolist() == [0, 1] and np.shares_memory(p[:2].x, p.x)
    assert p[[2, 0]].x.tolist() == [2, 0] and p[[]].y.shape == (0, 2)
    assert p[np.array([True, False, True])].y.tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert p[...].x is not p.x and p[..., None].y.shape == (3, 2, 1)
    # numpy alone would take a tensor of one element for the integer 2
    assert p[torch.tensor([2])].x.tolist() == [2] and p[torch.tensor([2]), ...].y.tolist() == [[4.0, 5.0]]


def test_time_and_env_indices_pick_pairs():
    p = P(np.arange(6).reshape(2, 3), np.arange(12).reshape(2, 3, 2))
    picked = p[np.array([0, 1]), np.array([2, 0])]
    assert picked.x.tolist() == [2, 3] and picked.y.tolist() == [[4, 5], [6, 7]]
    assert p[:, 1].x.tolist() == [1, 4] and p[1, 2].x == 5


def test_none_stays_none_and_nested_tuples_are_indexed_too():
    n = nested()
    row = n[2]
    assert type(row) is Outer and type(row.inner) is Inner
    assert row.inner.a == 2 and row.inner.b is None and row.z.tolist() == [4.0, 5.0]
    assert n[1:3].inner.a.tolist() == [1, 2]


def test_dicts_and_plain_tuples_in_a_field_are_indexed_too():
    p = P({"k": np.arange(3)}, (np.arange(3), None, Plain(np.arange(3), np.arange(3))))
    row = p[1]
    assert row.x == {"k": 1} and row.y[0] == 1 and row.y[1] is None and row.y[2] == Plain(1, 1)
    with pytest.raises(IndexError, match=r"^P\.y\.2\.x has shape \(1,\)"):
        P({"k": np.arange(3)}, (np.arange(3), None, Plain(np.arange(1), np.arange(3))))[2]


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize("make", [P, S])
def test_an_index_out_of_range_names_class_and_field(make, convert):
    name = make(1, 2).__class__.__name__
    p = make(convert(np.arange(3)), convert(np.arange(2)))
    with pytest.raises(IndexError, match=rf"^{name}\.y has shape \(2,\) and cannot be indexed by 2: .*out of bounds"):
        p[2]
    with pytest.raises(IndexError, match=rf"^{name}\.x has shape \(3,\)"):
        p[0, 0]
    with pytest.raises(IndexError, match=rf"^{name}\.x has shape \(3,\)"):
        p["x"]
    with pytest.raises(IndexError, match=rf"^{name}\.x"):
        p[np.array([True, False])]


def test_the_error_gives_the_whole_path_of_a_nested_field():
    with pytest.raises(IndexError, match=r"^Outer\.inner\.a has shape \(4,\) and cannot be indexed by 4"):
        nested()[4]
    with pytest.raises(IndexError, match=r"^P\.x is a single int"):
        P(1, np.zeros(3))[0]
    assert P(torch.arange(3), None)[::-1].x.tolist() == [2, 1, 0]  # torch alone has no backward slices


def test_a_tuple_without_arrays_can_be_indexed_by_anything():
    assert tuple(P(None, None)[7]) == (None, None)


# -- writing by index --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value_class", [P, Q, S, Plain, Typed, NamedTupleSchema("Other", "x y")])
def test_a_tuple_with_the_same_fields_is_written_field_by_field(value_class):
    p = point()
    p[1] = value_class(x=7, y=[8.0, 9.0])
    assert p.x.tolist() == [0, 7, 2] and p.y.tolist() == [[0, 1], [8, 9], [4, 5]]


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize(
    ("loc", "x", "y"),
    [
        (1, [0, 9, 2], [[0, 1], [9, 9], [4, 5]]),
        (slice(0, 2), [9, 9, 2], [[9, 9], [9, 9], [4, 5]]),
        ([2, 0], [9, 1, 9], [[9, 9], [2, 3], [9, 9]]),
        ([], [0, 1, 2], [[0, 1], [2, 3], [4, 5]]),
        (np.array([False, True, False]), [0, 9, 2], [[0, 1], [9, 9], [4, 5]]),
        (torch.tensor([False, True, False]), [0, 9, 2], [[0, 1], [9, 9], [4, 5]]),
        (torch.tensor([1]), [0, 9, 2], [[0, 1], [9, 9], [4, 5]]),
        (..., [9, 9, 9], [[9, 9], [9, 9], [9, 9]]),
    ],
)
def test_one_value_is_written_to_every_field(convert, loc, x, y):
    p = P(convert(np.arange(3)), convert(np.arange(6.0).reshape(3, 2)))
    p[loc] = 9
    assert p.x.tolist() == x and p.y.tolist() == y


def test_a_value_for_all_reaches_nested_fields_and_passes_over_none():
    n = nested()
    n[0] = 5
    assert n.inner.a.tolist() == [5, 1, 2, 3] and n.z[0].tolist() == [5.0, 5.0] and n.inner.b is None
    twins = P(Inner(np.zeros(2), np.zeros(2)), Inner(np.ones(2), np.ones(2)))
    twins[0] = Inner(3, 4)  # not the fields of P, so it goes to every field of P, and there it fits
    assert [part.tolist() for part in (*twins.x, *twins.y)] == [[3, 0], [4, 0], [3, 1], [4, 1]]


def test_a_plain_tuple_is_one_value_for_every_field():
    p = P(np.zeros((2, 2)), np.zeros((3, 2)))
    p[0] = (1, 2)
    assert p.x[0].tolist() == [1, 2] and p.y[0].tolist() == [1, 2]
    p = point()
    before = copy.deepcopy(p)
    with pytest.raises(ValueError, match=r"^P\.x wants shape \(\) there, found \(2,\)"):
        p[0] = (1, 2)
    unchanged(p, before)


def test_nested_values_are_written_field_by_field():
    n = nested()
    n[1:3] = Outer(Inner(np.array([10, 20]), None), np.zeros((2, 2)))
    assert n.inner.a.tolist() == [0, 10, 20, 3] and n.z[1:3].tolist() == [[0, 0], [0, 0]]


def test_values_broadcast_as_in_numpy():
    p = P(np.zeros((2, 3)), np.zeros((2, 3)))
    p[:] = P(np.array([1, 2, 3]), np.array([[4], [5]]))
    assert p.x.tolist() == [[1, 2, 3], [1, 2, 3]] and p.y.tolist() == [[4, 4, 4], [5, 5, 5]]
    p[0, 0] = P(np.array([7.0]), np.array([[8.0]]))  # leading dimensions of size 1 may be left over
    assert p.x[0, 0] == 7 and p.y[0, 0] == 8


@pytest.mark.parametrize("loc", [0, slice(0, 1), [0]])
def test_numpy_and_torch_can_be_written_into_each_other(loc):
    p = P(np.zeros(2, np.float32), torch.zeros(2))
    p[loc] = P(torch.ones(1)[0], np.float64(2))
    assert p.x.tolist() == [1, 0] and p.y.tolist() == [2, 0]
    assert p.x.dtype == np.float32 and p.y.dtype == torch.float32


def test_rows_can_be_copied_within_the_tuple():
    for convert in (np.asarray, torch.as_tensor):
        p = P(convert(np.arange(4)), convert(np.arange(4.0)))
        p[1:] = p[:-1]
        assert p.x.tolist() == [0, 0, 1, 2] and p.y.tolist() == [0, 0, 1, 2]


def test_dicts_and_plain_tuples_in_a_field_are_written_too():
    p = P({"k": np.zeros(3)}, (np.zeros(3), None))
    p[1] = P({"k": 4}, (5, None))
    assert p.x["k"].tolist() == [0, 4, 0] and p.y[0].tolist() == [0, 5, 0]
    p[2] = 1
    assert p.x["k"].tolist() == [0, 4, 1] and p.y[0].tolist() == [0, 5, 1]
    with pytest.raises(ValueError, match=r"^P\.x has the parts k; found wrong to write there"):
        p[0] = P({"wrong": 4}, (5, None))


def test_an_object_field_takes_any_object():
    p = P(np.zeros(2), np.array([None, None], dtype=object))
    p[0] = P(1.0, {"any": "thing"})
    assert p.y[0] == {"any": "thing"} and p.x[0] == 1
    p[1] = P(1.0, None)
    p[:] = P(2.0, ["a", "b"])
    assert p.y.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match=r"^P\.y wants shape \(2,\)"):
        p[:] = P(3.0, ["a", "b", "c"])
    assert p.x.tolist() == [2, 2]


# -- writing fails as a whole ------------------------------------------------------------------------------------------

READ_ONLY = np.zeros((3, 2))
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize("y_of", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("loc", "value", "kind", "message"),
    [
        (0, P(9, None), TypeError, r"P\.y holds (torch\.)?float64 of shape \(3, 2\); None cannot be written there"),
        (0, P(9, [None, 1.0]), TypeError, r"P\.y"),
        (0, P(9, np.zeros(3)), ValueError, r"P\.y wants shape \(2,\) there, found \(3,\)"),
        (slice(0, 2), P(9, np.zeros((3, 2))), ValueError, r"P\.y wants shape \(2, 2\) there, found \(3, 2\)"),
        ([0, 1], P(9, np.zeros((3, 2))), ValueError, r"P\.y wants shape \(2, 2\) there, found \(3, 2\)"),
        (0, P(9, [[1], [2, 3]]), ValueError, r"P\.y cannot hold this value: .*inhomogeneous"),
        (0, P(9, "word"), TypeError, r"P\.y"),
        (0, P(9, Inner(1, 2)), TypeError, r"P\.y holds .*; found a Inner with the fields a, b"),
        (0, P(9, {"a": 1}), TypeError, r"P\.y holds .*; found a dict"),
        (0, Inner(9, 9), TypeError, r"P\.x holds .*; found a Inner with the fields a, b"),
        (3, P(9, 9), IndexError, r"P\.y has shape \(3, 2\) and cannot be indexed by 3"),
        (-5, 9, IndexError, r"P\.(x|y)"),
        ([0, 3], 9, IndexError, r"P\.y"),
        ((0, 1), 9, IndexError, r"P\.x"),
        (np.array([True, False]), 9, IndexError, r"P\.(x|y)"),
        (None, None, TypeError, r"P\.x holds .*; None cannot"),
    ],
)
def test_when_one_field_cannot_be_written_no_field_is_changed(y_of, loc, value, kind, message):
    p = P(np.arange(4), y_of(np.arange(6.0).reshape(3, 2)))  # x is one longer, so that only y is out of range at 3
    before = copy.deepcopy(p)
    with pytest.raises(kind, match=f"^{message}"):
        p[loc] = value
    unchanged(p, before)


def test_numbers_that_do_not_fit_the_dtype_change_nothing():
    p = P(np.zeros(2), np.zeros(2, np.uint8))
    for value in (300, 0.5, -1):
        with pytest.raises((TypeError, ValueError), match=r"^P\.y"):
            p[0] = value
    assert p.x.tolist() == [0, 0] and p.y.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (READ_ONLY, "is read-only"),
        (torch.zeros(3, 2, requires_grad=True), "requires grad"),
        (torch.zeros(4, 2, requires_grad=True)[:3], "requires grad"),
        (torch.zeros(1, 2).expand(3, 2), "expanded tensor"),
        (np.float64(3), "cannot be written to"),
        (3.0, "is a float, which cannot be written to"),
    ],
)
@pytest.mark.parametrize("loc", [0, [0], slice(None)])
def test_memory_that_cannot_be_written_is_found_out_before_anything_is(y, message, loc):
    p = P(np.zeros(3), y)
    with pytest.raises((ValueError, TypeError), match=rf"^P\.y .*{message}"):
        p[loc] = 1
    assert not p.x.any()


@pytest.mark.parametrize("loc", [1, slice(1, 3), np.int64(1), [1], np.array([1, 2]), (1,), (slice(1, 3), ...)])
@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
def test_rows_of_the_wrong_shape_or_dtype_change_nothing(convert, loc):
    p = P(convert(np.zeros((3, 2), np.float32)), convert(np.zeros((3, 4), np.int64)))
    good = P(convert(np.ones((3, 2), np.float32)), convert(np.ones((3, 4), np.int64)))[loc]
    with pytest.raises(ValueError, match=r"^P\.y wants shape \(.*4,?\) there, found"):
        p[loc] = good._replace(y=convert(np.ones((3, 3), np.int64))[loc])
    with pytest.raises(TypeError, match=r"^P\.y holds (torch\.)?int64 and cannot hold"):
        p[loc] = good._replace(y=convert(np.full((3, 4), 0.7))[loc])
    assert not p.x.any() and not p.y.any()
    p[loc] = good._replace(x=convert(np.ones((3, 2)))[loc])  # float64 into float32
    assert p.x.dtype == good.x.dtype and p.x[0].tolist() == [0, 0] and p.x[1].tolist() == [1, 1]
    assert p.y[1].tolist() == [1, 1, 1, 1] and p.y[0].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.zeros(3, 2, requires_grad=True), "requires grad"),
        (torch.zeros(1, 2).expand(3, 2), "expanded tensor"),
    ],
)
def test_protected_tensors_are_found_out_for_tensor_rows_too(y, message):
    p = P(torch.zeros(3), y)
    with pytest.raises(ValueError, match=rf"^P\.y .*{message}"):
        p[0] = P(torch.tensor(1.0), torch.ones(2))
    assert not p.x.any() and not p.y.any()


def test_a_parameter_can_be_written_without_grad():
    p = P(np.zeros(3), torch.zeros(3, requires_grad=True))
    with torch.no_grad():
        p[0] = 1
    assert p.y.tolist() == [1, 0, 0]


def test_a_tensor_of_inference_mode_is_protected_outside_of_it():
    with torch.inference_mode():
        p = P(np.zeros(3), torch.zeros(3))
        p[0] = 1
    with pytest.raises(ValueError, match=r"^P\.y was made in inference mode"):
        p[1] = 1
    assert p.x.tolist() == [1, 0, 0] and p.y.tolist() == [1, 0, 0]


def test_none_fields_take_only_none():
    p = P(np.zeros(3), None)
    p[0] = P(1, None)
    assert p.x.tolist() == [1, 0, 0] and p.y is None
    with pytest.raises(TypeError, match=r"^P\.y is None and can hold nothing; found float64 of shape \(2,\)"):
        p[1] = P(1, np.zeros(2))
    with pytest.raises(TypeError, match=r"^Outer\.inner\.b is None and can hold nothing; found int"):
        nested()[0] = Outer(Inner(1, 2), 3)
    assert p.x.tolist() == [1, 0, 0]
    P(None, None)[0] = None


def test_a_failure_deep_inside_changes_nothing_outside():
    n = Outer(Inner(np.zeros(2), np.zeros(2)), np.zeros(2))
    with pytest.raises(ValueError, match=r"^Outer\.inner\.b wants shape \(2,\) there, found \(3,\)"):
        n[:] = Outer(Inner(1, [1, 2, 3]), 1)
    with pytest.raises(TypeError, match=r"^Outer\.inner\.b holds float64 of shape \(2,\); None"):
        n[0] = Outer(Inner(1, None), 1)
    with pytest.raises(TypeError, match=r"^Outer\.inner\.a holds float64.*; None"):
        n[0] = Outer(None, 1)
    assert not n.inner.a.any() and not n.inner.b.any() and not n.z.any()


# -- against plain numpy -----------------------------------------------------------------------------------------------

SHAPES = [(4, 3), (4, 3, 2), (4, 3, 2, 2)]
LOCS = st.one_of(
    hnp.basic_indices((4, 3), allow_ellipsis=False),
    hnp.integer_array_indices((4, 3), result_shape=hnp.array_shapes(max_dims=2, max_side=3)),
    hnp.arrays(bool, (4,)),
    hnp.arrays(bool, (4, 3)),
)


def random_tuple(seed):
    rng = np.random.default_rng(seed)
    a, b, z = (rng.integers(0, 100, shape).astype(float) for shape in SHAPES)
    return Outer(Inner(a, b), z)


@given(loc=LOCS, seed=st.integers(0, 1000))
def test_reading_and_writing_agree_with_each_array_alone(loc, seed):
    value = random_tuple(seed)
    expected = [array.copy() for array in (*value.inner, value.z)]
    read = value[loc]
    for found, array in zip((*read.inner, read.z), expected):
        np.testing.assert_array_equal(found, array[loc])
    row = random_tuple(seed + 1)[loc]
    value[loc] = row
    for array, new in zip(expected, (*row.inner, row.z)):
        array[loc] = new
    for found, array in zip((*value.inner, value.z), expected):
        np.testing.assert_array_equal(found, array)


@given(loc=LOCS, seed=st.integers(0, 1000))
def test_tensors_behave_as_arrays_do(loc, seed):
    # torch has no negative steps; everything else is the same
    parts = loc if isinstance(loc, tuple) else (loc,)
    if any(isinstance(part, slice) and (part.step or 1) < 0 for part in parts):
        return
    arrays, tensors = random_tuple(seed), tree.to_torch(tree.copy(random_tuple(seed)))
    assert tree.equal(tree.map(np.asarray, arrays[loc]), tree.map(np.asarray, tree.to_numpy(tensors[loc])))
    row = random_tuple(seed + 1)[loc]
    arrays[loc] = row
    tensors[loc] = tree.to_torch(tree.map(np.asarray, row))
    assert tree.equal(arrays, tree.to_numpy(tensors))


@given(loc=LOCS, seed=st.integers(0, 1000), broken=st.sampled_from(["inner.a", "inner.b", "z"]), none=st.booleans())
def test_a_value_that_is_wrong_in_one_place_changes_nothing(loc, seed, broken, none):
    value, before = random_tuple(seed), random_tuple(seed)
    row = random_tuple(seed + 1)[loc]
    wrong = None if none else np.zeros((7, 7, 7, 7, 7))
    if broken == "z":
        row = row._replace(z=wrong)
    else:
        row = row._replace(inner=row.inner._replace(**{broken[-1]: wrong}))
    with pytest.raises((TypeError, ValueError), match=rf"^Outer\.{broken} "):
        value[loc] = row
    assert tree.equal(value, before)


# -- what is what ------------------------------------------------------------------------------------------------------

PlainSchema = NamedTupleSchema("PlainSchema", "x y")


@pytest.mark.parametrize(
    ("value", "array", "plain"),
    [
        (P(1, 2), True, False),
        (S(1, 2), True, False),
        (Plain(1, 2), False, True),
        (Typed(1, 2), False, True),
        (PlainSchema(1, 2), False, True),
        ((1, 2), False, False),
        ({"x": 1}, False, False),
        (P, False, False),
        (None, False, False),
    ],
)
def test_kinds_are_told_apart(value, array, plain):
    assert is_namedarraytuple(value) is array
    assert is_namedtuple(value) is plain
    if array or plain:
        assert is_namedarraytuple_class(type(value)) is array
        assert is_namedtuple_class(type(value)) is plain


def test_classes_are_told_from_instances_and_schemas():
    assert is_namedarraytuple_class(P) and not is_namedarraytuple_class(P(1, 2)) and not is_namedarraytuple_class(S)
    assert not is_namedarraytuple_class(Plain) and not is_namedarraytuple_class(tuple)
    assert is_namedtuple_class(Plain) and not is_namedtuple_class(P) and not is_namedtuple_class(tuple)
    assert isinstance(S(1, 2), NamedArrayTuple) and isinstance(PlainSchema(1, 2), NamedTuple)
    assert not isinstance(P(1, 2), NamedArrayTuple)


def test_a_plain_schema_makes_tuples_without_array_indexing():
    value = PlainSchema(x=np.arange(3), y=5)
    assert value[1] == 5 and value[0].tolist() == [0, 1, 2] and len(value) == 2
    assert 5 in PlainSchema(4, 5) and "x" not in PlainSchema(4, 5)
    assert value._asdict()["y"] == 5 and value._replace(y=6).y == 6 and PlainSchema._make([1, 2]) == (1, 2)
    with pytest.raises(TypeError):
        value[0:1] = 1
    with pytest.raises(ValueError, match="PlainSchema has no field 'z'"):
        value._replace(z=1)
    with pytest.raises(AttributeError):
        value.x = 1


@pytest.mark.parametrize(
    "example", [P, P(1, 2), S, S(1, 2), Plain, Plain(1, 2), Typed, PlainSchema, PlainSchema(1, 2)], ids=repr
)
def test_any_kind_can_be_made_into_an_array_class_or_schema(example):
    name = getattr(example, "_typename", None) or getattr(example, "__name__", type(example).__name__)
    like = namedarraytuple_like(example)
    assert is_namedarraytuple_class(like) and like.__name__ == name and like._fields == ("x", "y")
    assert like(np.arange(2), np.arange(2))[1].y == 1
    assert namedarraytuple_like(example) is like
    schema = NamedArrayTupleSchema_like(example)
    assert schema == NamedArrayTupleSchema(name, ["x", "y"])


def test_an_array_class_is_its_own_likeness():
    assert namedarraytuple_like(P) is P and namedarraytuple_like(P(1, 2)) is P
    assert namedarraytuple_like(S) is type(S(1, 2))


@pytest.mark.parametrize("example", [(1, 2), tuple, 3, None, {"x": 1}, int])
def test_other_things_have_no_likeness(example):
    for convert in (namedarraytuple_like, NamedArrayTupleSchema_like):
        with pytest.raises(TypeError, match="wanted a namedtuple or namedarraytuple"):
            convert(example)
    with pytest.raises(ValueError, match=r"Bad\.get"):
        namedarraytuple_like(namedtuple("Bad", ["get"]))


# -- journeys ----------------------------------------------------------------------------------------------------------


def local_values():
    """Tuples whose classes nobody can import."""
    schema = NamedArrayTupleSchema("Local", "x y")
    return [
        schema(np.arange(3), schema(1, None)),
        NamedTupleSchema("LocalPlain", ["x"])(4),
        namedarraytuple_like(Plain)(np.arange(3), 2),
        P(np.arange(3), None),
    ]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickling_gives_the_same_again(protocol):
    for value in local_values():
        again = pickle.loads(pickle.dumps(value, protocol))
        assert type(again) is type(value) and tree.equal(again, value)
    assert pickle.loads(pickle.dumps(S, protocol)) == S


def test_copies_are_independent():
    for value in local_values()[:1]:
        again = copy.deepcopy(value)
        again[0] if again.y is None else again.x.fill(9)
        assert type(again) is type(value) and value.x.tolist() == [0, 1, 2]
        assert copy.copy(value).x is value.x


def answer(connection, value, schema):
    # in a fresh interpreter: indexing works, and the tuples go back as they came
    connection.send([value[1].x, value._fields, type(value).__name__, schema(1, 2), value])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_schema_tuples_survive_the_start_of_a_process(method):
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    schema = NamedArrayTupleSchema("Local", "x y")
    value = schema(np.arange(3), schema(np.ones(3), None))
    process = context.Process(target=answer, args=(theirs, value, schema))
    process.start()
    theirs.close()
    number, fields, name, made, again = ours.recv()
    process.join(120)
    assert number == 1 and fields == ("x", "y") and name == "Local"
    assert tuple(made) == (1, 2) and type(made) is type(value)
    assert tree.equal(again, value) and type(again.y) is type(value)


def test_the_tree_functions_walk_and_rebuild_them():
    for make in (P, S):
        value = make(np.arange(3), make(np.ones(3), None))
        doubled = tree.map(lambda leaf: leaf * 2, value)
        assert type(doubled) is type(value) and doubled.x.tolist() == [0, 2, 4] and doubled.y.y is None
        assert [path for path, _ in tree.items(value)] == ["x", "y/x"]


def test_ordered_mappings_keep_their_kind_in_a_field():
    p = P(OrderedDict(b=np.arange(2), a=np.arange(2)), None)
    assert list(p[0].x) == ["b", "a"] and isinstance(p[0].x, OrderedDict)


def test_a_class_belongs_to_the_module_that_made_it():
    assert P.__module__ == __name__ and namedarraytuple("T", "a", module="elsewhere").__module__ == "elsewhere"


def test_importing_the_module_does_not_load_torch():
    program = """
import sys
import numpy as np
from striderl.data.named_tuples import namedarraytuple
p = namedarraytuple("P", "x y")(np.zeros((2, 2)), None)
p[0] = 1
p[[1]] = [2, 3]
assert p[1].x.tolist() == [2, 3]
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
