"""Recurrent memory as a pure function: state goes in, state comes out.

The state is a dict of tensors with the env first, [B, L, H], so that it is indexed by env, stored as a column
[T, N, L, H] and reset per env like everything else; libraries' [L, B, H] appears only around their call.

    LSTM  {"hidden": [B, L, H], "cell": [B, L, H]}        GRU  {"hidden": [B, L, H]}

    t           0    1    2    3          resets[t] is true: x[t] is the first observation of an episode,
    resets      0    0    1    0          and the state is zeroed BEFORE x[t] is processed
    state   s ─▶●───▶●─▶ 0 ▶●───▶●─▶ s'

A step with `valid` false is dead: its input may be NaN, its output is zero, and the state before and after it is zero.

The weights of an LSTM or a GRU, and one step of each written out.

Parameters have the names, shapes and first values of `torch.nn.LSTM` and `torch.nn.GRU`, so state dicts pass between
them. They are in a module of our own because torch's compiler does not trace those two classes.

    LSTM   i, f, g, o = x W_ih' + b_ih + h W_hh' + b_hh           c' = sigma(f) c + sigma(i) tanh(g)
                                                                  h' = sigma(o) tanh(c')
    GRU    r, z, n    = likewise, but n = x_n + sigma(r) h_n      h' = (1 - sigma(z)) tanh(n) + sigma(z) h
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from striderl.data.naming import unknown
from striderl.data.specs import TensorSpec
from striderl.ops.returns import has_triton
from striderl.ops.trajectories import (
    SpacedTrajectories,
    assign_slots,
    from_slots,
    into_slots,
    room_now,
    shapes_are_static,
    shapes_may_depend_on_values,
    space_trajectories,
)

State = Mapping[str, Tensor]
"""Named tensors [B, L, H]."""


class Memory(nn.Module):
    """An LSTM or GRU without internal state: `step` for acting, `sequence` for windows with resets inside.

    All ways of running it agree to rounding; which is fastest depends on the machine:

    `sequence`            on the CPU an LSTM in one library call, with a blank step before each reset, and a GRU with a
                          backward pass of our own; an LSTM on a GPU by kernels of our own; otherwise, compiled and
                          exported, cells one by one. Without resets one library call.
    `sequence_by_slots`   one library call although there are resets, with static shapes: CUDA, inside graphs;
                          `sequence` uses it within `room_for_trajectories`, without the state afterwards.
    `padded`              one library call over trajectories from `split_and_pad_trajectories`: the reference.
    """

    def __init__(self, input_size: int, type: str = "lstm", num_layers: int = 1, hidden_size: int = 256) -> None:
        super().__init__()
        self.rnn = RecurrentWeights(type.lower(), input_size, hidden_size, num_layers)
        self.kind = type.lower()
        self.input_size, self.num_layers, self.hidden_size = input_size, num_layers, hidden_size
        self._scan: Callable[..., tuple[Tensor, Tensor, Tensor]] | None = None
        if self.kind == "lstm" and torch.cuda.is_available() and has_triton():
            from striderl.ops.kernels.lstm import lstm_scan

            self._scan = lstm_scan

    @property
    def output_size(self) -> int:
        """The size of the last dimension of the output."""
        return self.hidden_size

    @property
    def scans(self) -> bool:
        """Whether windows with resets inside are run by kernels of our own, on this device."""
        weight = next(self.parameters())
        return self._scan is not None and weight.is_cuda and weight.dtype is torch.float32

    # -- states --------------------------------------------------------------------------------------------------------

    def zero_state_spec(self) -> dict[str, TensorSpec]:
        """Return the spec of one env's state, for storage columns; it starts as zeros."""
        spec = TensorSpec(shape=(self.num_layers, self.hidden_size))
        return {name: spec for name in STATE_NAMES[self.kind]}

    def initial_state(self, batch: int) -> dict[str, Tensor]:
        """Return the zero state of so many envs, on the device of the weights."""
        like = next(self.parameters())
        return {name: like.new_zeros(batch, self.num_layers, self.hidden_size) for name in STATE_NAMES[self.kind]}

    def reset(self, state: State, dones: Tensor) -> dict[str, Tensor]:
        """Return the state with the envs zeroed where `dones` [B], of any dtype, is not zero."""
        finished = dones.bool().view(-1, 1, 1)
        return {name: torch.where(finished, 0.0, state[name]) for name in STATE_NAMES[self.kind]}

    def detach_hidden_states(self, state: State) -> dict[str, Tensor]:
        """Return the state detached from its autograd graph."""
        return {name: state[name].detach() for name in STATE_NAMES[self.kind]}

    # -- running -------------------------------------------------------------------------------------------------------

    def step(
        self, x: Tensor, state: State, reset: Tensor | None = None, valid: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Process x [B, F] and return (output [B, H], next state); `reset` and `valid` are [B]."""
        output, state = self._by_cells(
            x.unsqueeze(0),
            state,
            None if reset is None else reset.unsqueeze(0),
            None if valid is None else valid.unsqueeze(0),
        )
        return output.squeeze(0), state

    def sequence(
        self, x: Tensor, state: State, resets: Tensor | None = None, valid: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Process x [T, B, F] and return (outputs [T, B, H], state after the last step).

        Within `room_for_trajectories` the state is that of each env's first trajectory only.
        """
        if resets is None and valid is None:
            return self._by_library(x, state)
        if self.scans and not shapes_are_static():
            return self._by_scan(x, state, resets, valid)
        num_slots = room_now()
        if num_slots is not None and not torch.compiler.is_compiling():
            alive = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if valid is None else valid.bool()
            begins = torch.zeros_like(alive) if resets is None else resets.bool()
            outputs, ends, _ = self._by_slots(x, state, begins, num_slots, alive)
            return outputs, {name: value[: x.shape[1]] for name, value in ends.items()}
        if not shapes_may_depend_on_values(x):
            return self._by_cells(x, state, resets, valid)
        alive = torch.ones(x.shape[:2], dtype=torch.bool) if valid is None else valid.bool()
        begins = torch.zeros_like(alive) if resets is None else resets.bool()
        return self._on_the_host(x, state, begins, alive)

    def sequence_by_slots(
        self, x: Tensor, state: State, resets: Tensor, num_slots: int, valid: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Process x [T, B, F] in one library call and return (outputs [T, B, H], covered [T, B]).

        Takes B slots and one more for every trajectory that begins after t = 0. Steps for which the slots did not
        suffice have `covered` false and output zero, and must be left out of every loss. The state after the last
        step is not returned by the library call; `sequence` has it.
        """
        alive = torch.ones_like(resets, dtype=torch.bool) if valid is None else valid.bool()
        outputs, _, covered = self._by_slots(x, state, resets.bool(), num_slots, alive)
        return outputs, covered

    def _by_slots(
        self, x: Tensor, state: State, resets: Tensor, num_slots: int, valid: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Return (outputs [T, B, H], the state of every slot after T steps, covered [T, B])."""
        slots = assign_slots(resets, valid, num_slots)
        dead = (resets[0] | ~valid[0]).view(-1, 1, 1)
        room = num_slots - x.shape[1]
        start = {
            name: torch.nn.functional.pad(torch.where(dead, 0.0, state[name]), (0, 0, 0, 0, 0, room))
            for name in STATE_NAMES[self.kind]
        }
        outputs, ends = self._by_library(into_slots(x, slots), start)
        return from_slots(outputs, slots), ends, slots.covered

    def padded(self, x: Tensor, state: State, masks: Tensor) -> Tensor:
        """Process trajectories [T, n_traj, F] padded at their end and return outputs [T, n_traj, H], zero in padding.

        `state` holds the initial state of every trajectory, [n_traj, L, H].
        """
        keep = masks.bool().unsqueeze(-1)
        outputs, _ = self._by_library(torch.where(keep, x, 0.0), state)
        return torch.where(keep, outputs, 0.0)

    def forward(
        self, x: Tensor, state: State, resets: Tensor | None = None, valid: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run `step` on [B, F] or `sequence` on [T, B, F]."""
        run = self.step if x.dim() == 2 else self.sequence
        return run(x, state, resets, valid)

    def _by_cells(
        self, x: Tensor, state: State, resets: Tensor | None, valid: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        clear: list[Tensor] = []
        keep: list[Tensor] = []
        if resets is not None:
            clear = list(resets.bool().unsqueeze(-1).unbind(0))
        if valid is not None:
            alive = valid.bool().unsqueeze(-1)
            x = torch.where(alive, x, 0.0)
            keep = list(alive.unbind(0))
            clear = [begin | ~live for begin, live in zip(clear, keep)] if clear else [~live for live in keep]
        names = STATE_NAMES[self.kind]
        finals: list[tuple[Tensor, ...]] = []
        for at, layer in enumerate(self.rnn.layers()):
            x, final = run_cells(self.kind, x, [state[name][:, at] for name in names], layer, clear, keep)
            finals.append(final)
        return x, {name: torch.stack([final[at] for final in finals], dim=1) for at, name in enumerate(names)}

    def _by_scan(
        self, x: Tensor, state: State, resets: Tensor | None, valid: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run our own kernels on a GPU, layer by layer; in float32, even under autocast."""
        assert self._scan is not None
        live = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if valid is None else valid.bool()
        begins = torch.zeros_like(live) if resets is None else resets.bool()
        ends: list[tuple[Tensor, Tensor]] = []
        with torch.autocast(x.device.type, enabled=False):
            x = x.float()
            for at, layer in enumerate(self.rnn.layers()):
                x, hidden, cell = self._scan(x, state["hidden"][:, at], state["cell"][:, at], layer, begins, live)
                ends.append((hidden, cell))
        return x, {name: torch.stack([end[at] for end in ends], dim=1) for at, name in enumerate(("hidden", "cell"))}

    def _on_the_host(self, x: Tensor, state: State, resets: Tensor, valid: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Run a window on the CPU, where values may be read.

        There is a fused kernel for an LSTM over whole columns, three times as fast as cells; there is none for a GRU.
        """
        if self.kind == "gru":
            return self._by_gru_windows(x, state, resets, valid)
        spaced = space_trajectories(resets, valid)
        if spaced.num_steps == x.shape[0] and bool(valid.all()):
            return self._by_library(x, self.reset(state, resets[0]))
        outputs, ends = self._with_blanks(x, state, spaced, resets[0] | ~valid[0], valid)
        if bool(outputs.isfinite().all()):
            return outputs, ends
        return self._by_cells(x, state, resets, valid)  # a shut gate does not zero a state that is not finite

    def _by_gru_windows(
        self, x: Tensor, state: State, resets: Tensor, valid: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run a GRU layer by layer, even under autocast in the dtype of its weights."""
        dead, weight = ~valid.unsqueeze(-1), self.rnn.layers()[0][0]
        clear = resets.unsqueeze(-1) | dead
        clear[1:] |= dead[:-1]
        ends: list[Tensor] = []
        with torch.autocast(x.device.type, enabled=False):
            x = torch.where(dead, 0.0, x.to(weight.dtype))
            for at, layer in enumerate(self.rnn.layers()):
                start = state["hidden"][:, at].to(weight.dtype)
                x = GruWindow.apply(x, start, *layer, clear, dead)  # type: ignore[no-untyped-call]
                ends.append(x[-1])
        return x, {"hidden": torch.stack(ends, dim=1)}

    def _with_blanks(
        self, x: Tensor, state: State, spaced: SpacedTrajectories, cleared: Tensor, valid: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run an LSTM over whole columns; a step in which its input and output gates are shut zeroes the state.

        Two more inputs shut them: 'clear' all three gates, and 'hold' the input gate, with the forget gate wide open.
        Saturated gates pass no gradient, so that nothing is learned from these steps.
        """
        num_steps, num_envs = x.shape[:2]
        alive, place = valid.unsqueeze(-1), spaced.place.flatten()
        x = torch.where(alive, x, 0.0)
        start = self.reset(state, cleared)
        ends: list[tuple[Tensor, Tensor]] = []
        for at, (weight_ih, *others) in enumerate(self.rnn.layers()):
            spread = x.new_zeros(spaced.num_steps * num_envs, x.shape[-1]).index_copy(0, place, x.flatten(0, 1))
            given = torch.cat([spread.view(spaced.num_steps, num_envs, -1), spaced.gates.to(x.dtype)], dim=-1)
            weights = [torch.cat([weight_ih, _gate_columns(weight_ih)], dim=1), *others]
            begin = [start[name][None, :, at].contiguous() for name in STATE_NAMES["lstm"]]
            found, _, cell = torch.lstm(given, begin, weights, True, 1, 0.0, torch.is_grad_enabled(), False, False)
            outputs = found.flatten(0, 1).index_select(0, place).view(num_steps, num_envs, -1)
            x = torch.where(alive, outputs, 0.0)
            ends.append((x[-1], torch.where(alive[-1], cell[0], 0.0)))
        return x, {name: torch.stack([end[at] for end in ends], dim=1) for at, name in enumerate(STATE_NAMES["lstm"])}

    def _by_library(self, x: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Run torch's own kernels (cuDNN on a GPU) over whole columns; the compiler, which cannot, gets cells."""
        if torch.compiler.is_compiling():
            return self._by_cells(x, state, None, None)
        start = [state[name].transpose(0, 1).contiguous() for name in STATE_NAMES[self.kind]]
        weights: list[Tensor] = self.rnn.compacted() if x.is_cuda else [*self.rnn.parameters()]
        # cuDNN keeps what the backward pass needs only in training mode; there is no dropout, so it has no other effect
        training = torch.is_grad_enabled()
        if self.kind == "lstm":
            outputs, hidden, cell = torch.lstm(x, start, weights, True, self.num_layers, 0.0, training, False, False)
            return outputs, {"hidden": hidden.transpose(0, 1), "cell": cell.transpose(0, 1)}
        outputs, hidden = torch.gru(x, start[0], weights, True, self.num_layers, 0.0, training, False, False)
        return outputs, {"hidden": hidden.transpose(0, 1)}


# -- weights and cells -------------------------------------------------------------------------------------------------


NUM_GATES = {"lstm": 4, "gru": 3}
"""How many blocks of `hidden_size` rows each kind of weight matrix has."""

STATE_NAMES = {"lstm": ("hidden", "cell"), "gru": ("hidden",)}
"""The tensors of the state of each kind."""

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


_SHUT = 1e4
"""Added to a gate's input, it leaves of any other contribution nothing: sigmoid(-1e4) is 0."""


def _gate_columns(weight_ih: Tensor) -> Tensor:
    """Return columns [4 H, 2] of weights for the inputs 'clear' and 'hold', for gates i, f, g, o."""
    columns = weight_ih.new_tensor([[-_SHUT, -_SHUT], [-_SHUT, _SHUT], [0.0, 0.0], [-_SHUT, 0.0]])
    return columns.repeat_interleave(weight_ih.shape[0] // 4, dim=0)


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


class GruWindow(torch.autograd.Function):
    """One layer of a GRU over a window with resets inside, with few operations a step, forward and backward.

    With h the state before a step, cleared, and a = (1 - z)(1 - n²), the gradients of the gates' inputs are those of
    the output times A_r = a h_n r (1 - r), A_z = (h - n) z (1 - z) and A_n = a: known for all steps at once. What is
    left to a loop over steps is one product with W_hh; gradients of weights are one product each.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, start: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, *masks: Tensor
    ) -> Tensor:
        """Return outputs [T, B, H] for x [T, B, F] and the state `start` [B, H].

        Masks [T, B, 1]: 'clear' zeroes the state before a step, also after a dead one, and 'dead' an output.
        """
        clear, dead = masks
        (num_steps, num_envs, _), size = x.shape, start.shape[-1]
        gates = torch.addmm(b_ih, x.flatten(0, 1), w_ih.t()).view(num_steps, num_envs, 3 * size)
        recurrent, after = torch.empty_like(gates), x.new_empty(num_steps, num_envs, size)
        clears, dies = clear.flatten(1).any(1).tolist(), dead.flatten(1).any(1).tolist()
        (reset, update, fresh), hidden_n = gates.chunk(3, -1), recurrent[..., 2 * size :]
        both, hidden = gates[..., : 2 * size], start
        for t in range(num_steps):
            if clears[t]:
                hidden = hidden.masked_fill(clear[t], 0.0)
            torch.addmm(b_hh, hidden, w_hh.t(), out=recurrent[t])
            both[t].add_(recurrent[t, :, : 2 * size]).sigmoid_()
            torch.lerp(fresh[t].addcmul_(reset[t], hidden_n[t]).tanh_(), hidden, update[t], out=after[t])
            if dies[t]:
                after[t].masked_fill_(dead[t], 0.0)
            hidden = after[t]
        ctx.save_for_backward(x, start, w_ih, w_hh, gates, hidden_n, after, clear, dead)
        return after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, the start and the weights."""
        x, start, w_ih, w_hh, gates, hidden_n, after, clear, dead = ctx.saved_tensors
        num_steps, num_envs, size = after.shape
        reset, update, fresh = gates.chunk(3, -1)
        before = torch.cat([start.unsqueeze(0), after[:-1]]).masked_fill_(clear, 0.0)
        slope = (1.0 - update) * (1.0 - fresh * fresh)
        parts = torch.stack(
            [slope * hidden_n * reset * (1.0 - reset), (before - fresh) * update * (1.0 - update), slope * reset], 2
        )
        whole, carry = grad.masked_fill(dead, 0.0), torch.zeros_like(start)
        for t in range(num_steps - 1, -1, -1):
            here = whole[t].add_(carry)
            parts[t].mul_(here.unsqueeze(1))
            carry = torch.addmm(here * update[t], parts[t].view(num_envs, -1), w_hh).masked_fill_(clear[t], 0.0)
        flat = parts.view(num_steps * num_envs, 3 * size)
        grad_hh, grad_b_hh = flat.t() @ before.flatten(0, 1), flat.sum(0)
        parts[:, :, 2] = whole * slope
        grad_x = (flat @ w_ih).view_as(x) if ctx.needs_input_grad[0] else None
        return grad_x, carry, flat.t() @ x.flatten(0, 1), grad_hh, flat.sum(0), grad_b_hh, None, None
