"""A stack of linear layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from striderl.networks.activations import Nonlinearity, resolve_nn_activation
from striderl.networks.fused_layers import bend_of, dtype_of_kernels, run_layers


class MlpModel(nn.Module):
    """Linear layers with a nonlinearity after each hidden one, and an optional linear layer at the end.

    With `output_size` the last layer is linear; without it the output is the last hidden layer after its nonlinearity,
    which is what an encoder wants. No hidden sizes and no output size leave the input as it is.
    Shape: [..., input_size] -> [..., output_size], any leading dimensions.
    """

    def __init__(
        self,
        input_size: int,
        hidden_sizes: int | Sequence[int] | None,
        output_size: int | None = None,
        nonlinearity: Nonlinearity = nn.ReLU,
    ) -> None:
        super().__init__()
        hidden = as_sizes(hidden_sizes)
        sizes = [input_size, *hidden, *([] if output_size is None else [output_size])]
        if min(sizes) < 1:
            raise ValueError(f"MlpModel wants layers of at least one unit, found sizes {sizes}")
        layers: list[nn.Module] = []
        for width, size in zip([input_size, *hidden], hidden):
            layers += [nn.Linear(width, size), resolve_nn_activation(nonlinearity)]
        if output_size is not None:
            layers.append(nn.Linear(sizes[-2], output_size))
        self.model = nn.Sequential(*layers)
        self.input_size = input_size
        self._output_size = sizes[-1]
        self._linear_last = output_size is not None
        self._bend = bend_of(resolve_nn_activation(nonlinearity)) if layers else ""

    def forward(self, input: Tensor) -> Tensor:
        """Return the output for [..., input_size]; integers are cast to the dtype of the weights."""
        if input.shape[-1] != self.input_size:
            raise ValueError(f"MlpModel wants inputs [..., {self.input_size}], found {tuple(input.shape)}")
        if not input.is_floating_point():
            input = input.to(weight_dtype(self))
        dtype = dtype_of_kernels(input) if self._bend else None
        if dtype is not None:
            layers = [layer for layer in self.model if isinstance(layer, nn.Linear)]
            return run_layers(layers, self._bend, input, linear_last=self._linear_last, dtype=dtype)
        output: Tensor = self.model(input)
        return output

    @property
    def output_size(self) -> int:
        """The size of the last dimension of the output."""
        return self._output_size


def weight_dtype(module: nn.Module) -> torch.dtype:
    """Return the dtype of the module's first parameter, to which integer inputs are cast."""
    first = _first_parameter(module)
    return torch.get_default_dtype() if first is None else first.dtype


def _first_parameter(module: nn.Module) -> nn.Parameter | None:
    """Return what `next(module.parameters())` does, which is asked in every step, without its bookkeeping."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    for child in module._modules.values():
        found = None if child is None else _first_parameter(child)
        if found is not None:
            return found
    return None


def as_sizes(sizes: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the sizes of hidden layers from one size, several, or None for no layer."""
    if sizes is None:
        return ()
    if isinstance(sizes, int):
        return (sizes,)
    if isinstance(sizes, (str, bytes, float)):
        raise TypeError(f"hidden layers are a whole number, a sequence of them or None, found {sizes!r}")
    return tuple(int(size) for size in sizes)
