"""Named parts with distributions of their own: a steering angle and a gear, a grasp and which hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from striderl.data.noise import NoiseSpec
from striderl.networks.distribution import Distribution, register_distribution


@dataclass(frozen=True)
class Hybrid(Distribution[dict[str, Tensor]]):
    """Independent parts; actions and noise are dicts with the names of the parts."""

    parts: dict[str, Distribution[Tensor]]
    """The distribution of each part; all have the same leading dimensions."""

    @property
    def reparameterised(self) -> bool:
        """Whether gradients flow through every part."""
        return all(part.reparameterised for part in self.parts.values())

    def noise_spec(self) -> dict[str, NoiseSpec]:
        """Want what each part wants."""
        specs: dict[str, NoiseSpec] = {}
        for name, part in self.parts.items():
            spec = part.noise_spec()
            assert isinstance(spec, NoiseSpec)  # parts are plain
            specs[name] = spec
        return specs

    def sample(self, noise: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a draw of every part."""
        return {name: part.sample(noise[name]) for name, part in self.parts.items()}

    def sample_with_log_prob(self, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Return a draw of every part and the sum of their log-probabilities."""
        drawn = {name: part.sample_with_log_prob(noise[name]) for name, part in self.parts.items()}
        total = _total([log_prob for _, log_prob in drawn.values()])
        return {name: action for name, (action, _) in drawn.items()}, total

    def mode(self) -> dict[str, Tensor]:
        """Return the deterministic action of every part."""
        return {name: part.mode() for name, part in self.parts.items()}

    def log_prob(self, action: dict[str, Tensor]) -> Tensor:
        """Return the sum over the parts."""
        return _total([part.log_prob(action[name]) for name, part in self.parts.items()])

    def entropy(self) -> Tensor:
        """Return the sum over the parts."""
        return _total([part.entropy() for part in self.parts.values()])

    def kl(self, other: Hybrid) -> Tensor:
        """Return the sum over the parts."""
        return _total([part.kl(other.parts[name]) for name, part in self.parts.items()])

    def params(self) -> dict[str, Tensor]:
        """Return the parameters of all parts, named 'part/parameter'."""
        return {f"{name}/{key}": value for name, part in self.parts.items() for key, value in part.params().items()}

    def from_params(self, params: Mapping[str, Tensor]) -> Hybrid:
        """Make the same parts from stored parameters."""
        return Hybrid(
            {
                name: part.from_params({key: params[f"{name}/{key}"] for key in part.params()})
                for name, part in self.parts.items()
            }
        )


def _total(values: list[Tensor]) -> Tensor:
    return torch.stack(values, -1).sum(-1)


register_distribution(Hybrid)
