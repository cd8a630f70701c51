"""IMPALA (Espeholt et al. 2018): an actor-critic whose targets are corrected for an older behaviour policy.

    rollout [T, N] of μ ──prepare──▶ rewards, values after cuts
                                        │      ┌──────────── num_learning_epochs times ────────────┐
                                        └────▶ │ π and V of today ──vtrace──▶ targets ──▶ one step │
                                               └───────────────────────────────────────────────────┘

μ is the policy that collected, π the one that is learned. They differ where workers collect while the learner goes on,
and from the second epoch on everywhere; with one epoch on fresh rollouts every ratio is 1, and this is A2C with `lam`.
The targets belong to the weights of the moment, so they are computed in each step, from the present critic's values.

    clip=None      policy loss -mean(rho · A · log π), as in the paper
    clip=0.2       PPO's clipped surrogate of π / μ with the same A, which allows several epochs (often called APPO;
                   that name is the adversarial PPO's here)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.algorithms.on_policy_targets import (
    Losses,
    WholeRolloutLearner,
    finite_rows,
    next_values,
    reward_like,
    zero_where_not,
)
from striderl.data import tree
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.ops.losses import clipped_surrogate, explained_variance, mean_std, normalised, valid_mean, value_loss
from striderl.ops.returns import VTrace, vtrace
from striderl.storage.rollout import RolloutStorage


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class IMPALAConfig:
    """Settings of IMPALA."""

    gamma: float = 0.99
    """Discount per step."""
    lam: float = 1.0
    """Weight of each further step in the targets; 1 as in the paper, less trusts the values more."""
    rho_bar: float = 1.0
    """Largest ratio π / μ in front of TD errors and the policy gradient; it decides which policy's value is learned."""
    c_bar: float = 1.0
    """Largest ratio π / μ by which a later TD error is carried back; it decides how fast, not what is learned."""
    clip: float | None = None
    """The ratio is kept in [1 - clip, 1 + clip] by PPO's surrogate, 0.1 to 0.4 is usual; None is the plain gradient."""
    num_learning_epochs: int = 1
    """Gradient steps on each rollout, with targets of their own; more than one or two want `clip`."""
    value_loss_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    learning_rate: float = 7e-4
    """The learning rate."""
    max_grad_norm: float = 0.5
    """The gradient is clipped to this norm; 0 means never."""
    normalize_advantage: bool = False
    """Normalise the advantages of each rollout to mean 0 and standard deviation 1."""
    optimizer_class_name: str = "RMSprop"
    """Which optimiser."""
    optimizer_eps: float = 1e-5
    """The optimiser's epsilon, added to its denominator."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not (0.0 <= self.gamma <= 1.0 and 0.0 <= self.lam <= 1.0):
            raise ValueError(f"gamma and lam are between 0 and 1, found {self.gamma} and {self.lam}")
        if self.learning_rate <= 0.0:
            raise ValueError(f"learning_rate is positive, found {self.learning_rate}")
        if not 0.0 < self.c_bar <= self.rho_bar:
            raise ValueError(f"c_bar is positive and at most rho_bar, found {self.c_bar} and {self.rho_bar}")
        if self.clip is not None and not 0.0 < self.clip < 1.0:
            raise ValueError(f"clip is between 0 and 1, or None for the plain gradient, found {self.clip}")
        if self.num_learning_epochs < 1 or self.value_loss_coef < 0.0:
            raise ValueError(
                "num_learning_epochs is at least 1 and value_loss_coef not negative, "
                f"found {self.num_learning_epochs} and {self.value_loss_coef}"
            )


class BehaviourRollout(NamedTuple):
    """A rollout of the policy μ with what targets are computed from, [T, N, …] each; zeros where it is not valid."""

    columns: Mapping[str, Any]
    """The stored columns."""
    act: Any
    """The actions: a tensor, or a dict of them."""
    reward: Tensor
    """The rewards, in the shape of the values."""
    log_prob: Tensor
    """log μ(a|s)."""
    next_value: Tensor
    """The value after each step, as of `prepare`; used after cuts and the last step, and before invalid samples."""
    inside: Tensor
    """True where the next row is the same episode's next step and valid: there the present critic's value is used."""
    resets: Tensor
    """True where a new episode begins, before that step is processed."""
    readable: Tensor
    """False where a sample is not valid and its observation is not finite: no network may read it."""
    initial_state: dict[str, Tensor]
    """The policy's memory before the first step, [N, …] each; empty when it has none."""


