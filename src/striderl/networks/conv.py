"""Convolutions over images, and convolutions with an MLP on top.

    image [..., C, H, W] ─▶ cast, uint8 / 255 ─▶ (conv ─▶ norm ─▶ nonlinearity ─▶ max-pool) x n ─▶ flatten ─▶ MlpModel

Any number of leading dimensions works: [B, C, H, W] in a step, [T, B, C, H, W] in a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from striderl.data.naming import unknown
from striderl.networks.mlp import MlpModel, Nonlinearity, resolve_nn_activation, weight_dtype

NormLayer = str | Callable[[int], nn.Module]
"""A name of `NORM_LAYERS`, or a function from the number of channels to a module."""


def _layer_norm(channels: int) -> nn.Module:
    # one group is layer normalisation over channels and pixels, and needs no image size
    return nn.GroupNorm(1, channels)


def _instance_norm(channels: int) -> nn.Module:
    return nn.InstanceNorm2d(channels, affine=True)


NORM_LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "BatchNorm2d": nn.BatchNorm2d,
    "layer": _layer_norm,
    "LayerNorm": _layer_norm,
    "GroupNorm": _layer_norm,
    "instance": _instance_norm,
    "InstanceNorm2d": _instance_norm,
}
"""Normalisation layers by name. 'batch' keeps statistics that change with every training forward: the same observation
then gives another output in the update than in the rollout, so on-policy ratios do not start at 1; prefer 'layer'."""

Pair = int | Sequence[int]


def conv2d_output_shape(
    h: int, w: int, kernel_size: Pair = 1, stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1
) -> tuple[int, int]:
    """Return height and width after one convolution (or max-pool) with these settings."""
    kernels, strides, paddings, dilations = _pair(kernel_size), _pair(stride), _pair(padding), _pair(dilation)
    height, width = (
        (size + 2 * paddings[axis] - dilations[axis] * (kernels[axis] - 1) - 1) // strides[axis] + 1
        for axis, size in enumerate((h, w))
    )
    return height, width


def _pair(value: Pair) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, second = value
    return int(first), int(second)


class Conv2dModel(nn.Module):
    """Convolutions with nonlinearities; strides shrink the image, or max-pooling by the same factor does.

    Shape: [..., C, H, W] -> [..., channels[-1], H', W'].
    """

    def __init__(
        self,
        in_channels: int,
        channels: Sequence[int],
        kernel_sizes: Sequence[Pair],
        strides: Sequence[Pair],
        paddings: Sequence[Pair] | None = None,
        nonlinearity: Nonlinearity = nn.ReLU,
        use_maxpool: bool = False,
        normlayer: NormLayer | None = None,
        scale_uint8: bool = True,
    ) -> None:
        """Build the layers; `scale_uint8` divides uint8 images by 255, without it they are only cast."""
        super().__init__()
        paddings = [0] * len(channels) if paddings is None else list(paddings)
        counts = {"channels": channels, "kernel_sizes": kernel_sizes, "strides": strides, "paddings": paddings}
        if not channels or len({len(values) for values in counts.values()}) != 1:
            found = ", ".join(f"{name} has {len(values)}" for name, values in counts.items())
            raise ValueError(f"Conv2dModel wants one entry per layer and at least one layer: {found}")
        layers: list[nn.Module] = []
        shrinks: list[tuple[Pair, Pair, Pair]] = []
        for width, size, kernel, stride, padding in zip(
            [in_channels, *channels], channels, kernel_sizes, strides, paddings
        ):
            conv_stride = 1 if use_maxpool else stride
            layers.append(nn.Conv2d(width, size, _pair(kernel), _pair(conv_stride), _pair(padding)))
            shrinks.append((kernel, conv_stride, padding))
            if normlayer is not None:
                layers.append(_build_norm(normlayer, size))
            layers.append(resolve_nn_activation(nonlinearity))
            if use_maxpool and max(_pair(stride)) > 1:
                layers.append(nn.MaxPool2d(_pair(stride)))
                shrinks.append((stride, stride, 0))
        self.conv = nn.Sequential(*layers)
        self.in_channels = in_channels
        self.out_channels = channels[-1]
        self.scale_uint8 = scale_uint8
        self._shrinks = shrinks

    def forward(self, input: Tensor) -> Tensor:
        """Return the feature maps of images [..., C, H, W] of any dtype."""
        if input.dim() < 3 or input.shape[-3] != self.in_channels:
            raise ValueError(f"Conv2dModel wants images [..., {self.in_channels}, H, W], found {tuple(input.shape)}")
        image = as_float_image(input, weight_dtype(self), scale_uint8=self.scale_uint8)
        maps: Tensor = self.conv(image.reshape(-1, *image.shape[-3:]))
        return maps.reshape(*image.shape[:-3], *maps.shape[-3:])

    def conv_out_resolution(self, h: int, w: int) -> tuple[int, int]:
        """Return height and width of the feature maps for an input of this height and width."""
        for kernel, stride, padding in self._shrinks:
            h, w = conv2d_output_shape(h, w, kernel, stride, padding)
        return h, w

    def conv_out_size(self, h: int, w: int) -> int:
        """Return the size of the flattened feature maps for an input of this height and width."""
        height, width = self.conv_out_resolution(h, w)
        return self.out_channels * height * width


class Conv2dHeadModel(nn.Module):
    """Convolutions, then an MLP on the flattened maps.

    Shape: [..., C, H, W] -> [..., output_size]; without an output size the last hidden size.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        channels: Sequence[int],
        kernel_sizes: Sequence[Pair],
        strides: Sequence[Pair],
        hidden_sizes: int | Sequence[int] | None = None,
        output_size: int | None = None,
        paddings: Sequence[Pair] | None = None,
        nonlinearity: Nonlinearity = nn.ReLU,
        use_maxpool: bool = False,
        normlayer: NormLayer | None = None,
        scale_uint8: bool = True,
        channels_last: bool = False,
    ) -> None:
        """Build the layers for images of this shape: (C, H, W), or with `channels_last` (H, W, C)."""
        super().__init__()
        if len(image_shape) != 3:
            raise ValueError(f"image_shape must be (channels, height, width), found {tuple(image_shape)}")
        in_channels, height, width = (int(image_shape[axis]) for axis in ((2, 0, 1) if channels_last else (0, 1, 2)))
        self.channels_last = channels_last
        self.image_shape = (in_channels, height, width)
        self.conv = Conv2dModel(
            in_channels, channels, kernel_sizes, strides, paddings, nonlinearity, use_maxpool, normlayer, scale_uint8
        )
        resolution = self.conv.conv_out_resolution(height, width)
        if min(resolution) < 1:
            raise ValueError(
                f"an image of {height} x {width} has nothing left after the convolutions ({resolution}); "
                "use smaller kernels or strides, or add paddings"
            )
        self.head = MlpModel(self.conv.conv_out_size(height, width), hidden_sizes, output_size, nonlinearity)

    def forward(self, input: Tensor) -> Tensor:
        """Return the features of images [..., C, H, W], or [..., H, W, C] with `channels_last`, of any dtype."""
        if self.channels_last:
            input = input.movedim(-1, -3)
        if tuple(input.shape[-3:]) != self.image_shape:
            raise ValueError(f"Conv2dHeadModel wants images [..., {self.image_shape}], found {tuple(input.shape)}")
        maps: Tensor = self.conv(input)
        features: Tensor = self.head(maps.flatten(-3))
        return features

    @property
    def output_size(self) -> int:
        """The size of the last dimension of the output."""
        return self.head.output_size


def as_float_image(image: Tensor, dtype: torch.dtype = torch.float32, *, scale_uint8: bool = True) -> Tensor:
    """Cast an image of integers to a float dtype; bytes become numbers in [0, 1] unless scaling is off."""
    if image.is_floating_point():
        return image
    cast = image.to(dtype)
    return cast / 255.0 if scale_uint8 and image.dtype == torch.uint8 else cast


def _build_norm(normlayer: NormLayer, channels: int) -> nn.Module:
    if isinstance(normlayer, str):
        if normlayer not in NORM_LAYERS:
            raise ValueError(unknown("norm layer", normlayer, NORM_LAYERS, where="striderl.networks"))
        return NORM_LAYERS[normlayer](channels)
    return normlayer(channels)
