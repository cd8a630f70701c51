"""`Estimation`: the loss of the stages `Estimate` and `Adapt`, which predict components for the actor.

    policy ─▶ aux["actor/0_Estimate/estimate"] [.., K]  ┐
              aux["actor/0_Estimate/target"]   [.., K]  ┴─▶ loss per feature ─▶ sum over K ─▶ mean over valid samples

A second `Estimation(stage="Adapt")` in the list trains the adaptor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from striderl.algorithms.building import BuildContext
from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.terms.term import Term
from striderl.data.checked_fields import check_field_types
from striderl.data.naming import unknown
from striderl.ops.losses import valid_mean
from striderl.policies.estimate import Estimate, PredictStage
from striderl.policies.policy import Policy, PolicyOutput
from striderl.policies.stage import StageRecipe

LOSSES: Mapping[str, Callable[..., Tensor]] = {
    "mse_loss": functional.mse_loss,
    "l1_loss": functional.l1_loss,
    "smooth_l1_loss": functional.smooth_l1_loss,
    "huber_loss": functional.huber_loss,
    "binary_cross_entropy": functional.binary_cross_entropy,
    "binary_cross_entropy_with_logits": functional.binary_cross_entropy_with_logits,
    "poisson_nll_loss": functional.poisson_nll_loss,
    "kl_div": functional.kl_div,
    "soft_margin_loss": functional.soft_margin_loss,
    "hinge_embedding_loss": functional.hinge_embedding_loss,
    "multilabel_soft_margin_loss": functional.multilabel_soft_margin_loss,
    "cross_entropy": functional.cross_entropy,
}
"""Losses of torch.nn.functional between an estimate and a target of the same shape; cross_entropy of probabilities."""

LOSS_NAMES = {"Estimate": "estimator_loss", "Adapt": "adaptor_loss"}
"""Names of the stages' losses in the log."""


@dataclass(frozen=True, kw_only=True)
class EstimatorConfig:
    """An estimator in front of the actor, and the loss that trains it."""

    inputs: tuple[str, ...] = ("policy",)
    """Components or groups of the observation that it reads."""
    targets: tuple[str, ...] = ()
    """Components that it predicts, such as a velocity that only the critic observes; at least one."""
    hidden_sizes: tuple[int, ...] = (128, 64)
    """Its hidden layers."""
    replace_prob: float = 0.0
    """How often the actor reads the estimate instead of what it observes, per env and step."""
    weight: float = 1.0
    """Weight of the loss."""
    loss: str = "mse_loss"
    """Which loss of torch.nn.functional."""
    loss_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of that loss, such as {'beta': 0.5}."""
    stage: str = ""
    """A stage that the policy has already, 'Estimate', 'Adapt' or 'actor/1_Estimate'; then none is added for
    `targets`."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.stage and self.targets:
            raise ValueError(f"targets have no effect: the stage {self.stage!r} of the policy has its own; keep one")

    def term(self) -> Estimation:
        """Return the loss."""
        stage = self.stage or Estimation.stage
        return Estimation(weight=self.weight, loss=self.loss, loss_kwargs=self.loss_kwargs, stage=stage)


