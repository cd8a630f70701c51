"""Soft actor-critic (Haarnoja et al. 2018), with automatic temperature; REDQ and TQC are SAC with other critics.

    sample ─▶ target  y = r + discount · ( min_k Q'_k(s', a') - α log π(a'|s') ),   a' ~ π(s')
           ─▶ critic  mean_B Σ_k (Q_k(s, a) - y)²
           ─▶ actor   mean_B ( α log π(ã|s) - min_k Q_k(s, ã) ),                    ã ~ π(s), through the sample
           ─▶ α       mean_B -log α · (log π(ã|s) + target entropy)

How the critic ensemble is reduced is set by `kind` (`critic_kinds.py`):

    SAC      the least of two
    REDQ     Chen et al. 2021: many critics, a random few in each target, and many gradient steps per env step. Plan
             it with `OffPolicyPlan(num_updates_per_round=20)`; the policy may step every 20th time (`actor_every`)
    TQC      Kuznetsov et al. 2020: critics predict quantiles, the largest of which are dropped from the target

`discount` is 0 where an episode terminated and gamma^n elsewhere, time limits included. Random numbers come in as
noise: the same sample and noise give the same step.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from striderl.algorithms.actor_critic.critic_kinds import ClippedMeans, CriticKind, SubsetMeans, TruncatedQuantiles
from striderl.algorithms.building import OFF_POLICY, REPLAY_NETWORKS, BuildContext, build_actor, build_critics
from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.replay_parts import (
    OffPolicyLearner,
    TargetNetwork,
    Temperature,
    check_head,
    cleaned,
    counted,
    frozen,
    module_updater,
    sample_noise_spec,
)
from striderl.algorithms.reward_terms import RewardTerms
from striderl.algorithms.terms.term import Term
from striderl.collect.actors.behaviours import BehaviourActor, ExploringActor, Sample, box_bounds
from striderl.data.actions import ActionSpec
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec
from striderl.ops.td import counted_mean, weighted_mean
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.value_functions import QFunction, QFunctionConfig


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class SACConfig:
    """Settings of SAC."""

    gamma: float = 0.99
    """Discount per step."""
    n_step: int = 1
    """Rewards that are summed before bootstrapping from the value."""
    tau: float = 0.005
    """How far the target critics move in each step."""
    actor_learning_rate: float = 3e-4
    """Of the policy."""
    critic_learning_rate: float = 3e-4
    """Of the Q-functions."""
    temperature_learning_rate: float = 3e-4
    """Of the temperature."""
    init_temperature: float = 1.0
    """The first α."""
    learn_temperature: bool = True
    """Follow `target_entropy`; otherwise α stays."""
    target_entropy: float | None = None
    """Target entropy of the policy; minus the number of actions when None."""
    actor_every: int = 1
    """Steps of the critics per step of the actor; the actor catches up on the skipped steps."""
    max_grad_norm: float = 0.0
    """Gradients are clipped to this norm; 0 means never."""
    weight_decay: float = 0.0
    """Decay of the weights of policy and critics (AdamW); 0 for none."""
    prioritized: bool = False
    """Sample by TD error instead of uniformly."""
    mode: str = ""
    """How gradient steps are run: 'eager', 'compiled', 'graphed' (CUDA) or 'auto'; empty: the run's own mode, and
    without a run eagerly."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not 0.0 <= self.gamma <= 1.0 or not 0.0 < self.tau <= 1.0:
            raise ValueError(f"gamma is in [0, 1] and tau in (0, 1], found {self.gamma} and {self.tau}")
        if self.n_step < 1 or self.actor_every < 1:
            raise ValueError(f"n_step and actor_every are at least 1, found {self.n_step} and {self.actor_every}")
        if self.init_temperature <= 0.0:
            raise ValueError(f"init_temperature is positive, found {self.init_temperature}")


