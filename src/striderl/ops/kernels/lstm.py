"""An LSTM over a window with resets inside, on a GPU: torch's matrix products, our kernels for the rest.

    gates[t] = x[t] W_ih' + b          all steps in one product, before the loop
             + h[t-1] W_hh'            one product per step, added in place
    cell kernel: i, f, g, o ─▶ c[t], h[t]; the state is zero where a trajectory begins

    backward, last step first:   cell kernel ─▶ d gates[t], d c[t-1];  d h[t-1] = d gates[t] W_hh, zero where one begins
    and then all steps in one product each:   d W_ih, d W_hh, d b, d x

A library call cannot zero its state in the middle, so it needs a column per trajectory and runs the empty rest of it
too. Here every step is run once. All shapes are fixed and there is no host synchronisation, so it can be captured.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from striderl.ops.kernels.side_by_side import may_run_beside

_BLOCK = 256


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit  # type: ignore[untyped-decorator]
def _cell(  # type: ignore[no-untyped-def]
    gates, before, begins, live, begins_next, cell, hidden, fed, count, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """Turn gates [B, 4 H] into activations in place; make cell and hidden [B, H], and the next step's input state."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    row, column = place // SIZE, place % SIZE
    at = row * (4 * SIZE) + column
    i = tl.sigmoid(tl.load(gates + at, mask=inside, other=0.0))
    f = tl.sigmoid(tl.load(gates + at + SIZE, mask=inside, other=0.0))
    g = _tanh(tl.load(gates + at + 2 * SIZE, mask=inside, other=0.0))
    o = tl.sigmoid(tl.load(gates + at + 3 * SIZE, mask=inside, other=0.0))
    begin = tl.load(begins + row, mask=inside, other=1) != 0
    alive = tl.load(live + row, mask=inside, other=0) != 0
    old = tl.where(begin, 0.0, tl.load(before + place, mask=inside, other=0.0))
    new = tl.where(alive, f * old + i * g, 0.0)
    out = tl.where(alive, o * _tanh(new), 0.0)
    tl.store(gates + at, i, mask=inside)
    tl.store(gates + at + SIZE, f, mask=inside)
    tl.store(gates + at + 2 * SIZE, g, mask=inside)
    tl.store(gates + at + 3 * SIZE, o, mask=inside)
    tl.store(cell + place, new, mask=inside)
    tl.store(hidden + place, out, mask=inside)
    forgets = tl.load(begins_next + row, mask=inside, other=1) != 0
    tl.store(fed + place, tl.where(forgets, 0.0, out), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _cell_backward(  # type: ignore[no-untyped-def]
    gates,
    before,
    cell,
    begins,
    live,
    begins_next,
    d_out,
    d_hidden,
    d_cell,
    d_gates,
    count,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Turn the gradients of hidden and cell into those of the gates [B, 4 H] and of the cell before, in place."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    row, column = place // SIZE, place % SIZE
    at = row * (4 * SIZE) + column
    i = tl.load(gates + at, mask=inside, other=0.0)
    f = tl.load(gates + at + SIZE, mask=inside, other=0.0)
    g = tl.load(gates + at + 2 * SIZE, mask=inside, other=0.0)
    o = tl.load(gates + at + 3 * SIZE, mask=inside, other=0.0)
    begin = tl.load(begins + row, mask=inside, other=1) != 0
    alive = tl.load(live + row, mask=inside, other=0) != 0
    old = tl.where(begin, 0.0, tl.load(before + place, mask=inside, other=0.0))
    bent = _tanh(tl.load(cell + place, mask=inside, other=0.0))
    forgets = tl.load(begins_next + row, mask=inside, other=1) != 0
    later = tl.where(forgets, 0.0, tl.load(d_hidden + place, mask=inside, other=0.0))
    dh = tl.load(d_out + place, mask=inside, other=0.0) + later
    dc = tl.load(d_cell + place, mask=inside, other=0.0) + dh * o * (1.0 - bent * bent)
    dh, dc = tl.where(alive, dh, 0.0), tl.where(alive, dc, 0.0)
    tl.store(d_gates + at, dc * g * i * (1.0 - i), mask=inside)
    tl.store(d_gates + at + SIZE, dc * old * f * (1.0 - f), mask=inside)
    tl.store(d_gates + at + 2 * SIZE, dc * i * (1.0 - g * g), mask=inside)
    tl.store(d_gates + at + 3 * SIZE, dh * bent * o * (1.0 - o), mask=inside)
    tl.store(d_cell + place, tl.where(begin, 0.0, dc * f), mask=inside)


@torch.library.custom_op("striderl::lstm_forward", mutates_args=())
def lstm_forward(
    x: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor,
    begins: Tensor,
    live: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (hidden [T + 1, B, H], activations [T, B, 4 H], cell [T + 1, B, H], input state of each [T, B, H])."""
    steps, rows, size = x.shape[0], x.shape[1], hidden.shape[-1]
    gates = torch.addmm(bias, x.reshape(steps * rows, -1), weight_ih.t()).view(steps, rows, 4 * size)
    hiddens = x.new_empty(steps + 1, rows, size)
    cells, fed = torch.empty_like(hiddens), torch.empty_like(hiddens)
    hiddens[0], cells[0] = hidden, cell
    fed[0] = torch.where(begins[0].unsqueeze(-1), 0.0, hidden)
    after, turned = _shifted(begins), weight_hh.t()
    grid = (triton.cdiv(rows * size, _BLOCK),)
    for step in range(steps):
        gates[step].addmm_(fed[step], turned)
        _cell[grid](
            gates[step], cells[step], begins[step], live[step], after[step], cells[step + 1], hiddens[step + 1],
            fed[step + 1], rows * size, SIZE=size, BLOCK=_BLOCK,
        )  # fmt: skip
    return hiddens, gates, cells, fed


@lstm_forward.register_fake
def _(
    x: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor,
    begins: Tensor,
    live: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    steps, rows, size = x.shape[0], x.shape[1], hidden.shape[-1]
    whole = (steps + 1, rows, size)
    return x.new_empty(whole), x.new_empty(steps, rows, 4 * size), x.new_empty(whole), x.new_empty(whole)


@torch.library.custom_op("striderl::lstm_gradients", mutates_args=())
def lstm_gradients(
    d_hiddens: Tensor,
    d_last_cell: Tensor,
    x: Tensor,
    fed: Tensor,
    gates: Tensor,
    cells: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    begins: Tensor,
    live: Tensor,
    wants_inputs: bool,
) -> list[Tensor]:
    """Return the gradients of x, or nothing of it, of the first hidden and cell [B, H], the weights and the bias."""
    steps, rows, wide = gates.shape
    size = wide // 4
    d_hidden, d_cell = torch.zeros_like(d_last_cell), d_last_cell.clone()
    d_gates = torch.empty_like(gates)
    after = _shifted(begins)
    grid = (triton.cdiv(rows * size, _BLOCK),)
    for step in range(steps - 1, -1, -1):
        _cell_backward[grid](
            gates[step], cells[step], cells[step + 1], begins[step], live[step], after[step], d_hiddens[step + 1],
            d_hidden, d_cell, d_gates[step], rows * size, SIZE=size, BLOCK=_BLOCK,
        )  # fmt: skip
        torch.mm(d_gates[step], weight_hh, out=d_hidden)
    flat = d_gates.view(steps * rows, wide)
    return [
        torch.mm(flat, weight_ih).view_as(x) if wants_inputs else x.new_empty(0),
        torch.where(begins[0].unsqueeze(-1), 0.0, d_hidden),
        d_cell,
        torch.mm(flat.t(), x.reshape(steps * rows, -1)),
        torch.mm(flat.t(), fed[:-1].reshape(steps * rows, -1)),
        flat.sum(0),
    ]


@lstm_gradients.register_fake
def _(
    d_hiddens: Tensor,
    d_last_cell: Tensor,
    x: Tensor,
    fed: Tensor,
    gates: Tensor,
    cells: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    begins: Tensor,
    live: Tensor,
    wants_inputs: bool,
) -> list[Tensor]:
    state = d_last_cell
    return [
        torch.empty_like(x) if wants_inputs else x.new_empty(0),
        torch.empty_like(state),
        torch.empty_like(state),
        torch.empty_like(weight_ih),
        torch.empty_like(weight_hh),
        gates.new_empty(gates.shape[-1]),
    ]


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    x, _, _, weight_ih, weight_hh, _, begins, live = inputs
    _, gates, cells, fed = output
    ctx.mark_non_differentiable(gates, fed)
    ctx.save_for_backward(x, weight_ih, weight_hh, gates, cells, fed, begins, live)


def _gradients(
    ctx: Any, d_hiddens: Tensor, d_gates: Tensor | None, d_cells: Tensor, d_fed: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return the gradients of all inputs; of the hidden states all count, of the cells the last alone."""
    x, weight_ih, weight_hh, gates, cells, fed, begins, live = ctx.saved_tensors
    wants_inputs = ctx.needs_input_grad[0]
    d_x, d_hidden, d_cell, d_weight_ih, d_weight_hh, d_bias = lstm_gradients(
        d_hiddens.contiguous(), d_cells[-1].contiguous(), x, fed, gates, cells, weight_ih, weight_hh, begins, live,
        wants_inputs,
    )  # fmt: skip
    states = (d_hidden + d_hiddens[0], d_cell + d_cells[0])
    return d_x if wants_inputs else None, *states, d_weight_ih, d_weight_hh, d_bias, None, None


lstm_forward.register_autograd(_gradients, setup_context=_remember)
may_run_beside(torch.ops.striderl.lstm_forward.default, rows_dim=1)
may_run_beside(torch.ops.striderl.lstm_gradients.default, rows_dim=1)


def _shifted(begins: Tensor) -> Tensor:
    """Return whether the step after each one begins a trajectory; nothing comes after the last."""
    return torch.cat([begins[1:], torch.zeros_like(begins[:1])])


def lstm_scan(
    x: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
    begins: Tensor,
    live: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer over x [T, B, F]: (outputs [T, B, H], hidden [B, H], cell [B, H]).

    The state is zeroed before a step that `begins` a trajectory [T, B]; a step that is not `live` is not read, and the
    state before and after it is zero.
    """
    weight_ih, weight_hh, bias_ih, bias_hh = weights
    alive = live.unsqueeze(-1)
    x = torch.where(alive, x, 0.0)
    # the step after an invalid one begins a trajectory
    begins = begins | ~live | torch.cat([torch.zeros_like(live[:1]), ~live[:-1]])
    hiddens, _, cells, _ = lstm_forward(
        x.contiguous(), hidden.contiguous(), cell.contiguous(), weight_ih, weight_hh, bias_ih + bias_hh, begins, live
    )
    return hiddens[1:], hiddens[-1], cells[-1]
