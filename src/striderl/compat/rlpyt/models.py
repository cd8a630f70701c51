"""rlpyt's models: parts (`MlpModel`, `Conv2dModel`, …) and whole networks for images and for vectors.

    forward(observation, prev_action, prev_reward[, init_rnn_state])        for [T, B], [B] and single inputs

    images, uint8 [c, h, w]   AtariFfModel ─▶ pi, v            AtariLstmModel ─▶ pi, v, RnnState
                              AtariDqnModel ─▶ q               AtariCatDqnModel ─▶ p      AtariR2d1Model ─▶ q, RnnState
    vectors                   MujocoFfModel ─▶ mu, log_std, v  MujocoLstmModel ─▶ mu, log_std, v, RnnState
                              MuMlpModel ─▶ mu    PiMlpModel ─▶ mu, log_std    QofMuMlpModel ─▶ q    VMlpModel ─▶ v

`prev_action` of choices is one-hot: the agents convert it. A state of None is zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from striderl.compat.rlpyt.tensors import infer_leading_dims, restore_leading_dims
from striderl.data.named_tuples import namedarraytuple

__path__: list[str] = []  # rlpyt's modules models.… are below, see compat/original_paths.py

RnnState = namedarraytuple("RnnState", ["h", "c"])
"""The state of an LSTM, [layers, B, size] each."""

Nonlinearity = Callable[[], nn.Module]
Sizes = int | Sequence[int] | None


def _sizes(sizes: Sizes) -> list[int]:
    return [] if sizes is None else [sizes] if isinstance(sizes, int) else list(sizes)


def conv2d_output_shape(
    h: int, w: int, kernel_size: Any = 1, stride: Any = 1, padding: Any = 0, dilation: int = 1
) -> tuple[int, int]:
    """Return height and width after a convolution or a pooling."""
    found = []
    for axis, size in enumerate((h, w)):
        kernel, step, pad = (each[axis] if isinstance(each, tuple) else each for each in (kernel_size, stride, padding))
        found.append((size + 2 * pad - dilation * (kernel - 1) - 1) // step + 1)
    return found[0], found[1]


class ScaleGrad(torch.autograd.Function):
    """The same numbers, with the gradient times a factor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, scale: float) -> Tensor:
        """Return the tensor."""
        ctx.scale = scale
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        """Return the gradient times the factor, and none for the factor."""
        return grad_output * ctx.scale, None


def scale_grad(tensor: Tensor, scale: float) -> Tensor:
    """Return the tensor; the gradient that flows back through it is multiplied by `scale`."""
    scaled: Tensor = ScaleGrad.apply(tensor, scale)  # type: ignore[no-untyped-call]
    return scaled


# -- parts -------------------------------------------------------------------------------------------------------------


class MlpModel(nn.Module):
    """Linear layers with a nonlinearity after each; without one after the output, where its size is given."""

    def __init__(
        self,
        input_size: int,
        hidden_sizes: Sizes,
        output_size: int | None = None,
        nonlinearity: Nonlinearity = nn.ReLU,
    ) -> None:
        super().__init__()
        sizes = [input_size, *_sizes(hidden_sizes)]
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nonlinearity()]
        if output_size is not None:
            layers.append(nn.Linear(sizes[-1], output_size))
        self.model = nn.Sequential(*layers)
        self._output_size = sizes[-1] if output_size is None else output_size

    def forward(self, input: Tensor) -> Tensor:
        """Compute [B, input_size] ─▶ [B, output_size]."""
        output: Tensor = self.model(input)
        return output

    @property
    def output_size(self) -> int:
        """The size of the output."""
        return self._output_size


class Conv2dModel(nn.Module):
    """Convolutions with a nonlinearity after each; with `use_maxpool` a pooling takes the place of the stride."""

    def __init__(
        self,
        in_channels: int,
        channels: Sequence[int],
        kernel_sizes: Sequence[Any],
        strides: Sequence[int],
        paddings: Sequence[Any] | None = None,
        nonlinearity: Nonlinearity = nn.ReLU,
        use_maxpool: bool = False,
    ) -> None:
        super().__init__()
        pads = [0] * len(channels) if paddings is None else list(paddings)
        if not len(channels) == len(kernel_sizes) == len(strides) == len(pads):
            raise ValueError(
                "Conv2dModel wants channels, kernel_sizes, strides and paddings of one length, found "
                f"{len(channels)}, {len(kernel_sizes)}, {len(strides)} and {len(pads)}"
            )
        layers: list[nn.Module] = []
        for before, after, kernel, stride, pad in zip([in_channels, *channels], channels, kernel_sizes, strides, pads):
            layers += [nn.Conv2d(before, after, kernel, 1 if use_maxpool else stride, pad), nonlinearity()]
            if use_maxpool and stride > 1:
                layers.append(nn.MaxPool2d(stride))
        self.conv = nn.Sequential(*layers)
        self._channels = channels[-1] if channels else in_channels

    def forward(self, input: Tensor) -> Tensor:
        """Compute [B, c, h, w] ─▶ [B, channels, h', w']."""
        output: Tensor = self.conv(input)
        return output

    def conv_out_size(self, h: int, w: int, c: int | None = None) -> int:
        """Return how many numbers come out for an image of this height and width."""
        for layer in self.conv:
            if isinstance(layer, (nn.Conv2d, nn.MaxPool2d)):
                h, w = conv2d_output_shape(h, w, layer.kernel_size, layer.stride, layer.padding)
        return h * w * self._channels


