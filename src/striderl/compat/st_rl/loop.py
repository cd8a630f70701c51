"""What a hand-written loop brings: its storage, final observations out of `infos`, and steps that were recorded.

    infos["final_obs"]          what the actor saw last: a vector [N, …], or components or groups by name
    infos["final_critic_obs"]   what the critic saw last, where that is a vector of its own

Gymnasium's older word 'final_observation' and SB3's 'terminal_observation' are understood as well. The storage learns
only step by step whether final observations are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.terms.distill import Distill
from striderl.collect.actors.base import Acted
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.teacher import RecordedTeacher
from striderl.data import tree
from striderl.data.arena import Placement
from striderl.data.specs import flatten_names, torch_dtype
from striderl.data.transition import Transition, transition_columns
from striderl.policies.facade.inputs import Observations, named
from striderl.policies.policy import Policy
from striderl.storage.rollout import FinalPool, RolloutStorage


class LoopStorage(RolloutStorage):
    """A rollout whose pool of final observations is made when the first one comes.

    A step that the clock ended and that has none is valued with V(s_t).
    """

    def __init__(self, actor: PolicyActor, policy: Policy, num_envs: int, num_steps: int, device: str) -> None:
        """Allocate what the policy's update reads back, and what the actor's parts store beside it."""
        columns = transition_columns(policy.obs_spec, policy.action_spec, {}, actor.columns())
        super().__init__(columns, num_steps, num_envs, placement=Placement(device=device))
        self._policy, self._placement = policy, Placement(device=device)

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Write the next step; its final observations are kept where it has some."""
        if transition.final_obs is not None and self.finals is None:
            size = max(self.num_envs, self.num_steps * self.num_envs // 4)
            self.finals = FinalPool(self._policy.obs_spec, self._policy.state_spec(), size, self._placement)
        pool = self.finals
        self.finals = pool if transition.final_obs is not None else None
        try:
            super().add(transition, envs)
        finally:
            self.finals = pool


# -- final observations ------------------------------------------------------------------------------------------------


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


# -- recorded steps ----------------------------------------------------------------------------------------------------


def tell_teacher(learner: PPO, actions: Any) -> Distill:
    """Return the term that learns labels, and tell its teacher the recorded ones if that is all it says."""
    term = next((each for each in learner.terms if isinstance(each, Distill)), None)
    if term is None:
        raise ValueError(
            "recorded actions are labels, and nothing learns labels here: give terms=[Distill(RecordedTeacher())], or "
            "Distill with the teacher that acts later"
        )
    if isinstance(term.teacher, RecordedTeacher):
        term.teacher.tell(actions)
    return term


def seen_by_critic(obs: Observations, privileged: Observations | None) -> Observations | None:
    """Return what the critic sees; a dict of privileged components alone is completed with the others."""
    if isinstance(privileged, Mapping) and isinstance(obs, Mapping):
        both: dict[str, Any] = {**obs, **privileged}
        return both
    return privileged


def with_recorded_action(learner: PPO, term: Distill, acted: Acted, actions: Any, device: torch.device) -> Acted:
    """Return a step in which the recorded action was executed, by the teacher: it is the label, and not a sample."""
    executed = tree.map(
        lambda leaf, like: torch.as_tensor(leaf, dtype=like.dtype, device=device), actions, acted.actions
    )
    distribution = learner.policy.head.from_params(acted.columns["dist"])
    log_prob: Tensor = distribution.log_prob(executed)
    stored = acted.columns[term.name]
    labelled = {**stored, "label": executed, "acted": torch.ones_like(stored["acted"])}
    return acted._replace(actions=executed, columns={**acted.columns, "log_prob": log_prob, term.name: labelled})


def check_shape(what: str, shape: Sequence[int | None] | None, size: int | None) -> None:
    """Raise unless a shape, where it is given, holds as many numbers as the policy reads."""
    if shape is None or size is None or any(each is None for each in shape):
        return
    found = int(torch.Size([each or 0 for each in shape]).numel())
    if found != size:
        raise ValueError(f"{what}={list(shape)} has {found} numbers, the policy has {size}")