class SAC(OffPolicyLearner):
    """Losses, targets and the update of SAC for a policy and its Q-functions."""

    config: SACConfig
    Config: ClassVar[type[Any]] = SACConfig
    summary = "soft actor-critic from replay, for real-valued actions"
    loop = OFF_POLICY
    learns_in_ranks = True
    actions = frozenset({"box"})
    takes_terms = True
    policy_settings: ClassVar[Mapping[str, Any]] = {**REPLAY_NETWORKS, "head": "squashed_gaussian"}

    @classmethod
    def build_policy(cls, config: Any, context: BuildContext) -> ActorPolicy:
        """Build the policy alone."""
        return build_actor(context, "squashed_gaussian")

    @classmethod
    def build(cls, config: Any, context: BuildContext, terms: Sequence[Term] = ()) -> SAC:
        """Build the learner from its config."""
        policy = cls.build_policy(config, context)
        return cls(policy, build_critics(context), context.own_mode(config), terms=terms)

    def __init__(
        self,
        policy: ActorPolicy,
        critic: QFunction,
        config: SACConfig | None = None,
        kind: CriticKind | None = None,
        *,
        actor: ExploringActor | None = None,
        terms: Sequence[Term] = (),
    ) -> None:
        """Create the updaters of both, and copy the critics as targets.

        `actor` collects instead of samples of the policy; the rewards of `terms` are added when samples are read.
        """
        check_head(policy, "SAC", deterministic=False)
        self.policy, self.critic, self.kind = policy, critic, kind or ClippedMeans()
        self.kind.check(critic.config.num_members, critic.config.num_outputs)
        self.config = config = config or SACConfig()
        device = next(policy.parameters()).device
        self.temperature = Temperature(config.init_temperature).to(device)
        low, _, _ = box_bounds(policy.action_spec, "SAC")
        self.target_entropy = -float(low.numel()) if config.target_entropy is None else config.target_entropy
        self.actor_updater = module_updater(
            "actor", policy, config.actor_learning_rate, config.max_grad_norm, config.mode, config.weight_decay
        )
        self.critic_updater = module_updater(
            "critic", critic, config.critic_learning_rate, config.max_grad_norm, config.mode, config.weight_decay
        )
        self.temperature_updater = module_updater(
            "temperature", self.temperature, config.temperature_learning_rate, config.max_grad_norm, config.mode
        )
        self.target = TargetNetwork(critic)
        self.num_updates = 0
        self._actor = actor or BehaviourActor(policy, Sample())
        self.terms = RewardTerms(terms, policy, config.mode)

    # -- called by the trainer ----------------------------------------------------------------------------------------

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of an action in the state and of one in the next."""
        spec = sample_noise_spec(self.policy)
        return {"action": spec, "next_action": spec, **self.kind.noise(self.critic.config.num_members)}

    def graph_key(self) -> Hashable:
        """Return whether the actor steps in the next gradient step, and what is not frozen."""
        updaters = (self.actor_updater, self.critic_updater, self.temperature_updater)
        return self.num_updates % self.config.actor_every == 0, *(each.trainable() for each in updaters)

    # -- one gradient step ---------------------------------------------------------------------------------------------

    def update(
        self, sample: Mapping[str, Any], weight: Tensor | None, noise: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Step the critics, then the actor and the temperature, then update the target networks."""
        minibatch = {**cleaned(sample), "weight": weight, "noise": noise}
        if self.config.prioritized:
            minibatch["target"] = self.targets(minibatch)
        numbers = self.critic_updater.step(self.critic_losses, minibatch)
        if self.num_updates % self.config.actor_every == 0:
            for _ in range(self.config.actor_every):
                with frozen(self.critic):
                    numbers |= self.actor_updater.step(self.actor_losses, minibatch)
                if self.config.learn_temperature:
                    minibatch["entropy_gap"] = numbers["entropy"] - self.target_entropy
                    numbers |= self.temperature_updater.step(self.temperature.losses, minibatch)
        numbers |= self.terms.step(minibatch)
        self.target.follow(self.config.tau)
        self.num_updates += 1
        numbers["temperature"] = self.temperature.value().detach()
        if self.config.prioritized:
            numbers["td_error"] = self._td_error(minibatch)
        return numbers

    @torch.no_grad()
    def targets(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Compute TD targets."""
        distribution, _, _ = self.policy.act(minibatch["obs_next"], {}, {})
        action, log_prob = distribution.sample_with_log_prob(minibatch["noise"]["next_action"])
        members = self.target.network(minibatch["obs_next"], action)
        cost = self.temperature.value() * log_prob
        return self.kind.bootstrap(members, minibatch["rew"], minibatch["discount"], cost, minibatch["noise"])

    def critic_losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Return the errors of all critics; targets that are not given are computed, as a part of one program."""
        target = minibatch["target"] if "target" in minibatch else self.targets(minibatch)
        members = self.critic(minibatch["obs"], minibatch["act"])
        loss = weighted_mean(self.kind.loss(members, target), counted(minibatch), minibatch["weight"])
        value = self.kind.means(members.detach()).mean(dim=0)
        return {"critic_loss": (1.0, loss)}, {"q_value": counted_mean(value, counted(minibatch))}

    def actor_losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Compute the policy loss."""
        distribution, _, _ = self.policy.act(minibatch["obs"], {}, {})
        action, log_prob = distribution.sample_with_log_prob(minibatch["noise"]["action"])
        value = self.kind.for_actor(self.critic(minibatch["obs"], action))
        loss = counted_mean(self.temperature.value().detach() * log_prob - value, counted(minibatch))
        return {"actor_loss": (1.0, loss)}, {"entropy": -counted_mean(log_prob.detach(), counted(minibatch))}

    @torch.no_grad()
    def _td_error(self, minibatch: Mapping[str, Any]) -> Tensor:
        means = self.kind.means(self.critic(minibatch["obs"], minibatch["act"]))
        error: Tensor = (means - self.kind.target_mean(minibatch["target"])).abs().mean(dim=0)
        return error

    # -- saving --------------------------------------------------------------------------------------------------------

    def _observers(self) -> tuple[ActorPolicy, QFunction]:
        return self.policy, self.critic

    def _parts(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "critic": self.critic,
            "temperature": self.temperature,
            "target": self.target,
            "actor_updater": self.actor_updater,
            "critic_updater": self.critic_updater,
            "temperature_updater": self.temperature_updater,
            "actor": self._actor,
            "terms": self.terms,
        }


# -- REDQ --------------------------------------------------------------------------------------------------------------


def redq(
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    *,
    num_critics: int = 10,
    subset: int = 2,
    actor: ActorConfig | None = None,
    critic: QFunctionConfig | None = None,
    config: SACConfig | None = None,
) -> SAC:
    """Build REDQ for these observations and actions."""
    policy = ActorPolicy(obs_spec, action_spec, actor or ActorConfig(head="squashed_gaussian"))
    members = replace(critic or QFunctionConfig(), num_members=num_critics)
    return SAC(policy, QFunction(obs_spec, action_spec, members), config, SubsetMeans(subset))


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class REDQConfig(SACConfig):
    """Settings of REDQ: those of SAC, and those of the ensemble."""

    num_critics: int = 10
    """Number of critics."""
    subset: int = 2
    """Number of them in a target, drawn at random each time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.subset <= self.num_critics:
            raise ValueError(f"1 <= subset <= num_critics, found {self.subset} of {self.num_critics}")


class REDQ(SAC):
    """SAC with many critics, a random few in each target; its critics have `num_members=num_critics`."""

    Config: ClassVar[type[Any]] = REDQConfig
    summary = "SAC with many critics, a random few in each target, for real-valued actions"

    @classmethod
    def build(cls, config: REDQConfig, context: BuildContext, terms: Sequence[Term] = ()) -> REDQ:
        """Build the learner from its config."""
        policy, critic = cls.build_policy(config, context), build_critics(context, num_members=config.num_critics)
        return cls(policy, critic, context.own_mode(config), SubsetMeans(config.subset), terms=terms)


# -- TQC ---------------------------------------------------------------------------------------------------------------


def tqc(
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    *,
    num_critics: int = 2,
    num_quantiles: int = 25,
    num_dropped: int = 2,
    actor: ActorConfig | None = None,
    critic: QFunctionConfig | None = None,
    config: SACConfig | None = None,
) -> SAC:
    """Build TQC for these observations and actions; `num_dropped` quantiles are left out per critic."""
    policy = ActorPolicy(obs_spec, action_spec, actor or ActorConfig(head="squashed_gaussian"))
    members = replace(critic or QFunctionConfig(), num_members=num_critics, num_outputs=num_quantiles)
    return SAC(policy, QFunction(obs_spec, action_spec, members), config, TruncatedQuantiles(num_dropped))


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class TQCConfig(SACConfig):
    """Settings of TQC: those of SAC, and those of the quantiles."""

    num_critics: int = 2
    """Number of critics."""
    num_quantiles: int = 25
    """Quantiles of the return that each predicts."""
    num_dropped: int = 2
    """The largest so many per critic are left out of the target."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_critics < 1 or not 0 <= self.num_dropped < self.num_quantiles:
            raise ValueError(
                "num_critics >= 1 and 0 <= num_dropped < num_quantiles, found "
                f"{self.num_critics}, {self.num_dropped} and {self.num_quantiles}"
            )


class TQC(SAC):
    """SAC with quantiles of the return, the largest left out of targets."""

    Config: ClassVar[type[Any]] = TQCConfig
    summary = "SAC with truncated quantiles of the return, for real-valued actions"

    @classmethod
    def build(cls, config: TQCConfig, context: BuildContext, terms: Sequence[Term] = ()) -> TQC:
        """Build the learner from its config."""
        policy = cls.build_policy(config, context)
        critic = build_critics(context, num_members=config.num_critics, num_outputs=config.num_quantiles)
        return cls(policy, critic, context.own_mode(config), TruncatedQuantiles(config.num_dropped), terms=terms)
