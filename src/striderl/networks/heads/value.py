"""Features to values: of a state, or of every choice in it.

Noisy layers (Fortunato et al. 2018): exploration that is learned, with the noise passed in.

    y = W x + b + e_out ⊙ ( S (e_in ⊙ x) + s )        e = sign(n) √|n| of standard normal numbers n, one row per sample

Factorised noise needs no noisy weight matrix: two products do it with different noise for every row, so nothing is
drawn in the layer and nothing is shared between envs. Without noise the layer is W x + b.

Heads for the distribution of returns of every choice; the greedy choice has the best mean.

features ─▶ [.., n, M]     atoms: M probabilities on fixed returns      quantiles: M returns of equal probability
         ─▶ [.., n]        their means: the Q-values
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from striderl.data.noise import NoiseSpec
from striderl.data.specs import TensorSpec
from striderl.networks.distributions.base import register_distribution
from striderl.networks.distributions.categorical import FORBIDDEN
from striderl.networks.distributions.deterministic import QValues
from striderl.networks.heads.base import NO_OBS, Head, read_mask
from striderl.networks.mlp import last_linear


class ValueHead(nn.Module):
    """Features [..., F] to one value [...], or to several [..., num_values] for several rewards.

    One value has no trailing dimension: [T, B, 1] minus rewards [T, B] would broadcast to [T, T, B] in silence.
    """

    def __init__(self, input_size: int, num_values: int = 1) -> None:
        super().__init__()
        if num_values < 1:
            raise ValueError(f"ValueHead wants at least one value, found {num_values}")
        self.layer = nn.Linear(input_size, num_values)
        self.num_values = num_values

    def forward(self, features: Tensor) -> Tensor:
        """Return the values."""
        values = last_linear(self.layer, features)
        return values.squeeze(-1) if self.num_values == 1 else values


class QHead(Head[Tensor]):
    """Features to one Q-value per choice; `mask` names the component with the allowed choices.

    Dueling (Wang et al. 2016): Q = V + A - mean(A), with both parts linear in the features. Noisy: see `NoisyLinear`.
    """

    def __init__(
        self, input_size: int, num_actions: int, dueling: bool = False, mask: str = "", noisy: bool = False
    ) -> None:
        super().__init__()
        self.layer = QLayer(input_size, num_actions, 1, dueling=dueling, noisy=noisy)
        self.num_actions, self.mask = num_actions, mask
        self.mask_components = (mask,) if mask else ()

    def head_noise(self) -> dict[str, NoiseSpec]:
        """Return the noise of noisy layers."""
        return self.layer.noise()

    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> QValues:
        """Return the Q-values for features [..., F], as the greedy choice over them."""
        return QValues.from_values(self.layer.single(features, obs), read_mask(obs, self.mask))

    def noise_spec(self) -> NoiseSpec:
        """Return noise of size zero."""
        return NoiseSpec(shape=(0,), kind="normal")

    def params_spec(self) -> dict[str, TensorSpec]:
        """Return the column of the Q-values."""
        return {"values": TensorSpec(shape=(self.num_actions,))}

    def from_params(self, params: Mapping[str, Tensor]) -> QValues:
        """Make the greedy choice over these values."""
        return QValues(params["values"])


# -- noisy layers ------------------------------------------------------------------------------------------------------


NOISE = "head/noise"
"""The component under which heads find the noise of their noisy layers."""


class NoisyLinear(nn.Module):
    """A linear layer whose weights have learned noise: [..., F] and noise [..., F + O] to [..., O]."""

    def __init__(self, input_size: int, output_size: int, init_std: float = 0.5) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        bound = 1.0 / math.sqrt(input_size)
        self.weight = nn.Parameter(torch.empty(output_size, input_size).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(output_size).uniform_(-bound, bound))
        self.weight_std = nn.Parameter(torch.full((output_size, input_size), init_std * bound))
        self.bias_std = nn.Parameter(torch.full((output_size,), init_std * bound))

    def forward(self, input: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the outputs; without noise those of the mean weights."""
        mean = nn.functional.linear(input, self.weight, self.bias)
        if noise is None:
            return mean
        shaped = noise.sign() * noise.abs().sqrt()
        inward, outward = torch.split(shaped, [self.input_size, self.output_size], dim=-1)
        return mean + outward * nn.functional.linear(inward * input, self.weight_std, self.bias_std)


class QLayer(nn.Module):
    """Features [..., F] to [..., n, M], plain or dueling (Q = V + A - mean A over choices), noisy or not."""

    def __init__(
        self, input_size: int, num_actions: int, size: int, *, dueling: bool = False, noisy: bool = False
    ) -> None:
        super().__init__()
        self.num_actions, self.size = num_actions, size
        sizes = {"advantage": num_actions * size, **({"value": size} if dueling else {})}
        kind = NoisyLinear if noisy else nn.Linear
        self.layers = nn.ModuleDict({name: kind(input_size, out) for name, out in sizes.items()})
        self._noise_sizes = [input_size + out for out in sizes.values()] if noisy else []

    def noise(self) -> dict[str, NoiseSpec]:
        """Return the noise of one sample; none without noisy layers."""
        return {NOISE: NoiseSpec(shape=(sum(self._noise_sizes),), kind="normal")} if self._noise_sizes else {}

    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> Tensor:
        """Return one row of `size` numbers per choice; noise is read from the observation, if present."""
        outputs = dict(zip(self.layers, self._outputs(features, obs.get(NOISE))))
        leading = features.shape[:-1]
        advantage = outputs["advantage"].view(*leading, self.num_actions, self.size)
        if "value" not in outputs:
            return advantage
        return outputs["value"].unsqueeze(-2) + advantage - advantage.mean(dim=-2, keepdim=True)

    def single(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> Tensor:
        """Return one number per choice, [..., n], of a layer with `size` 1."""
        if len(self.layers) == 1 and not self._noise_sizes:
            # a special case: two views forward and two backward are a tenth of a small network's time
            values: Tensor = self.layers["advantage"](features)
            return values
        numbers: Tensor = self(features, obs)
        return numbers.squeeze(-1)

    def _outputs(self, features: Tensor, noise: Tensor | None) -> list[Tensor]:
        layers = list(self.layers.values())
        if noise is None or not self._noise_sizes:
            return [layer(features) for layer in layers]
        # implicit quantiles have a dimension more than the noise: the same noise for all of a sample's fractions
        noise = noise.unsqueeze(-2) if noise.dim() < features.dim() else noise
        return [layer(features, part) for layer, part in zip(layers, torch.split(noise, self._noise_sizes, dim=-1))]


# -- distributions of returns ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReturnDistribution(QValues):
    """Q-values with their distributions."""

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
        """Return noise of size zero."""
        return NoiseSpec(shape=(0,), kind="normal")

    def params_spec(self) -> dict[str, TensorSpec]:
        """Return the column of the Q-values."""
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

    Fractions come with the observation as `FRACTIONS` [..., M]; without them it uses `num_quantiles` evenly spread
    ones, so that acting and export are deterministic.
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
