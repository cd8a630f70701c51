"""Does a way of comparing fit a student and its teacher? Said before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from striderl.algorithms.terms.distill_config import KL, MAX_LOG_PROB
from striderl.collect.teacher import BoundTeacher, head_of, latent_sizes
from striderl.data.actions import BoxSpec
from striderl.data.naming import unknown
from striderl.networks.heads.base import Head
from striderl.networks.heads.gaussian import GaussianHead
from striderl.networks.heads.table import DeterministicHead
from striderl.policies.policy import Policy


def check_target(target: str, policy: Policy, teacher: BoundTeacher) -> None:
    """Raise when actions of this student cannot be compared so."""
    head = head_of(policy)
    assert head is not None, "a Policy has a head"
    if target not in (MAX_LOG_PROB, KL) and not isinstance(policy.action_spec, BoxSpec):
        raise ValueError(
            f"distill target {target!r} compares real-valued actions; for choices use 'max_log_prob' or 'kl'"
        )
    if target == MAX_LOG_PROB and isinstance(head, DeterministicHead):
        raise ValueError("a deterministic student has no log-probabilities to maximise; use target 'real' or 'mse_sum'")
    if target in ("tanh", "scaled_tanh") and not _is_tanh(head):
        raise ValueError(
            f"distill target {target!r} takes the student's mean for a number in [-1, 1]; give its Gaussian head "
            "mu_activation='tanh', or use another target"
        )
    if target == KL:
        _check_kl(head, teacher)


def _is_tanh(head: Head[Any]) -> bool:
    return isinstance(head, GaussianHead) and isinstance(head.mu_activation, nn.Tanh)


def _check_kl(head: Head[Any], teacher: BoundTeacher) -> None:
    if isinstance(head, DeterministicHead):
        raise ValueError("distill target 'kl' wants a student with a distribution; a deterministic one has none")
    for policy in teacher.policies:
        theirs = head_of(policy)
        if type(theirs) is not type(head) or theirs.params_spec() != head.params_spec():
            raise ValueError(
                f"distill target 'kl' compares distributions of one kind; the teacher has a {type(theirs).__name__}, "
                f"the student a {type(head).__name__}"
            )


def check_latents(latents: Mapping[str, str], policy: Policy, teacher: BoundTeacher) -> None:
    """Raise for a component that is not encoded, and for latents of different sizes."""
    mine = latent_sizes(policy)
    for student, theirs in latents.items():
        if student not in mine:
            raise KeyError(unknown("encoded component", student, mine, where="latents: the student"))
        for each in teacher.policies:
            sizes = latent_sizes(each)
            if theirs not in sizes:
                raise KeyError(unknown("encoded component", theirs, sizes, where="latents: the teacher"))
            if sizes[theirs] != mine[student]:
                raise ValueError(
                    f"the student's latent of {student!r} has {mine[student]} numbers, the teacher's of {theirs!r} "
                    f"{sizes[theirs]}; encode both to one size"
                )
