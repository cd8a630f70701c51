"""The weights of an LSTM or a GRU, and one step of each written out.

Parameters have the names, shapes and first values of `torch.nn.LSTM` and `torch.nn.GRU`, so state dicts pass between
them. They live in a module of our own because torch's compiler refuses to trace those two classes.

    LSTM   i, f, g, o = x W_ih' + b_ih + h W_hh' + b_hh           c' = sigma(f) c + sigma(i) tanh(g)
                                                                  h' = sigma(o) tanh(c')
    GRU    r, z, n    = likewise, but n = x_n + sigma(r) h_n      h' = (1 - sigma(z)) tanh(n) + sigma(z) h
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from striderl.data.naming import unknown

NUM_GATES = {"lstm": 4, "gru": 3}
"""How many blocks of `hidden_size` rows each kind of weight matrix has."""

STATE_NAMES = {"lstm": ("hidden", "cell"), "gru": ("hidden",)}
"""What the state of each kind is made of."""

Layer = tuple[Tensor, Tensor, Tensor, Tensor]
"""weight_ih [gates * H, F], weight_hh [gates * H, H], bias_ih [gates * H], bias_hh [gates * H]."""


class RecurrentWeights(nn.Module):
    """The parameters of `num_layers` recurrent layers."""

    def __init__(self, kind: str, input_size: int, hidden_size: int, num_layers: int) -> None:
        super().__init__()
        if kind not in NUM_GATES:
            raise ValueError(unknown("type", kind, NUM_GATES, where="Memory"))
        if min(input_size, hidden_size, num_layers) < 1:
            raise ValueError(f"Memory wants sizes of at least 1, found {input_size=}, {hidden_size=}, {num_layers=}")
        self.kind, self.hidden_size, self.num_layers = kind, hidden_size, num_layers
        rows = NUM_GATES[kind] * hidden_size
        for layer in range(num_layers):
            columns = input_size if layer == 0 else hidden_size
            self.register_parameter(f"weight_ih_l{layer}", nn.Parameter(torch.empty(rows, columns)))
            self.register_parameter(f"weight_hh_l{layer}", nn.Parameter(torch.empty(rows, hidden_size)))
            self.register_parameter(f"bias_ih_l{layer}", nn.Parameter(torch.empty(rows)))
            self.register_parameter(f"bias_hh_l{layer}", nn.Parameter(torch.empty(rows)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly in +-1/sqrt(hidden_size), as torch does."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def make_orthogonal(self) -> None:
        """Make the block of every gate orthogonal and all biases zero."""
        for weight_ih, weight_hh, bias_ih, bias_hh in self.layers():
            for weight in (weight_ih, weight_hh):
                for block in weight.data.chunk(NUM_GATES[self.kind]):
                    nn.init.orthogonal_(block)
            nn.init.zeros_(bias_ih)
            nn.init.zeros_(bias_hh)

    def layers(self) -> list[Layer]:
        """Return the four parameters of every layer."""
        flat = list(self.parameters())
        return [(flat[at], flat[at + 1], flat[at + 2], flat[at + 3]) for at in range(0, len(flat), 4)]

    def compacted(self) -> list[Tensor]:
        """Return views of one fresh buffer in which all weights come first and then all biases, in torch's order.

        That is cuDNN's layout. The copy costs one small kernel, and in exchange parameters may live wherever an
        optimiser packed them.
        """
        flat = list(self.parameters())
        order = [at for at in range(len(flat)) if flat[at].dim() == 2] + [
            at for at in range(len(flat)) if flat[at].dim() == 1
        ]
        buffer = torch.cat([flat[at].reshape(-1) for at in order])
        pieces = torch.split(buffer, [flat[at].numel() for at in order])
        views: dict[int, Tensor] = {at: piece.view_as(flat[at]) for at, piece in zip(order, pieces)}
        return [views[at] for at in range(len(flat))]


def lstm_cell(projected: Tensor, hidden: Tensor, cell: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    """Advance (hidden, cell) [B, H] by one step; `projected` [B, 4H] is x W_ih' + b_ih."""
    _, weight_hh, _, bias_hh = layer
    gate_i, gate_f, gate_g, gate_o = (projected + functional.linear(hidden, weight_hh, bias_hh)).chunk(4, dim=-1)
    cell = gate_f.sigmoid() * cell + gate_i.sigmoid() * gate_g.tanh()
    return gate_o.sigmoid() * cell.tanh(), cell


def gru_cell(projected: Tensor, hidden: Tensor, layer: Layer) -> Tensor:
    """Advance hidden [B, H] by one step; `projected` [B, 3H] is x W_ih' + b_ih."""
    _, weight_hh, _, bias_hh = layer
    x_r, x_z, x_n = projected.chunk(3, dim=-1)
    h_r, h_z, h_n = functional.linear(hidden, weight_hh, bias_hh).chunk(3, dim=-1)
    update = (x_z + h_z).sigmoid()
    fresh = (x_n + (x_r + h_r).sigmoid() * h_n).tanh()
    return fresh + update * (hidden - fresh)


def run_cells(
    kind: str, x: Tensor, states: Sequence[Tensor], layer: Layer, clear: list[Tensor], keep: list[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run one layer over [T, B, F] step by step and return ([T, B, H], the state after the last step).

    `clear[t]` [B, 1] zeroes the state before step t, `keep[t]` false zeroes it (and so the output) after step t; an
    empty list does nothing. Zeroing is a choice, not a product: 0 * NaN would be NaN.
    """
    outputs: list[Tensor] = []
    current = tuple(states)
    for step, projected in enumerate(functional.linear(x, layer[0], layer[2]).unbind(0)):
        if clear:
            current = tuple(torch.where(clear[step], 0.0, state) for state in current)
        if kind == "lstm":
            current = lstm_cell(projected, current[0], current[1], layer)
        else:
            current = (gru_cell(projected, current[0], layer),)
        if keep:
            current = tuple(torch.where(keep[step], state, 0.0) for state in current)
        outputs.append(current[0])
    return torch.stack(outputs), current
