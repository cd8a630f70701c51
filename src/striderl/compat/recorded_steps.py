"""Recorded steps in a hand-written loop: what `collect_transition_from_dataset` makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.ppo import PPO
from striderl.algorithms.terms.distill import Distill
from striderl.collect.actors.base import Acted
from striderl.collect.teacher import RecordedTeacher
from striderl.data import tree
from striderl.policies.facade.inputs import Observations


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