class IMPALA(WholeRolloutLearner):
    """Losses, targets and the update of IMPALA for a policy."""

    config: IMPALAConfig
    Config = IMPALAConfig
    summary = "actor-critic with V-trace, for rollouts of an older policy too; with or without a clipped surrogate"
    corrects_staleness = True

    @property
    def num_updates_per_rollout(self) -> int:
        """Number of gradient steps per rollout."""
        return self.config.num_learning_epochs

    @torch.no_grad()
    def prepare(
        self,
        storage: RolloutStorage,
        *,
        initial_state: dict[str, Tensor],
        last_obs: Mapping[str, Tensor],
        last_state: Mapping[str, Tensor],
    ) -> BehaviourRollout:
        """Compute what does not change from epoch to epoch; the targets themselves are computed in each step."""
        data = storage.data
        valid, stored = data["valid"], data["policy"]
        done = data["terminated"] | data["truncated"]
        return BehaviourRollout(
            columns=data,
            act=tree.map(lambda leaf: zero_where_not(leaf, valid), data["act"]),
            reward=reward_like(stored["value"], zero_where_not(data["rew"], valid)),
            log_prob=zero_where_not(stored["log_prob"], valid),
            next_value=next_values(self.policy, storage, last_obs, last_state),
            inside=torch.cat([~done[:-1] & valid[1:], torch.zeros_like(done[:1])]),
            resets=torch.cat([torch.zeros_like(done[:1]), done[:-1]]),
            readable=valid | finite_rows(data["obs"], valid),
            initial_state=initial_state,
        )

    def losses(self, rollout: BehaviourRollout) -> tuple[Losses, dict[str, Tensor]]:
        """Return name → (weight, loss), and metrics; the targets are those of the present policy and critic."""
        config, stored = self.config, rollout.columns
        valid = stored["valid"]
        output = self.policy(
            stored["obs"], rollout.initial_state, stored["policy"]["memo"], rollout.resets, rollout.readable
        )
        # selected before exp: an overflow in an invalid sample would come back as zero times infinity
        log_prob = torch.where(valid, output.distribution.log_prob(rollout.act), rollout.log_prob)
        with torch.no_grad():
            traced = self._targets(rollout, output.value.detach(), log_prob.detach())
            advantage = traced.advantage if traced.advantage.dim() == 2 else traced.advantage.sum(dim=-1)
            if config.normalize_advantage:
                advantage = normalised(advantage, valid)
        if config.clip is None:
            policy_loss = -valid_mean(log_prob * traced.rho * advantage, valid)
            ratio = (log_prob.detach() - rollout.log_prob).exp()
        else:
            policy_loss, ratio = clipped_surrogate(log_prob, rollout.log_prob, advantage, config.clip, valid)
        entropy = valid_mean(output.distribution.entropy(), valid)
        losses: Losses = {"policy_loss": (1.0, policy_loss), "entropy": (config.entropy_coef, -entropy)}
        if config.value_loss_coef:
            # without a clip the old value is not used
            value = value_loss(output.value, output.value, traced.returns, None, valid)
            losses["value_loss"] = (config.value_loss_coef, value)
        with torch.no_grad():
            stats = {
                "entropy": entropy.detach(),
                "ratio_mean": valid_mean(ratio, valid),
                "ratio_clipped": valid_mean((ratio > config.rho_bar).to(ratio.dtype), valid),
                "explained_variance": explained_variance(output.value, traced.returns, valid).mean(),
                **mean_std(output.distribution.params(), valid),
            }
        return losses, stats

    def _targets(self, rollout: BehaviourRollout, value: Tensor, log_prob: Tensor) -> VTrace:
        """Return the V-trace targets for values and log-probabilities [T, N, …] of the present weights."""
        data, config = rollout.columns, self.config
        inside = rollout.inside if value.dim() == 2 else rollout.inside.unsqueeze(-1)
        following = torch.where(inside, torch.cat([value[1:], value[-1:]]), rollout.next_value)
        return vtrace(
            rollout.reward,
            value,
            following,
            log_prob - rollout.log_prob,
            data["terminated"],
            data["truncated"],
            gamma=config.gamma,
            lam=config.lam,
            rho_bar=config.rho_bar,
            c_bar=config.c_bar,
            valid=data["valid"],
        )
