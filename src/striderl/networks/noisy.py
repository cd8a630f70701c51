"""Noisy layers (Fortunato et al. 2018): exploration that is learned, with the noise handed in.

    y = W x + b + e_out ⊙ ( S (e_in ⊙ x) + s )        e = sign(n) √|n| of standard normal numbers n, one row per sample

Factorised noise needs no noisy weight matrix: two products do it with different noise for every row, so nothing is
drawn in the layer and nothing is shared between envs. Without noise the layer is W x + b.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from striderl.data.noise import NoiseSpec
from striderl.networks.head import NO_OBS

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
        """Return what one sample wants drawn; nothing without noisy layers."""
        return {NOISE: NoiseSpec(shape=(sum(self._noise_sizes),), kind="normal")} if self._noise_sizes else {}

    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> Tensor:
        """Return one row of `size` numbers per choice; noise is read from the observation, where it is."""
        outputs = dict(zip(self.layers, self._outputs(features, obs.get(NOISE))))
        leading = features.shape[:-1]
        advantage = outputs["advantage"].view(*leading, self.num_actions, self.size)
        if "value" not in outputs:
            return advantage
        return outputs["value"].unsqueeze(-2) + advantage - advantage.mean(dim=-2, keepdim=True)

    def single(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> Tensor:
        """Return one number per choice, [..., n], of a layer with `size` 1."""
        if len(self.layers) == 1 and not self._noise_sizes:
            # as it is: two views there, and two back, are a tenth of a small network's time
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
