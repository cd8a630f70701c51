"""What every action distribution offers, in closed form.

A distribution is a frozen bundle of tensors [..., event]: made by a head, asked a few questions, thrown away. Nothing
is drawn inside it: noise is handed in as data, of the kind and shape that `noise_spec` names.

    features ─▶ head ─▶ distribution ─ sample(noise) ─▶ action ─ log_prob(action) ─▶ [...]
                             └─ params() ─▶ {"mean": …, "std": …} ─▶ storage ─▶ from_params ─▶ kl(new) ─▶ [...]

Plain actions are tensors; the actions, noise and noise specs of a hybrid distribution are dicts with the same names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

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
        """Return what `sample` wants drawn for one env and step."""

    @abstractmethod
    def sample(self, noise: ActionT) -> ActionT:
        """Return the action that this noise [..., *noise shape] stands for."""

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
    """Let `striderl.data.tree` walk the parameters of a family: index, stack, move and compare distributions."""
    tree.register(kind, tree.Container(_parameters, _rebuilt))


def stretch(unit: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Map [0, 1] to [low, high]; the clamp takes back what rounding adds, because envs check their bounds."""
    return (low + (high - low) * unit).clamp(low, high)


def sum_event(values: Tensor, event_dims: int) -> Tensor:
    """Sum over the last `event_dims` dimensions; none of them leaves the values as they are."""
    return values.flatten(-event_dims).sum(-1) if event_dims else values
