"""`RNN`: a GRU or an LSTM that keeps its hidden state between steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from striderl.compat.rsl_rl.utils.utils import unpad_trajectories

HiddenState = Tensor | tuple[Tensor, Tensor] | None
"""[L, N, H] of a GRU, (hidden, cell) of an LSTM, None before the first step."""


class RNN(nn.Module):
    """A recurrent network over steps [N, F], or over padded trajectories [T, n_traj, F] with masks."""

    def __init__(self, input_size: int, hidden_dim: int = 256, num_layers: int = 1, type: str = "lstm") -> None:
        """Build the network; `type` is 'lstm' or 'gru'."""
        super().__init__()
        if type.lower() not in ("lstm", "gru"):
            raise ValueError(f"rnn type: wanted 'lstm' or 'gru', found {type!r}")
        kind = nn.GRU if type.lower() == "gru" else nn.LSTM
        self.rnn = kind(input_size=input_size, hidden_size=hidden_dim, num_layers=num_layers)
        self.hidden_state: HiddenState = None

    def forward(self, input: Tensor, masks: Tensor | None = None, hidden_state: HiddenState = None) -> Tensor:
        """Return [1, N, H] and advance the hidden state; with masks [T, N, H] from the given hidden states."""
        if masks is None:
            out, self.hidden_state = self.rnn(input.unsqueeze(0), self.hidden_state)
            return out  # type: ignore[no-any-return]
        if hidden_state is None:
            raise ValueError("Hidden states not passed to RNN module during policy update")
        out, _ = self.rnn(input, hidden_state)
        return unpad_trajectories(out, masks)  # type: ignore[no-any-return]

    def reset(self, dones: Tensor | None = None, hidden_state: HiddenState = None) -> None:
        """Replace the hidden state, or set it to zero where `dones` [N] is 1."""
        if dones is None:
            self.hidden_state = hidden_state
            return
        if self.hidden_state is None:
            return
        if hidden_state is not None:
            raise NotImplementedError("reset takes dones or a hidden state, not both")
        ended = (dones.reshape(-1) == 1).unsqueeze(-1)
        self._map(lambda state: torch.where(ended, 0.0, state))

    def detach_hidden_state(self, dones: Tensor | None = None) -> None:
        """Cut the hidden state off its graph, for all envs or where `dones` [N] is 1."""
        if dones is None:
            self._map(lambda state: state.detach())
            return
        ended = (dones.reshape(-1) == 1).unsqueeze(-1)
        self._map(lambda state: torch.where(ended, state.detach(), state))

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        state = self.hidden_state
        if isinstance(state, tuple):
            self.hidden_state = (change(state[0]), change(state[1]))
        elif state is not None:
            self.hidden_state = change(state)
