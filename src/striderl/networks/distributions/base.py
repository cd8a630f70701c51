"""The interface of every action distribution, in closed form.

A distribution is a frozen bundle of tensors [..., event]: made by a head for one call. Nothing
is drawn inside it: noise is passed in as data, of the kind and shape that `noise_spec` names.

    features ─▶ head ─▶ distribution ─ sample(noise) ─▶ action ─ log_prob(action) ─▶ [...]
                             └─ params() ─▶ {"mean": …, "std": …} ─▶ storage ─▶ from_params ─▶ kl(new) ─▶ [...]

Plain actions are tensors; the actions, noise and noise specs of a hybrid distribution are dicts with the same names.

Named parts with distributions of their own: a steering angle and a gear, a grasp and which hand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from striderl.data import tree
from striderl.data.noise import NoiseSpec

if TYPE_CHECKING:
    from typing import Self


ActionT = TypeVar("ActionT", Tensor, dict[str, Tensor])
"""A tensor, or a dict of tensors for hybrid actions."""


class Distribution(ABC, Generic[ActionT]):
    """A distribution of actions over any leading dimensions [...]."""

    @property
    @abstractmethod
    def reparameterised(self) -> bool:
        """Whether gradients flow from a sample to the parameters; without that, use the log-probability."""

    @abstractmethod
    def noise_spec(self) -> NoiseSpec | dict[str, NoiseSpec]:
        """Return the noise that `sample` needs for one env and step."""

    @abstractmethod
    def sample(self, noise: ActionT) -> ActionT:
        """Return the action for this noise [..., *noise shape]."""

    @abstractmethod
    def mode(self) -> ActionT:
        """Return the deterministic action."""

    @abstractmethod
    def log_prob(self, action: ActionT) -> Tensor:
        """Return the log-density (or log-probability) of a whole action, shape [...]."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return the entropy in nats, shape [...]."""

    @abstractmethod
    def kl(self, other: Self) -> Tensor:
        """Return KL(self || other) >= 0 in nats, shape [...]; other has the same family, bounds and masks."""

    @abstractmethod
    def params(self) -> dict[str, Tensor]:
        """Return the tensors [..., event] to store, from which `from_params` makes an equal distribution."""

    @abstractmethod
    def from_params(self, params: Mapping[str, Tensor]) -> Self:
        """Make a distribution of the same family and bounds from stored parameters."""

    def sample_with_log_prob(self, noise: ActionT) -> tuple[ActionT, Tensor]:
        """Return a sample and its log-probability; exact where the action alone has lost digits (saturated tanh)."""
        action = self.sample(noise)
        return action, self.log_prob(action)


def _parameters(distribution: Distribution[Any]) -> list[tuple[str, Any]]:
    return list(distribution.params().items())


def _rebuilt(distribution: Distribution[Any], values: list[Any]) -> Distribution[Any]:
    return distribution.from_params(dict(zip(distribution.params(), values)))


def register_distribution(kind: type[Distribution[Any]]) -> None:
    """Let `striderl.data.tree` traverse the parameters of a family: index, stack, move and compare distributions."""
    tree.register(kind, tree.Container(_parameters, _rebuilt))


def stretch(unit: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Map [0, 1] to [low, high]; the clamp corrects rounding, because envs check their bounds."""
    return (low + (high - low) * unit).clamp(low, high)


def sum_event(values: Tensor, event_dims: int) -> Tensor:
    """Sum over the last `event_dims` dimensions; none of them leaves the values as they are."""
    return values.flatten(-event_dims).sum(-1) if event_dims else values


# -- several parts -----------------------------------------------------------------------------------------------------


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
        """Return the noise of each part."""
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
