"""Networks under any head, with the constructors of `tianshou.utils.net.common`.

Net(2, 4, 2)                      observation [B, 4] ─▶ (logits [B, 2], state)
Net(2, 4, hidden_layer_size=64)   without an output layer: features [B, 64] for an Actor or Critic
Recurrent(1, 4, 2)                [B, T, 4] or [B, 4] ─▶ (logits of the last step [B, 2], {"h", "c"})
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from striderl.compat.tianshou.arrays import to_torch

Norm = Callable[[int], nn.Module] | None
Shape = Sequence[int] | int


def size_of(shape: Shape | None) -> int:
    """Return how many numbers have this shape; 0 for none."""
    return 0 if shape is None else int(np.prod(shape))


def miniblock(inp: int, oup: int, norm_layer: Norm) -> list[nn.Module]:
    """Return a linear layer, the norm where there is one, and a ReLU."""
    return [nn.Linear(inp, oup), *([] if norm_layer is None else [norm_layer(oup)]), nn.ReLU(inplace=True)]


def _blocks(count: int, size: int, norm_layer: Norm) -> list[nn.Module]:
    return [layer for _ in range(count) for layer in miniblock(size, size, norm_layer)]


class Net(nn.Module):
    """An MLP with `layer_num` + 1 hidden layers and, where `action_shape` is given, an output layer.

    With `concat` the input is an observation and an action side by side, and there is no output layer. `dueling` gives
    the number of further hidden layers of the advantages and of the value.
    """

    def __init__(
        self,
        layer_num: int,
        state_shape: Shape,
        action_shape: Shape | None = 0,
        device: Any = "cpu",
        softmax: bool = False,
        concat: bool = False,
        hidden_layer_size: int = 128,
        dueling: tuple[int, int] | None = None,
        norm_layer: Norm = None,
    ) -> None:
        """Build the layers; `device` is where inputs go."""
        super().__init__()
        self.device, self.dueling, self.softmax = device, dueling, softmax
        outputs = 0 if concat else size_of(action_shape)
        inputs = size_of(state_shape) + (size_of(action_shape) if concat else 0)
        width = hidden_layer_size
        layers = [*miniblock(inputs, width, norm_layer), *_blocks(layer_num, width, norm_layer)]
        if dueling is None:
            layers += [nn.Linear(width, outputs)] if outputs else []
        else:
            last = ([nn.Linear(width, outputs)], [nn.Linear(width, 1)]) if outputs else ([], [])
            self.Q, self.V = (
                nn.Sequential(*_blocks(count, width, norm_layer), *end) for count, end in zip(dueling, last)
            )
        self.model = nn.Sequential(*layers)

    def forward(self, s: Any, state: Any = None, info: Any = None) -> tuple[Tensor, Any]:
        """Return (logits [B, n], state)."""
        s = to_torch(s, device=self.device, dtype=torch.float32)
        logits: Tensor = self.model(s.reshape(len(s), -1))
        if self.dueling is not None:
            advantage = self.Q(logits)
            logits = self.V(logits) + advantage - advantage.mean(dim=1, keepdim=True)
        return (logits.softmax(dim=-1) if self.softmax else logits), state


def run_lstm(lstm: nn.LSTM, s: Tensor, state: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Return (features of the last step [B, n], memory [B, layers, n] by name)."""
    lstm.flatten_parameters()
    before = None
    if state is not None:
        before = tuple(to_torch(state[name], device=s.device).transpose(0, 1).contiguous() for name in ("h", "c"))
    out, (hidden, cell) = lstm(s, before)
    # memory is stored batch first, as all rows of a buffer are; the LSTM wants its layers first
    return out[:, -1], {"h": hidden.transpose(0, 1).detach(), "c": cell.transpose(0, 1).detach()}


class Recurrent(nn.Module):
    """A linear layer, an LSTM of `layer_num` layers, and an output layer."""

    def __init__(
        self,
        layer_num: int,
        state_shape: Shape,
        action_shape: Shape,
        device: Any = "cpu",
        hidden_layer_size: int = 128,
    ) -> None:
        """Build the layers; `device` is where inputs go."""
        super().__init__()
        self.state_shape, self.action_shape, self.device = state_shape, action_shape, device
        self.nn = nn.LSTM(hidden_layer_size, hidden_layer_size, num_layers=layer_num, batch_first=True)
        self.fc1 = nn.Linear(size_of(state_shape), hidden_layer_size)
        self.fc2 = nn.Linear(hidden_layer_size, size_of(action_shape))

    def forward(self, s: Any, state: Any = None, info: Any = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return (logits [B, n], memory); `s` is a step [B, …] or a stack of steps [B, T, …]."""
        s = to_torch(s, device=self.device, dtype=torch.float32)
        s = s.unsqueeze(-2) if s.dim() == 2 else s
        features, memory = run_lstm(self.nn, self.fc1(s), state)
        return self.fc2(features), memory
