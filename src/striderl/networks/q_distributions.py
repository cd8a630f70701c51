"""Heads that say how returns are distributed for every choice; what is played is the best mean.

features ─▶ [.., n, M]     atoms: M probabilities on fixed returns      quantiles: M returns of equal probability
         ─▶ [.., n]        their means: the Q-values
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from striderl.data.noise import NoiseSpec
from striderl.data.specs import TensorSpec
from striderl.networks.categorical import FORBIDDEN
from striderl.networks.deterministic import QValues
from striderl.networks.distribution import register_distribution
from striderl.networks.head import NO_OBS, Head, read_mask
from striderl.networks.noisy import QLayer


@dataclass(frozen=True)
class ReturnDistribution(QValues):
    """Q-values with the distributions behind them."""

    spread: Tensor
    """[..., n, M]: log-probabilities of atoms, or quantiles."""

    def spread_of(self, action: Tensor) -> Tensor:
        """Return the distribution of choices [...], [..., M]."""
        index = action.long().unsqueeze(-1).unsqueeze(-1).expand(*action.shape, 1, self.spread.shape[-1])
        return self.spread.gather(-2, index).squeeze(-2)


register_distribution(ReturnDistribution)


class _SpreadHead(Head[Tensor]):
    """One layer to [.., n, M], dueling or not, and the mask over choices."""

    def __init__(self, input_size: int, num_actions: int, size: int, *, dueling: bool, noisy: bool, mask: str) -> None:
        super().__init__()
        self.layer = QLayer(input_size, num_actions, size, dueling=dueling, noisy=noisy)
        self.num_actions, self.size, self.mask = num_actions, size, mask
        self.mask_components = (mask,) if mask else ()

    def head_noise(self) -> dict[str, NoiseSpec]:
        """Return the noise of noisy layers."""
        return self.layer.noise()

    def noise_spec(self) -> NoiseSpec:
        """Want nothing: noise of size zero."""
        return NoiseSpec(shape=(0,), kind="normal")

    def params_spec(self) -> dict[str, TensorSpec]:
        """Store the Q-values."""
        return {"values": TensorSpec(shape=(self.num_actions,))}

    def from_params(self, params: Mapping[str, Tensor]) -> QValues:
        """Make the greedy choice over these values."""
        return QValues(params["values"])

    def _distribution(self, means: Tensor, spread: Tensor, obs: Mapping[str, Tensor]) -> ReturnDistribution:
        mask = read_mask(obs, self.mask)
        if mask is not None:
            allowed = mask.bool()
            means = torch.where(allowed | ~allowed.any(-1, keepdim=True), means, FORBIDDEN)
        return ReturnDistribution(means, spread)


class CategoricalQHead(_SpreadHead):
    """Probabilities of `num_atoms` fixed returns between `low` and `high` for each choice."""

    def __init__(
        self,
        input_size: int,
        num_actions: int,
        *,
        low: float,
        high: float,
        num_atoms: int = 51,
        dueling: bool = False,
        noisy: bool = False,
        mask: str = "",
    ) -> None:
        if num_atoms < 2 or not low < high:
            raise ValueError(f"CategoricalQHead wants 2 atoms or more and low < high, found {num_atoms}, {low}, {high}")
        super().__init__(input_size, num_actions, num_atoms, dueling=dueling, noisy=noisy, mask=mask)
        self.atoms: Tensor
        self.register_buffer("atoms", torch.linspace(low, high, num_atoms), persistent=False)

    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> ReturnDistribution:
        """Return the distributions for features [..., F]."""
        log_probs = self.layer(features, obs).log_softmax(dim=-1)
        return self._distribution((log_probs.exp() * self.atoms).sum(dim=-1), log_probs, obs)


class QuantileQHead(_SpreadHead):
    """`num_quantiles` returns of equal probability for each choice, at the fractions (i + 1/2) / num_quantiles."""

    def __init__(
        self,
        input_size: int,
        num_actions: int,
        *,
        num_quantiles: int = 32,
        dueling: bool = False,
        noisy: bool = False,
        mask: str = "",
    ) -> None:
        if num_quantiles < 1:
            raise ValueError(f"QuantileQHead wants at least one quantile, found {num_quantiles}")
        super().__init__(input_size, num_actions, num_quantiles, dueling=dueling, noisy=noisy, mask=mask)
        self.fractions: Tensor
        middles = (torch.arange(num_quantiles) + 0.5) / num_quantiles
        self.register_buffer("fractions", middles, persistent=False)

    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> ReturnDistribution:
        """Return the distributions for features [..., F]."""
        quantiles = self.layer(features, obs)
        return self._distribution(quantiles.mean(dim=-1), quantiles, obs)


class ImplicitQuantileHead(_SpreadHead):
    """The return at any fraction (Dabney et al. 2018): features times an embedding of the fraction, then a layer.

    Fractions come with the observation as `FRACTIONS` [..., M]; without them it looks at `num_quantiles` evenly spread
    ones, so that what is played and exported does not depend on chance.
    """

    FRACTIONS = "head/fractions"

    def __init__(
        self,
        input_size: int,
        num_actions: int,
        *,
        num_quantiles: int = 32,
        embedding_size: int = 64,
        dueling: bool = False,
        noisy: bool = False,
        mask: str = "",
    ) -> None:
        super().__init__(input_size, num_actions, 1, dueling=dueling, noisy=noisy, mask=mask)
        self.embedding = nn.Linear(embedding_size, input_size)
        self.fractions: Tensor
        self.waves: Tensor
        middles = (torch.arange(num_quantiles) + 0.5) / num_quantiles
        self.register_buffer("fractions", middles, persistent=False)
        self.register_buffer("waves", torch.pi * torch.arange(1, embedding_size + 1), persistent=False)

    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> ReturnDistribution:
        """Return the distributions for features [..., F] at the fractions given, or at the fixed ones."""
        fractions = obs.get(self.FRACTIONS, self.fractions.expand(*features.shape[:-1], -1))
        embedded = self.embedding((fractions.unsqueeze(-1) * self.waves).cos()).relu()  # [.., M, F]
        quantiles = self.layer(features.unsqueeze(-2) * embedded, obs).squeeze(-1).transpose(-1, -2)  # [.., n, M]
        return self._distribution(quantiles.mean(dim=-1), quantiles, obs)
