import multiprocessing
import subprocess
import sys
from collections import namedtuple
from typing import NamedTuple as TypingNamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from striderl.data import tree
from striderl.data.batch import Batch
from striderl.data.buffers import (
    buffer_from_example,
    buffer_func,
    buffer_method,
    buffer_to,
    get_leading_dims,
    numpify_buffer,
    torchify_buffer,
)
from striderl.data.memory import SharedArray
from striderl.data.named_tuples import (
    NamedArrayTuple,
    NamedArrayTupleSchema,
    NamedTupleSchema,
    is_namedarraytuple,
    namedarraytuple,
)

Step = namedarraytuple("Step", ["obs", "reward", "info"])
Info = namedtuple("Info", ["score", "done"])


class Typed(TypingNamedTuple):
    obs: np.ndarray
    number: int


def example():
    return Step(obs=np.ones(3, np.float32), reward=0.5, info=Info(score=np.float32(2), done=True))


# -- allocation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share_memory", [False, True])
def test_a_buffer_has_the_examples_structure_shapes_and_dtypes(share_memory):
    buffer = buffer_from_example(example(), (5, 2), share_memory)
    assert type(buffer) is Step
    assert buffer.obs.shape == (5, 2, 3) and buffer.obs.dtype == np.float32
    assert buffer.reward.shape == (5, 2) and buffer.reward.dtype == np.float64
    assert buffer.info.score.shape == (5, 2) and buffer.info.score.dtype == np.float32
    assert buffer.info.done.dtype == np.bool_
    assert not any(np.any(leaf) for leaf in tree.leaves(buffer))
    assert all(isinstance(leaf, SharedArray) is share_memory for leaf in tree.leaves(buffer))


@pytest.mark.parametrize("share_memory", [False, True])
def test_leaves_do_not_overlap(share_memory):
    buffer = buffer_from_example(example(), 3, share_memory)
    for number, leaf in enumerate(tree.leaves(buffer), 1):
        leaf[...] = number % 2 if leaf.dtype == bool else number
    assert [np.unique(leaf).tolist() for leaf in tree.leaves(buffer)] == [[1], [2], [3], [False]]


def test_namedtuples_become_indexable():
    for value in (Typed(np.zeros(2), 3), NamedTupleSchema("Typed", "obs number")(np.zeros(2), 3)):
        buffer = buffer_from_example(value, 4)
        assert is_namedarraytuple(buffer) and type(buffer).__name__ == "Typed" and buffer._fields == ("obs", "number")
        buffer[1] = value._replace(number=9)
        assert buffer.number.tolist() == [0, 9, 0, 0] and buffer[1].obs.shape == (2,)
    schema = NamedArrayTupleSchema("S", "a")
    assert isinstance(buffer_from_example(schema(1), 4), NamedArrayTuple)


def test_dicts_and_batches_keep_their_kind():
    buffer = buffer_from_example({"b": np.zeros(2), "a": Batch(c=1, d={"e": 2.0})}, 4)
    assert list(buffer) == ["b", "a"] and isinstance(buffer["a"], Batch)
    assert buffer["a"].c.shape == (4,) and buffer["a"].d.e.dtype == np.float64


def test_a_tensordict_becomes_a_dict_of_arrays():
    tensordict = pytest.importorskip("tensordict", reason="tensordict is an optional package")
    inner = tensordict.TensorDict({"b": torch.zeros(4, 2)}, batch_size=[4])
    value = tensordict.TensorDict({"a": torch.zeros(4, dtype=torch.int32), "inner": inner}, batch_size=[4])
    buffer = buffer_from_example(value, 3)
    assert type(buffer) is dict and buffer["a"].shape == (3, 4) and buffer["a"].dtype == np.int32
    assert buffer["inner"]["b"].shape == (3, 4, 2)


@pytest.mark.parametrize(
    ("leaf", "shape", "dtype"),
    [
        (1, (), np.int64),
        (True, (), np.bool_),
        (1.0, (), np.float64),
        ([1, 2, 3], (3,), np.int64),
        ((1.0, 2.0), (2,), np.float64),
        (np.uint8(3), (), np.uint8),
        (np.zeros((2, 0)), (2, 0), np.float64),
        (torch.zeros(2, 3), (2, 3), np.float32),
    ],
)
@pytest.mark.parametrize("share_memory", [False, True])
def test_a_leaf_is_what_numpy_makes_of_it(leaf, shape, dtype, share_memory):
    buffer = buffer_from_example(leaf, [7], share_memory)
    assert isinstance(buffer, np.ndarray) and buffer.shape == (7, *shape) and buffer.dtype == dtype
    assert buffer_from_example(leaf, (), share_memory).shape == shape