@dataclass(frozen=True, kw_only=True)
class Estimation(Term):
    """Train an estimator on the truth that is observed while training."""

    capturable = True
    learns_in_ranks = True
    Config: ClassVar[type[Any]] = EstimatorConfig
    summary: ClassVar[str] = "lets the policy estimate components that it cannot observe"

    @classmethod
    def policy_stages(cls, config: EstimatorConfig, context: BuildContext) -> tuple[StageRecipe, ...]:
        """Return the estimator in front of the actor; nothing where the policy has it already."""
        if config.stage:
            return ()
        if not config.targets:
            raise ValueError(
                "an estimator wants the components that it predicts: --algorithm.estimator.targets NAME … or "
                f"--terms.estimation.targets NAME …; observed are {', '.join(context.obs_spec)}"
            )
        return (
            Estimate(
                obs_components=tuple(context.obs_spec.select(config.inputs)),
                target_components=config.targets,
                hidden_sizes=config.hidden_sizes,
                replace_state_prob=config.replace_prob,
            ),
        )

    @classmethod
    def build(cls, config: EstimatorConfig, context: BuildContext) -> Estimation:
        """Build the term from its config; the policy has the estimator already."""
        return config.term()

    weight: float = 1.0
    """Weight of the loss."""
    loss: str = "mse_loss"
    """Which loss of torch.nn.functional; see `LOSSES`."""
    loss_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of that loss, such as {'beta': 0.5}."""
    stage: str = "Estimate"
    """'Estimate' or 'Adapt': all stages of this kind; or one stage, as in 'actor/1_Estimate'."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.loss not in LOSSES:
            raise ValueError(unknown("loss", self.loss, LOSSES, where="Estimation"))
        if "reduction" in self.loss_kwargs:
            raise ValueError("Estimation sums over features and takes the mean over samples; leave 'reduction' out")
        if not math.isfinite(self.weight) or self.weight < 0.0:
            raise ValueError(f"Estimation.weight is finite and not negative, found {self.weight}")
        # a wrong argument is better found now than in the first update
        _per_sample(self, torch.full((1, 2), 0.5), torch.full((1, 2), 0.5))

    @property
    def name(self) -> str:
        """The loss's name in the log, different for each kind of stage."""
        return LOSS_NAMES.get(self.stage, f"{self.stage}_loss")

    def check(self, policy: Policy) -> None:
        """Raise unless the policy has such a stage."""
        found = _predicting_stages(policy)
        if not any(self._means(path) for path in found):
            raise ValueError(
                f"Estimation(stage={self.stage!r}) finds no such stage in the policy; stages that predict: "
                f"{found or 'none'}. Add one to PolicyConfig.actor or name another"
            )

    def losses(self, minibatch: Mapping[str, Any], out: PolicyOutput) -> Losses:
        """Return the loss, summed over features and stages, mean over valid samples."""
        valid = minibatch["valid"]
        paths = [key.removesuffix("/estimate") for key in out.aux if key.endswith("/estimate")]
        parts = []
        for path in filter(self._means, paths):
            if f"{path}/target" not in out.aux:
                raise KeyError(f"{path} predicts something of which the observation has no true value to learn from")
            estimate, target = out.aux[f"{path}/estimate"], out.aux[f"{path}/target"]
            # selected before the loss: an overflow in an invalid sample would spoil the gradient
            estimate, target = (torch.where(valid.unsqueeze(-1), each, 0.0) for each in (estimate, target))
            parts.append(valid_mean(_per_sample(self, estimate, target), valid))
        return {self.name: (self.weight, torch.stack(parts).sum())}

    def _means(self, path: str) -> bool:
        """Return whether `stage` covers the stage at a path such as 'actor/1_Estimate'."""
        return self.stage in (path, path.rpartition("_")[2])


def _per_sample(term: Estimation, estimate: Tensor, target: Tensor) -> Tensor:
    """Return the loss of each sample, [..] for [.., K]."""
    rows = (estimate.flatten(0, -2), target.flatten(0, -2))
    loss = LOSSES[term.loss](*rows, reduction="none", **term.loss_kwargs)
    return (loss.sum(dim=-1) if loss.dim() == 2 else loss).view(estimate.shape[:-1])


def _predicting_stages(policy: Policy) -> list[str]:
    """Return the paths of all stages that predict something."""
    pipelines = {"trunk": policy.trunk, "actor": policy.actor, "critic": policy.critic}
    return [
        f"{part}/{name}"
        for part, pipeline in pipelines.items()
        for name, stage in pipeline.named_stages()
        if isinstance(stage, PredictStage)
    ]
