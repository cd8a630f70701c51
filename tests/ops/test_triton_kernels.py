"""Kernels of our own equal torch's step-by-step code; they need a GPU, or Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os

import pytest
import torch

from striderl.networks.memory import Memory
from striderl.ops.returns import backward_scan

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def full_precision():
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.parametrize("shape", [(1, 1), (6, 300), (24, 129), (5, 7, 3)])
def test_the_scan_equals_torch(shape):
    from striderl.ops.kernels.columns import backward_scan_kernel

    torch.manual_seed(0)
    first, carry = torch.randn(shape), torch.rand(shape)
    found = backward_scan_kernel(first.to(DEVICE), carry.to(DEVICE))
    torch.testing.assert_close(found.cpu(), backward_scan(first, carry), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("steps", "envs", "size"), [(1, 3, 4), (6, 5, 8), (9, 40, 32)])
def test_the_lstm_equals_cells_with_resets_and_dead_steps(steps, envs, size, seed):
    from striderl.ops.kernels.lstm import lstm_scan

    torch.manual_seed(seed)
    memory = Memory(3, "lstm", 1, size).to(DEVICE)
    x = torch.randn(steps, envs, 3, device=DEVICE, requires_grad=True)
    state = {name: torch.randn(envs, 1, size, device=DEVICE, requires_grad=True) for name in ("hidden", "cell")}
    resets = torch.rand(steps, envs, device=DEVICE) < 0.25
    valid = torch.rand(steps, envs, device=DEVICE) > 0.15
    weights = [torch.randn(steps, envs, size, device=DEVICE), *(torch.randn(envs, size, device=DEVICE) for _ in "ab")]
    inputs = [x, *state.values(), *memory.parameters()]

    def gradients(outputs):
        total = sum((output * weight).sum() for output, weight in zip(outputs, weights))
        return torch.autograd.grad(total, inputs)

    outputs, ends = memory._by_cells(x, state, resets, valid)
    wanted = [outputs, ends["hidden"][:, 0], ends["cell"][:, 0]]
    poisoned = torch.where(valid.unsqueeze(-1), x, torch.nan)  # a dead step is not read
    hidden, cell = state["hidden"][:, 0], state["cell"][:, 0]
    found = lstm_scan(poisoned, hidden, cell, memory.rnn.layers()[0], resets, valid)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients(found), gradients(wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
