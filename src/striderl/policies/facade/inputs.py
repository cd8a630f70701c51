"""Flat vectors in, named components out: how `StatefulPolicy` reads what it is given."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from striderl.data.specs import ObsSpec

Observations = Tensor | Mapping[str, Tensor]
"""A flat tensor [.., num_obs], or named components."""


def named(observations: Observations, spec: ObsSpec) -> dict[str, Tensor]:
    """Return named components; a flat tensor is cut in the order of the spec."""
    if isinstance(observations, Tensor):
        components: dict[str, Tensor] = spec.split(observations)
        return components
    return dict(observations)


def lead_of(obs: Mapping[str, Tensor], spec: ObsSpec) -> tuple[int, ...]:
    """Return the leading shape, [N] of a step or [T, B] of a minibatch; a component that is missing is named."""
    spec.require(obs)
    name = spec.names[0]
    return tuple(obs[name].shape[: obs[name].dim() - len(spec[name].shape)])


def as_mask(masks: Tensor | None) -> Tensor | None:
    """Return masks of any dtype as bool."""
    return None if masks is None else masks.bool()
