"""Choices: one out of n, or several at once, with action masks.

Logits are normalised once, when the distribution is made, over the allowed choices only. A forbidden choice has the
log-probability `FORBIDDEN`: so small that its probability is exactly zero, yet finite, so that 0 * log 0 is 0 and no
gradient is NaN. A row whose mask allows nothing (padding, an env between episodes) counts as all allowed: an action
must come out, and such rows are never used.

    logits  1.0   2.0   0.5        log-probabilities  -1.31  -0.31  FORBIDDEN        entropy, KL, samples
    mask     1     1     0    ──▶  probabilities       0.27   0.73   0          ──▶  ignore the third
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from striderl.data.noise import NoiseSpec
from striderl.networks.distributions.base import Distribution, register_distribution

FORBIDDEN = -1e30
"""The log-probability of a masked choice; exp of it is zero."""


def masked_log_probs(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Normalise logits [..., n] over the choices where mask [..., n] is true; None allows all."""
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    if mask is None:
        return logits.log_softmax(-1)
    if mask.shape[-1] != logits.shape[-1]:
        raise ValueError(f"the mask is over {mask.shape[-1]} choices, the logits over {logits.shape[-1]}")
    allowed = mask.bool()
    allowed = allowed | ~allowed.any(-1, keepdim=True)
    # masked a second time so that forbidden stays exactly FORBIDDEN, even next to a NaN
    return torch.where(allowed, torch.where(allowed, logits, FORBIDDEN).log_softmax(-1), FORBIDDEN)


def check_mask(mask: Tensor) -> None:
    """Raise ValueError naming the first row that allows nothing; a check for env authors, not for training."""
    empty = (~mask.bool().any(-1)).nonzero()
    if len(empty):
        raise ValueError(f"the action mask at index {tuple(empty[0].tolist())} allows no choice; allow at least one")


def gumbel_choice(log_probs: Tensor, noise: Tensor) -> Tensor:
    """Return argmax of log-probability plus Gumbel noise: an exact draw; NaN and forbidden choices never win."""
    return _argmax_allowed(log_probs, log_probs + noise)


def _argmax_allowed(log_probs: Tensor, scores: Tensor) -> Tensor:
    scores = torch.where(scores.isnan(), torch.zeros_like(scores), scores)
    return torch.where(log_probs <= 0.5 * FORBIDDEN, -torch.inf, scores).argmax(-1)


def _entropy(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * log_probs).sum(-1)


def _kl(log_probs: Tensor, other: Tensor) -> Tensor:
    return (log_probs.exp() * (log_probs - other)).sum(-1)


@dataclass(frozen=True)
class Categorical(Distribution[Tensor]):
    """One choice out of n; actions are int64 [...]. Make it with `from_logits`."""

    log_probs: Tensor
    """[..., n], normalised; `FORBIDDEN` where masked."""

    @classmethod
    def from_logits(cls, logits: Tensor, mask: Tensor | None = None) -> Categorical:
        """Make it from any logits [..., n] and a mask [..., n] that is true for allowed choices."""
        return cls(masked_log_probs(logits, mask))

    @property
    def reparameterised(self) -> bool:
        """A choice has no gradient."""
        return False

    @property
    def probs(self) -> Tensor:
        """The probabilities [..., n]."""
        return self.log_probs.exp()

    def noise_spec(self) -> NoiseSpec:
        """Return one Gumbel number per choice."""
        return NoiseSpec(shape=(self.log_probs.shape[-1],), kind="gumbel")

    def sample(self, noise: Tensor) -> Tensor:
        """Return the choice with the largest log-probability plus Gumbel noise."""
        return gumbel_choice(self.log_probs, noise)

    def mode(self) -> Tensor:
        """Return the most probable choice."""
        return _argmax_allowed(self.log_probs, self.log_probs)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability of choices [...] of any integer dtype."""
        return self.log_probs.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return -sum p log p over the allowed choices."""
        return _entropy(self.log_probs)

    def kl(self, other: Categorical) -> Tensor:
        """Return sum p (log p - log q)."""
        return _kl(self.log_probs, other.log_probs)

    def params(self) -> dict[str, Tensor]:
        """Return the masked log-probabilities."""
        return {"log_probs": self.log_probs}

    def from_params(self, params: Mapping[str, Tensor]) -> Categorical:
        """Make the distribution with these log-probabilities."""
        return Categorical(params["log_probs"])


