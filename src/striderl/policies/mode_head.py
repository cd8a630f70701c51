"""Acting without noise on top of any head: a sample is the mode, everything else stays as it was.

Students that are taught by a teacher's labels act on their mean, and still want a standard deviation, an entropy and
log-probabilities. That is a property of the policy, so that every collector acts the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from striderl.data.noise import NoiseSpec
from striderl.data.specs import TensorSpec
from striderl.networks.distributions.base import Distribution, register_distribution
from striderl.networks.heads.base import NO_OBS, Head


@dataclass(frozen=True)
class AlwaysMode(Distribution[Any]):
    """A distribution that is never sampled from: its sample is its mode."""

    inner: Distribution[Any]
    """Where mode, log-probability, entropy and divergence come from."""

    @property
    def reparameterised(self) -> bool:
        """Gradients flow through the mode where they flow through the parameters."""
        return self.inner.reparameterised

    def noise_spec(self) -> NoiseSpec:
        """Want nothing: noise of size zero."""
        return NoiseSpec(shape=(0,), kind="normal")

    def sample(self, noise: Any) -> Any:
        """Return the mode."""
        return self.inner.mode()

    def mode(self) -> Any:
        """Return the mode."""
        return self.inner.mode()

    def log_prob(self, action: Any) -> Tensor:
        """Return the log-probability of the distribution inside."""
        return self.inner.log_prob(action)

    def entropy(self) -> Tensor:
        """Return the entropy of the distribution inside."""
        return self.inner.entropy()

    def kl(self, other: AlwaysMode) -> Tensor:
        """Return the divergence of the distributions inside."""
        return self.inner.kl(other.inner)

    def params(self) -> dict[str, Tensor]:
        """Return the parameters of the distribution inside."""
        return self.inner.params()

    def from_params(self, params: Mapping[str, Tensor]) -> AlwaysMode:
        """Make the same from stored parameters."""
        return AlwaysMode(self.inner.from_params(params))


class ModeHead(Head[Any]):
    """A head whose distributions are never sampled from."""

    def __init__(self, inner: Head[Any]) -> None:
        super().__init__()
        self.inner = inner
        self.mask_components = inner.mask_components

    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> AlwaysMode:
        """Return the distribution of the head inside, to be read at its mode."""
        return AlwaysMode(self.inner(features, obs))

    def noise_spec(self) -> NoiseSpec:
        """Want nothing: noise of size zero."""
        return NoiseSpec(shape=(0,), kind="normal")

    def params_spec(self) -> dict[str, TensorSpec]:
        """Store what the head inside stores."""
        return self.inner.params_spec()

    def from_params(self, params: Mapping[str, Tensor]) -> AlwaysMode:
        """Make the distribution whose parameters were stored."""
        return AlwaysMode(self.inner.from_params(params))


register_distribution(AlwaysMode)
