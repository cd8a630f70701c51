"""`MLP`: linear layers with an activation between them, numbered as in rsl_rl's files ('0.weight', '2.weight', …)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from striderl.compat.rsl_rl.utils.utils import get_param, resolve_nn_activation


class MLP(nn.Sequential):
    """Linear ─ activation ─ … ─ Linear [─ Unflatten] [─ last activation]."""

    def __init__(
        self,
        input_dim: int,
        output_dim: int | Sequence[int],
        hidden_dims: Sequence[int],
        activation: str = "elu",
        last_activation: str | None = None,
    ) -> None:
        """Build the layers; a hidden size of -1 is `input_dim`, an `output_dim` with several sizes is a shape."""
        super().__init__()
        nonlinearity = resolve_nn_activation(activation)
        shape = None if isinstance(output_dim, int) else tuple(output_dim)
        sizes = [input_dim, *(input_dim if size == -1 else size for size in hidden_dims)]
        layers: list[nn.Module] = []
        for size, following in pairwise(sizes):
            layers += [nn.Linear(size, following), nonlinearity]
        layers.append(nn.Linear(sizes[-1], output_dim if isinstance(output_dim, int) else math.prod(output_dim)))
        if shape is not None:
            layers.append(nn.Unflatten(-1, shape))
        if last_activation is not None:
            layers.append(resolve_nn_activation(last_activation))
        self.extend(layers)

    def init_weights(self, scales: float | Sequence[float]) -> None:
        """Draw orthogonal weights with these gains, one per place in the sequence or one for all; biases are zero."""
        for index, layer in enumerate(self):
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, gain=get_param(scales, index))
                nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output [.., *output_dim]."""
        for layer in self:
            x = layer(x)
        return x
