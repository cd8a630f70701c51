"""A policy for playing: observations in any form of any generation in, deterministic actions out.

policy = runner.get_inference_policy(device="cpu")
actions = policy(obs)            a flat tensor [N, …], a dict of components or groups, or a TensorDict
policy.reset(dones)              forget where an episode ended; a policy without memory has nothing to forget
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec, flatten_names
from striderl.policies.policy import Policy


class InferencePolicy:
    """Plays the mode of a policy's distribution and keeps its memory; what the policy learns is played at once."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._state: dict[str, Tensor] = {}
        self._num_envs = 0

    @property
    def device(self) -> torch.device:
        """Where actions are computed."""
        return next(self.policy.parameters()).device

    @torch.no_grad()
    def __call__(self, obs: Any) -> Any:
        """Return the actions for observations [N, …]."""
        named = named_components(obs, self.policy, self.device)
        count = len(next(iter(named.values())))
        if count != self._num_envs:
            self._num_envs, self._state = count, self.policy.initial_state(count, self.device)
        stage_draws = self.policy.settled(torch.zeros(count, device=self.device))
        distribution, self._state, _ = self.policy.act(named, self._state, stage_draws)
        return distribution.mode()

    def reset(self, dones: Any = None) -> None:
        """Forget the envs where `dones` [N], of any dtype, is not zero; without it forget all."""
        if dones is None:
            self._num_envs, self._state = 0, {}
            return
        done = torch.as_tensor(dones, device=self.device).reshape(-1) != 0
        for name, value in self._state.items():
            if len(done) != len(value):
                raise ValueError(f"dones has {len(done)} entries for a memory of {len(value)} envs")
            self._state[name] = torch.where(done.view(-1, *[1] * (value.dim() - 1)), torch.zeros_like(value), value)


def named_components(obs: Any, policy: Policy, device: torch.device) -> dict[str, Tensor]:
    """Return what the actor reads by component name, from a flat vector, components, groups or a TensorDict."""
    wanted = policy.actor_inputs
    if isinstance(obs, Tensor):
        return dict(wanted.split(obs.to(device)))
    if not (isinstance(obs, Mapping) or (hasattr(obs, "items") and hasattr(obs, "keys"))):
        raise TypeError(f"observations are a tensor, a dict of tensors or a TensorDict, found {type(obs).__name__}")
    found = {name: torch.as_tensor(value).to(device) for name, value in flatten_names(obs)}
    for group in wanted.groups:
        found |= _cut_group(group, found, policy.obs_spec)
    for name in (*wanted, *policy.head.mask_components):
        if name not in found:
            raise KeyError(unknown("component", name, found, where="the observation"))
    return found


def _cut_group(group: str, found: Mapping[str, Tensor], spec: ObsSpec) -> dict[str, Tensor]:
    """Cut a group that came as one vector into its components."""
    parts = spec.select([group])
    if group not in found or group in parts or found[group].shape[-1] != parts.size:
        return {}
    return dict(parts.split(found[group]))
