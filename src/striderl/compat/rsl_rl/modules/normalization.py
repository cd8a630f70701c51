"""Running normalisers: of observations by mean and std, of rewards by the spread of their discounted sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class EmpiricalNormalization(nn.Module):
    """Shift and scale by the mean and std of what `update` was given; `forward` itself learns nothing.

    Shape: [.., *shape] -> the same. The names of the buffers are those of rsl_rl's files.
    """

    def __init__(self, shape: int | Sequence[int], eps: float = 1e-2, until: int | None = None) -> None:
        """Begin as the identity, up to eps; after `until` samples the statistics stay as they are."""
        super().__init__()
        self.eps, self.until = eps, until
        size = (shape,) if isinstance(shape, int) else tuple(shape)
        self._mean: Tensor
        self._var: Tensor
        self._std: Tensor
        self.count: Tensor
        self.register_buffer("_mean", torch.zeros(1, *size))
        self.register_buffer("_var", torch.ones(1, *size))
        self.register_buffer("_std", torch.ones(1, *size))
        self.register_buffer("count", torch.tensor(0, dtype=torch.long))

    @property
    def mean(self) -> Tensor:
        """The mean, without the batch axis."""
        return self._mean.squeeze(0).clone()

    @property
    def std(self) -> Tensor:
        """The standard deviation, without eps and without the batch axis."""
        return self._std.squeeze(0).clone()

    def forward(self, x: Tensor) -> Tensor:
        """Return (x - mean) / (std + eps)."""
        return (x - self._mean) / (self._std + self.eps)

    @torch.jit.unused
    def update(self, x: Tensor) -> None:
        """Learn from samples [B, *shape], of all processes together; in eval mode and after `until` do nothing."""
        if not self.training or (self.until is not None and int(self.count) >= self.until):
            return
        with torch.inference_mode(False), torch.no_grad():
            rows, mean, var = self._moments(x.detach().clone())
            self.count += rows
            rate = rows / self.count
            change = mean - self._mean
            self._mean += rate * change
            self._var += rate * (var - self._var + change * (mean - self._mean))
            self._std = torch.sqrt(self._var)

    @torch.jit.unused
    def inverse(self, y: Tensor) -> Tensor:
        """Invert `forward`."""
        return y * (self._std + self.eps) + self._mean

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return how many samples there are, their mean and variance, over the samples of every process."""
        rows = torch.tensor(x.shape[0], dtype=self.count.dtype, device=self.count.device)
        mean, var = x.mean(dim=0, keepdim=True), x.var(dim=0, unbiased=False, keepdim=True)
        if not torch.distributed.is_initialized():
            return rows, mean, var
        own, total = mean, mean * x.shape[0]
        torch.distributed.all_reduce(rows)
        torch.distributed.all_reduce(total)
        mean = total / rows
        squares = x.shape[0] * (var + (own - mean).square())
        torch.distributed.all_reduce(squares)
        return rows, mean, squares / rows


class EmpiricalDiscountedVariationNormalization(nn.Module):
    """Divide rewards by the standard deviation of their discounted sums; in train mode each call learns first.

    Shape: [N] -> [N].
    """

    def __init__(
        self, shape: int | Sequence[int], eps: float = 1e-2, gamma: float = 0.99, until: int | None = None
    ) -> None:
        """Begin as the identity."""
        super().__init__()
        self.emp_norm = EmpiricalNormalization(shape, eps, until)
        self.disc_avg = DiscountedAverage(gamma)

    def forward(self, rew: Tensor) -> Tensor:
        """Return rewards by their spread; as they are while that is zero."""
        if self.training:
            self.emp_norm.update(self.disc_avg.update(rew))
        std = self.emp_norm.std
        return torch.where(std > 0.0, rew / std, rew)


class DiscountedAverage:
    """The discounted sum of each env's rewards: avg = gamma * avg + reward."""

    def __init__(self, gamma: float) -> None:
        """Begin without a sum."""
        self.avg: Tensor | None = None
        self.gamma = gamma

    def update(self, rew: Tensor) -> Tensor:
        """Add rewards [N], and return the sums."""
        self.avg = rew if self.avg is None else self.avg * self.gamma + rew
        return self.avg
