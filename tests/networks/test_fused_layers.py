"""Where linear layers are run by kernels of our own, and where by torch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from striderl.networks import mlp as fused_layers
from striderl.networks.mlp import bend_of, dtype_of_kernels

FLOAT, HALF, DOUBLE = torch.float32, torch.bfloat16, torch.float64


@pytest.fixture
def compiling(monkeypatch):
    """As in compiled code on a GPU that may round to TF32."""
    monkeypatch.setattr(fused_layers, "mlp", object())
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


def on_gpu(dtype):
    return SimpleNamespace(is_cuda=True, dtype=dtype)


@pytest.mark.usefixtures("compiling")
@pytest.mark.parametrize(
    ("given", "autocast", "wanted"),
    [
        (FLOAT, False, FLOAT),
        (HALF, False, None),
        (DOUBLE, False, None),
        (torch.int64, False, None),
        (FLOAT, True, HALF),
        (HALF, True, HALF),
        (DOUBLE, True, None),
    ],
)
def test_products_keep_the_dtype_that_torch_would_give(monkeypatch, given, autocast, wanted):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: autocast)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: HALF)
    assert dtype_of_kernels(on_gpu(given)) is wanted


@pytest.mark.usefixtures("compiling")
def test_slopes_that_are_differentiated_again_are_left_to_torch():
    found = []

    def score(x):
        found.append(dtype_of_kernels(on_gpu(FLOAT)))
        return x.square().sum()

    torch.func.grad(score)(torch.ones(2))
    assert found == [None]
    assert dtype_of_kernels(on_gpu(FLOAT)) is FLOAT


@pytest.mark.usefixtures("compiling")
def test_the_cpu_and_whole_float32_are_left_to_torch():
    assert dtype_of_kernels(torch.ones(2, 3)) is None
    torch.backends.cuda.matmul.allow_tf32 = False
    assert dtype_of_kernels(on_gpu(FLOAT)) is None


def test_bends_are_those_whose_slope_follows_from_their_value():
    # the sums that are a bias's gradient come with the bend: a network of linear layers alone has none
    kinds = [nn.ELU(), nn.ReLU(), nn.Tanh(), nn.ELU(alpha=0.5), nn.Identity(), nn.GELU()]
    assert [bend_of(kind) for kind in kinds] == ["elu", "relu", "tanh", "", "", ""]
