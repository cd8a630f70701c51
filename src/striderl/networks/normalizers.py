"""Normalisers of observations and features: reading and learning are two different calls.

raw obs ─▶ forward ─▶ (x - mean) / (std + eps) ─▶ network           any time, changes nothing
raw obs of the whole rollout, valid ─▶ update                       once per iteration, after the last minibatch
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from striderl.data import tree
from striderl.networks.running_mean_std import RunningMeanStd
from striderl.ops.moments import AllReduce

ArrayT = TypeVar("ArrayT", Tensor, np.ndarray[Any, Any])


class EmpiricalNormalization(nn.Module):
    """Shift and scale by the mean and std of what `update` was given; frozen in eval mode and after `until` samples.

    Shape: [..., *shape] -> the same.
    """

    def __init__(self, shape: int | Sequence[int], eps: float = 1e-2, until: int | None = None) -> None:
        """Begin as the identity (up to eps); eps is added to the std and keeps constant inputs from blowing up."""
        super().__init__()
        self.statistics = RunningMeanStd(shape, until=until)
        self.eps = eps

    @property
    def mean(self) -> Tensor:
        """The mean that is subtracted, float32."""
        return self.statistics.mean.float()

    @property
    def std(self) -> Tensor:
        """The standard deviation, float32, without eps."""
        return self.statistics.std.float()

    def forward(self, x: Tensor) -> Tensor:
        """Return (x - mean) / (std + eps); integers are cast to float32."""
        x = x if x.is_floating_point() else x.float()
        return (x - self.statistics.mean.to(x.dtype)) / (self.statistics.std + self.eps).to(x.dtype)

    def inverse(self, y: Tensor) -> Tensor:
        """Return the x for which `forward(x)` is y."""
        return y * (self.statistics.std + self.eps).to(y.dtype) + self.statistics.mean.to(y.dtype)

    def update(
        self, x: Tensor | np.ndarray[Any, Any], valid: Tensor | None = None, all_reduce: AllReduce | None = None
    ) -> None:
        """Learn from raw samples [..., *shape] where `valid` [...] is true; does nothing in eval mode."""
        if self.training:
            self.statistics.update(x, valid, all_reduce)

    def merge(self, state: Mapping[str, Tensor]) -> None:
        """Take in everything another one has seen, from its `state_dict`."""
        self.statistics.merge({name.removeprefix("statistics."): value for name, value in state.items()})


class Normalizer(nn.Module):
    """Shift, scale and clip numpy arrays or tensors; the normaliser that policy and expert motions share.

    Shape: [..., *input_dim] -> the same.
    """

    def __init__(self, input_dim: int | Sequence[int], epsilon: float = 1e-4, clip_obs: float = 10.0) -> None:
        """Begin as the identity (up to epsilon, which is added to the variance); results stay within +-clip_obs."""
        super().__init__()
        if clip_obs <= 0.0:
            raise ValueError(f"clip_obs must be positive, found {clip_obs}")
        self.statistics = RunningMeanStd(input_dim)
        self.epsilon, self.clip_obs = epsilon, clip_obs

    @property
    def mean(self) -> Tensor:
        """The mean that is subtracted (float64)."""
        return self.statistics.mean

    @property
    def var(self) -> Tensor:
        """The variance (float64), without epsilon."""
        return self.statistics.var

    @property
    def std(self) -> Tensor:
        """The standard deviation (float64), without epsilon."""
        return self.statistics.std

    def forward(self, input: Tensor) -> Tensor:
        """Return the clipped (input - mean) / sqrt(var + epsilon)."""
        input = input if input.is_floating_point() else input.float()
        scale = (self.statistics.var + self.epsilon).sqrt().to(input.dtype)
        return ((input - self.statistics.mean.to(input.dtype)) / scale).clamp(-self.clip_obs, self.clip_obs)

    def normalize(self, input: ArrayT) -> ArrayT:
        """Normalise an array or a tensor and return the same kind; nothing is learned from it."""
        if isinstance(input, Tensor):
            return self.forward(input)
        with torch.no_grad():
            result = self.forward(torch.as_tensor(input, device=self.statistics.mean.device))
        return result.cpu().numpy()

    def normalize_torch(self, input: Tensor, device: torch.device | str) -> Tensor:
        """Normalise a tensor and return it on a device; nothing is learned from it."""
        return self.forward(input.to(self.statistics.mean.device)).to(device)

    def update(
        self, x: Tensor | np.ndarray[Any, Any], valid: Tensor | None = None, all_reduce: AllReduce | None = None
    ) -> None:
        """Learn from raw samples [..., *input_dim] where `valid` [...] is true; does nothing in eval mode."""
        if self.training:
            self.statistics.update(torch.as_tensor(x, device=self.statistics.mean.device), valid, all_reduce)

    def update_from_moments(
        self, batch_mean: Tensor | float, batch_var: Tensor | float, batch_count: Tensor | float
    ) -> None:
        """Learn from `batch_count` samples of known mean and (population) variance; does nothing in eval mode."""
        if self.training:
            self.statistics.update_from_moments(batch_mean, batch_var, batch_count)

    def update_normalizer(self, rollouts: Iterable[Any], expert_loader: Iterable[Any]) -> None:
        """Learn from raw batches of both, one of each in turn until either ends, so that both weigh the same.

        A batch is an array or tensor [n, *input_dim], or a nested structure of them (a pair of states).
        """
        for policy_batch, expert_batch in zip(rollouts, expert_loader):
            for batch in tree.leaves([policy_batch, expert_batch]):
                self.update(batch)


class Normalize(nn.Module):
    """Scale vectors to length 1 along the last dimension; the zero vector stays zero."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x divided by its length."""
        return functional.normalize(x, dim=-1)
