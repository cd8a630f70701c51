"""`CNN`: convolutions with norms, activations and pooling; its output sizes are computed without a forward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from striderl.compat.rsl_rl.utils.utils import get_param, resolve_nn_activation
from striderl.data.naming import unknown

_PADDINGS = ("zeros", "reflect", "replicate", "circular")
_POOLS = ("none", "max", "avg")
_NORMS = ("none", "batch", "layer")


class CNN(nn.Sequential):
    """Conv2d [─ norm] ─ activation [─ max pool] ─ … [─ global pool] [─ Flatten]; settings are one per layer, or one."""

    def __init__(
        self,
        input_dim: tuple[int, int],
        input_channels: int,
        output_channels: Sequence[int],
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        padding: str = "none",
        norm: str | Sequence[str] = "none",
        activation: str = "elu",
        max_pool: bool | Sequence[bool] = False,
        global_pool: str = "none",
        flatten: bool = True,
    ) -> None:
        """Build the layers for images of `input_dim` (height, width).

        padding: 'none', or a mode of Conv2d, which keeps the size where the stride is 1.
        max_pool: halves height and width after a layer. global_pool: one number per channel at the end.
        """
        super().__init__()
        if padding not in ("none", *_PADDINGS):
            raise ValueError(unknown("padding", padding, ("none", *_PADDINGS), where="CNN"))
        if global_pool not in _POOLS:
            raise ValueError(
                f"Unsupported global pooling type: {unknown('global_pool', global_pool, _POOLS, where='CNN')}"
            )
        nonlinearity = resolve_nn_activation(activation)
        channels, size = input_channels, (input_dim[0], input_dim[1])
        layers: list[nn.Module] = []
        for index, following in enumerate(output_channels):
            kernel, step, spread = (get_param(each, index) for each in (kernel_size, stride, dilation))
            rim = (0, 0) if padding == "none" else _compute_padding(size, kernel, step, spread)
            mode: Any = "zeros" if padding == "none" else padding
            layers.append(nn.Conv2d(channels, following, kernel, step, rim, spread, padding_mode=mode))
            layers += _norm_layers(
                get_param(norm, index), following, _compute_output_dim(size, kernel, step, spread, rim)
            )
            layers.append(nonlinearity)
            pooled = bool(get_param(max_pool, index))
            if pooled:
                layers.append(nn.MaxPool2d(kernel_size=3, stride=2, padding=1))
            channels, size = following, _compute_output_dim(size, kernel, step, spread, rim, is_max_pool=pooled)
        if global_pool != "none":
            layers.append(nn.AdaptiveMaxPool2d((1, 1)) if global_pool == "max" else nn.AdaptiveAvgPool2d((1, 1)))
            size = (1, 1)
        if flatten:
            layers.append(nn.Flatten(start_dim=1))
        self._output_channels = None if flatten else channels
        self._output_dim: tuple[int, int] | int = channels * size[0] * size[1] if flatten else size
        self.extend(layers)

    @property
    def output_channels(self) -> int | None:
        """How many channels the output has; None where it is flattened."""
        return self._output_channels

    @property
    def output_dim(self) -> tuple[int, int] | int:
        """Height and width of the output, or its size where it is flattened."""
        return self._output_dim

    def init_weights(self) -> None:
        """Draw weights by Kaiming's rule; biases are zero."""
        for layer in self:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output for images [B, C, H, W]."""
        for layer in self:
            x = layer(x)
        return x


def _norm_layers(name: str, channels: int, size: tuple[int, int]) -> list[nn.Module]:
    if name not in _NORMS:
        raise ValueError(f"Unsupported normalization type: {unknown('norm', name, _NORMS, where='CNN')}")
    if name == "batch":
        return [nn.BatchNorm2d(channels)]
    return [nn.LayerNorm([channels, *size])] if name == "layer" else []


def _compute_padding(input_hw: tuple[int, int], kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Return the padding (height, width) with which a layer loses no pixels beside its stride."""

    def rim(length: int) -> int:
        return math.ceil((stride * (length // stride) - length - stride + dilation * (kernel - 1) + 1) / 2)

    return rim(input_hw[0]), rim(input_hw[1])


def _compute_output_dim(
    input_hw: tuple[int, int],
    kernel: int,
    stride: int,
    dilation: int,
    padding: tuple[int, int],
    is_max_pool: bool = False,
) -> tuple[int, int]:
    """Return height and width behind a layer; a max pool halves them, rounded up."""

    def behind(length: int, rim: int) -> int:
        found = (length + 2 * rim - dilation * (kernel - 1) - 1) // stride + 1
        return -(-found // 2) if is_max_pool else found

    return behind(input_hw[0], padding[0]), behind(input_hw[1], padding[1])
