"""Settings of `MutexPolicy`, and what can be wrong with the policies it is given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from striderl.data.actions import BoxSpec
from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec
from striderl.policies.mutex.selection import FieldSelection, Selection
from striderl.policies.policy import Policy

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
    """Whose memory is reset when it was not chosen within the smoothing: 'all'; 'when_skill', where policy 0 was not
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
    """Return the action shape that all policies share; raise when they do not fit together or do not see enough."""
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
