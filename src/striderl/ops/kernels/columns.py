"""Returns on a GPU in one kernel: every column of [T, N] is walked backwards by a thread of its own.

    column n:   x[T-1] = first[T-1]      x[t] = first[t] + carry[t] · x[t+1]        t from the last to the first

Step by step in torch this is T small kernels, dominated by launch latency.

Random orders on a GPU without sorting: every place computes by itself which row comes there.

    place ─▶ two halves of its bits, each mixed into the other eight times ─▶ row, if it is below n
               ▲                                                               │ otherwise once more from there
               └───────────────────────────────────────────────────────────────┘

Mixing one half into the other can be undone, so a block of 2^b places is only rearranged (a Feistel network), and going
on until the number is below n rearranges 0..n-1. Sorting random keys, as torch does it, takes a hundred times longer.
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
    """Compute `returns.backward_scan` for tensors [T, …] of one shape on a GPU."""
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


_ROUNDS = 8
_BLOCK = 1024


@triton.jit
def _mixed(x):  # type: ignore[no-untyped-def]
    """Return 32 bits that all depend on all bits of x, uint32."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit  # type: ignore[untyped-decorator]
def _permute(  # type: ignore[no-untyped-def]
    seed, out, count, LOW: tl.constexpr, HIGH: tl.constexpr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr
):
    """Write which row comes to each place: out [number, count], int64; one permutation per second index of the grid."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number = tl.program_id(1)
    whole = tl.load(seed)
    first = (whole & 0xFFFFFFFF).to(tl.uint32)
    second = ((whole >> 32) & 0xFFFFFFFF).to(tl.uint32)
    key = _mixed(_mixed(first + number.to(tl.uint32) * 0x9E3779B9) ^ second)
    row = tl.where(place < count, place, 0).to(tl.uint32)
    outside = row >= 0
    while tl.max(outside.to(tl.int32), axis=0) > 0:
        low, high = row & ((1 << LOW) - 1), row >> LOW
        for turn in tl.static_range(ROUNDS):
            if turn % 2 == 0:
                low = low ^ (_mixed(high + key + ((turn * 0x7F4A7C15) & 0xFFFFFFFF)) & ((1 << LOW) - 1))
            else:
                high = high ^ (_mixed(low + key + ((turn * 0x7F4A7C15) & 0xFFFFFFFF)) & ((1 << HIGH) - 1))
        row = tl.where(outside, (high << LOW) | low, row)
        outside = row >= count
    tl.store(out + number.to(tl.int64) * count + place, row.to(tl.int64), mask=place < count)


def permutations(count: int, number: int, seed: Tensor) -> Tensor:
    """Return so many permutations of 0..count-1, int64 [number, count], from a seed on the device, int64 [1]."""
    if not 0 < count < 2**31:
        raise ValueError(f"permutations are of 1 to 2^31 - 1 numbers, found {count}")
    out = torch.empty(number, count, dtype=torch.int64, device=seed.device)
    low, high = _halves(count)
    grid = (triton.cdiv(count, _BLOCK), number)
    with torch.cuda.device_of(seed):  # type: ignore[no-untyped-call]  # Triton starts on the current device
        _permute[grid](seed, out, count, LOW=low, HIGH=high, ROUNDS=_ROUNDS, BLOCK=_BLOCK)
    return out


def _halves(count: int) -> tuple[int, int]:
    """Return how many bits each half has."""
    bits = max(2, (count - 1).bit_length())
    return bits - bits // 2, bits // 2