class Conv2dHeadModel(nn.Module):
    """Convolutions and linear layers after them."""

    def __init__(
        self,
        image_shape: Sequence[int],
        channels: Sequence[int],
        kernel_sizes: Sequence[Any],
        strides: Sequence[int],
        hidden_sizes: Sizes,
        output_size: int | None = None,
        paddings: Sequence[Any] | None = None,
        nonlinearity: Nonlinearity = nn.ReLU,
        use_maxpool: bool = False,
    ) -> None:
        super().__init__()
        c, h, w = image_shape
        self.conv = Conv2dModel(c, channels, kernel_sizes, strides, paddings, nonlinearity, use_maxpool)
        self.head = MlpModel(self.conv.conv_out_size(h, w), hidden_sizes, output_size, nonlinearity)

    def forward(self, input: Tensor) -> Tensor:
        """Compute [B, c, h, w] ─▶ [B, output_size]."""
        output: Tensor = self.head(self.conv(input).flatten(1))
        return output

    @property
    def output_size(self) -> int:
        """The size of the output."""
        return self.head.output_size


class DuelingHeadModel(nn.Module):
    """Q-values as a value and advantages whose mean is taken off; all advantages share one bias."""

    def __init__(
        self, input_size: int, hidden_sizes: Sizes, output_size: int, grad_scale: float = 2 ** (-1 / 2)
    ) -> None:
        super().__init__()
        self.advantage_hidden = MlpModel(input_size, hidden_sizes)
        self.advantage_out = nn.Linear(self.advantage_hidden.output_size, output_size, bias=False)
        self.advantage_bias = nn.Parameter(torch.zeros(1))
        self.value = MlpModel(input_size, hidden_sizes, output_size=1)
        self._grad_scale = grad_scale

    def forward(self, input: Tensor) -> Tensor:
        """Return q [B, output_size]; the gradient into `input` is scaled."""
        x = scale_grad(input, self._grad_scale)
        advantage = self.advantage(x)
        q: Tensor = self.value(x) + (advantage - advantage.mean(-1, keepdim=True))
        return q

    def advantage(self, input: Tensor) -> Tensor:
        """Return the advantages before their mean is taken off."""
        found: Tensor = self.advantage_out(self.advantage_hidden(input)) + self.advantage_bias
        return found


class DistributionalHeadModel(nn.Module):
    """Linear layers with an output [B, output_size, n_atoms]."""

    def __init__(self, input_size: int, layer_sizes: Sizes, output_size: int, n_atoms: int) -> None:
        super().__init__()
        self.mlp = MlpModel(input_size, layer_sizes, output_size * n_atoms)
        self._shape = (output_size, n_atoms)

    def forward(self, input: Tensor) -> Tensor:
        """Return the logits of the atoms."""
        logits: Tensor = self.mlp(input).reshape(-1, *self._shape)
        return logits


class DistributionalDuelingHeadModel(nn.Module):
    """The dueling head for distributions of Q-values, [B, output_size, n_atoms]."""

    def __init__(
        self, input_size: int, hidden_sizes: Sizes, output_size: int, n_atoms: int, grad_scale: float = 2 ** (-1 / 2)
    ) -> None:
        super().__init__()
        self.advantage_hidden = MlpModel(input_size, hidden_sizes)
        self.advantage_out = nn.Linear(self.advantage_hidden.output_size, output_size * n_atoms, bias=False)
        self.advantage_bias = nn.Parameter(torch.zeros(n_atoms))
        self.value = MlpModel(input_size, hidden_sizes, output_size=n_atoms)
        self._grad_scale, self._shape = grad_scale, (output_size, n_atoms)

    def forward(self, input: Tensor) -> Tensor:
        """Return the logits of the atoms; the gradient into `input` is scaled."""
        x = scale_grad(input, self._grad_scale)
        advantage = self.advantage(x)
        logits: Tensor = self.value(x).unsqueeze(1) + (advantage - advantage.mean(1, keepdim=True))
        return logits

    def advantage(self, input: Tensor) -> Tensor:
        """Return the advantages before their mean is taken off."""
        found: Tensor = self.advantage_out(self.advantage_hidden(input)).reshape(-1, *self._shape)
        return found + self.advantage_bias


