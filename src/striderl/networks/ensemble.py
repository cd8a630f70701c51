"""Several networks of the same shape as one: every layer is one batched product.

    input [K, B, F] or [B, F] ──▶ weight [K, F, H] ──▶ … ──▶ output [K, B, O]        K members, independent

A double critic is two members, REDQ ten. One product for all costs little more than one for one.

Batch renormalisation (Ioffe 2017) for ensembles, with its statistics in the open.

    training    y = (x - batch mean) / batch std · r + d,     r = batch std / running std        within [1/r_max, r_max]
                                                              d = (batch mean - running mean) / running std, ±d_max
    otherwise   y = (x - running mean) / running std          then y · scale + shift, which are learned

r and d are constants of a step, so that training and acting use nearly the same numbers. In the first `warmup` steps
they are 1 and 0, which is batch normalisation. A forward pass changes nothing: it returns the moments of the
batch, and `update_normalization` adds them to the running ones. So a discarded step changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from striderl.networks.mlp import Nonlinearity, as_sizes, resolve_nn_activation
from striderl.ops.moments import current_all_reduce, sum_of_all


class EnsembleLinear(nn.Module):
    """K linear layers side by side: [K, B, F] to [K, B, O]; each is initialised like torch's linear layer."""

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
        # `baddbmm` begins with a copy of the biases for every sample; the compiler fuses a sum into the next kernel
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


# -- batch renormalisation ---------------------------------------------------------------------------------------------


class EnsembleMoments(NamedTuple):
    """Mean and variance of a batch, [K, F] each."""

    mean: Tensor
    variance: Tensor


class BatchRenorm(nn.Module):
    """Renormalises [K, B, F] for K members, each by itself."""

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(
        self,
        num_members: int,
        size: int,
        *,
        momentum: float = 0.99,
        warmup: int = 100_000,
        r_max: float = 3.0,
        d_max: float = 5.0,
        eps: float = 1e-3,
    ) -> None:
        """Set the momentum of the running moments, and the correction limits after the warm-up."""
        super().__init__()
        self.momentum, self.warmup, self.r_max, self.d_max, self.eps = momentum, warmup, r_max, d_max, eps
        self.scale = nn.Parameter(torch.ones(num_members, 1, size))
        self.shift = nn.Parameter(torch.zeros(num_members, 1, size))
        self.register_buffer("mean", torch.zeros(num_members, size))
        self.register_buffer("variance", torch.ones(num_members, size))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return the output with the running moments: used outside of a critic's step."""
        return self._shaped((x - self.mean.unsqueeze(1)) / self._running_std().unsqueeze(1))

    def train_step(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, EnsembleMoments]:
        """Return the output with the moments of the batch [K, B, F] over `valid` [B] (None: all), and the moments."""
        moments = batch_moments(x, valid)
        std, running = (moments.variance + self.eps).sqrt(), self._running_std()
        warm = self.count >= self.warmup
        with torch.no_grad():
            ratio = (std / running).clamp(1.0 / self.r_max, self.r_max)
            offset = ((moments.mean - self.mean) / running).clamp(-self.d_max, self.d_max)
            ratio = torch.where(warm, ratio, torch.ones_like(ratio)).unsqueeze(1)
            offset = torch.where(warm, offset, torch.zeros_like(offset)).unsqueeze(1)
        normal = (x - moments.mean.unsqueeze(1)) / std.unsqueeze(1)
        return self._shaped(normal * ratio + offset), EnsembleMoments(moments.mean.detach(), moments.variance.detach())

    @torch.no_grad()
    def update_normalization(self, moments: EnsembleMoments) -> None:
        """Move the running moments towards those of a batch; moments that are not finite change nothing."""
        fine = moments.mean.isfinite().all() & moments.variance.isfinite().all()
        # a cumulative mean at first, so nothing of the initial mean 0 and variance 1 is left
        share = (1.0 / (self.count + 1.0)).clamp(min=1.0 - self.momentum)
        share = torch.where(fine, share, torch.zeros_like(share)).to(self.mean.dtype)
        zeros = torch.zeros_like(self.mean)
        self.mean.lerp_(torch.where(fine, moments.mean, zeros), share)
        self.variance.lerp_(torch.where(fine, moments.variance, zeros), share)
        self.count += fine

    def _running_std(self) -> Tensor:
        return (self.variance + self.eps).sqrt()

    def _shaped(self, normal: Tensor) -> Tensor:
        return normal * self.scale + self.shift


def batch_moments(x: Tensor, valid: Tensor | None) -> EnsembleMoments:
    """Return mean and variance [K, F] of [K, B, F] over the batch, of valid samples only."""
    pools = current_all_reduce() is not None
    if valid is None and not pools:
        mean = x.mean(dim=1)
        return EnsembleMoments(mean, (x - mean.unsqueeze(1)).square().mean(dim=1))
    counts = x.new_ones(x.shape[1]) if valid is None else valid.to(x.dtype)
    # of several processes, the moments of all their samples, with gradients to each of them
    share = (counts / sum_of_all(counts.sum()).clamp(min=1)).view(1, -1, 1)
    mean = sum_of_all((x * share).sum(dim=1))
    return EnsembleMoments(mean, sum_of_all(((x - mean.unsqueeze(1)).square() * share).sum(dim=1)))


class RenormEnsembleMlp(nn.Module):
    """K stacks of linear layers with batch renormalisation of the input and after every nonlinearity (CrossQ)."""

    def __init__(
        self,
        num_members: int,
        input_size: int,
        hidden_sizes: int | Sequence[int] | None,
        output_size: int,
        nonlinearity: Nonlinearity = "relu",
        *,
        warmup: int = 100_000,
    ) -> None:
        super().__init__()
        sizes = [input_size, *as_sizes(hidden_sizes)]
        self.norms = nn.ModuleList(BatchRenorm(num_members, size, warmup=warmup) for size in sizes)
        outputs = [*sizes[1:], output_size]
        self.linears = nn.ModuleList(EnsembleLinear(num_members, one, other) for one, other in zip(sizes, outputs))
        self.nonlinearity = resolve_nn_activation(nonlinearity)
        self.num_members, self.input_size, self.output_size = num_members, input_size, output_size

    def forward(self, input: Tensor) -> Tensor:
        """Return [K, B, output_size] with the running moments."""
        x = self._spread(input)
        for position, (norm, linear) in enumerate(zip(self.norms, self.linears)):
            x = linear(norm(x if position == 0 else self.nonlinearity(x)))
        return x

    def train_step(self, input: Tensor, valid: Tensor | None) -> tuple[Tensor, list[EnsembleMoments]]:
        """Return [K, B, output_size] with the moments of the batch, and these, layer by layer."""
        x, found = self._spread(input), []
        for position, (norm, linear) in enumerate(zip(self._norms(), self.linears)):
            x, moments = norm.train_step(x if position == 0 else self.nonlinearity(x), valid)
            found.append(moments)
            x = linear(x)
        return x, found

    def update_normalization(self, moments: Sequence[EnsembleMoments]) -> None:
        """Update the running moments with those of a batch."""
        for norm, found in zip(self._norms(), moments):
            norm.update_normalization(found)

    def _norms(self) -> list[BatchRenorm]:
        found = []
        for norm in self.norms:
            assert isinstance(norm, BatchRenorm)
            found.append(norm)
        return found

    def _spread(self, input: Tensor) -> Tensor:
        return input.unsqueeze(0).expand(self.num_members, *input.shape) if input.dim() == 2 else input
