"""What `StatefulPolicy` keeps between calls: the memory of its envs, and the source of its random numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.data.noise import NoiseSpec, draw_all
from striderl.policies import hidden_states as tuples
from striderl.policies.facade.inputs import as_dones
from striderl.policies.policy import Policy


class FacadeMemory:
    """The memory of N envs between steps; it begins with the first step, whatever N is then."""

    def __init__(self, policy: Policy, seed: int) -> None:
        self.policy = policy
        self.state: dict[str, Tensor] = {}
        self._seed, self._draws = seed, 0

    def at(
        self, part: str, hidden_states: Any, masks: Tensor | None, resets: Tensor | None, lead: tuple[int, ...]
    ) -> dict[str, Tensor]:
        """Return the state that a call begins with: what was given for a minibatch, else what is kept."""
        if not self.policy.state_spec():
            return {}
        if hidden_states is not None:
            unpack = tuples.actor_state if part == "actor" else tuples.critic_state
            return unpack(self.policy, hidden_states)
        if masks is not None or resets is not None or len(lead) != 1:
            raise ValueError(
                f"a recurrent policy takes a step [N, …] at a time, found leading shape {lead}; "
                "give hidden_states with a minibatch [T, B, …]"
            )
        if not self.state:
            self.state = self.policy.initial_state(lead[0])
        num_envs = len(next(iter(self.state.values())))
        if num_envs != lead[0]:
            raise ValueError(
                f"the memory holds {num_envs} envs and the observations {lead[0]}; call reset() in between"
            )
        return self.state

    def reset(self, dones: Any) -> None:
        """Forget the envs where `dones` [N], of any dtype, is not zero; without it forget all."""
        if dones is None:
            self.state = {}
            return
        finished = as_dones(dones)
        for name, value in self.state.items():
            if len(finished) != len(value):
                raise ValueError(f"dones has {len(finished)} entries for a memory of {len(value)} envs")
            mask = finished.to(value.device).view(-1, *[1] * (value.dim() - 1))
            self.state[name] = torch.where(mask, torch.zeros_like(value), value)

    def draw(self, specs: Mapping[str, NoiseSpec], lead: tuple[int, ...], device: torch.device) -> dict[str, Tensor]:
        """Draw fresh numbers for any leading shape; the same seed and the same calls give the same numbers."""
        self._draws += 1
        rows = torch.arange(math.prod(lead), device=device)
        found = draw_all(specs, seed=self._seed, iteration=self._draws, env_index=rows, num_steps=1)
        return {name: value[0].reshape(*lead, *value.shape[2:]) for name, value in found.items()}
