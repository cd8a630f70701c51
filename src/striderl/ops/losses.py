"""Losses of policy-gradient learning as functions of tensors; every mean counts valid samples only."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from striderl.ops.moments import AllReduce, mean_of_all

_BLOCKS = (256, 128, 64, 32)
_LEAST = 4096
"""Fewer numbers are one block."""


def valid_mean(x: Tensor, valid: Tensor | None, all_reduce: AllReduce | None = None) -> Tensor:
    """Return the mean of x over valid samples (0 if there are none); NaN in invalid samples does no harm.

    With `all_reduce`, which sums a tensor over processes, it is the mean over the samples of all of them; so it is
    inside `striderl.ops.moments.pooled`.
    """
    if valid is None:
        count = torch.full((), float(x.numel()), dtype=x.dtype, device=x.device)
        return mean_of_all(sum_of(x), count, all_reduce)
    return mean_of_all(sum_of(torch.where(valid, x, 0.0)), sum_of(valid, x.dtype), all_reduce)


def sum_of(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the sum of all numbers."""
    blocks = _in_blocks(x)
    return x.sum(dtype=dtype) if blocks is None else blocks.sum(-1, dtype=dtype).sum()


def largest_of(x: Tensor) -> Tensor:
    """Return the largest of all numbers."""
    blocks = _in_blocks(x)
    return x.amax() if blocks is None else blocks.amax(-1).amax()


def _in_blocks(x: Tensor) -> Tensor | None:
    """Return x as [number of blocks, size] where a reduction is to have two stages, block by block and over blocks.

    That is in code compiled for a GPU: the compiler gives 24,576 numbers to three of more than a hundred processors.
    """
    if not x.is_cuda or x.numel() < _LEAST or not torch.compiler.is_compiling():
        return None
    return next((x.reshape(-1, size) for size in _BLOCKS if x.numel() % size == 0), None)


def normalised(x: Tensor, valid: Tensor | None, eps: float = 1e-8, all_reduce: AllReduce | None = None) -> Tensor:
    """Return (x - mean) / (std + eps) with the statistics of valid samples; invalid samples become 0.

    Where x has a dimension more than `valid`, each entry of it is normalised by itself.
    """
    if valid is not None and x.dim() > valid.dim():
        return torch.stack([normalised(part, valid, eps, all_reduce) for part in x.unbind(-1)], dim=-1)
    mean = valid_mean(x, valid, all_reduce)
    std = valid_mean((x - mean).square(), valid, all_reduce).sqrt()
    result = (x - mean) / (std + eps)
    return result if valid is None else torch.where(valid, result, 0.0)


def clipped_surrogate(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: float, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return PPO's policy loss -mean(min(ratio·A, clip(ratio)·A)) and the ratio."""
    ratio = (log_prob - old_log_prob).exp()
    plain = ratio * advantage
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip) * advantage
    return -valid_mean(torch.minimum(plain, clipped), valid), ratio


def value_loss(value: Tensor, old_value: Tensor, returns: Tensor, clip: float | None, valid: Tensor | None) -> Tensor:
    """Return the mean squared error, not halved; with a clip, the larger of it and that of the clipped value.

    Clipping keeps a new value within `clip` of the one that was predicted when the data was collected.
    """
    error = (value - returns).square()
    if clip is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns).square())
    return valid_mean(error.sum(dim=-1) if valid is not None and error.dim() > valid.dim() else error, valid)


def explained_variance(value: Tensor, returns: Tensor, valid: Tensor | None) -> Tensor:
    """Return 1 - Var(returns - value) / Var(returns): 1 is perfect, 0 is no better than the mean.

    It is 0 too where there is nothing to explain. Several values [.., V] give one number each, [V].
    """
    if valid is not None and value.dim() > valid.dim():
        parts = zip(value.unbind(-1), returns.unbind(-1))
        return torch.stack([explained_variance(one, wanted, valid) for one, wanted in parts])
    # squares less the square of the mean, exact enough in float64: one look at the samples instead of two in turn
    around, total = _variance((returns - value).double(), valid), _variance(returns.double(), valid)
    # returns that are all alike leave nothing to explain; the quotient would be an absurd number in the log
    return torch.where(total > 1e-12, 1.0 - around / total.clamp(min=1e-12), 0.0).to(value.dtype)


def _variance(x: Tensor, valid: Tensor | None) -> Tensor:
    return valid_mean(x.square(), valid) - valid_mean(x, valid).square()


def mean_std(parameters: Mapping[str, Tensor], valid: Tensor) -> dict[str, Tensor]:
    """Return {'std': the mean over actions and valid samples}, or nothing where no part of a distribution has one."""
    found = [value for name, value in parameters.items() if name.rpartition("/")[2] == "std"]
    if not found:
        return {}
    entries = torch.cat([value.reshape(*valid.shape, -1) for value in found], dim=-1)
    return {"std": valid_mean(entries.mean(dim=-1), valid)}


def adapted_learning_rate(
    learning_rate: Tensor,
    kl: Tensor,
    desired_kl: float,
    *,
    factor: float = 1.5,
    lowest: float = 1e-5,
    highest: float = 1e-2,
) -> Tensor:
    """Return the learning rate moved towards the desired KL, as a tensor rule without a question to the device.

    Above twice the desired KL the rate is divided by `factor`, below half of it multiplied. A policy that has not moved
    yet says nothing: a KL of zero, rounding aside, leaves the rate as it is.
    """
    slower = (learning_rate / factor).clamp(min=lowest)
    faster = (learning_rate * factor).clamp(max=highest)
    rate = torch.where(kl > 2.0 * desired_kl, slower, learning_rate)
    return torch.where((kl < 0.5 * desired_kl) & (kl > 1e-4 * desired_kl), faster, rate)
