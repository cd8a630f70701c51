"""Any state of tensors, arrays, numbers, text and containers comes back as it was, bit for bit."""

from __future__ import annotations

import io
import json
import math
import struct
from collections import OrderedDict, namedtuple
from enum import IntEnum

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load as load_with_safetensors
from store_cases import run_state, same

from striderl.checkpoint.state_tree import TreeError, flatten, unflatten
from striderl.checkpoint.strict_json import decode, encode
from striderl.checkpoint.tensor_file import pieces, read_tensors

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32]
DTYPES += [torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
DTYPES += [torch.float8_e4m3fn, torch.float8_e5m2]
NUMPY = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
NUMPY += ["float16", "float32", "float64", "complex64", "complex128"]


def through_bytes(state):
    """Save to bytes and read again, as the store does."""
    tensors, plain = flatten(state)
    content = b"".join(pieces(tensors))
    text = encode(plain)
    again = read_tensors(io.BytesIO(content), len(content), "test")
    return unflatten(again, decode(text, "test", max_bytes=10**9))


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    raw = draw(st.binary(min_size=0, max_size=8)) + b"\x5a\xff\x00\x80\x3c"
    size = math.prod(shape) * dtype.itemsize
    flat = (raw * (size // len(raw) + 1))[:size]
    if dtype == torch.bool:
        flat = bytes(byte & 1 for byte in flat)
    tensor = torch.empty(shape, dtype=dtype)
    if size:
        tensor = torch.frombuffer(bytearray(flat), dtype=torch.uint8).view(dtype).reshape(shape)
    form = draw(st.sampled_from(["plain", "transposed", "strided", "expanded", "parameter"]))
    if form == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(0, 1)
    if form == "strided" and tensor.dim() >= 1:
        return tensor[::2]
    if form == "expanded":
        return tensor.unsqueeze(0).expand(3, *shape)
    if form == "parameter" and tensor.is_floating_point():
        return torch.nn.Parameter(tensor)
    return tensor


@st.composite
def arrays(draw):
    dtype = np.dtype(draw(st.sampled_from(NUMPY)))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    raw = draw(st.binary(min_size=1, max_size=9))
    size = math.prod(shape) * dtype.itemsize
    flat = (raw * (size // len(raw) + 1))[:size]
    flat = bytes(byte & 1 for byte in flat) if dtype.kind == "b" else flat
    array = np.frombuffer(flat, dtype).reshape(shape)  # read-only, as arrays of other owners are
    return array[::-1] if array.ndim and draw(st.booleans()) else array


scalars = arrays().filter(lambda array: array.size > 0).map(lambda array: array.reshape(-1)[0])
floats = st.floats() | st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("d", struct.pack("Q", bits))[0])
plain = st.none() | st.booleans() | st.integers() | floats | st.text() | st.text(alphabet="$/~\ud800é", max_size=3)
keys = st.text(max_size=4) | st.text(alphabet="$/~2\udfff", max_size=3) | st.integers(-(2**63), 2**63 - 1)
leaves = plain | tensors() | arrays() | scalars
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(states)
def test_any_state_comes_back(state):
    assert same(through_bytes(state), state)


@pytest.mark.slow
@given(st.dictionaries(keys, tensors(), max_size=6))
def test_no_two_tensors_share_a_name(state):
    found, _ = flatten(state)
    assert len(found) == len(state)


def test_the_plain_part_by_hand():
    state = {"policy": {"weight": torch.ones(2)}, "n": 7, "x": math.nan, "betas": (0.9, 1.0), "deep": {3: "three"}}
    tensors, plain = flatten(state)
    assert list(tensors) == ["/policy/weight"]
    assert plain == {
        "policy": {"weight": {"$tensor": "/policy/weight"}},
        "n": 7,
        "x": {"$float": "7ff8000000000000"},
        "betas": {"$tuple": [0.9, 1.0]},
        "deep": {"$dict": [[3, "three"]]},
    }


def test_module_and_optimizer_states_come_back():
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(network.parameters(), amsgrad=True)
    network(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
    again = through_bytes(state)
    assert same(again, {"network": dict(state["network"]), "optimizer": state["optimizer"]})
    network.load_state_dict(again["network"])
    optimizer.load_state_dict(again["optimizer"])


def test_the_safetensors_package_reads_the_file():
    tensors, _ = flatten(run_state(3))
    found = load_with_safetensors(b"".join(pieces(tensors)))
    assert same({name: found[name] for name in tensors}, tensors)


def test_negative_and_conjugated_views_are_written_out():
    value = torch.tensor([1 + 2j, 3 - 4j])
    assert same(through_bytes([value.conj(), value.conj().imag]), [value.conj(), value.conj().imag])


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (lambda: None, "function"),
        (object(), "object"),
        ({1, 2}, "set"),
        (b"bytes", "bytes"),
        (1 + 2j, "complex"),
        (Colour.RED, "Colour"),
        (namedtuple("Point", "x y")(1, 2), "Point"),
        (torch.Size([1]), "Size"),
        (np.array(["text"]), "ndarray of dtype <U4"),
        (np.array([object()]), "ndarray of dtype object"),
        (np.zeros(2, ">f4"), "ndarray of dtype >f4"),
        (np.datetime64("2020-01-01"), "datetime64"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.empty(2, device="meta"), "without data"),
    ],
)
def test_what_cannot_be_saved_is_named_with_its_place(value, kind):
    with pytest.raises(TypeError, match=r"^state\['collector'\]\['actors'\]\[1\]: ") as caught:
        flatten({"collector": {"actors": [1, value]}})
    assert kind in str(caught.value)


@pytest.mark.parametrize("key", [1.5, True, (1,), None, 2**70, b"x"])
def test_other_keys_are_refused(key):
    with pytest.raises(TypeError, match=r"^state\['a'\]: the key"):
        flatten({"a": {key: 1}})


def test_a_state_that_contains_itself_is_refused():
    state: dict = {}
    state["a"] = state
    with pytest.raises(TypeError, match="contains itself"):
        flatten(state)


def test_what_is_as_deep_as_can_be_saved_can_be_read():
    state: object = torch.ones(1)
    for position in range(100):
        state = [(state,), {"a": state}, {1: state}][position % 3] if position % 3 else (state,)
    assert same(through_bytes(state), state)


def test_dicts_of_other_classes_come_back_as_dicts():
    assert type(through_bytes(OrderedDict(a=1))) is dict


@pytest.mark.parametrize(
    "text",
    ['{"$tensor":"/a"}', '{"$tensor":3}', '{"$what":1}', '{"$tuple":[],"b":1}', '{"$number":["float32","00"]}']
    + [
        '{"$array":["float32"]}',
        '{"$float":"zz"}',
        '{"$int":[1]}',
        '{"$dict":[["a",1],["a",2]]}',
        '{"$dict":[[[],1]]}',
    ],
)
def test_other_plain_values_are_refused(text):
    with pytest.raises(ValueError):
        unflatten({}, json.loads(text))


def test_a_tensor_that_nobody_wants_is_refused():
    with pytest.raises(TreeError, match="'/a'"):
        unflatten({"/a": torch.ones(1)}, {})
