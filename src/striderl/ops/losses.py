"""Losses of policy-gradient learning as functions of tensors; every mean counts valid samples only."""

from __future__ import annotations

import torch
from torch import Tensor


def valid_mean(x: Tensor, valid: Tensor | None) -> Tensor:
    """Return the mean of x over valid samples (0 if there are none); NaN in invalid samples does no harm."""
    if valid is None:
        return x.mean()
    counts = valid.to(x.dtype)
    return torch.where(valid, x, 0.0).sum() / counts.sum().clamp(min=1.0)


def normalised(x: Tensor, valid: Tensor | None, eps: float = 1e-8) -> Tensor:
    """Return (x - mean) / (std + eps) with the statistics of valid samples; invalid samples become 0."""
    mean = valid_mean(x, valid)
    std = valid_mean((x - mean).square(), valid).sqrt()
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
    """Return 1 - Var(returns - value) / Var(returns): 1 is perfect, 0 is no better than the mean."""
    residual = returns - value
    around = valid_mean((residual - valid_mean(residual, valid)).square(), valid)
    total = valid_mean((returns - valid_mean(returns, valid)).square(), valid)
    return 1.0 - around / total.clamp(min=1e-12)


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

    Above twice the desired KL the rate is divided by `factor`, below half of it (but above 0) multiplied.
    """
    slower = (learning_rate / factor).clamp(min=lowest)
    faster = (learning_rate * factor).clamp(max=highest)
    rate = torch.where(kl > 2.0 * desired_kl, slower, learning_rate)
    return torch.where((kl < 0.5 * desired_kl) & (kl > 0.0), faster, rate)
