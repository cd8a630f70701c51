"""Normalisers as st_rl and rsl_rl 1 have them: they learn from what they normalise, in train mode."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from striderl.networks.normalizers import Normalizer as RunningNormalizer


class EmpiricalNormalization(nn.Module):
    """Shift and scale by the mean and std of all inputs so far; in train mode each call updates them first.

    Shape: [.., *shape] -> the same. Rows that are not finite are left out of the statistics.
    """

    _mean: Tensor
    _var: Tensor
    _std: Tensor
    count: Tensor

    def __init__(self, shape: int | Sequence[int], eps: float = 1e-2, until: float | None = None) -> None:
        """Begin as the identity, up to eps; after `until` samples the statistics stay as they are."""
        super().__init__()
        self.eps, self.until = eps, until
        size = (shape,) if isinstance(shape, int) else tuple(shape)
        for name, value in (
            ("_mean", torch.zeros(1, *size)),
            ("_var", torch.ones(1, *size)),
            ("_std", torch.ones(1, *size)),
        ):
            self.register_buffer(name, value)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self._mean.squeeze(0).clone()

    @property
    def std(self) -> Tensor:
        """The standard deviation, without eps."""
        return self._std.squeeze(0).clone()

    def forward(self, x: Tensor) -> Tensor:
        """Update the statistics in train mode, and return (x - mean) / (std + eps)."""
        if self.training:
            self.update(x)
        return self.normalize(x)

    def normalize(self, x: Tensor) -> Tensor:
        """Return (x - mean) / (std + eps); nothing changes."""
        return (x - self._mean.squeeze(0)) / (self._std.squeeze(0) + self.eps)

    def inverse(self, y: Tensor) -> Tensor:
        """Invert `normalize`."""
        return y * (self._std.squeeze(0) + self.eps) + self._mean.squeeze(0)

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Update the statistics from samples [.., *shape]; in eval mode, and after `until`, nothing happens."""
        if not self.training or (self.until is not None and bool(self.count >= self.until)):
            return
        rows = x.detach().reshape(-1, *self._mean.shape[1:])
        rows = rows[torch.isfinite(rows.reshape(len(rows), -1)).all(1)]
        if not len(rows):
            return
        with torch.inference_mode(False):
            self.count += len(rows)
            rate = len(rows) / self.count
            change = rows.mean(0, keepdim=True) - self._mean
            self._var += rate * (rows.var(0, unbiased=False, keepdim=True) - self._var + (1.0 - rate) * change.square())
            self._mean += rate * change
            self._std.copy_(self._var.sqrt())


class EmpiricalDiscountedVariationNormalization(nn.Module):
    """Divide rewards by the standard deviation of their discounted sums; in train mode each call updates it.

    Shape: [N] -> [N].
    """

    def __init__(
        self, shape: int | Sequence[int], eps: float = 1e-2, gamma: float = 0.99, until: float | None = None
    ) -> None:
        super().__init__()
        self.gamma = gamma
        self.emp_norm = EmpiricalNormalization(shape, eps, until)
        self.discounted: Tensor | None = None
        """The discounted sum of each env's rewards so far."""

    def forward(self, rewards: Tensor) -> Tensor:
        """Update the sums in train mode, and return the rewards by their spread; as they are while that is zero."""
        if self.training:
            before = torch.zeros_like(rewards) if self.discounted is None else self.discounted
            self.discounted = before * self.gamma + rewards.detach()
            self.emp_norm.update(self.discounted)
        std = self.emp_norm.std
        return torch.where(std > 0.0, rewards / std, rewards)


class Normalizer(RunningNormalizer):
    """The library's normaliser, whose `normalize_torch` also learns from what it normalises, as st_rl describes."""

    def normalize_torch(self, input: Tensor, device: torch.device | str | None = None) -> Tensor:
        """Update the statistics, and return the tensor normalised and clipped."""
        self.update(input)
        return super().normalize_torch(input, input.device if device is None else device)
