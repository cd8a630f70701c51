"""Running mean and standard deviation of a stream of samples.

update(raw samples, valid) ──▶ count, mean, m2 (float64) ──▶ mean, std        reading never changes anything
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from striderl.data.specs import as_shape
from striderl.ops.moments import AllReduce, Moments, batch_moments, combine, current_all_reduce, pool

if TYPE_CHECKING:
    from typing import Self


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
        """Begin; `epsilon` samples of mean 0 and variance 1 are pretended, after `until` samples nothing changes.

        The order of older libraries, `RunningMeanStd(1e-4, (3,))`, is told by its types: a float and then a sequence.
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
        """Return what has been seen; two of these can be pooled exactly."""
        return Moments(self.count, self.mean, self.m2)

    @torch.no_grad()
    def update(
        self, x: Tensor | np.ndarray[Any, Any], valid: Tensor | None = None, all_reduce: AllReduce | None = None
    ) -> None:
        """Take in samples [..., *shape], those where `valid` [...] is true; samples with NaN or inf only count.

        With `all_reduce`, which sums a tensor over processes, the samples of all of them are taken in by each: they
        stay equal, as if one process had seen everything. Inside `striderl.ops.moments.pooled` that is always so.
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
        """Take in `batch_count` samples of which mean and (population) variance are known."""
        count = torch.as_tensor(batch_count, dtype=torch.float64, device=self.mean.device)
        mean = torch.as_tensor(batch_mean, dtype=torch.float64, device=self.mean.device).expand(self.shape)
        variance = torch.as_tensor(batch_var, dtype=torch.float64, device=self.mean.device).expand(self.shape)
        self._take_in(Moments(count, mean, variance * count), torch.zeros_like(self.num_ignored))

    @torch.no_grad()
    def merge(self, state: Mapping[str, Tensor]) -> None:
        """Take in everything another one has seen, from its `state_dict`; exact, whatever the two have seen."""
        other = {name: state[name].to(self.mean.device) for name in ("count", "mean", "m2", "num_ignored")}
        if other["mean"].shape != self.mean.shape:
            raise ValueError(f"cannot merge statistics of shape {tuple(other['mean'].shape)} into {self.shape}")
        seen = Moments(other["count"].double(), other["mean"].double(), other["m2"].double())
        self._take_in(seen, other["num_ignored"])

    def _take_in(self, seen: Moments, ignored: Tensor) -> None:
        """Write the combined moments; a choice by `where`, so that no value has to come to the host."""
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
