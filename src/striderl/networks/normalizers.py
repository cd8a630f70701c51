"""Normalisers of observations and features: normalising and updating are two different calls.

raw obs ─▶ forward ─▶ (x - mean) / (std + eps) ─▶ network           any time, changes nothing
raw obs of the whole rollout, valid ─▶ update                       once per iteration, after the last minibatch

Normalisers of rewards and of value targets.

Running mean and standard deviation of a stream of samples.

update(raw samples, valid) ──▶ count, mean, m2 (float64) ──▶ mean, std        reading never changes anything
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from striderl.data import tree
from striderl.data.specs import as_shape
from striderl.ops.moments import AllReduce, Moments, batch_moments, combine, current_all_reduce, pool

if TYPE_CHECKING:
    from typing import Self


ArrayT = TypeVar("ArrayT", Tensor, np.ndarray[Any, Any])


class _Kept(NamedTuple):
    """Mean and std in the dtype of the input, with the buffers they were computed from."""

    of: tuple[Tensor, Tensor, Tensor]
    versions: tuple[int, int, int]
    mean: Tensor
    scale: Tensor


class EmpiricalNormalization(nn.Module):
    """Shift and scale by the mean and std of all updates; frozen in eval mode and after `until` samples.

    Shape: [..., *shape] -> the same.
    """

    def __init__(self, shape: int | Sequence[int], eps: float = 1e-2, until: int | None = None) -> None:
        """Start as the identity (up to eps); eps is added to the std and keeps constant inputs from blowing up."""
        super().__init__()
        self.statistics = RunningMeanStd(shape, until=until)
        self.eps = eps
        self._kept: _Kept | None = None

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

    def call_on_cpu(self, x: Tensor) -> Tensor:
        """Return `forward(x)` for real numbers on the CPU; mean and std are cast again only after they have changed."""
        statistics = self.statistics
        now = (statistics.mean, statistics.m2, statistics.count)
        # a tensor of inference mode has no version; a tracer's stand-in must find the buffers: what is kept is replaced
        if now[0].is_inference() or type(x) is not Tensor:
            return self.forward(x)
        versions = (now[0]._version, now[1]._version, now[2]._version)
        kept = self._kept
        if (
            kept is None
            or kept.versions != versions
            or kept.mean.dtype is not x.dtype
            or any(old is not new for old, new in zip(kept.of, now))
        ):
            scale = (statistics.std + self.eps).to(x.dtype)
            # a clone: what is cast to its own dtype is the buffer itself, and would change with it
            kept = self._kept = _Kept(now, versions, now[0].to(x.dtype, copy=True), scale)
        return (x - kept.mean) / kept.scale

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the cache: the buffers of a copy restart their version counters."""
        return {**self.__dict__, "_kept": None}

    def inverse(self, y: Tensor) -> Tensor:
        """Return the x for which `forward(x)` is y."""
        return y * (self.statistics.std + self.eps).to(y.dtype) + self.statistics.mean.to(y.dtype)

    def update(
        self, x: Tensor | np.ndarray[Any, Any], valid: Tensor | None = None, all_reduce: AllReduce | None = None
    ) -> None:
        """Update from raw samples [..., *shape] where `valid` [...] is true; does nothing in eval mode."""
        if self.training:
            self.statistics.update(x, valid, all_reduce)

    def merge(self, state: Mapping[str, Tensor]) -> None:
        """Merge the statistics of another one, from its `state_dict`."""
        self.statistics.merge({name.removeprefix("statistics."): value for name, value in state.items()})


