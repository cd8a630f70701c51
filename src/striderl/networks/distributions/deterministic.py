"""Distributions without spread: one action, or the best of some Q-values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from striderl.data.noise import NoiseSpec
from striderl.networks.distributions.base import Distribution, register_distribution, sum_event
from striderl.networks.distributions.categorical import FORBIDDEN


@dataclass(frozen=True)
class Deterministic(Distribution[Tensor]):
    """Always the same action; exploration is added by a behaviour."""

    value: Tensor
    """[..., *event]."""
    event_dims: int = 1
    """Number of trailing dimensions of one action."""

    @property
    def reparameterised(self) -> bool:
        """The sample is the value itself."""
        return True

    def noise_spec(self) -> NoiseSpec:
        """Return noise of size zero."""
        return NoiseSpec(shape=(0,), kind="normal")

    def sample(self, noise: Tensor) -> Tensor:
        """Return the value."""
        return self.value

    def mode(self) -> Tensor:
        """Return the value."""
        return self.value

    def log_prob(self, action: Tensor) -> Tensor:
        """Return zero: a point has no density, and zero keeps stored columns and ratios finite."""
        return sum_event(torch.zeros_like(self.value), self.event_dims)

    def entropy(self) -> Tensor:
        """Return zero."""
        return sum_event(torch.zeros_like(self.value), self.event_dims)

    def kl(self, other: Deterministic) -> Tensor:
        """Return zero where the actions are equal and infinity where they are not, by definition."""
        differ = sum_event((self.value != other.value).to(self.value.dtype), self.event_dims) > 0
        return torch.where(differ, torch.inf, torch.zeros_like(differ, dtype=self.value.dtype))

    def params(self) -> dict[str, Tensor]:
        """Return the value."""
        return {"value": self.value}

    def from_params(self, params: Mapping[str, Tensor]) -> Deterministic:
        """Make the distribution that gives this value."""
        return Deterministic(params["value"], self.event_dims)


@dataclass(frozen=True)
class QValues(Distribution[Tensor]):
    """The greedy choice over Q-values; epsilon-greedy is a behaviour. Make it with `from_values`."""

    values: Tensor
    """[..., n]; `FORBIDDEN` where masked."""

    @classmethod
    def from_values(cls, values: Tensor, mask: Tensor | None = None) -> QValues:
        """Make it from Q-values [..., n] and a mask [..., n]; a row that allows nothing counts as all allowed."""
        if mask is None:
            return cls(values)
        allowed = mask.bool()
        allowed = allowed | ~allowed.any(-1, keepdim=True)
        return cls(torch.where(allowed, values, FORBIDDEN))

    @property
    def reparameterised(self) -> bool:
        """A choice has no gradient."""
        return False

    def noise_spec(self) -> NoiseSpec:
        """Return noise of size zero."""
        return NoiseSpec(shape=(0,), kind="normal")

    def sample(self, noise: Tensor) -> Tensor:
        """Return the greedy choice."""
        return self.mode()

    def mode(self) -> Tensor:
        """Return the allowed choice with the largest value, int64 [...]."""
        usable = torch.where(self.values.isnan(), torch.zeros_like(self.values), self.values)
        return torch.where(self.values <= 0.5 * FORBIDDEN, -torch.inf, usable).argmax(-1)

    def value_of(self, action: Tensor) -> Tensor:
        """Return the Q-value of choices [...]."""
        return self.values.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return zero: what is executed is decided by the behaviour, which has its probability."""
        return torch.zeros_like(self.values[..., 0])

    def entropy(self) -> Tensor:
        """Return zero."""
        return torch.zeros_like(self.values[..., 0])

    def kl(self, other: QValues) -> Tensor:
        """Return zero where the greedy choices agree and infinity where they do not."""
        return torch.where(self.mode() == other.mode(), torch.zeros_like(self.values[..., 0]), torch.inf)

    def params(self) -> dict[str, Tensor]:
        """Return the Q-values."""
        return {"values": self.values}

    def from_params(self, params: Mapping[str, Tensor]) -> QValues:
        """Make the greedy choice over these values."""
        return QValues(params["values"])


register_distribution(Deterministic)
register_distribution(QValues)
