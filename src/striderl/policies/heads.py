"""Heads of policies: from a name and settings in a config to a head, and acting without noise with any of them.

With `ModeHead` a sample is the mode, everything else stays as it was. Students that are taught by a teacher's labels
act on their mean, and still have a standard deviation, an entropy and log-probabilities. That is a property of the
policy, so that every collector acts the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec
from striderl.data.naming import unknown
from striderl.data.noise import NoiseSpec
from striderl.data.specs import TensorSpec
from striderl.networks.distributions.base import Distribution, register_distribution
from striderl.networks.heads.base import NO_OBS, Head
from striderl.networks.heads.gaussian import GaussianHead, SquashedGaussianHead
from striderl.networks.heads.table import BetaHead, DeterministicHead, head_for
from striderl.policies.arguments import argument_names

HEADS: dict[str, type[Head[Any]]] = {
    "gaussian": GaussianHead,
    "squashed_gaussian": SquashedGaussianHead,
    "beta": BetaHead,
    "deterministic": DeterministicHead,
}
"""Heads of real-valued actions by name."""
BOUNDED = ("squashed_gaussian", "beta")
"""Heads that need the bounds of the action spec."""


def build_head(action_spec: ActionSpec, input_size: int, name: str, settings: Mapping[str, Any]) -> Head[Any]:
    """Build the head that a config describes; discrete actions have one head and take no settings."""
    if name not in HEADS:
        raise ValueError(unknown("head", name, HEADS, where="the policy config"))
    allowed = [key for key in argument_names(HEADS[name]) if key not in ("input_size", "action_size")]
    for key in settings:
        if key not in allowed:
            raise ValueError(unknown("setting", key, allowed, where=f"the {name} head"))
    parts = action_spec.parts.values() if isinstance(action_spec, DictActionSpec) else [action_spec]
    if not any(isinstance(part, BoxSpec) for part in parts):
        if settings:
            raise ValueError(f"head_settings {dict(settings)} have no effect: the action has no real-valued part")
        if name != "gaussian":  # the default, not a user's choice
            raise ValueError(f"head={name!r} has no effect: the action has no real-valued part; leave head away")

    def box(size: int, spec: BoxSpec) -> Head[Any]:
        return HEADS[name](size, spec.shape, **{**_bounds(name, spec), **settings})

    return head_for(action_spec, input_size, box=box)


def _bounds(name: str, spec: BoxSpec) -> dict[str, tuple[float, ...]]:
    """Return low and high for heads that stretch to them; a deterministic action is bounded where its spec is."""
    low, high = spec.bounds()
    finite = bool(np.isfinite(low).all() and np.isfinite(high).all())
    if name in BOUNDED or (name == "deterministic" and finite):
        return {"low": tuple(low.reshape(-1).tolist()), "high": tuple(high.reshape(-1).tolist())}
    return {}


# -- acting without noise ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AlwaysMode(Distribution[Any]):
    """A distribution that is never sampled from: its sample is its mode."""

    inner: Distribution[Any]
    """The inner distribution: of mode, log-probability, entropy and divergence."""

    @property
    def reparameterised(self) -> bool:
        """Gradients flow through the mode where they flow through the parameters."""
        return self.inner.reparameterised

    def noise_spec(self) -> NoiseSpec:
        """Return noise of size zero."""
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
        """Return noise of size zero."""
        return NoiseSpec(shape=(0,), kind="normal")

    def params_spec(self) -> dict[str, TensorSpec]:
        """Return the columns of the head inside."""
        return self.inner.params_spec()

    def from_params(self, params: Mapping[str, Tensor]) -> AlwaysMode:
        """Make the distribution from stored parameters."""
        return AlwaysMode(self.inner.from_params(params))


register_distribution(AlwaysMode)
