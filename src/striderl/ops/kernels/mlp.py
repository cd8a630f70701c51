"""A stack of linear layers on a GPU with fused bias and activation, forward and backward.

    h[l] = bend(h[l-1] W[l]' + b[l])                                one kernel per layer; h is kept, after activation

    dz[l-1] = (dz[l] W[l]) * bend'(h[l-1])   and sums for db[l-1]   one kernel per layer: the slope follows from h
    dW[l] = dz[l]' h[l-1]                                           the library's product, beside the kernel of dz[l-2]

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

from striderl.ops.kernels.side_by_side import aside, joined, may_run_beside


class Tile(NamedTuple):
    """How a product is cut."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int


MANY_ROWS = 16384
"""From here on large tiles keep all processors busy."""

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


@triton.jit  # type: ignore[untyped-decorator]
def _bend_backward(  # type: ignore[no-untyped-def]
    d_h, h, d_z, sums, rows, WIDTH: tl.constexpr, BEND: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):
    """Make d_z [rows, WIDTH] = d_h * slope at h, and sums [blocks of rows, WIDTH] of it."""
    column_blocks: tl.constexpr = (WIDTH + N - 1) // N
    block = tl.program_id(0) // column_blocks
    row = block * M + tl.arange(0, M)
    column = (tl.program_id(0) % column_blocks) * N + tl.arange(0, N)
    place = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    mask = (row < rows)[:, None] & (column < WIDTH)[None, :]
    total = tl.load(d_h + place, mask=mask, other=0.0).to(tl.float32)
    if BEND != "none":
        total = total * _slope(tl.load(h + place, mask=mask, other=0.0).to(tl.float32), BEND)
        tl.store(d_z + place, total.to(d_z.dtype.element_ty), mask=mask)
    tl.store(sums + block * WIDTH + column, tl.sum(total, axis=0), mask=column < WIDTH)


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


def run_bend(d_h: Tensor, h: Tensor, d_z: Tensor, sums: Tensor, bend: str) -> None:
    """Write the gradient of a layer before its activation into `d_z`, unless it has none, and its sums into `sums`."""
    rows, width = d_h.shape
    rows_of_block, columns = _tile(BACKWARD, h).rows, _least(64, width)
    grid = (triton.cdiv(rows, rows_of_block) * triton.cdiv(width, columns),)
    _bend_backward[grid](d_h, h, d_z, sums, rows, WIDTH=width, BEND=bend, M=rows_of_block, N=columns, num_warps=8)


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


@torch.library.custom_op("striderl::mlp_gradients", mutates_args=())
def mlp_gradients(
    d_out: Tensor,
    x: Tensor,
    kept: Tensor,
    out: Tensor,
    turned: list[Tensor],
    bend: str,
    linear_last: bool,
    wants_inputs: bool,
) -> list[Tensor]:
    """Return the gradient of x, or nothing of it, then those of the weights, and those of the biases in sums.

    `turned` are the weights [IN, OUT]. Gradients of weights are float32 [OUT, IN]; the sums [blocks of rows, OUT] are
    left to add up.
    """
    rows, widths = x.shape[0], [each.shape[0] for each in turned[1:]]
    d_x, d_weights, sums = _like_gradients(x, turned, wants_inputs)
    fed = [x, *_pieces(kept, rows, widths)]
    d_between = _pieces(torch.empty_like(kept), rows, widths)
    d_last = d_out if linear_last else torch.empty_like(d_out)  # kept until `joined`: it is read on another stream
    run_bend(d_out, out, d_last, sums[-1], "none" if linear_last else bend)
    d_z = d_last
    for number in range(len(turned) - 1, -1, -1):
        with aside(x):
            _product_of_columns(d_z, fed[number], d_weights[number])
        if number:
            run_backward(d_z, turned[number], fed[number], d_between[number - 1], sums[number - 1], bend)
            d_z = d_between[number - 1]
    if wants_inputs:
        run_backward(d_z, turned[0], x, d_x, d_x, "none")
    joined(x)
    return [d_x, *d_weights, *sums]


def _product_of_columns(d_z: Tensor, h: Tensor, out: Tensor) -> None:
    """Write d_z' h into `out`, in float32 from whatever they are."""
    if d_z.dtype is out.dtype:
        torch.mm(d_z.t(), h, out=out)
    else:
        torch.mm(d_z.t(), h, out_dtype=out.dtype, out=out)


@mlp_gradients.register_fake
def _(
    d_out: Tensor,
    x: Tensor,
    kept: Tensor,
    out: Tensor,
    turned: list[Tensor],
    bend: str,
    linear_last: bool,
    wants_inputs: bool,
) -> list[Tensor]:
    d_x, d_weights, sums = _like_gradients(x, turned, wants_inputs)
    return [d_x, *d_weights, *sums]


def _like_gradients(x: Tensor, turned: list[Tensor], wants_inputs: bool) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Return memory for the outputs of `mlp_gradients`."""
    d_weights = [x.new_empty(each.shape[1], each.shape[0], dtype=torch.float32) for each in turned]
    sums = [x.new_empty(_num_blocks(x), each.shape[1], dtype=torch.float32) for each in turned]
    return torch.empty_like(x) if wants_inputs else x.new_empty(0), d_weights, sums


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, low, _, _, ctx.bend, ctx.linear_last = inputs
    out, kept = output
    ctx.mark_non_differentiable(kept)
    ctx.save_for_backward(x, out, kept, *low)


def _gradients(ctx: Any, d_out: Tensor, d_kept: Tensor | None) -> tuple[Any, ...]:
    """Return the gradients of all inputs of `mlp_forward`."""
    x, out, kept, *low = ctx.saved_tensors
    first, *later = low
    turned = [first.t().contiguous() if ctx.needs_input_grad[0] else first.t()]  # of the first, else only its shape
    turned += [weight.t().contiguous() for weight in later]
    wants_inputs = ctx.needs_input_grad[0]
    d_x, *others = mlp_gradients(d_out.contiguous(), x, kept, out, turned, ctx.bend, ctx.linear_last, wants_inputs)
    d_weights, d_biases = others[: len(low)], [each.sum(0) for each in others[len(low) :]]
    return d_x if wants_inputs else None, [None] * len(low), d_weights, d_biases, None, None


mlp_forward.register_autograd(_gradients, setup_context=_remember)
may_run_beside(torch.ops.striderl.mlp_forward.default, rows_dim=0)
may_run_beside(torch.ops.striderl.mlp_gradients.default, rows_dim=0)


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
