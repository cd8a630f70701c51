"""A stack of linear layers on a GPU with fused bias and activation, forward and backward.

    h[l] = bend(h[l-1] W[l]' + b[l])                                one kernel per layer; h is kept, after activation

    dz[l-1] = (dz[l] W[l]) * bend'(h[l-1])   and sums for db[l-1]   one kernel per layer: the slope follows from h
    dW[l] = dz[l]' h[l-1]                                           the library's product

A library's product writes its result, a second kernel reads it and writes its activation, and a third sums
gradients of biases; on a robot's networks that traffic is what takes time. Products are in TF32 or bfloat16, sums in
float32. Sums have a fixed order, so results are deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Tile(NamedTuple):
    """How a product is cut."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int


MANY_ROWS = 16384
"""From here on large tiles keep all processors busy."""
_BLOCK = 256
"""How many rows are summed at a time."""

FORWARD = {
    (4, True): Tile(128, 128, 32, 8, 3),
    (4, False): Tile(64, 64, 64, 4, 3),
    (2, True): Tile(64, 128, 64, 4, 4),
    (2, False): Tile(64, 64, 64, 4, 4),
}
"""By bytes of a number (4: TF32, 2: bfloat16) and whether there are many rows; found by trying on an H200."""
BACKWARD = {
    (4, True): Tile(128, 128, 32, 4, 3),
    (4, False): Tile(64, 64, 32, 4, 4),
    (2, True): Tile(128, 128, 64, 4, 3),
    (2, False): Tile(64, 64, 64, 4, 4),
}


