"""Several networks of the same shape as one: every layer is one batched product.

    input [K, B, F] or [B, F] ──▶ weight [K, F, H] ──▶ … ──▶ output [K, B, O]        K members, none sees another

A double critic is two members, REDQ ten. One product for all costs little more than one for one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from striderl.networks.activations import Nonlinearity, resolve_nn_activation
from striderl.networks.mlp import as_sizes


class EnsembleLinear(nn.Module):
    """K linear layers side by side: [K, B, F] to [K, B, O]; each begins as torch's own linear layer does."""

    def __init__(self, num_members: int, input_size: int, output_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_members, input_size, output_size))
        self.bias = nn.Parameter(torch.empty(num_members, 1, output_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights again: uniform within ±1/sqrt(input size)."""
        bound = 1.0 / math.sqrt(self.weight.shape[1])
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """Return the outputs of all members."""
        product = torch.bmm(input, self.weight)
        # `baddbmm` begins with a copy of the biases for every sample; a sum the compiler puts into what comes next
        return product + self.bias.to(product.dtype)


class EnsembleMlp(nn.Module):
    """K stacks of linear layers; the last one is linear.

    Shape: [B, input_size] for all members, or [K, B, input_size], to [K, B, output_size].
    """

    def __init__(
        self,
        num_members: int,
        input_size: int,
        hidden_sizes: int | Sequence[int] | None,
        output_size: int,
        nonlinearity: Nonlinearity = "relu",
        *,
        layer_norm: bool = False,
    ) -> None:
        """With `layer_norm`, each hidden layer is normalised before its nonlinearity."""
        super().__init__()
        if num_members < 1:
            raise ValueError(f"an ensemble has at least one member, found {num_members}")
        hidden = as_sizes(hidden_sizes)
        layers: list[nn.Module] = []
        for width, size in zip([input_size, *hidden], hidden):
            layers.append(EnsembleLinear(num_members, width, size))
            if layer_norm:
                layers.append(nn.LayerNorm(size))
            layers.append(resolve_nn_activation(nonlinearity))
        layers.append(EnsembleLinear(num_members, [input_size, *hidden][-1], output_size))
        self.model = nn.Sequential(*layers)
        self.num_members, self.input_size, self.output_size = num_members, input_size, output_size

    def forward(self, input: Tensor) -> Tensor:
        """Return the outputs of all members for the same input, or for one input each."""
        if input.dim() == 2:
            input = input.unsqueeze(0).expand(self.num_members, *input.shape)
        output: Tensor = self.model(input)
        return output