def test_none_stays_none():
    assert buffer_from_example(None, 3) is None and buffer_from_example(None, 3, share_memory=True) is None
    buffer = buffer_from_example(Step(None, 1, None), 3)
    assert buffer.obs is None and buffer.info is None and buffer.reward.shape == (3,)


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        (object(), TypeError, r"Step\.info\.score: a buffer holds numbers, found object \(object\)"),
        ([None, 1], TypeError, r"Step\.info\.score: .*found list"),
        ("text", TypeError, r"Step\.info\.score: .*found str"),
        ([[1], [2, 3]], ValueError, r"Step\.info\.score: .*ragged list"),
    ],
)
def test_what_is_no_number_is_an_error_that_names_the_field(bad, kind, message):
    with pytest.raises(kind, match=message):
        buffer_from_example(Step(1, 2, Info(bad, 1)), 3)


def test_negative_sizes_are_an_error():
    with pytest.raises(ValueError, match="no negative sizes"):
        buffer_from_example(1.0, (2, -1))


@given(
    lead=st.lists(st.integers(0, 3), max_size=3),
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=2), min_size=3, max_size=3),
    dtypes=st.lists(st.sampled_from(["f4", "f8", "u1", "?", "i8"]), min_size=3, max_size=3),
    share_memory=st.booleans(),
)
def test_any_shapes_and_dtypes_fit_together(lead, shapes, dtypes, share_memory):
    leaves = [np.ones(shape, dtype) for shape, dtype in zip(shapes, dtypes)]
    buffer = buffer_from_example(Step(leaves[0], Info(leaves[1], None), leaves[2]), lead, share_memory)
    for found, leaf in zip(tree.leaves(buffer), leaves):
        assert found.shape == (*lead, *leaf.shape) and found.dtype == leaf.dtype and not found.any()
        assert found.flags.aligned and found.flags.c_contiguous
        found[...] = 1
    assert all(found.all() for found in tree.leaves(buffer))


# -- sharing -----------------------------------------------------------------------------------------------------------


def fill(buffer, number):
    buffer[1:] = number
    buffer[0] = Step(np.zeros(3), 0.25, Info(7, True))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_writes_its_columns_and_the_parent_sees_them(method):
    buffer = buffer_from_example(example(), (2, 3), share_memory=True)
    tensors = torchify_buffer(buffer)
    process = multiprocessing.get_context(method).Process(target=fill, args=(buffer[:, 1:], 1))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    assert buffer.reward.tolist() == [[0, 0.25, 0.25], [0, 1, 1]]
    assert buffer.info.score.tolist() == [[0, 7, 7], [0, 1, 1]]
    assert buffer.info.done.tolist() == [[False, True, True], [False, True, True]]
    assert buffer.obs[1].tolist() == [[0, 0, 0], [1, 1, 1], [1, 1, 1]]
    assert tensors.reward.tolist() == [[0, 0.25, 0.25], [0, 1, 1]]  # tensors over the buffer see the writes too


# -- conversion --------------------------------------------------------------------------------------------------------


def test_torchify_shares_memory_and_keeps_the_structure():
    buffer = buffer_from_example(example(), 2)._replace(reward=None)
    tensors = torchify_buffer(buffer)
    assert type(tensors) is Step and type(tensors.info) is type(buffer.info) and tensors.reward is None
    assert tensors.obs.dtype == torch.float32 and tensors.info.done.dtype == torch.bool
    tensors[1] = Step(5.0, None, Info(6.0, True))
    assert buffer.obs.tolist() == [[0, 0, 0], [5, 5, 5]] and buffer.info.score.tolist() == [0, 6]
    again = torchify_buffer(tensors)
    assert again.obs is tensors.obs


def test_torchify_never_copies_silently():
    read_only = np.broadcast_to(np.zeros(3), (2, 3))
    with pytest.raises(ValueError, match=r"^Step\.obs is read-only"):
        torchify_buffer(Step(read_only, None, None))
    with pytest.raises(ValueError, match=r"^Step\.info\.done: no tensor can share .*negative"):
        torchify_buffer(Step(np.zeros(3), None, Info(np.zeros(3), np.zeros(3)[::-1])))


