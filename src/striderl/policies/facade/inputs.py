"""Flat vectors in, named components out: how `StatefulPolicy` reads what it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.data.specs import ObsSpec
from striderl.policies.estimate import PredictStage
from striderl.policies.policy import Policy

Observations = Tensor | np.ndarray[Any, Any] | Mapping[str, Tensor] | Mapping[str, np.ndarray[Any, Any]]
"""A flat tensor or array [.., num_obs], or named components."""

UNNAMED = ("obs", "privileged_obs")
"""What flat vectors without segments are called: two of them of one size are the same vector."""


def named(observations: Observations, spec: ObsSpec, device: torch.device | None = None) -> dict[str, Tensor]:
    """Return named components; a flat vector is cut in the order of the spec, and arrays become tensors."""
    if isinstance(observations, Mapping):
        return {name: _as_tensor(value, f"component {name!r}", device) for name, value in observations.items()}
    components: dict[str, Tensor] = spec.split(_as_tensor(observations, "the observation", device))
    return components


def lead_of(obs: Mapping[str, Tensor], spec: ObsSpec) -> tuple[int, ...]:
    """Return the leading shape, [N] of a step or [T, B] of a minibatch; a component that is missing is named."""
    spec.require(obs)
    name = spec.names[0]
    return tuple(obs[name].shape[: obs[name].dim() - len(spec[name].shape)])


def as_mask(masks: Tensor | None) -> Tensor | None:
    """Return masks of any dtype as bool."""
    return None if masks is None else masks.bool()


def as_dones(dones: Any) -> Tensor:
    """Return dones of any dtype, a tensor, an array or a list, as bool [N]."""
    return torch.as_tensor(dones).reshape(-1).bool()


def critic_view(policy: Policy, given: Observations, critic_given: Observations | None) -> Observations:
    """Return what the critic sees: its own observations, else the actor's where they have the same layout."""
    if critic_given is not None:
        return critic_given
    actor, critic = _layout(policy.actor_inputs), _layout(policy.critic_inputs)
    if not isinstance(given, Mapping) and actor != critic:
        raise ValueError(
            f"the critic sees {_text(policy.critic_inputs)} and the actor {_text(policy.actor_inputs)}; "
            "give critic_observations"
        )
    return given


def check_truths(policy: Policy, obs: Mapping[str, Tensor]) -> None:
    """Raise when the actor may have to read something true that was not given."""
    for _, stage in policy.actor.named_stages():
        missing = [name for name in stage.wanted_truths if name not in obs] if isinstance(stage, PredictStage) else []
        if missing:
            raise ValueError(
                f"the actor reads {missing} where the adaptor's estimate does not replace it; give "
                "critic_observations, or set privilege_replace_state_prob to 1"
            )


def _as_tensor(value: Any, what: str, device: torch.device | None) -> Tensor:
    """Return a tensor as it is and an array as a tensor; float64, which numpy makes unasked, becomes float32."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray):
        raise TypeError(
            f"{what} is a {type(value).__name__}; wanted a tensor or an array [.., size], or a dict of them"
        )
    copied = torch.from_numpy(np.array(value))  # a copy, because what was given may be read-only
    return copied.to(device, torch.float32 if copied.dtype == torch.float64 else copied.dtype)


def _layout(spec: ObsSpec) -> list[tuple[str, tuple[int, ...]]]:
    """Return names and shapes in order, in which a critic's copy is what the actor's component is."""
    names = ["" if name in UNNAMED else name.removeprefix("critic/") for name in spec]
    return [(name, part.shape) for name, part in zip(names, spec.values())]


def _text(spec: ObsSpec) -> str:
    """Return '9 numbers (a 4, b 5)'."""
    return f"{spec.size} numbers (" + ", ".join(f"{name} {part.size}" for name, part in spec.items()) + ")"