class Normalizer(nn.Module):
    """Shift, scale and clip numpy arrays or tensors; the normaliser that policy and expert motions share.

    Shape: [..., *input_dim] -> the same.
    """

    def __init__(self, input_dim: int | Sequence[int], epsilon: float = 1e-4, clip_obs: float = 10.0) -> None:
        """Start as the identity (up to epsilon, which is added to the variance); results stay within +-clip_obs."""
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
        """Normalise an array or a tensor and return the same kind; the statistics stay."""
        if isinstance(input, Tensor):
            return self.forward(input)
        with torch.no_grad():
            result = self.forward(torch.as_tensor(input, device=self.statistics.mean.device))
        return result.cpu().numpy()

    def normalize_torch(self, input: Tensor, device: torch.device | str) -> Tensor:
        """Normalise a tensor and return it on a device; the statistics stay."""
        return self.forward(input.to(self.statistics.mean.device)).to(device)

    def update(
        self, x: Tensor | np.ndarray[Any, Any], valid: Tensor | None = None, all_reduce: AllReduce | None = None
    ) -> None:
        """Update from raw samples [..., *input_dim] where `valid` [...] is true; does nothing in eval mode."""
        if self.training:
            self.statistics.update(torch.as_tensor(x, device=self.statistics.mean.device), valid, all_reduce)

    def update_from_moments(
        self, batch_mean: Tensor | float, batch_var: Tensor | float, batch_count: Tensor | float
    ) -> None:
        """Update from `batch_count` samples of known mean and (population) variance; does nothing in eval mode."""
        if self.training:
            self.statistics.update_from_moments(batch_mean, batch_var, batch_count)

    def update_normalizer(self, rollouts: Iterable[Any], expert_loader: Iterable[Any]) -> None:
        """Update from raw batches of both, one of each in turn until either ends, so that both weigh the same.

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


# -- rewards and returns -----------------------------------------------------------------------------------------------


class RewardNormalizer(nn.Module):
    """Divide rewards by the standard deviation of discounted returns; signs and zero stay what they are.

    The running return of every env, R = gamma R + r, set back at the end of an episode, is carried from rollout to
    rollout. Shape of rewards: [N] or [T, N].
    """

    def __init__(self, num_envs: int, gamma: float = 0.99, eps: float = 1e-2, until: int | None = None) -> None:
        """Start with a scale of 1 / (1 + eps); after `until` steps over all envs the scale stays."""
        super().__init__()
        if not 0.0 <= gamma < 1.0:
            raise ValueError(f"gamma must be in [0, 1), found {gamma}")
        self.statistics = RunningMeanStd((), until=until)
        self.gamma, self.eps = gamma, eps
        self.running_return: Tensor
        self.register_buffer("running_return", torch.zeros(num_envs))

    def forward(self, reward: Tensor) -> Tensor:
        """Return the scaled rewards; the statistics stay."""
        return reward / (self.statistics.std + self.eps).to(reward.dtype)

    @torch.no_grad()
    def update(
        self, reward: Tensor, done: Tensor, valid: Tensor | None = None, all_reduce: AllReduce | None = None
    ) -> None:
        """Update from raw rewards of one step or of a rollout; does nothing in eval mode.

        `done[t]` ends the episode after reward[t]. An invalid or non-finite reward is skipped and, as its env
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
        # a bad reward is passed to the statistics as it is, so that they count it
        samples = torch.where(usable, torch.stack(returns), torch.where(wanted, torch.nan, 0.0))
        self.statistics.update(samples, wanted, all_reduce)


