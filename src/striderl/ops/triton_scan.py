"""Returns on a GPU in one kernel: every column of [T, N] is walked backwards by a thread of its own.

    column n:   x[T-1] = first[T-1]      x[t] = first[t] + carry[t] · x[t+1]        t from the last to the first

Step by step in torch this is T small kernels, most of whose time is the way to the next one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 128


@triton.jit  # type: ignore[untyped-decorator]
def _scan(first, carry, result, num_steps, num_columns, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < num_columns
    running = tl.zeros([COLUMNS], dtype=first.dtype.element_ty)
    for back in range(num_steps):
        place = (num_steps - 1 - back) * num_columns + column
        running = tl.load(first + place, mask=inside) + tl.load(carry + place, mask=inside) * running
        tl.store(result + place, running, mask=inside)


@torch.library.custom_op("striderl::backward_scan", mutates_args=())
def backward_scan_kernel(first: Tensor, carry: Tensor) -> Tensor:
    """Return what `returns.backward_scan` does, for tensors [T, …] of one shape on a GPU."""
    first, carry = first.contiguous(), carry.expand_as(first).contiguous()
    result = torch.empty_like(first)
    columns = first[0].numel()
    if first.numel():
        grid = (triton.cdiv(columns, _COLUMNS),)
        with torch.cuda.device_of(first):  # type: ignore[no-untyped-call]  # Triton starts on the current device
            _scan[grid](first, carry, result, first.shape[0], columns, COLUMNS=_COLUMNS)
    return result


@backward_scan_kernel.register_fake
def _(first: Tensor, carry: Tensor) -> Tensor:
    return torch.empty_like(first, memory_format=torch.contiguous_format)
