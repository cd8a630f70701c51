"""Linear layers by kernels of our own, where they are faster: in compiled code on a GPU, in TF32 or bfloat16.

Anywhere else (on the CPU, in whole float32 or float64, in eager code, for a nonlinearity without a kernel, where the
slope of a network is itself differentiated) torch runs the layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from striderl.ops.returns import has_triton

if torch.cuda.is_available() and has_triton():
    from striderl.ops.kernels.mlp import mlp
else:
    mlp = None  # type: ignore[assignment]

BENDS: dict[type[nn.Module], str] = {nn.ELU: "elu", nn.ReLU: "relu", nn.Tanh: "tanh"}
"""Nonlinearities with a kernel."""


def bend_of(nonlinearity: nn.Module) -> str:
    """Return what kernels call a nonlinearity; empty for one that they do not have."""
    if isinstance(nonlinearity, nn.ELU) and nonlinearity.alpha != 1.0:
        return ""
    return BENDS.get(type(nonlinearity), "")


def dtype_of_kernels(x: Tensor) -> torch.dtype | None:
    """Return in which dtype kernels multiply x, or None where torch does."""
    if mlp is None or not torch.compiler.is_compiling():
        return None
    if not x.is_cuda or x.dtype not in (torch.float32, torch.bfloat16):
        return None
    allowed = _allowed()
    return allowed if x.dtype is torch.float32 or allowed is torch.bfloat16 else None


def _allowed() -> torch.dtype | None:
    # kernels have a gradient, which has none itself: `torch.func` may want it, for a penalty on slopes
    if torch.compiler.is_exporting() or torch._C._functorch.peek_interpreter_stack() is not None:
        return None
    if torch.is_autocast_enabled("cuda"):
        chosen = torch.get_autocast_dtype("cuda")
        return chosen if chosen is torch.bfloat16 else None
    return torch.float32 if torch.backends.cuda.matmul.allow_tf32 else None


if mlp is not None:  # says so to torch's compiler, which takes a second to import
    _allowed = torch.compiler.assume_constant_result(_allowed)  # type: ignore[no-untyped-call]


def run_layers(layers: list[nn.Linear], bend: str, x: Tensor, *, linear_last: bool, dtype: torch.dtype) -> Tensor:
    """Return what the layers make of x [..., IN], with a bend after each, or after each but the last."""
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    return mlp(x, weights, biases, bend, linear_last=linear_last, dtype=dtype)


def last_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return layer(x), for a layer at the end of a network."""
    dtype = dtype_of_kernels(x)
    if dtype is None:
        output: Tensor = layer(x)
        return output
    return run_layers([layer], "none", x, linear_last=True, dtype=dtype)