class RunningMeanStdModel(nn.Module):
    """Mean and variance of all data so far, for each entry."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.mean: Tensor
        self.var: Tensor
        self.count: Tensor
        self.register_buffer("mean", torch.zeros(self.shape))
        self.register_buffer("var", torch.ones(self.shape))
        self.register_buffer("count", torch.zeros(()))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Take data [T, B, …], [B, …] or one row into account."""
        _, T, B, _ = infer_leading_dims(x, len(self.shape))
        rows = x.reshape(T * B, *self.shape).float()
        mean, var, total = rows.mean(0), rows.var(0, unbiased=False), self.count + T * B
        part, delta = T * B / total, mean - self.mean
        # the variance of both together: the parts' own, and the distance of their means
        self.var.copy_((1 - part) * self.var + part * var + part * (1 - part) * delta**2)
        self.mean.add_(part * delta)
        self.count.copy_(total)


def _image(observation: Tensor) -> Tensor:
    return observation.float() / 255.0


def recurrent_input(features: Tensor, prev_action: Tensor, prev_reward: Tensor, T: int, B: int) -> Tensor:
    """Return features, previous action and previous reward as one row each, [T, B, size]."""
    parts = (features.reshape(T, B, -1), prev_action.reshape(T, B, -1), prev_reward.reshape(T, B, 1))
    return torch.cat([part.float() for part in parts], dim=2)


def run_lstm(lstm: nn.LSTM, inputs: Tensor, init_rnn_state: Any) -> tuple[Tensor, Any]:
    """Return the outputs [T * B, size] and the next state; None starts from zeros."""
    output, (h, c) = lstm(inputs, None if init_rnn_state is None else tuple(init_rnn_state))
    return output.reshape(-1, output.shape[-1]), RnnState(h=h, c=c)


# -- images ------------------------------------------------------------------------------------------------------------


class AtariFfModel(nn.Module):
    """Convolutions to probabilities and a value."""

    def __init__(
        self,
        image_shape: Sequence[int],
        output_size: int,
        fc_sizes: Sizes = 512,
        use_maxpool: bool = False,
        channels: Sequence[int] | None = None,
        kernel_sizes: Sequence[Any] | None = None,
        strides: Sequence[int] | None = None,
        paddings: Sequence[Any] | None = None,
    ) -> None:
        super().__init__()
        self.conv = Conv2dHeadModel(
            image_shape,
            channels or [16, 32],
            kernel_sizes or [8, 4],
            strides or [4, 2],
            hidden_sizes=fc_sizes,
            paddings=paddings or [0, 1],
            use_maxpool=use_maxpool,
        )
        self.pi = nn.Linear(self.conv.output_size, output_size)
        self.value = nn.Linear(self.conv.output_size, 1)

    def forward(self, image: Tensor, prev_action: Any, prev_reward: Any) -> Any:
        """Return pi [..., n] and v [...]."""
        lead_dim, T, B, shape = infer_leading_dims(image, 3)
        features = self.conv(_image(image).reshape(T * B, *shape))
        outputs = self.pi(features).softmax(-1), self.value(features).squeeze(-1)
        return restore_leading_dims(outputs, lead_dim, T, B)


class AtariLstmModel(nn.Module):
    """Convolutions and an LSTM to probabilities and a value; previous action and reward enter the LSTM."""

    def __init__(
        self,
        image_shape: Sequence[int],
        output_size: int,
        fc_sizes: Sizes = 512,
        lstm_size: int = 512,
        use_maxpool: bool = False,
        channels: Sequence[int] | None = None,
        kernel_sizes: Sequence[Any] | None = None,
        strides: Sequence[int] | None = None,
        paddings: Sequence[Any] | None = None,
    ) -> None:
        super().__init__()
        self.conv = Conv2dHeadModel(
            image_shape,
            channels or [16, 32],
            kernel_sizes or [8, 4],
            strides or [4, 2],
            hidden_sizes=fc_sizes,
            paddings=paddings or [0, 1],
            use_maxpool=use_maxpool,
        )
        self.lstm = nn.LSTM(self.conv.output_size + output_size + 1, lstm_size)
        self.pi = nn.Linear(lstm_size, output_size)
        self.value = nn.Linear(lstm_size, 1)

    def forward(self, image: Tensor, prev_action: Tensor, prev_reward: Tensor, init_rnn_state: Any) -> Any:
        """Return pi [..., n], v [...] and the next state."""
        lead_dim, T, B, shape = infer_leading_dims(image, 3)
        features = self.conv(_image(image).reshape(T * B, *shape))
        inputs = recurrent_input(features, prev_action, prev_reward, T, B)
        output, state = run_lstm(self.lstm, inputs, init_rnn_state)
        outputs = self.pi(output).softmax(-1), self.value(output).squeeze(-1)
        return *restore_leading_dims(outputs, lead_dim, T, B), state


