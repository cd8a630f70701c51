"""Settings of `MutexPolicy`, checks of its policies, and the selection of the one that acts.

The choice is read from an observation component, one-hot over the policies:

    engaging_block   [ distance | 1 0 0 0 0 | …  | height ]        the robot engages the obstacle of policy 0
                       0          1 2 3 4 5        -1
    FieldSelection     policy i is chosen by entry 1 + i; no entry at all chooses policy 0, which walks
    ClimbSelection     likewise, but the jump is two policies: up where height > 0, else down, which is the last policy
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from striderl.data.actions import BoxSpec
from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec
from striderl.policies.policy import Policy
from striderl.policies.stage import Obs

# -- which policy acts -------------------------------------------------------------------------------------------------


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


Scale = float | Sequence[float]
"""What an env multiplies actions by: one number, or one per action entry."""

Velocity = float | tuple[float, float]
"""A velocity command, or the range (low, high) that every env draws its own from."""

RESETS = ("all", "when_skill", "none")
"""What happens to the memory of policies that do not act."""


@dataclass(frozen=True, kw_only=True)
class MutexConfig:
    """How the policies of a mutex are chosen and joined."""

    selection: Selection | None = field(default_factory=FieldSelection)
    """What chooses the policy; None when the caller gives the selection in every call."""
    env_action_scale: float | tuple[float, ...] = 0.5
    """What the env that is acted in multiplies actions by; one number, or one per action entry."""
    smoothing_len: int = 1
    """The action is the mean over this many last choices; 1 switches at once."""
    reset_non_selected: str = "all"
    """Which policies' memory is reset when not chosen within the smoothing: 'all'; 'when_skill', where policy 0 was not
    chosen either, and never that of policy 0; or 'none'."""
    cmd_vel: Mapping[int, Velocity] = field(default_factory=dict)
    """Velocity commands by policy, put in the place of the observed one; a range is drawn per env at its reset."""
    cmd_vel_like: Mapping[int, int] = field(default_factory=dict)
    """Policies that take the command of another, drawn once for both: {5: 3}."""
    cmd_scales: float | tuple[float, ...] = 1.0
    """What a velocity is multiplied by to become an observation entry; one number, or one per policy."""
    cmd_component: str = "proprioception"
    """Where the velocity command is observed."""
    cmd_entry: int = 9
    """Which entry of that component it is."""
    last_action_component: str = "proprioception"
    """Where the last action is observed; empty when it is not."""
    last_action_entries: tuple[int, int] | None = None
    """From which entry to before which it is; None means the last ones of the component."""

    def __post_init__(self) -> None:
        if self.reset_non_selected not in RESETS:
            raise ValueError(unknown("reset rule", self.reset_non_selected, RESETS, where="reset_non_selected"))
        if self.smoothing_len < 1:
            raise ValueError(
                f"the smoothing averages at least the present choice: 1 or more, found {self.smoothing_len}"
            )
        if self.cmd_scales != 1.0 and not self.cmd_vel:
            raise ValueError(f"cmd_scales={self.cmd_scales} has no effect without velocity commands; give cmd_vel")
        for policy, velocity in self.cmd_vel.items():
            bad = isinstance(velocity, tuple) and (len(velocity) != 2 or velocity[0] > velocity[1])
            if bad:
                raise ValueError(
                    f"the velocity command of policy {policy} is a number or a range (low, high), found {velocity}"
                )


def scale_tensor(scale: Scale, shape: tuple[int, ...], what: str) -> Tensor:
    """Return a scale as a tensor of the action's shape; zeros and wrong lengths raise."""
    numbers = torch.as_tensor(scale, dtype=torch.float32).reshape(-1)
    if numbers.numel() not in (1, math.prod(shape)):
        raise ValueError(f"{what} has {numbers.numel()} numbers for an action of {math.prod(shape)}")
    if not bool((numbers.isfinite() & (numbers != 0)).all()):
        raise ValueError(f"{what} must be finite and not zero, found {numbers.tolist()}")
    return numbers.expand(math.prod(shape)).reshape(shape).clone()


def check_sub_policies(
    obs_spec: ObsSpec, sub_policies: Sequence[Policy], action_scales: Sequence[Scale]
) -> tuple[int, ...]:
    """Return the action shape that all policies share; raise when they do not fit together or lack observations."""
    if not sub_policies or len(sub_policies) != len(action_scales):
        raise ValueError(
            f"a mutex wants at least one policy and one action scale for each, found {len(sub_policies)} policies and "
            f"{len(action_scales)} scales"
        )
    shapes: list[tuple[int, ...]] = []
    for index, policy in enumerate(sub_policies):
        if not isinstance(policy.action_spec, BoxSpec):
            raise TypeError(
                f"sub-policy {index} has {type(policy.action_spec).__name__} actions; only real numbers can be scaled"
            )
        shapes.append(policy.action_spec.shape)
        for name, component in policy.actor_inputs.items():
            if name not in obs_spec:
                raise KeyError(unknown("component", name, obs_spec, where=f"the observation for sub-policy {index}"))
            if obs_spec[name].shape != component.shape:
                raise ValueError(
                    f"sub-policy {index} wants component {name!r} of shape {component.shape}, the observation has "
                    f"{obs_spec[name].shape}"
                )
    if len(set(shapes)) != 1:
        raise ValueError(f"all sub-policies must have the same number of actions, found {shapes}")
    return shapes[0]