def test_numpify_shares_the_memory_of_cpu_tensors():
    tensors = Step(torch.zeros(2), (torch.ones(2), None), Info(torch.zeros(2, requires_grad=True), np.zeros(2)))
    arrays = numpify_buffer(tensors)
    assert type(arrays) is Step and type(arrays.reward) is tuple and type(arrays.info) is Info
    assert all(isinstance(leaf, np.ndarray) for leaf in tree.leaves(arrays))
    arrays.obs[0] = 3
    assert tensors.obs.tolist() == [3, 0]
    assert arrays.info.done is tensors.info.done


def test_buffer_to_moves_tensors_only():
    moved = buffer_to(Step(torch.zeros(2), None, Info(torch.ones(1), torch.ones(1))), "meta")
    assert type(moved) is Step and moved.obs.device.type == "meta" and moved.info.done.device.type == "meta"
    assert moved.reward is None
    tensor = torch.zeros(2)
    assert buffer_to(tensor, "cpu") is tensor
    with pytest.raises(TypeError, match=r"^Step\.reward is a ndarray; only tensors can move to cpu"):
        buffer_to(Step(torch.zeros(2), np.zeros(2), None), "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_buffers_go_to_the_gpu_and_back():
    tensors = torchify_buffer(Step(np.arange(3.0), None, Info(np.arange(3), np.arange(3) > 1)))
    moved = buffer_to(tensors, "cuda")
    assert moved.obs.is_cuda and moved.info.done.is_cuda
    moved[1:] = 1
    moved[torch.tensor([0], device="cuda")] = Step(5.0, None, Info(6, True))
    assert tree.equal(
        numpify_buffer(moved), Step(np.array([5.0, 1, 1]), None, Info(np.array([6, 1, 1]), np.ones(3, bool)))
    )


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
def test_methods_and_functions_reach_every_leaf(convert):
    buffer = Step(convert(np.arange(6).reshape(2, 3)), None, {"k": (convert(np.zeros((4, 5))),)})
    turned = (
        buffer_method(buffer, "transpose", 0, 1) if convert is torch.as_tensor else buffer_method(buffer, "transpose")
    )
    assert type(turned) is Step and turned.obs.shape == (3, 2) and turned.info["k"][0].shape == (5, 4)
    assert turned.reward is None
    assert buffer_method(buffer, "sum", axis=0).obs.tolist() == [3, 5, 7]
    tripled = buffer_func(buffer, lambda leaf, factor, shift=0: leaf * factor + shift, 3, shift=1)
    assert tripled.obs.tolist() == [[1, 4, 7], [10, 13, 16]] and tripled.info["k"][0].sum() == 20
    with pytest.raises(AttributeError, match=r"^Step\.obs is a \w+, which has no method 'fly'"):
        buffer_method(buffer, "fly")


# -- leading dimensions ------------------------------------------------------------------------------------------------


def test_leading_dims_are_what_all_leaves_share():
    buffer = buffer_from_example(Step(np.zeros(4), 1.0, None), (5, 2))
    assert get_leading_dims(buffer) == (5,) and get_leading_dims(buffer, n_dim=2) == (5, 2)
    assert get_leading_dims(torchify_buffer(buffer), 2) == (5, 2)
    assert get_leading_dims(np.zeros((3, 1)), 2) == (3, 1)


@pytest.mark.parametrize(
    ("buffer", "n_dim", "message"),
    [
        (Step(np.zeros(2), np.zeros(3), None), 1, r"^Step: .*'obs' has \(2,\), 'reward' has \(3,\)"),
        (Step(np.zeros((2, 3)), np.zeros(2), None), 2, r"^Step: reward has shape \(2,\); wanted at least 2"),
        (Step(None, None, None), 1, r"^Step: .*without leaves"),
    ],
)
def test_leading_dims_that_differ_are_an_error(buffer, n_dim, message):
    with pytest.raises(ValueError, match=message):
        get_leading_dims(buffer, n_dim)


def test_importing_the_module_does_not_load_torch():
    program = """
import sys
from striderl.data.buffers import buffer_from_example, get_leading_dims, numpify_buffer
buffer = numpify_buffer(buffer_from_example({"a": 1.0}, (2, 3), share_memory=True))
assert get_leading_dims(buffer, 2) == (2, 3)
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
