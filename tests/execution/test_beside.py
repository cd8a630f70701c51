"""Operations that do not need each other become one, which runs them side by side, with the same results."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from striderl.execution.beside import SideBySide
from striderl.ops.kernels import side_by_side

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@torch.library.custom_op("striderl_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor, others: list[torch.Tensor], factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    return factor * x + sum(others), -x


@scaled.register_fake
def _(x, others, factor):
    return torch.empty_like(x), torch.empty_like(x)


@pytest.fixture(autouse=True)
def listed(monkeypatch):
    operation = torch.ops.striderl_tests.scaled.default
    monkeypatch.setitem(side_by_side.OPERATIONS, operation.name(), (operation, 0))


def graph_of(function, *shapes, device="cuda"):
    """Trace on tensors that only pretend to be on a device."""
    with FakeTensorMode():
        inputs = [torch.empty(shape, device=device) for shape in shapes]
        return make_fx(function, tracing_mode="fake")(*inputs)


def calls(graph: fx.Graph) -> list[list[str]]:
    """The operations of each joined node, in order."""
    nodes = [node for node in graph.nodes if node.target is torch.ops.striderl.side_by_side.default]
    return [[name for name, _ in json.loads(node.args[1])] for node in nodes]


def two_networks(x, y):
    """Two layers each: x → a → b and y → c → d, and then a sum of both."""
    a, _ = scaled(x, [x], 2.0)
    b, minus = scaled(a, [x, a], 3.0)
    c, _ = scaled(y, [y], 5.0)
    d, _ = scaled(c, [], 7.0)
    return b + d, minus


def test_each_level_becomes_one_operation_with_the_same_results():
    traced = graph_of(two_networks, (4, 3), (4, 3))
    SideBySide()(traced.graph)
    traced.recompile()
    assert calls(traced.graph) == [["striderl_tests::scaled"] * 2] * 2
    assert not any(node.target is torch.ops.striderl_tests.scaled.default for node in traced.graph.nodes)
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    for found, wanted in zip(traced(x, y), two_networks(x, y), strict=True):
        assert torch.equal(found, wanted)
    # by hand: a = 3x, b = 3a + x + a = 13x, c = 6y, d = 7c = 42y
    assert torch.allclose(traced(x, y)[0], 13 * x + 42 * y)


def test_an_operation_that_needs_another_stays_after_it():
    def chain(x):
        return scaled(scaled(x, [], 2.0)[0], [], 3.0)[0]

    traced = graph_of(chain, (4, 3))
    SideBySide()(traced.graph)
    assert calls(traced.graph) == []


def test_many_rows_and_the_cpu_stay_one_after_the_other():
    large = (side_by_side.MOST_ROWS + 1, 1)
    for traced in (graph_of(two_networks, large, large), graph_of(two_networks, (4, 3), (4, 3), device="cpu")):
        SideBySide()(traced.graph)
        assert calls(traced.graph) == []


def test_no_more_than_so_many_at_a_time():
    number = side_by_side.MOST + 2

    def many(x):
        return [scaled(x, [], float(each))[0] for each in range(number)]

    traced = graph_of(many, (4, 3))
    SideBySide()(traced.graph)
    traced.recompile()
    assert [len(each) for each in calls(traced.graph)] == [side_by_side.MOST, 2]
    x = torch.randn(4, 3)
    for each, found in enumerate(traced(x)):
        assert torch.equal(found, each * x)


def test_programs_on_disk_are_kept_by_the_text_of_the_pass():
    *limits, digest = SideBySide().uuid()
    assert limits == [side_by_side.MOST, side_by_side.MOST_ROWS] and digest
    assert SideBySide().uuid() == SideBySide().uuid()


@pytest.mark.gpu
@ON_GPU
def test_two_networks_side_by_side_equal_one_after_the_other_to_the_bit():
    from striderl.ops.kernels.mlp import mlp

    torch.manual_seed(0)
    sizes = [(48, 512, 256, 128), (60, 512, 256, 128)]
    weights = [[torch.randn(o, i, device="cuda") / i**0.5 for i, o in pairwise(each)] for each in sizes]
    biases = [[torch.randn(o, device="cuda") for o in each[1:]] for each in sizes]
    parameters = [one.requires_grad_() for network in [*weights, *biases] for one in network]
    inputs = [torch.randn(3000, each[0], device="cuda") for each in sizes]

    def loss(*inputs):
        outs = [mlp(x, w, b, "elu", linear_last=False, dtype=torch.float32) for x, w, b in zip(inputs, weights, biases)]
        return sum(out.square().mean() for out in outs)

    def gradients(program):
        total = program(*inputs)
        return [total.detach(), *torch.autograd.grad(total, parameters)]

    torch._dynamo.reset()
    alone = gradients(torch.compile(loss, dynamic=False))
    torch._dynamo.reset()
    together = torch.compile(loss, dynamic=False, options={"post_grad_custom_pre_pass": SideBySide()})
    for _ in range(20):  # a race would show in some of them
        for one, other in zip(gradients(together), alone, strict=True):
            assert torch.equal(one, other)
