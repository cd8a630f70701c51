"""A clamp that cannot trap a parameter outside its range.

`torch.clamp` has gradient zero outside the range: a standard deviation that once stepped below its floor stays there
for ever. Passing every gradient through lets it drift away instead. Here only gradients that lead back inside pass:

    value      below low                inside      above high
    forward    low                      value       high
    backward   g where g < 0, else 0    g           g where g > 0, else 0        (descent moves against g)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _ProjectedClamp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(value, low), high)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        value, low, high = ctx.saved_tensors
        grad = grads[0]
        outward = ((value < low) & (grad > 0)) | ((value > high) & (grad < 0))
        return torch.where(outward, torch.zeros_like(grad), grad), None, None


def projected_clamp(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Clamp into [low, high], which broadcast to value; NaN becomes low and passes no gradient."""
    safe = torch.where(value.isnan(), low, value)
    if not (safe.requires_grad and torch.is_grad_enabled()):
        return torch.minimum(torch.maximum(safe, low), high)  # what `forward` does, without the way there
    result: Tensor = _ProjectedClamp.apply(safe, low, high)  # type: ignore[no-untyped-call]
    return result