@triton.jit  # type: ignore[untyped-decorator]
def _bent(z, BEND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the activation of z; NaN stays NaN, which `tl.maximum` would make 0."""
    if BEND == "elu":
        z = tl.where(z < 0.0, tl.exp(tl.minimum(z, 0.0)) - 1.0, z)
    elif BEND == "relu":
        z = tl.where(z < 0.0, 0.0, z)
    elif BEND == "tanh":
        z = 2.0 * tl.sigmoid(2.0 * z) - 1.0
    return z


@triton.jit  # type: ignore[untyped-decorator]
def _slope(h, BEND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the derivative of an activation where its value is h."""
    if BEND == "elu":
        h = tl.where(h > 0.0, 1.0, h + 1.0)
    elif BEND == "relu":
        h = tl.where(h > 0.0, 1.0, 0.0)
    elif BEND == "tanh":
        h = 1.0 - h * h
    return h


@triton.jit  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    x,
    weight,
    row,
    column,
    rows,
    INNER: tl.constexpr,
    COLUMNS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Return one tile [M, N] of x [rows, INNER] @ weight [COLUMNS, INNER]', in float32.

    What is summed over lies side by side in both: the matrix units read TF32 in that order only.
    """
    inner = tl.arange(0, K)
    there, wanted = row < rows, column < COLUMNS
    at_x = x + row.to(tl.int64)[:, None] * INNER + inner[None, :]
    at_w = weight + column[None, :] * INNER + inner[:, None]
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, INNER, K):
        inside = inner < INNER - start
        a = tl.load(at_x, mask=there[:, None] & inside[None, :], other=0.0)
        b = tl.load(at_w, mask=inside[:, None] & wanted[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision="tf32")
        at_x += K
        at_w += K
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _layer(  # type: ignore[no-untyped-def]
    x,
    weight,
    bias,
    out,
    rows,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    BEND: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Make out [rows, OUT] = bend(x [rows, IN] @ weight [OUT, IN]' + bias)."""
    column_blocks: tl.constexpr = (OUT + N - 1) // N
    row = (tl.program_id(0) // column_blocks) * M + tl.arange(0, M)
    column = (tl.program_id(0) % column_blocks) * N + tl.arange(0, N)
    total = _product(x, weight, row, column, rows, IN, OUT, M, N, K)
    total += tl.load(bias + column, mask=column < OUT, other=0.0)[None, :]
    place = out + row.to(tl.int64)[:, None] * OUT + column[None, :]
    mask = (row < rows)[:, None] & (column < OUT)[None, :]
    tl.store(place, _bent(total, BEND).to(out.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _layer_backward(  # type: ignore[no-untyped-def]
    d_z,
    turned,
    h,
    d_h,
    sums,
    rows,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    BEND: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Make d_h [rows, IN] = (d_z [rows, OUT] @ turned [IN, OUT]') * slope at h; sums [blocks of rows, IN] of it."""
    column_blocks: tl.constexpr = (IN + N - 1) // N
    block = tl.program_id(0) // column_blocks
    row = block * M + tl.arange(0, M)
    column = (tl.program_id(0) % column_blocks) * N + tl.arange(0, N)
    total = _product(d_z, turned, row, column, rows, OUT, IN, M, N, K)
    place = row.to(tl.int64)[:, None] * IN + column[None, :]
    mask = (row < rows)[:, None] & (column < IN)[None, :]
    if BEND != "none":
        total = total * _slope(tl.load(h + place, mask=mask, other=0.0).to(tl.float32), BEND)
        tl.store(sums + block * IN + column, tl.sum(total, axis=0), mask=column < IN)
    tl.store(d_h + place, total.to(d_h.dtype.element_ty), mask=mask)


def _tile(tiles: dict[tuple[int, bool], Tile], like: Tensor) -> Tile:
    return tiles[like.element_size(), like.shape[0] >= MANY_ROWS]


def _sizes(tile: Tile, columns: int, inner: int) -> dict[str, int]:
    """Return the sizes of a tile, cut down to those of the product; at least 16, the least that is multiplied."""
    cut = {"M": tile.rows, "N": _least(tile.columns, columns), "K": _least(tile.inner, inner)}
    return {**cut, "num_warps": tile.warps, "num_stages": tile.stages}


def _least(size: int, needed: int) -> int:
    return max(16, min(size, 1 << (needed - 1).bit_length()))


def run_layer(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, bend: str) -> None:
    """Write bend(x @ weight' + bias) into `out`."""
    rows, (OUT, IN) = x.shape[0], weight.shape
    sizes = _sizes(_tile(FORWARD, x), OUT, IN)
    grid = (triton.cdiv(rows, sizes["M"]) * triton.cdiv(OUT, sizes["N"]),)
    _layer[grid](x, weight, bias, out, rows, IN=IN, OUT=OUT, BEND=bend, **sizes)


def run_backward(d_z: Tensor, turned: Tensor, h: Tensor, d_h: Tensor, sums: Tensor, bend: str) -> None:
    """Write the gradient of a layer's input, before its activation, into `d_h`, and its sums into `sums`."""
    rows, (IN, OUT) = h.shape[0], turned.shape
    sizes = _sizes(_tile(BACKWARD, h), IN, OUT)
    grid = (triton.cdiv(rows, sizes["M"]) * triton.cdiv(IN, sizes["N"]),)
    _layer_backward[grid](d_z, turned, h, d_h, sums, rows, IN=IN, OUT=OUT, BEND=bend, **sizes)


def _num_blocks(h: Tensor) -> int:
    return -(-h.shape[0] // _tile(BACKWARD, h).rows)


def _pieces(flat: Tensor, rows: int, widths: list[int]) -> list[Tensor]:
    """Return [rows, width] for each width, one after the other in a flat block."""
    return [piece.view(rows, -1) for piece in flat.split_with_sizes([rows * width for width in widths])]


# -- as operations that torch's compiler takes as they are -------------------------------------------------------------


# torch keeps compiled programs on disk by the names of operations: one that does something else needs another name


@torch.library.custom_op("striderl::mlp_forward", mutates_args=())
def mlp_forward(
    x: Tensor, low: list[Tensor], weights: list[Tensor], biases: list[Tensor], bend: str, linear_last: bool
) -> tuple[Tensor, Tensor]:
    """Return the output [rows, OUT] and the hidden layers, one after the other.

    `low` are the weights in the dtype of x, `weights` those that gradients are for.
    """
    rows, widths = x.shape[0], _hidden(low)
    kept = x.new_empty(rows * sum(widths))
    out = x.new_empty(rows, low[-1].shape[0])
    bends = [bend] * len(widths) + ["none" if linear_last else bend]
    h = x
    for weight, bias, place, shape in zip(low, biases, [*_pieces(kept, rows, widths), out], bends):
        run_layer(h, weight, bias, place, shape)
        h = place
    return out, kept


@mlp_forward.register_fake
def _(
    x: Tensor, low: list[Tensor], weights: list[Tensor], biases: list[Tensor], bend: str, linear_last: bool
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], low[-1].shape[0]), x.new_empty(x.shape[0] * sum(_hidden(low)))


def _hidden(weights: list[Tensor]) -> list[int]:
    return [weight.shape[0] for weight in weights[:-1]]


@torch.library.custom_op("striderl::mlp_backward", mutates_args=())
def mlp_backward(
    d_z: Tensor, x: Tensor, kept: Tensor, turned: list[Tensor], bend: str, wants_inputs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return pre-activation gradients of the hidden layers, their sums over blocks of rows, and that of x or none.

    `d_z` is the gradient of the last layer before its activation, `turned` are the weights [IN, OUT].
    """
    rows, widths = x.shape[0], [each.shape[0] for each in turned[1:]]
    d_kept, sums = torch.empty_like(kept), x.new_empty(_num_blocks(x) * sum(widths), dtype=torch.float32)
    places = zip(_pieces(kept, rows, widths), _pieces(d_kept, rows, widths), _pieces(sums, _num_blocks(x), widths))
    for weight, (h, d_h, sum_) in zip(reversed(turned[1:]), reversed(list(places))):
        run_backward(d_z, weight, h, d_h, sum_, bend)
        d_z = d_h
    d_x = torch.empty_like(x) if wants_inputs else x.new_empty(0)
    if wants_inputs:
        run_backward(d_z, turned[0], x, d_x, sums, "none")
    return d_kept, sums, d_x


@mlp_backward.register_fake
def _(
    d_z: Tensor, x: Tensor, kept: Tensor, turned: list[Tensor], bend: str, wants_inputs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    widths = [each.shape[0] for each in turned[1:]]
    sums = x.new_empty(_num_blocks(x) * sum(widths), dtype=torch.float32)
    return torch.empty_like(kept), sums, torch.empty_like(x) if wants_inputs else x.new_empty(0)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, low, _, _, ctx.bend, ctx.linear_last = inputs
    out, kept = output
    ctx.mark_non_differentiable(kept)
    ctx.save_for_backward(x, out, kept, *low)


def _gradients(ctx: Any, d_out: Tensor, d_kept: Tensor | None) -> tuple[Any, ...]:
    """Return the gradients of all inputs of `mlp_forward`."""
    x, out, kept, *low = ctx.saved_tensors
    d_z = d_out if ctx.linear_last else d_out * slope(out, ctx.bend)
    d_last_bias, d_z = _column_sums(d_z), d_z.contiguous()
    rows, widths, d_x = x.shape[0], _hidden(low), None
    d_between, sums = [], []
    if widths or ctx.needs_input_grad[0]:
        turned = [weight.t().contiguous() for weight in low]
        d_kept, sums_, d_x = mlp_backward(d_z, x, kept, turned, ctx.bend, ctx.needs_input_grad[0])
        d_between, sums = _pieces(d_kept, rows, widths), _pieces(sums_, _num_blocks(x), widths)
    fed = [x, *_pieces(kept, rows, widths)]
    d_weights = [torch.mm(d.t(), h).to(torch.float32) for d, h in zip([*d_between, d_z], fed)]
    d_biases = [*(each.sum(0) for each in sums), d_last_bias]
    return d_x if ctx.needs_input_grad[0] else None, [None] * len(low), d_weights, d_biases, None, None


mlp_forward.register_autograd(_gradients, setup_context=_remember)


def _column_sums(d_z: Tensor) -> Tensor:
    """Return the sums over rows, in two stages where it goes: of few columns the compiler makes few programs."""
    rows, columns = d_z.shape
    if rows % _BLOCK:
        return d_z.sum(0, dtype=torch.float32)
    return d_z.reshape(rows // _BLOCK, _BLOCK, columns).sum(1, dtype=torch.float32).sum(0)


def slope(h: Tensor, bend: str) -> Tensor:
    """Return the derivative of an activation where its value is h."""
    if bend == "elu":
        return torch.where(h > 0, 1.0, h + 1.0).to(h.dtype)
    if bend == "relu":
        return (h > 0).to(h.dtype)
    return 1.0 - h * h


def mlp(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], bend: str, *, linear_last: bool, dtype: torch.dtype
) -> Tensor:
    """Apply the layers to x [..., IN], in `dtype`: float32 (products in TF32) or bfloat16.

    `bend` comes after each layer, or after each but the last; it is 'none' only where there is no other layer.
    """
    flat = x.reshape(-1, x.shape[-1]).to(dtype).contiguous()
    low = [weight.detach().to(dtype).contiguous() for weight in weights]
    out: Tensor = mlp_forward(flat, low, list(weights), list(biases), bend, linear_last)[0]
    return out.view(*x.shape[:-1], out.shape[-1])
