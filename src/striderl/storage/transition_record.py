"""`TransitionRecord`: one step that is filled in field by field, as hand-written loops do it.

    act:               observations critic_observations actions values actions_log_prob action_mean action_sigma
    process_env_step:  rewards dones time_outs final_observations                   ─▶ add_transitions ─▶ clear

The names are those of older robot-learning codes. A storage keeps a step under its own names; `as_transition`
translates. Vectors are cut into the storage's components in their order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from striderl.data.arena import Columns
from striderl.data.specs import ComponentSpec, TensorSpec
from striderl.data.transition import Transition

CRITIC = "critic"
"""The group of components that only `critic_observations` has."""


@dataclass
class TransitionRecord:
    """A step of N envs under construction; every tensor is [N, …]."""

    observations: Tensor | Mapping[str, Tensor] | None = None
    """The actor's observations: one vector, or components by name."""
    critic_observations: Tensor | Mapping[str, Tensor] | None = None
    """The critic's additional observations: one vector of the privileged components, or components by name."""
    actions: Any = None
    """The actions."""
    rewards: Tensor | None = None
    """The env's rewards, [N]."""
    dones: Tensor | None = None
    """Whether the episode ended, of any dtype."""
    values: Tensor | None = None
    """What the critic predicted, [N], [N, 1] or [N, V]."""
    actions_log_prob: Tensor | None = None
    """Of the actions, [N] or [N, 1]."""
    action_mean: Tensor | None = None
    """Mean of the Gaussian the actions were drawn from."""
    action_sigma: Tensor | None = None
    """Its standard deviation."""
    hidden_states: Any = None
    """The memory before the step; the update starts from that of the first step, so it is not stored with each."""
    time_outs: Tensor | None = None
    """Where the episode was truncated; nowhere unless given."""
    final_observations: Mapping[str, Tensor] | None = None
    """The final observations of ended episodes, by component; None when the env gives none."""

    def clear(self) -> None:
        """Set all fields to None."""
        for field in fields(self):
            setattr(self, field.name, None)


def as_transition(record: TransitionRecord, columns: Columns) -> Transition:
    """Return the step in the layout of a storage with these columns, or raise with the field that is missing."""
    rewards, dones = _given(record.rewards, "rewards"), _given(record.dones, "dones").bool().flatten()
    obs = _observation(record, _specs(columns["obs"]))
    late = torch.zeros_like(dones) if record.time_outs is None else record.time_outs.bool().flatten() & dones
    return Transition(
        obs=obs,
        act=_given(record.actions, "actions"),
        rew=rewards.flatten(),
        terminated=dones & ~late,
        truncated=late,
        valid=torch.ones_like(dones),
        info={},
        policy=_policy_columns(record, _specs(columns.get("policy", {}))),
        next_obs=obs,
        final_obs=None if record.final_observations is None else dict(record.final_observations),
    )


def _observation(record: TransitionRecord, specs: Mapping[str, Any]) -> dict[str, Tensor]:
    privileged = {
        name: spec for name, spec in specs.items() if isinstance(spec, ComponentSpec) and spec.group == CRITIC
    }
    own = {name: spec for name, spec in specs.items() if name not in privileged}
    found = _components(_given(record.observations, "observations"), own, "observations")
    if privileged:
        wanted = _given(record.critic_observations, "critic_observations")
        found |= _components(wanted, privileged, "critic_observations")
    return {name: found[name] for name in specs}


def _components(obs: Any, specs: Mapping[str, Any], field: str) -> dict[str, Tensor]:
    """Return the components of a vector [N, sum of sizes], or of a dict that has at least these."""
    if isinstance(obs, Mapping):
        missing = [name for name in specs if name not in obs]
        if missing:
            raise KeyError(f"{field} has no component {missing}; found {sorted(obs)}")
        return {name: obs[name] for name in specs}
    sizes = [math.prod(spec.shape) for spec in specs.values()]
    if obs.dim() != 2 or obs.shape[1] != sum(sizes):
        raise ValueError(f"{field} wants shape [N, {sum(sizes)}] for {list(specs)}, found {list(obs.shape)}")
    parts = obs.split(sizes, dim=1)
    return {name: part.reshape(-1, *spec.shape) for (name, spec), part in zip(specs.items(), parts)}


def _policy_columns(record: TransitionRecord, specs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy columns that the storage has."""
    found: dict[str, Any] = {}
    for name, value, field in (
        ("log_prob", record.actions_log_prob, "actions_log_prob"),
        ("value", record.values, "values"),
    ):
        if name in specs:
            found[name] = _given(value, field).reshape(-1, *specs[name].shape)
    for name, spec in specs.items():
        if name not in found:
            found[name] = _distribution(record, spec) if name == "dist" else {}
    return found


def _distribution(record: TransitionRecord, specs: Mapping[str, Any]) -> dict[str, Tensor]:
    if set(specs) != {"mean", "std"}:
        raise ValueError(
            f"action_mean and action_sigma describe a Gaussian, this storage keeps {sorted(specs)}; "
            "add a striderl.data.transition.Transition instead"
        )
    return {"mean": _given(record.action_mean, "action_mean"), "std": _given(record.action_sigma, "action_sigma")}


def _specs(columns: TensorSpec | Columns) -> Mapping[str, Any]:
    assert not isinstance(columns, TensorSpec)
    return columns


def _given(value: Any, field: str) -> Any:
    if value is None:
        raise ValueError(f"the transition has no {field}; set it before the step is added")
    return value
