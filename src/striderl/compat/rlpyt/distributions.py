"""rlpyt's distributions: they hold the settings, `dist_info` the parameters [..., n] of each action.

    Categorical(dim)               DistInfo(prob)            probabilities of each choice
    Gaussian(dim, std=…, …)        DistInfo(mean)            std fixed by `set_std`
                                   DistInfoStd(mean, log_std)
    EpsilonGreedy(dim=…)           q [..., n]                one ε for all, or one per env
    CategoricalEpsilonGreedy       p [..., n, atoms]         and the values z of the atoms

Random numbers are torch's global ones. Every method keeps the leading dimensions, [T, B], [B] or none.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from striderl.compat.rlpyt.tensors import from_onehot, select_at_indexes, to_onehot, valid_mean
from striderl.data.named_tuples import namedarraytuple

__path__: list[str] = []  # rlpyt's modules distributions.… are below, see compat/original_paths.py

EPS = 1e-8
"""Added to probabilities and standard deviations before a logarithm or a division."""

DistInfo = namedarraytuple("DistInfo", ["prob"])
GaussianDistInfo = namedarraytuple("GaussianDistInfo", ["mean"])
DistInfoStd = namedarraytuple("DistInfoStd", ["mean", "log_std"])


class Distribution:
    """The methods of all distributions; not every one has all of them."""

    @property
    def dim(self) -> int:
        """Number of choices, or of entries of an action."""
        raise NotImplementedError

    def sample(self, dist_info: Any) -> Tensor:
        """Sample actions."""
        raise NotImplementedError

    def kl(self, old_dist_info: Any, new_dist_info: Any) -> Tensor:
        """Return the KL divergence of each pair of distributions."""
        raise NotImplementedError

    def log_likelihood(self, x: Tensor, dist_info: Any) -> Tensor:
        """Return the logarithm of the likelihood of actions."""
        raise NotImplementedError

    def entropy(self, dist_info: Any) -> Tensor:
        """Return the entropy of each distribution."""
        raise NotImplementedError

    def likelihood_ratio(self, x: Tensor, old_dist_info: Any, new_dist_info: Any) -> Tensor:
        """Return the likelihood of actions under the new distributions over that under the old ones."""
        return (self.log_likelihood(x, new_dist_info) - self.log_likelihood(x, old_dist_info)).exp()

    def perplexity(self, dist_info: Any) -> Tensor:
        """Return exp(entropy)."""
        return self.entropy(dist_info).exp()

    def mean_kl(self, old_dist_info: Any, new_dist_info: Any, valid: Tensor | None = None) -> Tensor:
        """Return the mean KL divergence over what counts."""
        return valid_mean(self.kl(old_dist_info, new_dist_info), valid)

    def mean_entropy(self, dist_info: Any, valid: Tensor | None = None) -> Tensor:
        """Return the mean entropy over what counts."""
        return valid_mean(self.entropy(dist_info), valid)

    def mean_perplexity(self, dist_info: Any, valid: Tensor | None = None) -> Tensor:
        """Return the mean perplexity over what counts."""
        return valid_mean(self.perplexity(dist_info), valid)


class DiscreteMixin(Distribution):
    """Whole numbers and one-hot rows."""

    def __init__(self, dim: int, dtype: torch.dtype = torch.long, onehot_dtype: torch.dtype = torch.float) -> None:
        """Choose among `dim`; actions and one-hot rows are of these dtypes."""
        self._dim, self.dtype, self.onehot_dtype = int(dim), dtype, onehot_dtype

    @property
    def dim(self) -> int:
        """Number of choices."""
        return self._dim

    def to_onehot(self, indexes: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return choices [...] as rows [..., dim]."""
        return to_onehot(indexes, self._dim, dtype=dtype or self.onehot_dtype)

    def from_onehot(self, onehot: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return rows [..., dim] as choices [...]."""
        return from_onehot(onehot, dtype=dtype or self.dtype)


class Categorical(DiscreteMixin):
    """One of several choices, with the probabilities `dist_info.prob` [..., dim]."""

    def sample(self, dist_info: Any) -> Tensor:
        """Sample choices [...]."""
        prob = dist_info.prob
        chosen = torch.multinomial(prob.reshape(-1, self.dim), num_samples=1)
        return chosen.reshape(prob.shape[:-1]).to(self.dtype)

    def kl(self, old_dist_info: Any, new_dist_info: Any) -> Tensor:
        """Return KL(old, new)."""
        old: Tensor = old_dist_info.prob
        new: Tensor = new_dist_info.prob
        return (old * ((old + EPS).log() - (new + EPS).log())).sum(-1)

    def entropy(self, dist_info: Any) -> Tensor:
        """Return the entropy in nats."""
        prob: Tensor = dist_info.prob
        return -(prob * (prob + EPS).log()).sum(-1)

    def log_likelihood(self, indexes: Tensor, dist_info: Any) -> Tensor:
        """Return log π(indexes)."""
        return (select_at_indexes(indexes, dist_info.prob) + EPS).log()

    def likelihood_ratio(self, indexes: Tensor, old_dist_info: Any, new_dist_info: Any) -> Tensor:
        """Return π_new(indexes) / π_old(indexes)."""
        new, old = (select_at_indexes(indexes, info.prob) for info in (new_dist_info, old_dist_info))
        return (new + EPS) / (old + EPS)


class EpsilonGreedy(DiscreteMixin):
    """The choice with the largest Q-value, or with probability ε any."""

    def __init__(
        self,
        epsilon: float | Tensor = 1,
        dim: int = 0,
        dtype: torch.dtype = torch.long,
        onehot_dtype: torch.dtype = torch.float,
    ) -> None:
        """Start with an ε, one for all or one per env."""
        super().__init__(dim, dtype, onehot_dtype)
        self._epsilon = epsilon

    @property
    def epsilon(self) -> float | Tensor:
        """ε of now."""
        return self._epsilon

    def set_epsilon(self, epsilon: float | Tensor) -> None:
        """Set ε: a number, or [B]."""
        self._epsilon = epsilon

    def sample(self, q: Any) -> Tensor:
        """Choose for Q-values [T, B, n] or [B, n]; an ε per env holds for all T."""
        greedy = q.argmax(-1)
        epsilon = torch.as_tensor(self._epsilon, dtype=torch.float32, device=greedy.device)
        anywhere = torch.rand(greedy.shape, device=greedy.device) < epsilon
        return torch.where(anywhere, torch.randint_like(greedy, q.shape[-1]), greedy)


class CategoricalEpsilonGreedy(EpsilonGreedy):
    """The same for Q-values that are distributions over atoms."""

    def __init__(
        self,
        z: Tensor | None = None,
        epsilon: float | Tensor = 1,
        dim: int = 0,
        dtype: torch.dtype = torch.long,
        onehot_dtype: torch.dtype = torch.float,
    ) -> None:
        """Start with the values [P] of the atoms."""
        super().__init__(epsilon, dim, dtype, onehot_dtype)
        self.z = z

    def set_z(self, z: Tensor) -> None:
        """Set the values [P] of the atoms."""
        self.z = z

    def sample(self, p: Any, z: Tensor | None = None) -> Tensor:
        """Choose for probabilities [..., n, P] of the atoms."""
        atoms = self.z if z is None else z
        if atoms is None:
            raise RuntimeError("CategoricalEpsilonGreedy wants the values of the atoms: call set_z first")
        return super().sample(p @ atoms.to(p))


class Gaussian(Distribution):
    """Independent normal numbers, squashed or clipped where asked for.

    `clip` bounds the samples and `noise_clip` their distance from the mean; neither changes a likelihood or an entropy.
    """

    def __init__(
        self,
        dim: int,
        std: float | Tensor | None = None,
        clip: float | None = None,
        noise_clip: float | None = None,
        min_std: float | None = None,
        max_std: float | None = None,
        squash: float | None = None,
    ) -> None:
        """Take a fixed std, or None for `dist_info.log_std`; samples become squash · tanh(sample) where given."""
        self._dim = int(dim)
        self.std: Tensor | None = None
        self.set_std(std)
        self.noise_clip, self.min_std, self.max_std = noise_clip, min_std, max_std
        self.min_log_std = None if min_std is None else math.log(min_std)
        self.max_log_std = None if max_std is None else math.log(max_std)
        self.clip, self.squash = clip, squash
        self._check_one()

    @property
    def dim(self) -> int:
        """Entries of an action."""
        return self._dim

    # -- settings ------------------------------------------------------------------------------------------------------

    def set_std(self, std: float | Tensor | None) -> None:
        """Fix the standard deviation, one or one per entry; None reads it from `dist_info.log_std`."""
        if std is not None:
            std = torch.as_tensor(std, dtype=torch.float32)
            if std.numel() not in (1, self.dim):
                raise ValueError(f"Gaussian.set_std wants 1 or {self.dim} numbers, found {std.numel()}")
        self.std = std

    def set_clip(self, clip: float | None) -> None:
        """Bound samples to [-clip, clip], or not."""
        self.clip = clip
        self._check_one()

    def set_squash(self, squash: float | None) -> None:
        """Squash samples into (-squash, squash), or not."""
        self.squash = squash
        self._check_one()

    def set_noise_clip(self, noise_clip: float | None) -> None:
        """Bound the distance of samples from the mean, or not."""
        self.noise_clip = noise_clip

    def _check_one(self) -> None:
        if self.clip is not None and self.squash is not None:
            raise ValueError("Gaussian takes clip or squash, found both")

    def _log_std(self, dist_info: Any) -> Tensor:
        if self.std is not None:
            return self.std.to(dist_info.mean.device).log()
        log_std: Tensor = dist_info.log_std
        if self.min_log_std is not None or self.max_log_std is not None:
            log_std = log_std.clamp(self.min_log_std, self.max_log_std)
        return log_std

    # -- samples and likelihoods ---------------------------------------------------------------------------------------

    def sample(self, dist_info: Any) -> Tensor:
        """Sample actions, with gradients for mean and log_std."""
        sample = self._raw_sample(dist_info)
        if self.clip is not None:
            sample = sample.clamp(-self.clip, self.clip)
        return sample if self.squash is None else self.squash * sample.tanh()

    def _raw_sample(self, dist_info: Any) -> Tensor:
        mean: Tensor = dist_info.mean
        noise = self._log_std(dist_info).exp() * torch.randn_like(mean)
        return mean + (noise if self.noise_clip is None else noise.clamp(-self.noise_clip, self.noise_clip))

    def sample_loglikelihood(self, dist_info: Any) -> tuple[Tensor, Tensor]:
        """Sample actions and return them with their log-likelihoods, both with gradients; SAC learns from these."""
        raw = self._raw_sample(dist_info)
        likelihood = self.log_likelihood(raw, dist_info)
        return raw if self.squash is None else self.squash * raw.tanh(), likelihood

    def log_likelihood(self, x: Tensor, dist_info: Any) -> Tensor:
        """Return the log-likelihood of actions; where samples are squashed, `x` is what was there before."""
        log_std = self._log_std(dist_info)
        z: Tensor = (x - dist_info.mean) / (log_std.exp() + EPS)
        density = -(log_std + 0.5 * z**2).sum(-1) - 0.5 * self.dim * math.log(2 * math.pi)
        if self.squash is None:
            return density
        return density - (self.squash * (1 - x.tanh() ** 2) + EPS).log().sum(-1)

    def entropy(self, dist_info: Any) -> Tensor:
        """Return the entropy in nats, of samples that are not squashed."""
        self._refuse_squash("entropy")
        log_std = self._log_std(dist_info).expand_as(dist_info.mean)
        return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def kl(self, old_dist_info: Any, new_dist_info: Any) -> Tensor:
        """Return KL(old, new), of samples that are not squashed."""
        self._refuse_squash("kl")
        old, new = self._log_std(old_dist_info), self._log_std(new_dist_info)
        distance: Tensor = (old_dist_info.mean - new_dist_info.mean) ** 2 + (2 * old).exp()
        return (distance / (2 * (2 * new).exp() + EPS) - 0.5 + new - old).sum(-1)

    def _refuse_squash(self, what: str) -> None:
        if self.squash is not None:
            raise NotImplementedError(f"Gaussian.{what} has no closed form for squashed samples; use log_likelihood")
