"""`RNNModel`: an MLPModel with a GRU or an LSTM before its layers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from striderl.compat.rsl_rl.models.mlp_model import MLPModel, ModelParts
from striderl.compat.rsl_rl.modules.rnn import RNN, HiddenState


class RNNModel(MLPModel):
    """Vectors, normalised, through a memory and layers; the hidden state is kept between calls."""

    is_recurrent: bool = True

    def __init__(
        self,
        obs: Any,
        obs_groups: dict[str, list[str]],
        obs_set: str,
        output_dim: int,
        hidden_dims: Sequence[int] = (256, 256, 256),
        activation: str = "elu",
        obs_normalization: bool = False,
        distribution_cfg: dict[str, Any] | None = None,
        rnn_type: str = "lstm",
        rnn_hidden_dim: int = 256,
        rnn_num_layers: int = 1,
    ) -> None:
        """Build a model as `MLPModel` does; rnn_type is 'lstm' or 'gru'."""
        self.latent_dim = rnn_hidden_dim
        super().__init__(
            obs, obs_groups, obs_set, output_dim, hidden_dims, activation, obs_normalization, distribution_cfg
        )
        self.rnn = RNN(self.obs_dim, rnn_hidden_dim, rnn_num_layers, rnn_type)

    def get_latent(self, obs: Any, masks: Tensor | None = None, hidden_state: HiddenState = None) -> Tensor:
        """Return the output of the memory, and advance it; with masks, of whole trajectories [T, N, H]."""
        latent: Tensor = self.rnn(super().get_latent(obs), masks, hidden_state)
        return latent if masks is not None else latent.squeeze(0)

    def reset(self, dones: Tensor | None = None, hidden_state: HiddenState = None) -> None:
        """Reset the memory where `dones` is 1, or replace it."""
        self.rnn.reset(dones, hidden_state)

    def get_hidden_state(self) -> HiddenState:
        """Return the memory: [L, N, H], a pair of them, or None before the first step."""
        return self.rnn.hidden_state

    def detach_hidden_state(self, dones: Tensor | None = None) -> None:
        """Cut the memory off its graph, for all envs or where `dones` is 1."""
        self.rnn.detach_hidden_state(dones)

    def as_jit(self) -> nn.Module:
        """Return a module for `torch.jit.script`, with the memory of one env inside."""
        return ScriptedLstm(self) if isinstance(self.rnn.rnn, nn.LSTM) else ScriptedGru(self)

    def as_onnx(self, verbose: bool = False) -> nn.Module:
        """Return a module for `torch.onnx.export`: the memory comes in and goes out."""
        return OnnxRnn(self, verbose)

    def _get_latent_dim(self) -> int:
        return self.latent_dim


class _Recurrent(ModelParts):
    """The parts with the network of the memory, and a hidden state of one env."""

    def __init__(self, model: RNNModel) -> None:
        super().__init__(model)
        self.rnn = copy.deepcopy(model.rnn.rnn).cpu()
        self.hidden_state: Tensor
        self.register_buffer("hidden_state", torch.zeros(self.rnn.num_layers, 1, self.rnn.hidden_size))


class ScriptedGru(_Recurrent):
    """forward(obs [1, F]) -> outputs, and advances the memory."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        out, hidden = self.rnn(self.obs_normalizer(x).unsqueeze(0), self.hidden_state)
        self.hidden_state[:] = hidden
        return self.deterministic_output(self.mlp(out.squeeze(0)))  # type: ignore[no-any-return]

    @torch.jit.export
    def reset(self) -> None:
        """Empty the memory."""
        self.hidden_state[:] = 0.0


class ScriptedLstm(_Recurrent):
    """forward(obs [1, F]) -> outputs, and advances the memory."""

    def __init__(self, model: RNNModel) -> None:
        super().__init__(model)
        self.cell_state: Tensor
        self.register_buffer("cell_state", torch.zeros_like(self.hidden_state))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        out, (hidden, cell) = self.rnn(self.obs_normalizer(x).unsqueeze(0), (self.hidden_state, self.cell_state))
        self.hidden_state[:] = hidden
        self.cell_state[:] = cell
        return self.deterministic_output(self.mlp(out.squeeze(0)))  # type: ignore[no-any-return]

    @torch.jit.export
    def reset(self) -> None:
        """Empty the memory."""
        self.hidden_state[:] = 0.0
        self.cell_state[:] = 0.0


class OnnxRnn(ModelParts):
    """forward(obs [1, F], h_in, c_in of an LSTM) -> actions, h_out, c_out of an LSTM."""

    is_recurrent: bool = True

    def __init__(self, model: RNNModel, verbose: bool) -> None:
        super().__init__(model)
        self.rnn = copy.deepcopy(model.rnn.rnn).cpu()
        self.verbose, self.input_size = verbose, model.obs_dim
        self.rnn_type = "lstm" if isinstance(self.rnn, nn.LSTM) else "gru"
        self.hidden_size, self.num_layers = self.rnn.hidden_size, self.rnn.num_layers

    def forward(self, obs: Tensor, h_in: Tensor, c_in: Tensor | None = None) -> Any:
        """Return the actions, and the memory behind them."""
        x = self.obs_normalizer(obs).unsqueeze(0)
        if self.rnn_type == "lstm":
            out, (hidden, cell) = self.rnn(x, (h_in, c_in))
            return self.deterministic_output(self.mlp(out.squeeze(0))), hidden, cell
        out, hidden = self.rnn(x, h_in)
        return self.deterministic_output(self.mlp(out.squeeze(0))), hidden

    def get_dummy_inputs(self) -> tuple[Tensor, ...]:
        """Return inputs of one env."""
        memory = [torch.zeros(self.num_layers, 1, self.hidden_size) for _ in self._memory("in")]
        return (torch.zeros(1, self.input_size), *memory)

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in order."""
        return ["obs", *self._memory("in")]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in order."""
        return ["actions", *self._memory("out")]

    def _memory(self, way: str) -> list[str]:
        return [f"h_{way}", f"c_{way}"] if self.rnn_type == "lstm" else [f"h_{way}"]