class ValueNormalizer(nn.Module):
    """Let a critic predict (target - mean) / std, and denormalise its predictions. Shape: [..., *shape] -> the same."""

    def __init__(self, shape: int | tuple[int, ...] = (), eps: float = 1e-5, until: int | None = None) -> None:
        """Start as the identity; the std is never taken to be smaller than eps."""
        super().__init__()
        self.statistics = RunningMeanStd(shape, until=until)
        self.eps = eps

    def normalize(self, target: Tensor) -> Tensor:
        """Return the normalised target of the critic."""
        return (target - self.statistics.mean.to(target.dtype)) / self._scale(target.dtype)

    def denormalize(self, prediction: Tensor) -> Tensor:
        """Return the denormalised value of a prediction."""
        return prediction * self._scale(prediction.dtype) + self.statistics.mean.to(prediction.dtype)

    def forward(self, target: Tensor) -> Tensor:
        """Return the normalised target of the critic."""
        return self.normalize(target)

    def normalize_ahead(self, target: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return the critic's targets normalised by the statistics after `update` on them; nothing is updated here.

        Predictions trained on these are denormalised by the statistics after the update. Were they trained
        with those from before it, every change would shift all values, and the first targets would not be normalised.
        """
        ahead = copy.deepcopy(self)
        ahead.update(target, valid)
        return ahead.normalize(target)

    def update(self, target: Tensor, valid: Tensor | None = None, all_reduce: AllReduce | None = None) -> None:
        """Update from raw targets where `valid` is true; does nothing in eval mode."""
        if self.training:
            self.statistics.update(target, valid, all_reduce)

    def _scale(self, dtype: torch.dtype) -> Tensor:
        return self.statistics.std.clamp(min=self.eps).to(dtype)


# -- running statistics ------------------------------------------------------------------------------------------------


class RunningMeanStd(nn.Module):
    """Count, mean and squared deviations of all samples seen, in float64 buffers that are saved with the model.

    The float64 stays when the model is cast to another dtype. Before the first sample the mean is 0 and the std 1.
    """

    def __init__(
        self,
        shape: int | Sequence[int] | float = (),
        epsilon: float | Sequence[int] = 0.0,
        until: int | None = None,
    ) -> None:
        """Begin; a prior of `epsilon` samples has mean 0 and variance 1; after `until` samples nothing changes.

        The order in older libraries, `RunningMeanStd(1e-4, (3,))`, is recognised by its types: float, then sequence.
        """
        super().__init__()
        shape, epsilon = _in_order(shape, epsilon)
        self.shape = as_shape(shape)
        self.until = until
        self.count: Tensor
        self.mean: Tensor
        self.m2: Tensor
        self.num_ignored: Tensor
        self.register_buffer("count", torch.tensor(epsilon, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(self.shape, dtype=torch.float64))
        self.register_buffer("m2", torch.full(self.shape, epsilon, dtype=torch.float64))
        self.register_buffer("num_ignored", torch.zeros((), dtype=torch.int64))

    @property
    def var(self) -> Tensor:
        """The variance of the samples seen (float64); 1 before the first."""
        seen = self.count > 0
        return torch.where(seen, self.m2 / torch.where(seen, self.count, torch.ones_like(self.count)), 1.0)

    @property
    def std(self) -> Tensor:
        """The standard deviation of the samples seen (float64); 1 before the first."""
        return self.var.sqrt()

    def moments(self) -> Moments:
        """Return the moments so far; two of these can be pooled exactly."""
        return Moments(self.count, self.mean, self.m2)

    @torch.no_grad()
    def update(
        self, x: Tensor | np.ndarray[Any, Any], valid: Tensor | None = None, all_reduce: AllReduce | None = None
    ) -> None:
        """Update from samples [..., *shape] where `valid` [...] is true; samples with NaN or inf are only counted.

        With `all_reduce`, which sums a tensor over processes, each is updated from the samples of all: they
        stay equal, as if one process had all samples. Inside `striderl.ops.moments.pooled` that is always so.
        """
        all_reduce = all_reduce or current_all_reduce()
        samples = x if isinstance(x, Tensor) else torch.as_tensor(x, device=self.mean.device)
        seen, ignored = batch_moments(samples, self.shape, valid)
        if all_reduce is not None:
            seen = pool(seen, all_reduce)
            ignored = all_reduce(ignored)
        self._take_in(seen, ignored)

    @torch.no_grad()
    def update_from_moments(
        self, batch_mean: Tensor | float, batch_var: Tensor | float, batch_count: Tensor | float
    ) -> None:
        """Update from `batch_count` samples of known mean and (population) variance."""
        count = torch.as_tensor(batch_count, dtype=torch.float64, device=self.mean.device)
        mean = torch.as_tensor(batch_mean, dtype=torch.float64, device=self.mean.device).expand(self.shape)
        variance = torch.as_tensor(batch_var, dtype=torch.float64, device=self.mean.device).expand(self.shape)
        self._take_in(Moments(count, mean, variance * count), torch.zeros_like(self.num_ignored))

    @torch.no_grad()
    def merge(self, state: Mapping[str, Tensor]) -> None:
        """Merge the statistics of another one, from its `state_dict`; exact for any two."""
        other = {name: state[name].to(self.mean.device) for name in ("count", "mean", "m2", "num_ignored")}
        if other["mean"].shape != self.mean.shape:
            raise ValueError(f"cannot merge statistics of shape {tuple(other['mean'].shape)} into {self.shape}")
        seen = Moments(other["count"].double(), other["mean"].double(), other["m2"].double())
        self._take_in(seen, other["num_ignored"])

    def _take_in(self, seen: Moments, ignored: Tensor) -> None:
        """Write the combined moments; a choice by `where`, so that there is no device sync."""
        total = combine(self.moments(), seen)
        going_on = torch.ones_like(self.count, dtype=torch.bool) if self.until is None else self.count < self.until
        for buffer, new in ((self.mean, total.mean), (self.m2, total.m2), (self.count, total.num_samples)):
            buffer.copy_(torch.where(going_on, new, buffer))
        self.num_ignored.add_(ignored)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move with the model, but stay float64: sums over 1e9 samples do not fit into float32."""
        kept = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, before in kept.items():
            after = self._buffers[name]
            if after is not None and after.dtype != before.dtype:
                self._buffers[name] = before.to(after.device)
        return self


def _in_order(shape: int | Sequence[int] | float, epsilon: float | Sequence[int]) -> tuple[int | Sequence[int], float]:
    """Return (shape, epsilon) from either order; a float is never a shape, and a sequence never an epsilon."""
    if isinstance(shape, float):
        shape, epsilon = () if epsilon == 0.0 else epsilon, shape
    if isinstance(shape, float) or not isinstance(epsilon, (int, float)):
        raise TypeError(
            "RunningMeanStd wants (shape, epsilon), or (epsilon, shape) with a float and a sequence; "
            f"found {shape!r} and {epsilon!r}"
        )
    return shape, float(epsilon)
