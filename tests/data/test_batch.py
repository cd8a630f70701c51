"""Batch: seed 003's printed examples, the rules of version 0.3 that hold, and the defects that must not come back."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from striderl import Batch

# -- seed 003, rows 1 to 3 ---------------------------------------------------------------------------------------------


def test_seed_row_1_lists_become_arrays():
    data = Batch(a=4, b=[5, 5], c="2312312", d=("a", -2, -3))
    assert isinstance(data.b, np.ndarray)
    assert repr(data.b) == "array([5, 5])"


def test_seed_row_2_print():
    data = Batch(a=4, b=[5, 5], c="2312312", d=("a", -2, -3))
    data.b = np.array([3, 4, 5])
    # numbers in a mixed tuple become strings, because numpy builds a string array first
    assert str(data) == (
        "Batch(\n"
        "    a: array(4),\n"
        "    b: array([3, 4, 5]),\n"
        "    c: '2312312',\n"
        "    d: array(['a', '-2', '-3'], dtype=object),\n"
        ")"
    )


def test_seed_row_3_add_to_a_column_of_every_leaf():
    data = Batch(obs={"index": np.zeros((2, 3))}, act=torch.zeros((2, 2)))
    data[:, 1] += 6
    assert str(data[-1]) == (
        "Batch(\n    obs: Batch(\n             index: array([0., 6., 0.]),\n         ),\n    act: tensor([0., 6.]),\n)"
    )


def test_seed_row_14_a_list_of_one_observation_adds_the_batch_dimension():
    assert Batch(obs=[np.zeros(3)]).obs.shape == (1, 3)
    assert Batch(obs=[{"image": np.zeros((2, 2)), "speed": 1.0}]).obs.image.shape == (1, 2, 2)


# -- construction ------------------------------------------------------------------------------------------------------


def test_construction_from_keywords_mapping_and_both():
    assert Batch({"a": 1}, b=2) == Batch(a=1, b=2)
    assert Batch(Batch(a=1), a=3).a == 3
    assert Batch({"x": {"y": {"z": [1, 2]}}}).x.y.z.tolist() == [1, 2]


def test_list_of_dicts_is_stacked_and_padded():
    batch = Batch([{"a": 1, "b": {"c": 2.0}}, {"a": 2, "b": {"c": 3.0, "d": "s"}}])
    assert batch.a.tolist() == [1, 2]
    assert batch.b.c.tolist() == [2.0, 3.0]
    assert batch.b.d.tolist() == [None, "s"]


def test_numbers_become_0d_arrays_and_objects_stay_objects():
    batch = Batch(a=3, b=2.5, c=True, d="abc", e=None, f=np.float32(1), g=len)
    assert batch.a.shape == () and batch.a.dtype.kind == "i"
    assert batch.b.dtype == np.float64 and batch.c.dtype == bool and batch.f.dtype == np.float32
    assert batch.d == "abc" and batch.e is None and batch.g is len


def test_lists_of_tensors_are_stacked_as_tensors():
    batch = Batch(a=[torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])])
    assert torch.equal(batch.a, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))


def test_arrays_are_shared_unless_copy():
    array = np.zeros(3)
    shared, own = Batch(a=array), Batch({"a": array}, copy=True)
    array[0] = 7
    assert shared.a[0] == 7 and own.a[0] == 0


def test_object_array_of_dicts_is_stacked():
    array = np.array([{"a": 1}, {"a": 2}], dtype=object)
    assert Batch(info=array).info.a.tolist() == [1, 2]
    assert Batch(array).a.tolist() == [1, 2]


def test_namedtuples_and_tensordicts_become_batches():
    tensordict = pytest.importorskip("tensordict")
    from striderl.data.named_tuples import namedarraytuple

    pair = namedarraytuple("Pair", ["x", "y"])(np.zeros(2), np.ones(2))
    assert Batch(pair).y.tolist() == [1, 1]
    nested = tensordict.TensorDict({"obs": {"a": torch.zeros(2)}, "r": torch.ones(2)}, batch_size=[2])
    assert Batch(nested).obs.a.shape == (2,)
    assert Batch(inner=nested).inner.r.tolist() == [1, 1]


# -- keys --------------------------------------------------------------------------------------------------------------


def test_mapping_methods():
    batch = Batch(a=1, b=[2, 3])
    assert list(batch.keys()) == ["a", "b"] and "a" in batch and "z" not in batch
    assert batch.get("z", 5) == 5 and batch.get("a") == 1
    assert batch.pop("a") == 1 and batch.pop("a", None) is None
    batch.update({"c": 3}, d=4)
    assert [key for key, _ in batch.items()] == ["b", "c", "d"]
    del batch["c"]
    assert list(batch.values())[1] == 4
    batch["e"] = [1, 2]
    assert batch.e.tolist() == [1, 2]


def test_empty_and_reserved_keys():
    batch = Batch(a=np.arange(3), reserved=Batch())
    assert len(batch) == 3 and batch[1].reserved.is_empty() and batch.shape == [3]
    assert Batch().is_empty() and not Batch(a=Batch()).is_empty() and Batch(a=Batch()).is_empty(recurse=True)
    assert not Batch() and Batch(a=0)
    with pytest.raises(IndexError, match="empty Batch has no rows"):
        Batch()[0]
    with pytest.raises(TypeError, match="no length"):
        len(Batch())


@pytest.mark.parametrize("key", ["keys", "shape", "update", "items", "stack", "to_torch", "__class__"])
def test_a_key_that_would_hide_a_method_is_an_error(key):
    batch = Batch(a=1)
    for write in (
        lambda: Batch({key: 1}),
        lambda: batch.update({key: 1}),
        lambda: batch.__setitem__(key, 1),
        lambda: setattr(batch, key, 1),
    ):
        with pytest.raises(KeyError, match="would hide"):
            write()
    assert list(batch.keys()) == ["a"]


def test_missing_keys_are_named_with_a_suggestion():
    batch = Batch(reward=1, action=2)
    with pytest.raises(AttributeError, match=r"no key 'rewrad'. Did you mean 'reward'"):
        _ = batch.rewrad
    with pytest.raises(KeyError, match="Available: reward, action"):
        batch["zzz"]
    with pytest.raises(KeyError):
        batch.pop("zzz")
    with pytest.raises(KeyError):
        del batch["zzz"]


def test_key_order_does_not_depend_on_the_hash_seed():
    program = (
        "from striderl import Batch; import numpy as np;"
        "b=[Batch(**{k: np.zeros(1) for k in ks}) for ks in (['zeta','alpha'],['mid','alpha','omega'])];"
        "print(list(Batch.stack(b).keys()), list(Batch.cat(b).keys()))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert texts == {"['zeta', 'alpha', 'mid', 'omega'] ['zeta', 'alpha', 'mid', 'omega']\n"}


# -- rows --------------------------------------------------------------------------------------------------------------


def test_views_and_copies():
    batch = Batch(a=np.arange(4.0))
    batch[0:1] += 5  # a view, and written back
    assert batch.a[0] == 5
    part = batch[[1]]
    part += 5  # a copy
    assert batch.a[1] == 1
    batch[[1]] += 5  # as a statement Python writes it back
    assert batch.a[1] == 6
    batch[:].a[3] = 9
    assert batch.a[3] == 9


def test_indexing_forms():
    batch = Batch(x=np.arange(12).reshape(3, 4), y=torch.arange(6).reshape(3, 2), z={"k": np.arange(3)})
    assert isinstance(batch[0].z.k, np.integer)
    assert batch[np.array([True, False, True])].z.k.tolist() == [0, 2]
    assert batch[torch.tensor([2, 0])].x[:, 0].tolist() == [8, 0]
    assert batch[..., 0].x.tolist() == [0, 4, 8]
    del batch["z"]
    assert batch[1:, 0].y.tolist() == [2, 4]
    assert batch[-1].x.tolist() == [8, 9, 10, 11]


def test_row_assignment_resets_keys_that_are_not_given():
    batch = Batch(a=np.array([1, 2]), b=np.array([3.0, 4.0]), c=np.array(["x", "y"], dtype=object), d={"e": [5, 6]})
    batch[0] = {"a": -1}
    assert batch.a.tolist() == [-1, 2] and batch.b.tolist() == [0, 4]
    assert batch.c.tolist() == [None, "y"] and batch.d.e.tolist() == [0, 6]


def test_row_assignment_between_numpy_and_torch():
    batch = Batch(a=np.zeros((2, 3)), b=torch.zeros(2, 3))
    batch[1] = Batch(a=torch.ones(3), b=np.ones(3))
    assert batch.a[1].tolist() == [1, 1, 1] and batch.b[1].tolist() == [1, 1, 1]
    batch[torch.tensor([0, 1])] = Batch(a=np.full((2, 3), 2.0), b=torch.full((2, 3), 2.0))
    assert batch.a.sum() == 12 and batch.b.sum() == 12


def test_row_assignment_over_its_own_memory():
    batch = Batch(a=torch.arange(6.0), b=np.arange(6.0))
    batch[np.array([3, 4, 5])] = batch[0:3]
    assert batch.a.tolist() == [0, 1, 2, 0, 1, 2] == batch.b.tolist()


def bad_writes():
    yield "number", lambda b: b.__setitem__(0, 5), ValueError, "Batch or a mapping, found int"
    yield "unknown key", lambda b: b.__setitem__(0, {"bb": 1}), KeyError, "no key 'bb'"
    yield "nested unknown", lambda b: b.__setitem__(0, {"d": {"x": 1}}), KeyError, "no key 'x'"
    yield "out of range", lambda b: b.__setitem__(7, {"a": 1.0}), IndexError, "'a' has shape"
    yield (
        "array out of range",
        lambda b: b.__setitem__(np.array([0, 9]), b[np.array([0, 1])]),
        IndexError,
        "out of bounds",
    )
    yield "wrong shape", lambda b: b.__setitem__(0, {"a": 1.0, "b": [1.0, 2.0]}), ValueError, "'b' wants shape"
    yield "wrong length", lambda b: b.__setitem__(slice(0, 2), {"a": [1.0, 2.0, 3.0]}), ValueError, "'a' wants shape"
    yield "lossy", lambda b: b.__setitem__(0, {"a": 1.0, "c": 0.7}), TypeError, "'c' holds int"
    yield "text", lambda b: b.__setitem__(0, {"a": 1.0, "c": "seven"}), TypeError, "'c' holds int"
    yield "leaf for a batch", lambda b: b.__setitem__(0, {"a": 1.0, "d": 3}), ValueError, "'d' is a Batch"
    yield "add other keys", lambda b: b.__iadd__(Batch(a=1)), ValueError, "goes by key"
    yield "add a string leaf", lambda b: b.__iadd__(Batch(a=b.a, b=b.b, c=b.c, d={"e": "x"})), TypeError, "'d.e'"
    yield "divide integers in place", lambda b: b.__itruediv__(3), TypeError, "'c' holds int"
    yield "ragged", lambda b: b.__setattr__("a", [[1], [1, 2]]), TypeError, "ragged"
    yield "wrong key type", lambda b: b.update({3: 1}), TypeError, "keys of a Batch are strings, found 3"


@pytest.mark.parametrize(
    ("write", "error", "text"), [case[1:] for case in bad_writes()], ids=[c[0] for c in bad_writes()]
)
def test_a_write_that_fails_changes_nothing(write, error, text):
    batch = Batch(a=np.arange(3.0), b=np.ones((3, 3)), c=np.array([1, 2, 4]), d={"e": torch.ones(3)})
    before = copy.deepcopy(batch)
    with pytest.raises(error, match=text):
        write(batch)
    assert batch == before


@pytest.mark.parametrize("index", [torch.tensor([1, 9]), np.array([1, 9])], ids=["tensor", "array"])
def test_rows_of_tensors_that_are_not_there_change_none(index):
    batch = Batch(a=torch.zeros(4, 2), b=torch.zeros(4))
    with pytest.raises(IndexError, match="out of bounds"):
        batch[index] = Batch(a=torch.ones(2, 2), b=torch.ones(2))
    assert not batch.a.any() and not batch.b.any()
    batch[index // 9 - 1] = Batch(a=torch.ones(2, 2), b=torch.arange(2.0))
    assert batch.a.sum() == 4 and batch.b.tolist() == [1, 0, 0, 0]


def test_values_that_fit_another_dtype_are_taken():
    batch = Batch(done=np.zeros(2, bool), count=np.zeros(2, np.int32), x=torch.zeros(2, dtype=torch.float32))
    batch[0] = {"done": 1, "count": 3.0, "x": np.float64(0.5)}
    assert batch.done.tolist() == [True, False] and batch.count.tolist() == [3, 0] and batch.x.tolist() == [0.5, 0]


def test_length_and_shape():
    batch = Batch(a=np.zeros((3, 2)), b=np.zeros((5, 2, 4)), c=Batch())
    assert len(batch) == 3 and batch.shape == [3, 2]
    with pytest.raises(TypeError, match="single value at 'n'"):
        len(Batch(a=[1, 2], n=3))
    assert [row.a for row in Batch(a=[4, 5])] == [4, 5]


def test_a_string_is_not_indexed_like_an_array():
    with pytest.raises(IndexError, match="'name' is a single str"):
        Batch(a=[1, 2], name="abc")[0]


# -- joining and splitting ---------------------------------------------------------------------------------------------


def test_stack_and_cat():
    one, two = Batch(a=np.zeros(2), b={"c": torch.zeros(2)}), Batch(a=np.ones(2), b={"c": torch.ones(2)})
    assert Batch.stack([one, two]).a.shape == (2, 2)
    assert Batch.stack([one, two], axis=1).b.c.tolist() == [[0, 1], [0, 1]]
    assert Batch.cat([one, two]).b.c.tolist() == [0, 0, 1, 1]
    one.cat_([two])
    assert len(one) == 4
    fresh = Batch()
    fresh.stack_([two, two])
    assert fresh.a.shape == (2, 2)
    assert Batch.stack([]).is_empty()


def test_cat_pads_partial_keys():
    joined = Batch.cat([Batch(a=np.ones((2, 3))), Batch(a=np.ones((1, 3)), b=np.ones((1, 2)), c=["x"])])
    assert joined.b.tolist() == [[0, 0], [0, 0], [1, 1]] and joined.c.tolist() == [None, None, "x"]
    nested = Batch.cat([Batch(a=np.ones(2)), Batch(a=np.ones(1), d={"e": [7]})])
    assert nested.d.e.tolist() == [0, 0, 7]


def test_joins_that_cannot_be():
    with pytest.raises(ValueError, match=r"'a' cannot be joined|a cannot be joined"):
        Batch.cat([Batch(a=1), Batch(a=2)])
    with pytest.raises(ValueError, match="shapes are"):
        Batch.stack([Batch(a=np.zeros(2)), Batch(a=np.zeros(3))])
    with pytest.raises(ValueError, match="along axis 0 only"):
        Batch.stack([Batch(a=np.zeros(2)), Batch(b=np.zeros(2))], axis=1)
    with pytest.raises(ValueError, match="a Batch in some batches and a leaf in others"):
        Batch.stack([Batch(a=Batch(x=1)), Batch(a=2), Batch()])


def test_split():
    batch = Batch(a=np.arange(10))
    assert [part.a.tolist() for part in batch.split(3, shuffle=False, merge_last=True)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8, 9],
    ]
    assert [len(part) for part in batch.split(4, shuffle=False)] == [4, 4, 2]
    assert [len(part) for part in batch.split(99)] == [10] and [len(part) for part in batch.split(-1)] == [10]
    assert sorted(np.concatenate([part.a for part in batch.split(3)])) == list(range(10))
    np.random.seed(5)
    first = [part.a.tolist() for part in batch.split(3)]
    np.random.seed(5)
    assert first == [part.a.tolist() for part in batch.split(3)]
    with pytest.raises(ValueError, match="at least 1"):
        list(batch.split(0))


# -- arithmetic, conversion, pickling ----------------------------------------------------------------------------------


def test_addition_goes_by_key_not_by_position():
    total = Batch(a=1, b=2) + Batch(b=10, a=20)
    assert total.a == 21 and total.b == 12


def test_arithmetic_forms():
    batch = Batch(a=np.array([2.0, 4.0]), b=torch.tensor([1.0, 3.0]), c=None, d=Batch())
    assert (batch * 2).a.tolist() == [4, 8] and (2 * batch).b.tolist() == [2, 6]
    assert (1 - batch).a.tolist() == [-1, -3] and (8 / batch).a.tolist() == [4, 2]
    assert (batch - batch).b.tolist() == [0, 0] and (-batch).a.tolist() == [-2, -4]
    assert (np.float64(3) * batch).a.tolist() == [6, 12]
    assert (batch + 1).c is None and (batch / 2).d.is_empty()
    with pytest.raises(TypeError):
        batch + "text"


def test_numpy_mean_works():
    assert np.mean(Batch(a=np.array([1.0, 2.0, 6.0]))).a == 3.0


def test_in_place_arithmetic_reaches_views():
    array = np.zeros(3)
    batch = Batch(a=array)
    batch += 2
    batch *= 3
    batch -= 1
    batch /= 5
    assert array.tolist() == [1, 1, 1]


def test_to_torch_and_back():
    batch = Batch(a=np.arange(3), b={"c": np.ones(2, np.float32)}, s="text", n=None)
    address = batch.a.__array_interface__["data"][0]
    other = batch.to("cpu", torch.float16)
    assert other.a.dtype is torch.float16 and isinstance(batch.a, np.ndarray)  # `to` leaves the batch as it was
    assert batch.to_torch() is batch and batch.a.data_ptr() == address  # in place, with shared memory
    tensors = batch.to_torch(dtype=torch.float64)
    assert tensors.a.dtype is torch.float64 and tensors.b.c.dtype is torch.float64 and tensors.s == "text"
    assert isinstance(tensors.to_numpy().b.c, np.ndarray) and tensors.to_numpy() is batch
    assert Batch(a=torch.ones(1, dtype=torch.bfloat16)).to_numpy().a.dtype == np.float32
    assert Batch(a=np.arange(3)[::-1]).to_torch().a.tolist() == [2, 1, 0]


def test_in_place_conversion_reaches_every_level():
    inner = Batch(c=np.ones(2))
    batch = Batch(a=np.zeros(2), inner=inner)
    batch.to_torch_()
    assert isinstance(inner.c, torch.Tensor) and batch.inner is inner
    batch.to_numpy_()
    assert isinstance(inner.c, np.ndarray)


def test_equality_copy_and_hash():
    batch = Batch(a=np.array([1.0, np.nan]), b={"c": torch.ones(1)})
    assert batch == copy.deepcopy(batch) == batch.copy() and batch != Batch(a=1)
    assert batch != Batch(a=np.array([1.0, np.nan]), b={"c": torch.zeros(1)})
    shallow = copy.copy(batch)
    assert shallow.a is batch.a and shallow is not batch
    with pytest.raises(TypeError):
        hash(batch)


def _double(connection):
    batch = connection.recv()
    connection.send(batch + batch)
    connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_pickling(method):
    batch = Batch(a=np.arange(3), b={"c": np.ones(2)}, s=Batch())
    assert pickle.loads(pickle.dumps(batch)) == batch
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=_double, args=(there,), daemon=True)
    process.start()
    here.send(batch)
    assert here.recv() == batch + batch
    process.join(120)


def test_index_arrays_of_one_element_keep_the_dimension():
    batch = Batch(a=np.arange(4.0), b=torch.arange(4.0))
    for loc in (torch.tensor([2]), [2], np.array([2]), (torch.tensor([2]),)):
        assert batch[loc].a.shape == batch[loc].b.shape == (1,)
        batch[loc] = {"a": [9.0], "b": [9.0]}
    assert batch.a.tolist() == batch.b.tolist() == [0, 1, 9, 3]
    assert len(batch[[]]) == 0


def unwritable_leaves():
    read_only = np.arange(3.0)
    read_only.setflags(write=False)
    yield "read-only", read_only, "read-only"
    yield "gradient", torch.arange(3.0, requires_grad=True), "requires a gradient"
    yield "expanded", torch.zeros(1).expand(3), "expanded"
    with torch.inference_mode():
        inference = torch.zeros(3)
    yield "inference", inference, "inference tensor"


@pytest.mark.parametrize(
    ("late", "text"), [c[1:] for c in unwritable_leaves()], ids=[c[0] for c in unwritable_leaves()]
)
@pytest.mark.parametrize(
    "write",
    [
        lambda b: b.__setitem__(0, {"x": np.float64(5.0), "late": np.float64(5.0)}),
        lambda b: b.__setitem__(slice(0, 2), Batch(x=np.ones(2), late=b.late[:2] * 1)),
        lambda b: b.__iadd__(1),
        lambda b: b.__setitem__(np.array([0, 1]), {"x": np.ones(2), "late": np.ones(2)}),
    ],
    ids=["row", "slice", "add", "index array"],
)
def test_a_leaf_that_cannot_be_written_stops_the_others_too(late, text, write):
    batch = Batch(x=np.arange(3.0), late=late)
    with pytest.raises(ValueError, match=text):
        write(batch)
    assert batch.x.tolist() == [0, 1, 2]


def test_cat_fills_a_reserved_key_that_another_batch_has():
    joined = Batch.cat([Batch(a=Batch(), c=np.zeros(2)), Batch(a={"q": np.ones(1)}, c=np.ones(1))])
    assert joined.a.q.tolist() == [0, 0, 1] and joined.c.tolist() == [0, 0, 1]
    assert Batch.stack([Batch(a=Batch()), Batch(a={"q": 1.0})]).a.q.tolist() == [0, 1]


def test_split_goes_as_far_as_iteration_and_warns_of_rows_that_are_left_out():
    with pytest.warns(UserWarning, match=r"rows beyond the shortest leaf: lengths are \{'a': 3, 'b': 4\}"):
        parts = list(Batch(a=np.zeros(3), b=np.arange(4)).split(2, shuffle=False))
    assert [part.b.tolist() for part in parts] == [[0, 1], [2]]
    with pytest.raises(TypeError, match="a number of rows, found str"):
        list(Batch(a=np.zeros(3)).split("a"))


# -- None is a value, a missing key is not -----------------------------------------------------------------------------


def objects(value: object) -> list:
    assert isinstance(value, np.ndarray) and value.dtype == object
    return value.tolist()


@pytest.mark.parametrize(
    "build", [Batch, Batch.stack, lambda rows: Batch(rows=rows).rows, lambda rows: Batch(np.array(rows, object))]
)
def test_stacking_keeps_none_and_fills_what_is_missing(build):
    batch = build([{"p": None, "q": 1, "n": {"r": None}}, {"p": 1, "q": 2, "n": {"r": 2.5, "s": 3}}])
    assert objects(batch.p) == [None, 1] and batch.q.tolist() == [1, 2]
    assert objects(batch.n.r) == [None, 2.5]
    assert batch.n.s.tolist() == [0, 3] and batch.n.s.dtype.kind == "i"  # missing, not None
    assert objects(build([{"p": None}, {"p": None}]).p) == [None, None]
    assert objects(build([{"p": None}, {}, {"p": 1}]).p) == [None, None, 1]
    assert objects(build([{"p": None}, {"p": "a"}]).p) == [None, "a"]
    assert build([{"p": Batch()}, {"p": 1}]).p.tolist() == [0, 1]  # a reserved key has no value yet


@pytest.mark.parametrize(
    "other", [np.zeros(3), torch.zeros(3), torch.tensor(1.0), {"q": 1}, Batch(q=1), np.array(["a", "b"], dtype=object)]
)
def test_none_beside_what_cannot_hold_it_raises(other):
    for rows in ([{"p": None}, {"p": other}], [{"p": other}, {"p": None}]):
        with pytest.raises(ValueError, match=r"'p' is None in some batches and .* in others; leave the key out"):
            Batch(rows)
        with pytest.raises(ValueError, match=r"'n.p' is None in some"):
            Batch.stack([Batch(n=row) for row in rows])


def test_none_has_no_rows_to_join():
    rows = Batch(a=[1, 2], p=[3.0, 4.0])
    with pytest.raises(ValueError, match=r"'p' is None in some batches, which has no rows"):
        Batch.cat([rows, Batch(a=[5], p=None)])
    with pytest.raises(ValueError, match=r"'p' is None in some batches"):
        rows.copy().cat_(Batch(a=[5], p=None))
    assert Batch.cat([rows, Batch(a=[5])]).p.tolist() == [3.0, 4.0, 0.0]
    both = Batch.cat([Batch(a=[1], p=None), Batch(a=[2], p=None)])
    assert both.p is None and both.a.tolist() == [1, 2]
    kept = Batch.cat([Batch(p=np.array([None, 1], object)), Batch(p=[2])])
    assert objects(kept.p) == [None, 1, 2]


def test_rows_that_are_none_are_no_batches():
    for join in (Batch, Batch.stack, Batch.cat):
        with pytest.raises(TypeError, match="found None; Batch\\(\\) stands for a row without values"):
            join([{"p": [1]}, None])


def test_none_is_not_written_over_numbers():
    batch = Batch(a=[1, 2], b=torch.ones(2), c=["x", "y"], d={"e": [5, 6]})
    before = batch.copy()
    for row, name in (({"a": None}, "a"), ({"b": None}, "b"), ({"d": {"e": None}}, "d.e"), (Batch(a=None), "a")):
        for loc in (0, [0], slice(0, 1)):
            with pytest.raises(TypeError, match=rf"'{name}' holds .* and cannot hold None; leave the key out"):
                batch[loc] = row
    with pytest.raises(ValueError, match=r"'d' is a Batch; wanted a mapping there, found NoneType"):
        batch[0] = {"d": None}
    assert batch == before
    batch[0] = {"c": None, "a": 7}
    assert objects(batch.c) == [None, "y"] and batch.a.tolist() == [7, 2]
    assert batch.b.tolist() == [0, 1] and batch.d.e.tolist() == [0, 6]  # not given


# -- rules of Tianshou's own Batch -------------------------------------------------------------------------------------


def test_batches_without_rows_yield_none() -> None:
    for batch in (Batch(), Batch(a=1), Batch(a=Batch(), b=Batch(c=Batch())), Batch(a=[1, 2], b=3)):
        assert list(batch) == []
    assert [row.a for row in Batch(a=[1, 2, 3], b=[4, 5])] == [1, 2]


def test_empty_batches_keep_shapes_and_dtypes() -> None:
    batch = Batch(
        a=[False, True], b={"c": np.array([2.0, "st"], object), "e": [2.0, np.nan]}, t=torch.ones(2, 3), n=None
    )
    empty = Batch.empty(batch)
    assert empty.a.tolist() == [False, False] and empty.b.c.tolist() == [None, None] and empty.b.e.tolist() == [0, 0]
    assert empty.t.shape == (2, 3) and not empty.t.any() and empty.n is None
    assert batch.a.tolist() == [False, True] and bool(batch.t.all())  # a copy was emptied
    batch[1] = Batch.empty(batch[0])
    assert batch.b.c.tolist() == [2.0, None] and batch.b.e.tolist() == [2, 0] and batch.t.tolist() == [[1] * 3, [0] * 3]
    assert batch.empty_([0]) is batch and not batch.t.any() and batch.b.c.tolist() == [None, None]
    row = Batch(a=np.arange(3), t=torch.ones(3))[1]
    assert row.empty_().a == 0 and isinstance(row.a, np.integer)
    with pytest.raises(IndexError, match="'a' has shape"):
        Batch(a=np.zeros(2)).empty_(7)
    assert Batch().empty_().is_empty()


def test_cat_fills_empty_parts_to_the_rows_of_their_batch() -> None:
    one = Batch(a=Batch(a=np.ones((3, 2))), b=np.ones(3))
    two = Batch(a=Batch(a=Batch(), t=Batch()), b=np.zeros(2))
    joined = Batch.cat([one, two, one])
    assert joined.a.a[:, 0].tolist() == [1, 1, 1, 0, 0, 1, 1, 1] and joined.a.t.is_empty()
    only = Batch.cat([Batch(a=Batch(a=np.ones((3, 2)))), Batch(a=Batch(a=Batch())), Batch()])
    assert only.a.a.shape == (3, 2)  # without leaves there are no rows
    partly = Batch.cat([Batch(c={"x": [1, 2], "y": [3, 4]}), Batch(c={"x": [5]}), Batch(b=[7.0], c=Batch())])
    assert partly.c.x.tolist() == [1, 2, 5, 0] and partly.c.y.tolist() == [3, 4, 0, 0] and partly.b[-1] == 7


@pytest.mark.parametrize(
    ("join", "parts", "text"),
    [
        (
            Batch.cat,
            [{"e": [4, 5], "d": 6}, {"e": [4, 6]}],
            r"'d' cannot be joined \(cat\): array\(6\) is a single value",
        ),
        (Batch.cat, [{"n": {"d": 6}}, {"e": [4, 6]}], "'n/d' cannot be joined"),
        (Batch.stack, [{"m": torch.ones(2)}, {"m": np.array(["a", None], object)}], "'m' cannot be joined"),
        (
            Batch.cat,
            [{"m": torch.ones(2)}, {"m": np.array(["a", None], object)}],
            "'m' cannot be joined",
        ),
    ],
)
def test_joins_that_fail_name_the_key(join: Any, parts: list[Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        join(parts)


def test_errors_that_programs_for_tianshou_catch() -> None:
    with pytest.raises(AssertionError):
        Batch({1: 2})
    with pytest.raises(AssertionError):
        list(Batch(a=np.arange(3)).split(0))


def test_to_torch_takes_numbers_too() -> None:
    batch = Batch(a=np.float64(1.0), b=Batch(c=np.ones(1, np.float32)))
    batch.b.__dict__["e"] = 1
    batch.to_torch()
    assert batch.a.dtype is torch.float64 and batch.b.c.dtype is torch.float32 and batch.b.e.dtype is torch.int64
