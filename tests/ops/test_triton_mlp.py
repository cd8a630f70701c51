"""Linear layers by kernels of our own equal torch's, forward and backward; they need a GPU, or Triton's interpreter."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

from striderl.networks.mlp import MlpModel
from striderl.ops.imitation import squared_slope

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="needs a CUDA device"),
]

BENDS = {"elu": functional.elu, "relu": functional.relu, "tanh": torch.tanh}
ERROR = {torch.float32: 2**-9, torch.bfloat16: 2**-7}
"""How far a product may be off, of the root of its sum of squares: TF32 cuts both factors after 10 bits, bfloat16
rounds them to 7. It adds up along a way through several layers."""
CASES = [
    ((20, 33, 17), "elu", False, 150),
    ((48, 64, 16, 5), "relu", True, 257),
    ((60, 130, 40, 24), "elu", False, 300),
    ((7, 1), "tanh", True, 1),
    ((128, 12), "elu", True, 100),
    ((24, 16, 3), "elu", False, 512),
]


def layers_of(sizes):
    torch.manual_seed(0)
    weights = [(torch.randn(out, size) / size**0.5).to(DEVICE).requires_grad_() for size, out in pairwise(sizes)]
    biases = [(0.1 * torch.randn(out)).to(DEVICE).requires_grad_() for out in sizes[1:]]
    return weights, biases


def by_torch(x, weights, biases, bend, linear_last):
    """In float64, layer by layer."""
    x = x.double()
    for number, (weight, bias) in enumerate(zip(weights, biases)):
        x = functional.linear(x, weight.double(), bias.double())
        if not linear_last or number + 1 < len(weights):
            x = BENDS[bend](x)
    return x


def gradients_by_hand(d_out, inputs, out, weights, bend, linear_last):
    """In float64, at the values that the layers had: a ReLU's slope there is that of a rounded number near zero."""
    d_weights, d_biases, d_z = [], [], d_out.double()
    if not linear_last:
        d_z = d_z * slope(out.double(), bend)
    for number in range(len(weights) - 1, -1, -1):
        h = inputs[number].double()
        d_weights, d_biases = [d_z.t() @ h, *d_weights], [d_z.sum(0), *d_biases]
        d_z = d_z @ weights[number].double()
        if number:
            d_z = d_z * slope(h, bend)
    return [d_z, *d_weights, *d_biases]


def slope(h, bend):
    return {"elu": torch.where(h > 0, 1.0, h + 1.0), "relu": (h > 0).double(), "tanh": 1.0 - h * h}[bend]


def assert_near(found, wanted, error):
    assert found.shape == wanted.shape
    off = (found.double() - wanted.double()).norm()
    assert off <= error * wanted.double().norm() + 1e-6, f"off by {off} of {wanted.norm()}"


@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize(("sizes", "bend", "linear_last", "rows"), CASES)
def test_layers_and_all_gradients_equal_torch(sizes, bend, linear_last, rows, dtype):
    from striderl.ops.kernels.mlp import mlp, mlp_forward

    if DEVICE == "cpu" and dtype is torch.bfloat16:
        pytest.skip("needs a CUDA device: the interpreter multiplies the bits of bfloat16")
    weights, biases = layers_of(sizes)
    x = torch.randn(rows, sizes[0], device=DEVICE, requires_grad=True)
    d_out = torch.randn(rows, sizes[-1], device=DEVICE).to(dtype)
    found = mlp(x, weights, biases, bend, linear_last=linear_last, dtype=dtype)
    assert found.dtype is dtype
    error = ERROR[dtype] * len(weights)
    assert_near(found, by_torch(x, weights, biases, bend, linear_last), error)
    low = [weight.detach().to(dtype) for weight in weights]
    _, kept = mlp_forward(x.detach().to(dtype), low, low, [bias.detach() for bias in biases], bend, linear_last)
    between = [piece.view(rows, -1) for piece in kept.split([rows * size for size in sizes[1:-1]])]
    wanted = gradients_by_hand(d_out, [x.detach(), *between], found.detach(), low, bend, linear_last)
    for one, other in zip(torch.autograd.grad(found, [x, *weights, *biases], d_out), wanted, strict=True):
        assert one.dtype is torch.float32
        assert_near(one, other, error)


def test_the_same_numbers_come_every_time():
    from striderl.ops.kernels.mlp import mlp

    weights, biases = layers_of((48, 64, 32))
    x = torch.randn(2000, 48, device=DEVICE)

    def gradients():
        out = mlp(x, weights, biases, "elu", linear_last=False, dtype=torch.float32)
        return [out, *torch.autograd.grad(out.square().sum(), [*weights, *biases])]

    for one, other in zip(gradients(), gradients(), strict=True):
        assert torch.equal(one, other)


def test_leading_dimensions_are_kept_and_constants_have_no_gradient():
    from striderl.ops.kernels.mlp import mlp

    weights, biases = layers_of((6, 20))
    out = mlp(torch.randn(3, 5, 6, device=DEVICE), weights, biases, "relu", linear_last=True, dtype=torch.float32)
    assert out.shape == (3, 5, 20)
    assert torch.autograd.grad(out.sum(), biases)[0].shape == (20,)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_compiled_networks_use_them_where_the_precision_allows(precision):
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        torch.manual_seed(0)
        network = MlpModel(48, (64, 32), 8, nn.ELU).cuda()
        x = torch.randn(500, 48, device="cuda")

        def run(x):
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16"):
                return network(x)

        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            found = torch.compile(run)(x)
        names = {event.key for event in seen.key_averages()}
        assert any("_layer" in name for name in names) == (precision != "fp32"), names
        assert_near(found, network.double()(x.double()), ERROR[torch.bfloat16])
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.parametrize("bend", BENDS)
def test_what_is_not_a_number_stays_so(bend):
    from striderl.ops.kernels.mlp import mlp

    weights, biases = layers_of((6, 20, 4))
    x = torch.randn(5, 6, device=DEVICE)
    x[2, 3] = torch.nan
    out = mlp(x, weights, biases, bend, linear_last=True, dtype=torch.float32)
    assert out.isnan().all(dim=1).tolist() == [False, False, True, False, False] and out[:2].isfinite().all()


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
def test_slopes_of_compiled_networks_are_differentiated_again_by_torch():
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        torch.manual_seed(0)
        network = MlpModel(6, (32, 16), 1, nn.ELU).cuda()
        x = torch.randn(40, 6, device="cuda")

        def loss(x):
            return squared_slope(lambda given: network(given).squeeze(-1), x).mean()

        parameters = [each for each in network.parameters() if each is not network.model[-1].bias]
        wanted = torch.autograd.grad(loss(x), parameters)
        found = torch.autograd.grad(torch.compile(loss, fullgraph=True)(x), parameters)
        for one, other in zip(found, wanted, strict=True):
            assert_near(one, other, 4 * ERROR[torch.float32])
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