class AtariDqnModel(nn.Module):
    """Convolutions to Q-values."""

    def __init__(
        self,
        image_shape: Sequence[int],
        output_size: int,
        fc_sizes: Sizes = 512,
        dueling: bool = False,
        use_maxpool: bool = False,
        channels: Sequence[int] | None = None,
        kernel_sizes: Sequence[Any] | None = None,
        strides: Sequence[int] | None = None,
        paddings: Sequence[Any] | None = None,
    ) -> None:
        super().__init__()
        self.dueling = dueling
        self.conv = _dqn_conv(image_shape, use_maxpool, channels, kernel_sizes, strides, paddings)
        size = self.conv.conv_out_size(*image_shape[1:])
        self.head: nn.Module = (DuelingHeadModel if dueling else MlpModel)(size, fc_sizes, output_size)

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any) -> Any:
        """Return q [..., n]."""
        lead_dim, T, B, shape = infer_leading_dims(observation, 3)
        q = self.head(self.conv(_image(observation).reshape(T * B, *shape)).flatten(1))
        return restore_leading_dims(q, lead_dim, T, B)


def _dqn_conv(
    image_shape: Sequence[int], use_maxpool: bool, channels: Any, kernel_sizes: Any, strides: Any, paddings: Any
) -> Conv2dModel:
    return Conv2dModel(
        image_shape[0],
        channels or [32, 64, 64],
        kernel_sizes or [8, 4, 3],
        strides or [4, 2, 1],
        paddings or [0, 1, 1],
        use_maxpool=use_maxpool,
    )


class AtariCatDqnModel(nn.Module):
    """Convolutions to probabilities of the atoms of Q-values."""

    def __init__(
        self,
        image_shape: Sequence[int],
        output_size: int,
        n_atoms: int = 51,
        fc_sizes: Sizes = 512,
        dueling: bool = False,
        use_maxpool: bool = False,
        channels: Sequence[int] | None = None,
        kernel_sizes: Sequence[Any] | None = None,
        strides: Sequence[int] | None = None,
        paddings: Sequence[Any] | None = None,
    ) -> None:
        super().__init__()
        self.dueling = dueling
        self.conv = _dqn_conv(image_shape, use_maxpool, channels, kernel_sizes, strides, paddings)
        size = self.conv.conv_out_size(*image_shape[1:])
        head = DistributionalDuelingHeadModel if dueling else DistributionalHeadModel
        self.head: nn.Module = head(size, fc_sizes, output_size, n_atoms)

    def forward(self, observation: Tensor, prev_action: Any, prev_reward: Any) -> Any:
        """Return p [..., n, n_atoms]."""
        lead_dim, T, B, shape = infer_leading_dims(observation, 3)
        logits = self.head(self.conv(_image(observation).reshape(T * B, *shape)).flatten(1))
        return restore_leading_dims(logits.softmax(-1), lead_dim, T, B)


class AtariR2d1Model(nn.Module):
    """Convolutions and an LSTM to Q-values; previous action and reward enter the LSTM."""

    def __init__(
        self,
        image_shape: Sequence[int],
        output_size: int,
        fc_size: Sizes = 512,
        lstm_size: int = 512,
        head_size: Sizes = 512,
        dueling: bool = False,
        use_maxpool: bool = False,
        channels: Sequence[int] | None = None,
        kernel_sizes: Sequence[Any] | None = None,
        strides: Sequence[int] | None = None,
        paddings: Sequence[Any] | None = None,
    ) -> None:
        super().__init__()
        self.dueling = dueling
        self.conv = Conv2dHeadModel(
            image_shape,
            channels or [32, 64, 64],
            kernel_sizes or [8, 4, 3],
            strides or [4, 2, 1],
            hidden_sizes=fc_size,
            paddings=paddings or [0, 1, 1],
            use_maxpool=use_maxpool,
        )
        self.lstm = nn.LSTM(self.conv.output_size + output_size + 1, lstm_size)
        self.head: nn.Module = (DuelingHeadModel if dueling else MlpModel)(lstm_size, head_size, output_size)

    def forward(self, observation: Tensor, prev_action: Tensor, prev_reward: Tensor, init_rnn_state: Any) -> Any:
        """Return q [..., n] and the next state."""
        lead_dim, T, B, shape = infer_leading_dims(observation, 3)
        features = self.conv(_image(observation).reshape(T * B, *shape))
        inputs = recurrent_input(features, prev_action, prev_reward, T, B)
        output, state = run_lstm(self.lstm, inputs, init_rnn_state)
        return restore_leading_dims(self.head(output), lead_dim, T, B), state
