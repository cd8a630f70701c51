"""`Distill`: imitate a frozen teacher, which also acts in some episodes.

    PPO(policy, config, terms=[Distill(teacher)])       teacher-student PPO
    DAgger(policy, config, terms=[Distill(teacher)])    imitation alone

    acting   label, acted ──stored with the step──▶ minibatch['parts']['distill']
                                                     │ label    ─▶ distillation_loss    (student's mean against it)
                                                     │ latent   ─▶ distill_latent_scan  (student's latent against it)
                                                     └ acted    ─▶ these samples are left out of the surrogate

Labels and latents are made while acting, by a teacher without gradients: it does not run in the update. Whether
the way of comparing fits student and teacher is checked before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from striderl.algorithms.building import BuildContext
from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.terms.term import Term, collected
from striderl.collect.actors.base import ActingPart
from striderl.collect.teacher import (
    BoundTeacher,
    Sight,
    Teacher,
    TeacherActing,
    TeacherPolicy,
    TeacherRouter,
    head_of,
    latent_sizes,
    latents_in,
)
from striderl.data import tree
from striderl.data.actions import BoxSpec
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.naming import unknown
from striderl.networks.distributions.base import Distribution
from striderl.networks.heads.base import Head
from striderl.networks.heads.gaussian import GaussianHead
from striderl.networks.heads.table import DeterministicHead
from striderl.ops.imitation import TARGETS, before_tanh, l1
from striderl.ops.losses import valid_mean
from striderl.ops.ramps import TeacherSchedule
from striderl.policies.policy import Policy, PolicyOutput

MAX_LOG_PROB, KL = "max_log_prob", "kl"
DISTILL_TARGETS = (*TARGETS, MAX_LOG_PROB, KL)
"""How an action may be compared: distances of `ops.imitation`, -log π(label), or KL(teacher ‖ student)."""

LEAVE, KEEP = "leave", "keep"
TEACHER_SAMPLES = (LEAVE, KEEP)
"""How samples in which the teacher acted are treated."""


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """Settings of `Distill`."""

    target: str = "real"
    """How the student's action is compared with the label; see `DISTILL_TARGETS`."""
    weight: float | str = 1.0
    """Weight of that loss: a number, or a schedule 'linear', 'exp' or 'tanh'."""
    teacher_act_prob: float | str = "exp"
    """How often the teacher acts, drawn once per episode and env: a number, or a schedule."""
    update_times_scale: float = 100.0
    """Iterations in which the schedules fall most of their way."""
    label_action_with_critic_obs: bool = True
    """Whether the teacher may read components of the student's critic alone; False restricts it to the student's."""
    action_labels_from_sample: bool = False
    """Whether labels are samples of the teacher; otherwise its most likely actions."""
    teacher_samples: str = LEAVE
    """'leave': where the teacher acted there is no policy gradient; 'keep': by the executed action's log-prob."""
    latents: Mapping[str, str] = field(default_factory=dict)
    """Student's component → teacher's component whose latents are made alike."""
    latent_target: str = "real"
    """How latents are compared: a distance of `ops.imitation`."""
    latent_weight: float = 1.0
    """Weight of each latent's loss."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.target not in DISTILL_TARGETS:
            raise ValueError(unknown("distillation target", self.target, DISTILL_TARGETS, where="DistillConfig"))
        if self.latent_target not in TARGETS:
            raise ValueError(unknown("latent target", self.latent_target, TARGETS, where="DistillConfig"))
        if self.teacher_samples not in TEACHER_SAMPLES:
            raise ValueError(unknown("choice", self.teacher_samples, TEACHER_SAMPLES, where="teacher_samples"))
        if not math.isfinite(self.latent_weight) or self.latent_weight < 0.0:
            raise ValueError(f"latent_weight is finite and not negative, found {self.latent_weight}")
        if not isinstance(self.weight, str) and self.weight < 0.0:
            raise ValueError(f"the weight of distillation is not negative, found {self.weight}")
        self.act_schedule.require_probability("teacher_act_prob")
        TeacherSchedule(self.weight, self.update_times_scale)

    @property
    def act_schedule(self) -> TeacherSchedule:
        """How often the teacher acts, by iteration."""
        return TeacherSchedule(self.teacher_act_prob, self.update_times_scale)

    @property
    def weight_schedule(self) -> TeacherSchedule:
        """The weight of the loss, by iteration."""
        return TeacherSchedule(self.weight, self.update_times_scale)


# -- the term ----------------------------------------------------------------------------------------------------------


class Distill(Term):
    """Distillation from a teacher or from several; see the picture at the top of this module."""

    capturable = True
    learns_in_ranks = True

    Config = DistillConfig
    summary = "imitates a teacher (--teacher.run) on the states that are visited"

    @classmethod
    def build(cls, config: DistillConfig, context: BuildContext) -> Distill:
        """Build the term from its config and the run's teacher."""
        return cls(context.load("teacher"), config)

    def __init__(self, teacher: Teacher | TeacherRouter, config: DistillConfig | None = None) -> None:
        """Set the teacher; its components are looked up when an algorithm is built with this term."""
        if not isinstance(teacher, (Teacher, TeacherRouter)):
            raise TypeError(
                f"Distill wants a Teacher or a TeacherRouter, found {type(teacher).__name__}; wrap a policy: "
                "Teacher(policy)"
            )
        self.teacher, self.config = teacher, config or DistillConfig()
        self._acting: TeacherActing | None = None
        self._bound: BoundTeacher | None = None
        self._probability = torch.zeros(())
        self._weight = torch.zeros(())
        self._has_real_actions = True

    @property
    def name(self) -> str:
        """Its name among the terms and acting parts."""
        return "distill"

    # -- fitting a policy ----------------------------------------------------------------------------------------------

    def check(self, policy: Policy) -> None:
        """Find the teacher's components in the student's observations, or raise."""
        config, device = self.config, next(policy.parameters()).device
        sight = Sight(policy.obs_spec, tuple(policy.actor_inputs), config.label_action_with_critic_obs)
        self._bound = bound = self.teacher.bound(sight, policy.action_spec, device)
        self._has_real_actions = isinstance(policy.action_spec, BoxSpec)
        if not bound.policies and (config.target == KL or config.latents):
            raise ValueError("recorded labels are actions: target 'kl' and latents want the teacher that gave them")
        check_target(config.target, policy, bound)
        check_latents(config.latents, policy, bound)
        self._probability, self._weight = torch.zeros((), device=device), torch.zeros((), device=device)
        self.at(torch.zeros((), dtype=torch.int64, device=device))
        self._acting = TeacherActing(
            bound,
            policy.action_spec,
            probability=self._probability,
            sample=config.action_labels_from_sample,
            store_params=config.target == KL,
            latents=tuple(dict.fromkeys(config.latents.values())),
            name=self.name,
        )

    def acting(self) -> ActingPart | None:
        """Return the part that labels and mixes; there is none before an algorithm is built with this term."""
        return self._acting

    def at(self, iteration: Tensor) -> None:
        """Set how often the teacher acts and how much the loss counts."""
        self._probability.copy_(self.config.act_schedule(iteration))
        self._weight.copy_(self.config.weight_schedule(iteration))

    def in_surrogate(self, stored: Mapping[str, Any]) -> Tensor | None:
        """Leave out the samples in which the teacher acted, unless they are to be kept."""
        return None if self.config.teacher_samples == KEEP else ~stored["acted"]

    # -- losses --------------------------------------------------------------------------------------------------------

    def losses(self, minibatch: Mapping[str, Any], out: PolicyOutput) -> Losses:
        """Return the losses of actions and latents, mean over the samples that were collected."""
        stored, counted = minibatch["parts"][self.name], collected(minibatch)
        error = self._error(stored, out.distribution, counted)
        losses: Losses = {"distillation_loss": (self._weight, valid_mean(error, counted))}
        if self.config.latents:
            latents, distance = latents_in(out.aux), TARGETS[self.config.latent_target]
            for mine, theirs in self.config.latents.items():
                wanted = _or_own(counted, stored["latent"][theirs], latents[mine])
                loss = valid_mean(distance(latents[mine], wanted), counted)
                losses[f"distill_latent_{mine}"] = (self.config.latent_weight, loss)
        return losses

    def _error(self, stored: Mapping[str, Any], distribution: Distribution[Any], counted: Tensor) -> Tensor:
        """Return the distance between student and label of each sample, [..]."""
        target = self.config.target
        if target == MAX_LOG_PROB:
            label = tree.map(lambda leaf: _or_zero(counted, leaf), stored["label"])
            return -distribution.log_prob(label)
        if target == KL:
            params = distribution.params()
            theirs = {name: _or_own(counted, stored["dist"][name], params[name]) for name in params}
            return distribution.from_params(theirs).kl(distribution)
        mean = distribution.mode()
        label = _or_own(counted, stored["label"], mean)
        return TARGETS[target](mean.flatten(counted.dim()), label.flatten(counted.dim()))

    @torch.no_grad()
    def statistics(self, minibatch: Mapping[str, Any], out: PolicyOutput) -> dict[str, Tensor]:
        """Return how often the teacher acted and, for real-valued actions, the distance to the labels."""
        stored, counted = minibatch["parts"][self.name], collected(minibatch)
        numbers = {"teacher_acted": valid_mean(stored["acted"].float(), counted)}
        if not self._has_real_actions:
            return numbers
        lead = counted.dim()
        mean, label = out.distribution.mode().flatten(lead), stored["label"].flatten(lead)
        numbers["l1distance"] = valid_mean(l1(mean, label), counted)
        if self.config.target in ("tanh", "scaled_tanh"):
            numbers["l1_before_tanh"] = valid_mean(l1(before_tanh(mean), before_tanh(label)), counted)
        return numbers

    def numbers(self) -> dict[str, Tensor]:
        """Return the scheduled weight and probability."""
        return {"teacher_act_prob": self._probability.clone(), "distillation_weight": self._weight.clone()}

    # -- saving --------------------------------------------------------------------------------------------------------

    def _policies(self) -> tuple[TeacherPolicy, ...]:
        return () if self._bound is None else tuple(self._bound.policies)

    def state_dict(self) -> dict[str, Any]:
        """Return the teachers' weights: a run resumes with them even if their files have changed since."""
        return {"teachers": {str(at): tree.copy(dict(p.state_dict())) for at, p in enumerate(self._policies())}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the saved teachers; scheduled values follow from the iteration."""
        policies, saved = self._policies(), state["teachers"]
        if len(saved) != len(policies):
            raise ValueError(f"{len(saved)} teachers were saved, this term has {len(policies)}")
        for at, policy in enumerate(policies):
            policy.load_state_dict(saved[str(at)])


def _side_stream(counted: Tensor, value: Tensor) -> Tensor:
    return counted.view(*counted.shape, *[1] * (value.dim() - counted.dim()))


def _or_zero(counted: Tensor, value: Tensor) -> Tensor:
    """Return zeros in invalid samples, which may hold anything."""
    return torch.where(_side_stream(counted, value), value, torch.zeros_like(value))


def _or_own(counted: Tensor, wanted: Tensor, own: Tensor) -> Tensor:
    """Return the label, and the student's own output in invalid samples: no error and no gradient there."""
    return torch.where(_side_stream(counted, wanted), wanted, own.detach())


# -- checks ------------------------------------------------------------------------------------------------------------


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
