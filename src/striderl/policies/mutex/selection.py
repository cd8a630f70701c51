"""Which of several policies acts: read from an observation component, one-hot over the policies.

engaging_block   [ distance | 1 0 0 0 0 | …  | height ]        the robot engages the obstacle of policy 0
                   0          1 2 3 4 5        -1
FieldSelection     policy i is chosen by entry 1 + i; no entry at all chooses policy 0, which walks
ClimbSelection     likewise, but the jump is two policies: up where height > 0, else down, which is the last policy
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec
from striderl.policies.stage import Obs


class Selection(Protocol):
    """Chooses one of K policies per env."""

    def check(self, spec: ObsSpec, num_policies: int) -> None:
        """Raise when these observations or this number of policies do not fit."""
        ...

    def choose(self, obs: Obs, num_policies: int) -> Tensor:
        """Return the choice in one step [N, …] as float32 one-hot [N, K]."""
        ...


@dataclass(frozen=True, kw_only=True)
class FieldSelection:
    """Policy i is chosen by entry `first_entry` + i of a component; entries that are all zero choose policy 0."""

    component: str = "engaging_block"
    """Which component; it is flattened."""
    first_entry: int = 1
    """The entry of policy 0. With five policies the default reads entries 1:6."""

    def check(self, spec: ObsSpec, num_policies: int) -> None:
        """Raise when the component is not there or too short."""
        if self.component not in spec:
            raise KeyError(
                unknown("component", self.component, spec, where="the observation, where policies are chosen,")
            )
        size, last = spec[self.component].size, self.first_entry + num_policies
        if self.first_entry < 0 or last > size:
            raise ValueError(
                f"{num_policies} policies are chosen by entries {self.first_entry}:{last} of {self.component!r}, which "
                f"has {size} entries; set the first entry of the selection, or give fewer policies"
            )

    def choose(self, obs: Obs, num_policies: int) -> Tensor:
        """Return the one-hot choice; of several entries above zero the largest wins."""
        value = obs[self.component]
        flat = value.reshape(value.shape[0], -1)
        entries = flat[:, self.first_entry : self.first_entry + num_policies].to(torch.float32)
        chosen = torch.where(entries > 0, entries, 0.0)
        index = torch.where((chosen > 0).any(-1), chosen.argmax(-1), 0)
        return one_hot(index, num_policies)


@dataclass(frozen=True, kw_only=True)
class ClimbSelection:
    """As `FieldSelection`, with one more policy at the end: the jump goes up or down by the sign of another entry."""

    field: FieldSelection = field(default_factory=FieldSelection)
    """How all policies but the last are chosen."""
    jump_policy: int = 3
    """The policy that jumps up, counted from 0; where it is chosen and the way leads down, the last policy acts."""
    direction_entry: int = -1
    """The entry of the component that is above zero where the way leads up."""

    def check(self, spec: ObsSpec, num_policies: int) -> None:
        """Raise when there is no such jump policy or entry."""
        self.field.check(spec, num_policies - 1)
        if not 0 <= self.jump_policy < num_policies - 1:
            raise ValueError(
                f"the policy that jumps up is number {self.jump_policy}, but besides the one that jumps down there are "
                f"only {num_policies - 1}, counted from 0; set jump_obstacle_id, or give more policies"
            )
        size = spec[self.field.component].size
        if not -size <= self.direction_entry < size:
            raise ValueError(
                f"up or down is read from entry {self.direction_entry} of {self.field.component!r}, which has {size}; "
                "set jump_direction_entry"
            )

    def choose(self, obs: Obs, num_policies: int) -> Tensor:
        """Return the one-hot choice."""
        index = self.field.choose(obs, num_policies - 1).argmax(-1)
        value = obs[self.field.component]
        up = value.reshape(value.shape[0], -1)[:, self.direction_entry] > 0
        down = (index == self.jump_policy) & ~up
        return one_hot(torch.where(down, num_policies - 1, index), num_policies)


def one_hot(index: Tensor, num_policies: int) -> Tensor:
    """Return float32 [.., K] with a one at the index; torch's own looks at the values on the host."""
    return (index.unsqueeze(-1) == torch.arange(num_policies, device=index.device)).to(torch.float32)
