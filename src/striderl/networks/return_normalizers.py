"""Normalisers of rewards and of value targets."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from striderl.networks.running_mean_std import RunningMeanStd
from striderl.ops.moments import AllReduce


class RewardNormalizer(nn.Module):
    """Divide rewards by the standard deviation of discounted returns; signs and zero stay what they are.

    The running return of every env, R = gamma R + r, set back at the end of an episode, is carried from rollout to
    rollout. Shape of rewards: [N] or [T, N].
    """

    def __init__(self, num_envs: int, gamma: float = 0.99, eps: float = 1e-2, until: int | None = None) -> None:
        """Begin with a scale of 1 / (1 + eps); after `until` steps over all envs the scale stays."""
        super().__init__()
        if not 0.0 <= gamma < 1.0:
            raise ValueError(f"gamma must be in [0, 1), found {gamma}")
        self.statistics = RunningMeanStd((), until=until)
        self.gamma, self.eps = gamma, eps
        self.running_return: Tensor
        self.register_buffer("running_return", torch.zeros(num_envs))

    def forward(self, reward: Tensor) -> Tensor:
        """Return the scaled rewards; nothing is learned from them."""
        return reward / (self.statistics.std + self.eps).to(reward.dtype)

    @torch.no_grad()
    def update(
        self, reward: Tensor, done: Tensor, valid: Tensor | None = None, all_reduce: AllReduce | None = None
    ) -> None:
        """Learn from raw rewards of one step or of a rollout; does nothing in eval mode.

        `done[t]` ends the episode after reward[t]. An invalid or non-finite reward counts for nothing and, as its env
        is reset, begins the return again.
        """
        if not self.training:
            return
        reward, done = reward.reshape(-1, self.running_return.shape[0]), done.bool().reshape(-1, reward.shape[-1])
        wanted = torch.ones_like(done) if valid is None else valid.bool().reshape(done.shape)
        usable = wanted & reward.isfinite()
        current = self.running_return
        returns = []
        for step in range(reward.shape[0]):
            current = torch.where(usable[step], self.gamma * current + reward[step], 0.0)
            returns.append(current)
            current = torch.where(done[step], 0.0, current)
        self.running_return.copy_(current)
        # a bad reward is shown to the statistics as it is, so that they count it
        samples = torch.where(usable, torch.stack(returns), torch.where(wanted, torch.nan, 0.0))
        self.statistics.update(samples, wanted, all_reduce)


class ValueNormalizer(nn.Module):
    """Let a critic predict (target - mean) / std, and turn its predictions back. Shape: [..., *shape] -> the same."""

    def __init__(self, shape: int | tuple[int, ...] = (), eps: float = 1e-5, until: int | None = None) -> None:
        """Begin as the identity; the std is never taken to be smaller than eps."""
        super().__init__()
        self.statistics = RunningMeanStd(shape, until=until)
        self.eps = eps

    def normalize(self, target: Tensor) -> Tensor:
        """Return what the critic should predict for a target."""
        return (target - self.statistics.mean.to(target.dtype)) / self._scale(target.dtype)

    def denormalize(self, prediction: Tensor) -> Tensor:
        """Return the value that a prediction stands for."""
        return prediction * self._scale(prediction.dtype) + self.statistics.mean.to(prediction.dtype)

    def forward(self, target: Tensor) -> Tensor:
        """Return what the critic should predict for a target."""
        return self.normalize(target)

    def normalize_ahead(self, target: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return what the critic should predict once `update` has seen these targets; nothing is learned here.

        Predictions that are learned from these are read back by the statistics after the update. Were they learned
        with those from before it, every change would shift all values, and the first targets would not be normalised.
        """
        ahead = copy.deepcopy(self)
        ahead.update(target, valid)
        return ahead.normalize(target)

    def update(self, target: Tensor, valid: Tensor | None = None, all_reduce: AllReduce | None = None) -> None:
        """Learn from raw targets where `valid` is true; does nothing in eval mode."""
        if self.training:
            self.statistics.update(target, valid, all_reduce)

    def _scale(self, dtype: torch.dtype) -> Tensor:
        return self.statistics.std.clamp(min=self.eps).to(dtype)
