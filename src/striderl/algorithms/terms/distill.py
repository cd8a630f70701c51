"""`Distill`: learn what a frozen teacher would do, who also acts in some episodes.

    PPO(policy, config, terms=[Distill(teacher)])       teacher-student PPO
    DAgger(policy, config, terms=[Distill(teacher)])    imitation alone

    acting   label, acted ──stored with the step──▶ minibatch['parts']['distill']
                                                     │ label    ─▶ distillation_loss    (student's mean against it)
                                                     │ latent   ─▶ distill_latent_scan  (student's latent against it)
                                                     └ acted    ─▶ these samples leave the surrogate

Labels and latents are made while acting, by a teacher that has no gradient: nothing of it runs in the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.building import BuildContext
from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.terms.distill_checks import check_latents, check_target
from striderl.algorithms.terms.distill_config import KEEP, KL, MAX_LOG_PROB, DistillConfig
from striderl.algorithms.terms.term import Term, collected
from striderl.collect.actors.base import ActingPart
from striderl.collect.teacher import (
    BoundTeacher,
    Sight,
    Teacher,
    TeacherActing,
    TeacherPolicy,
    TeacherRouter,
    latents_in,
)
from striderl.data import tree
from striderl.data.actions import BoxSpec
from striderl.networks.distributions.base import Distribution
from striderl.ops.imitation import TARGETS, before_tanh, l1
from striderl.ops.losses import valid_mean
from striderl.policies.policy import Policy, PolicyOutput


class Distill(Term):
    """Distillation from a teacher or from several; see the picture at the top of this module."""

    capturable = True

    Config = DistillConfig
    summary = "imitates a teacher (--teacher.run) on the states that are visited"

    @classmethod
    def build(cls, config: DistillConfig, context: BuildContext) -> Distill:
        """Build the term from its config and the run's teacher."""
        return cls(context.load("teacher"), config)

    def __init__(self, teacher: Teacher | TeacherRouter, config: DistillConfig | None = None) -> None:
        """Take a frozen teacher; what it observes is looked up when an algorithm takes this term."""
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
        """Find the teacher's components in what the student's env gives, or say what does not fit."""
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
        """Return the part that labels and mixes; there is none before an algorithm has taken this term."""
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
        """Return how far the student is from the label of each sample, [..]."""
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
        """Return who acted and, for real-valued actions, how far the student is from the labels."""
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
        """Return the knobs."""
        return {"teacher_act_prob": self._probability.clone(), "distillation_weight": self._weight.clone()}

    # -- saving --------------------------------------------------------------------------------------------------------

    def _policies(self) -> tuple[TeacherPolicy, ...]:
        return () if self._bound is None else tuple(self._bound.policies)

    def state_dict(self) -> dict[str, Any]:
        """Return the teachers' weights: a run goes on with them even if their files have changed since."""
        return {"teachers": {str(at): tree.copy(dict(p.state_dict())) for at, p in enumerate(self._policies())}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the saved teachers; the knobs follow from the iteration."""
        policies, saved = self._policies(), state["teachers"]
        if len(saved) != len(policies):
            raise ValueError(f"{len(saved)} teachers were saved, this term has {len(policies)}")
        for at, policy in enumerate(policies):
            policy.load_state_dict(saved[str(at)])


def _side_stream(counted: Tensor, value: Tensor) -> Tensor:
    return counted.view(*counted.shape, *[1] * (value.dim() - counted.dim()))


def _or_zero(counted: Tensor, value: Tensor) -> Tensor:
    """Return zeros where samples do not count: what is stored there may be anything."""
    return torch.where(_side_stream(counted, value), value, torch.zeros_like(value))


def _or_own(counted: Tensor, wanted: Tensor, own: Tensor) -> Tensor:
    """Return what is wanted, and the student's own where samples do not count: no error and no gradient there."""
    return torch.where(_side_stream(counted, wanted), wanted, own.detach())
