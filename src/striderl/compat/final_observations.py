"""The last observation of an episode, out of the `infos` of a hand-written loop.

    infos["final_obs"]          what the actor saw last: a vector [N, …], or components or groups by name
    infos["final_critic_obs"]   what the critic saw last, where that is a vector of its own

Gymnasium's older word 'final_observation' and SB3's 'terminal_observation' are understood as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.data.specs import flatten_names, torch_dtype
from striderl.policies.facade.inputs import named
from striderl.policies.policy import Policy

FINAL_KEYS = ("final_obs", "final_observation", "terminal_observation")
"""Where the actor's last observation may be."""
FINAL_CRITIC_KEYS = ("final_critic_obs", "final_privileged_obs")
"""Where the critic's may be."""


def final_observations(
    infos: Mapping[str, Any], policy: Policy, present: Mapping[str, Tensor]
) -> dict[str, Tensor] | None:
    """Return the final observation of all envs by component, or None where the critic's is not told.

    What only the actor sees and is not told is filled with `present`: nobody values it.
    """
    device = next(iter(present.values())).device
    found: dict[str, Tensor] = {}
    for keys, spec in ((FINAL_KEYS, policy.actor_inputs), (FINAL_CRITIC_KEYS, policy.critic_inputs)):
        given = next((infos[key] for key in keys if infos.get(key) is not None), None)
        if isinstance(given, Mapping) or hasattr(given, "items"):
            found |= _by_name(given, policy)
        elif given is not None:
            found |= named(given, spec, device)
    if any(name not in found for name in policy.critic_inputs):
        return None
    specs = policy.obs_spec
    return {
        name: found[name].to(device, torch_dtype(specs[name].dtype)) if name in found else value
        for name, value in present.items()
    }


def _by_name(given: Any, policy: Policy) -> dict[str, Tensor]:
    """Return components that were given by their own names, or as whole vectors of their groups."""
    spec = policy.obs_spec
    found = {name: torch.as_tensor(value) for name, value in flatten_names(given)}
    for group in spec.groups:
        parts = spec.select([group])
        if group in found and group not in parts and found[group].shape[-1] == parts.size:
            found |= dict(parts.split(found[group]))
    return {name: value for name, value in found.items() if name in spec}
