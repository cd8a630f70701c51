"""Beta actions on bounded boxes: exploration that never has to be clipped.

An action is low + (high - low) x with x ~ Beta(a, b). Noise is data, so sampling is a fixed amount of work: a Beta
number is a ratio of Gamma numbers, x = g_a / (g_a + g_b), and each Gamma number is the first of `NUM_PROPOSALS`
proposals that Marsaglia and Tsang's test (2000) accepts:

    d = shape - 1/3,  v = (1 + z / (3 sqrt(d)))^3,  g = d v,  accepted where log U < z^2/2 + d - d v + d log v

For shapes of at least 1 a proposal is accepted with probability 0.95 or more, so all five fail less than once in three
million draws; then the first is taken, which no statistic detects. Shapes below 1 are drawn as shape + 1 and brought
down by U^(1/shape).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from striderl.data.noise import NoiseSpec
from striderl.networks.distributions.base import Distribution, register_distribution, stretch, sum_event

NUM_PROPOSALS = 5
"""Number of proposals per Gamma number."""

_EDGE = 1e-6


@dataclass(frozen=True)
class BetaDistribution(Distribution[Tensor]):
    """Independent Beta entries, stretched to [low, high]."""

    alpha: Tensor
    """[..., *event], positive; above 1 the density has one peak inside the bounds."""
    beta: Tensor
    """[..., *event], positive."""
    low: Tensor
    """Lower bound; broadcasts to the event."""
    high: Tensor
    """Upper bound; broadcasts to the event."""
    event_dims: int = 1
    """Number of trailing dimensions of one action."""

    @property
    def reparameterised(self) -> bool:
        """Acceptance is a choice, so no gradient flows through a sample; it is detached."""
        return False

    def noise_spec(self) -> NoiseSpec:
        """Return, per entry and for each of the two Gamma numbers, proposals of two normals and one pair more."""
        event = tuple(self.alpha.shape[self.alpha.dim() - self.event_dims :])
        return beta_noise(event)

    def sample(self, noise: Tensor) -> Tensor:
        """Return a draw strictly inside the bounds, detached."""
        log_a = log_gamma_sample(self.alpha.detach(), noise[..., 0, :, :])
        log_b = log_gamma_sample(self.beta.detach(), noise[..., 1, :, :])
        # a ratio of exponentials: neither can overflow, and tiny shapes do not become 0 / 0
        return stretch((log_a - log_b).sigmoid().clamp(_EDGE, 1.0 - _EDGE), self.low, self.high)

    def mode(self) -> Tensor:
        """Return the peak (alpha - 1) / (alpha + beta - 2); the mean where there is no single peak."""
        above_a, above_b = (self.alpha - 1.0).clamp(min=0.0), (self.beta - 1.0).clamp(min=0.0)
        total = above_a + above_b
        flat = total <= 0.0
        peak = above_a / torch.where(flat, torch.ones_like(total), total)
        return stretch(torch.where(flat, self.alpha / (self.alpha + self.beta), peak), self.low, self.high)

    def mean(self) -> Tensor:
        """Return the expected action."""
        return stretch(self.alpha / (self.alpha + self.beta), self.low, self.high)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-density; actions on a bound count as a millionth of the range inside."""
        x = ((action - self.low) / (self.high - self.low)).clamp(_EDGE, 1.0 - _EDGE)
        density = (self.alpha - 1.0) * x.log() + (self.beta - 1.0) * (-x).log1p()
        return sum_event(density - _log_beta(self.alpha, self.beta) - self._log_range(), self.event_dims)

    def entropy(self) -> Tensor:
        """Return log B(a, b) - (a-1) psi(a) - (b-1) psi(b) + (a+b-2) psi(a+b), plus the log of the range."""
        a, b = self.alpha.double(), self.beta.double()
        total = a + b
        inner = (total - 2.0) * total.digamma() - (a - 1.0) * a.digamma() - (b - 1.0) * b.digamma()
        value = (inner + a.lgamma() + b.lgamma() - total.lgamma()).to(self.alpha.dtype)
        return sum_event(value + self._log_range(), self.event_dims)

    def kl(self, other: BetaDistribution) -> Tensor:
        """Return log B(a', b') / B(a, b) + (a-a') psi(a) + (b-b') psi(b) + (a'-a+b'-b) psi(a+b)."""
        a, b = self.alpha.double(), self.beta.double()
        other_a, other_b = other.alpha.double(), other.beta.double()
        normaliser = (other_a.lgamma() - a.lgamma()) + (other_b.lgamma() - b.lgamma())
        normaliser = normaliser - ((other_a + other_b).lgamma() - (a + b).lgamma())
        change_a, change_b = a - other_a, b - other_b
        slope = change_a * a.digamma() + change_b * b.digamma() - (change_a + change_b) * (a + b).digamma()
        return sum_event((normaliser + slope).to(self.alpha.dtype), self.event_dims)

    def params(self) -> dict[str, Tensor]:
        """Return alpha and beta."""
        return {"alpha": self.alpha, "beta": self.beta}

    def from_params(self, params: Mapping[str, Tensor]) -> BetaDistribution:
        """Make the Beta with these concentrations and the same bounds."""
        return BetaDistribution(params["alpha"], params["beta"], self.low, self.high, self.event_dims)

    def _log_range(self) -> Tensor:
        return (self.high - self.low).log()


def beta_noise(event: tuple[int, ...]) -> NoiseSpec:
    """Return the noise of Beta draws of this event shape: [*event, 2 Gammas, NUM_PROPOSALS + 1, 2 normals]."""
    return NoiseSpec(shape=(*event, 2, NUM_PROPOSALS + 1, 2), kind="normal")


def log_gamma_sample(shape: Tensor, noise: Tensor) -> Tensor:
    """Return the logarithm of Gamma(shape, 1) draws for shape [...] and normal noise [..., NUM_PROPOSALS + 1, 2].

    The last row of noise is for shapes below 1 alone: Gamma(s) = Gamma(s + 1) U^(1/s).
    """
    small = shape < 1.0
    d = torch.where(small, shape + 1.0, shape).unsqueeze(-1) - 1.0 / 3.0
    z, log_u = noise[..., :-1, 0], torch.special.log_ndtr(noise[..., :-1, 1])
    root = 1.0 + z / (3.0 * d.sqrt())
    possible = root > 0.0
    log_v = 3.0 * torch.where(possible, root, torch.ones_like(root)).log()
    accepted = possible & (log_u < 0.5 * z.square() + d * (log_v - log_v.expm1()))
    # argmax of 0/1 gives the first accepted proposal, and the first of all where none is
    first = accepted.to(torch.uint8).argmax(dim=-1, keepdim=True)
    log_g = (d.log() + log_v).gather(-1, first).squeeze(-1)
    log_boost = torch.special.log_ndtr(noise[..., -1, 1]) / torch.where(small, shape, torch.ones_like(shape))
    return torch.where(small, log_g + log_boost, log_g)


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    """Return log B(a, b); in float64, because three large numbers nearly cancel."""
    first, second = a.double(), b.double()
    return (first.lgamma() + second.lgamma() - (first + second).lgamma()).to(a.dtype)


register_distribution(BetaDistribution)