@dataclass(frozen=True)
class MultiDiscrete(Distribution[Tensor]):
    """Several independent choices; actions are int64 [..., len(nvec)]. Make it with `from_logits`.

    All log-probabilities sit in one row, [ n0 numbers | n1 numbers | … ], as the head gives them.
    """

    log_probs: Tensor
    """[..., sum(nvec)], normalised within each choice; `FORBIDDEN` where masked."""
    nvec: tuple[int, ...]
    """How many alternatives each choice has."""

    @classmethod
    def from_logits(cls, logits: Tensor, nvec: Sequence[int], mask: Tensor | None = None) -> MultiDiscrete:
        """Make it from any logits [..., sum(nvec)] and a mask of the same shape."""
        sizes = tuple(int(n) for n in nvec)
        if logits.shape[-1] != sum(sizes):
            raise ValueError(f"nvec {sizes} wants {sum(sizes)} logits, found {logits.shape[-1]}")
        parts = logits.split_with_sizes(sizes, -1)
        if mask is None:
            return cls(torch.cat([masked_log_probs(part, None) for part in parts], -1), sizes)
        if mask.shape[-1] != sum(sizes):
            raise ValueError(f"nvec {sizes} wants a mask over {sum(sizes)}, found {mask.shape[-1]}")
        pairs = zip(parts, mask.split_with_sizes(sizes, -1))
        return cls(torch.cat([masked_log_probs(part, allowed) for part, allowed in pairs], -1), sizes)

    @property
    def reparameterised(self) -> bool:
        """A choice has no gradient."""
        return False

    def noise_spec(self) -> NoiseSpec:
        """Return one Gumbel number per alternative."""
        return NoiseSpec(shape=(sum(self.nvec),), kind="gumbel")

    def sample(self, noise: Tensor) -> Tensor:
        """Return for each choice the alternative with the largest log-probability plus Gumbel noise."""
        parts = zip(self._split(self.log_probs), self._split(noise))
        return torch.stack([gumbel_choice(part, drawn) for part, drawn in parts], -1)

    def mode(self) -> Tensor:
        """Return the most probable alternative of each choice."""
        return torch.stack([_argmax_allowed(part, part) for part in self._split(self.log_probs)], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the sum of the log-probabilities of choices [..., len(nvec)]."""
        parts = zip(self._split(self.log_probs), action.long().unbind(-1))
        return torch.stack([part.gather(-1, choice.unsqueeze(-1)).squeeze(-1) for part, choice in parts], -1).sum(-1)

    def entropy(self) -> Tensor:
        """Return the sum of the entropies; the choices are independent."""
        return torch.stack([_entropy(part) for part in self._split(self.log_probs)], -1).sum(-1)

    def kl(self, other: MultiDiscrete) -> Tensor:
        """Return the sum of the divergences of the choices."""
        return _kl(self.log_probs, other.log_probs)

    def params(self) -> dict[str, Tensor]:
        """Return the masked log-probabilities in one row."""
        return {"log_probs": self.log_probs}

    def from_params(self, params: Mapping[str, Tensor]) -> MultiDiscrete:
        """Make the distribution with these log-probabilities and the same nvec."""
        return MultiDiscrete(params["log_probs"], self.nvec)

    def _split(self, row: Tensor) -> tuple[Tensor, ...]:
        return tuple(row.split_with_sizes(self.nvec, -1))


register_distribution(Categorical)
register_distribution(MultiDiscrete)
