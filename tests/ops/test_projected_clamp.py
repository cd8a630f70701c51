"""The clamp whose gradient leads back inside."""

from __future__ import annotations

import pytest
import torch

from striderl.networks.heads.gaussian import projected_clamp


def _gradient(value: float, upstream: float) -> tuple[float, float]:
    x = torch.tensor(value, requires_grad=True)
    y = projected_clamp(x, torch.tensor(1.0), torch.tensor(2.0))
    y.backward(torch.tensor(upstream))
    return float(y.detach()), float(x.grad)


def test_forward_and_backward_table():
    assert _gradient(1.5, 3.0) == (1.5, 3.0)
    assert _gradient(0.5, -3.0) == (1.0, -3.0)  # descent would raise it: passes
    assert _gradient(0.5, 3.0) == (1.0, 0.0)  # descent would lower it further: stops
    assert _gradient(9.0, 3.0) == (2.0, 3.0)
    assert _gradient(9.0, -3.0) == (2.0, 0.0)


def test_nan_and_infinity_become_limits():
    x = torch.tensor([torch.nan, torch.inf, -torch.inf], requires_grad=True)
    y = projected_clamp(x, torch.tensor(1.0), torch.tensor(2.0))
    assert y.tolist() == [1, 2, 1]
    y.sum().backward()
    assert x.grad.isfinite().all()


def test_a_parameter_comes_back_where_torch_clamp_stays():
    for clamp, comes_back in ((projected_clamp, True), (torch.clamp, False)):
        parameter = torch.nn.Parameter(torch.tensor(-0.5))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for _ in range(30):
            optimizer.zero_grad()
            (clamp(parameter, torch.tensor(0.1), torch.tensor(9.0)) - 1.0).square().backward()
            optimizer.step()
        assert (parameter.item() > 0.5) == comes_back


@pytest.mark.slow
def test_function_transforms_and_compile():
    low, high = torch.tensor(1.0), torch.tensor(2.0)
    gradient = torch.func.vmap(torch.func.grad(lambda x: projected_clamp(x, low, high)))(torch.tensor([0.5, 1.5, 3.0]))
    assert gradient.tolist() == [0, 1, 1]
    compiled = torch.compile(projected_clamp, fullgraph=True, backend="eager")
    x = torch.tensor([0.5, 1.5, 3.0], requires_grad=True)
    compiled(x, low, high).sum().backward()
    assert x.grad.tolist() == [0, 1, 1]
