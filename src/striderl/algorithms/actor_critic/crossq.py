"""CrossQ (Bhatt et al. 2024): SAC without target networks, thanks to batch renormalisation in the critics.

    (s, a)   ─┐                     ┌─▶ Q(s, a)
              ├─▶ one batch of 2B ──┤                   y = r + discount · ( min_k Q_k(s', a') - α log π(a'|s') )
    (s', a') ─┘   one forward pass  └─▶ Q(s', a')       without gradient

Both halves go through the critics together, so that the batch's moments are those of both. The moments are statistics
of the critics (`networks/ensemble.py`): updated once per step from outside, and saved. The policy has none: what is
exported is what was trained. The actor maximises the critics with their running moments.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from striderl.algorithms.building import OFF_POLICY, REPLAY_NETWORKS, BuildContext, build_actor, build_critics
from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.replay_parts import (
    OffPolicyLearner,
    Temperature,
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
from striderl.networks.ensemble import EnsembleMoments, RenormEnsembleMlp
from striderl.ops.td import counted_mean, td_target, weighted_mean
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.value_functions import QFunction, QFunctionConfig


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class CrossQConfig:
    """Settings of CrossQ."""

    gamma: float = 0.99
    """Discount per step."""
    n_step: int = 1
    """Rewards that are summed before bootstrapping from the value."""
    learning_rate: float = 1e-3
    """Of policy, critics and temperature."""
    beta1: float = 0.5
    """Adam's beta1 for policy and critics; the authors' value."""
    actor_every: int = 3
    """Steps of the critics per step of the actor and the temperature."""
    init_temperature: float = 1.0
    """The first α."""
    learn_temperature: bool = True
    """Follow `target_entropy`; otherwise α stays."""
    target_entropy: float | None = None
    """Target entropy of the policy; minus the number of actions when None."""
    max_grad_norm: float = 0.0
    """Gradients are clipped to this norm; 0 means never."""
    prioritized: bool = False
    """Sample by TD error instead of uniformly."""
    mode: str = ""
    """How gradient steps are run: 'eager', 'compiled', 'graphed' (CUDA) or 'auto'; empty: the run's own mode, and
    without a run eagerly."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma is in [0, 1], found {self.gamma}")
        if self.n_step < 1 or self.actor_every < 1:
            raise ValueError(f"n_step and actor_every are at least 1, found {self.n_step} and {self.actor_every}")


def crossq(
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    *,
    actor: ActorConfig | None = None,
    critic: QFunctionConfig | None = None,
    config: CrossQConfig | None = None,
) -> CrossQ:
    """Build CrossQ for these observations and actions; critics are wide, two layers of 1024, by default."""
    policy = ActorPolicy(obs_spec, action_spec, actor or ActorConfig(head="squashed_gaussian"))
    members = replace(critic or QFunctionConfig(hidden_dims=(1024, 1024)), batch_renorm=True)
    return CrossQ(policy, QFunction(obs_spec, action_spec, members), config)


class CrossQ(OffPolicyLearner):
    """Losses, targets and the update of CrossQ for a policy and its Q-functions."""

    config: CrossQConfig
    Config = CrossQConfig
    summary = "SAC without target networks, by batch renormalisation, for real-valued actions"
    loop = OFF_POLICY
    learns_in_ranks = True
    actions = frozenset({"box"})
    takes_terms = True
    policy_settings: ClassVar[Mapping[str, Any]] = {
        **REPLAY_NETWORKS,
        "head": "squashed_gaussian",
        "critic_hidden_dims": (1024, 1024),
    }

    @classmethod
    def build_policy(cls, config: CrossQConfig, context: BuildContext) -> ActorPolicy:
        """Build the policy alone."""
        return build_actor(context, "squashed_gaussian")

    @classmethod
    def build(cls, config: CrossQConfig, context: BuildContext, terms: Sequence[Term] = ()) -> CrossQ:
        """Build the learner from its config."""
        policy = cls.build_policy(config, context)
        return cls(policy, build_critics(context, batch_renorm=True), context.own_mode(config), terms=terms)

    def __init__(
        self,
        policy: ActorPolicy,
        critic: QFunction,
        config: CrossQConfig | None = None,
        *,
        actor: ExploringActor | None = None,
        terms: Sequence[Term] = (),
    ) -> None:
        """Create the updaters of both; the critics have `batch_renorm` and one output."""
        if not isinstance(critic.members, RenormEnsembleMlp) or critic.config.num_outputs != 1:
            raise ValueError("CrossQ wants QFunctionConfig(batch_renorm=True, num_outputs=1)")
        self.policy, self.critic, self._members = policy, critic, critic.members
        self.config = config = config or CrossQConfig()
        self.temperature = Temperature(config.init_temperature).to(next(policy.parameters()).device)
        low, _, _ = box_bounds(policy.action_spec, "CrossQ")
        self.target_entropy = -float(low.numel()) if config.target_entropy is None else config.target_entropy
        rate, norm, mode = config.learning_rate, config.max_grad_norm, config.mode
        self.actor_updater = module_updater("actor", policy, rate, norm, mode, beta1=config.beta1)
        self.critic_updater = module_updater("critic", critic, rate, norm, mode, beta1=config.beta1)
        self.temperature_updater = module_updater("temperature", self.temperature, rate, norm, mode)
        self.num_updates = 0
        self._actor = actor or BehaviourActor(policy, Sample())
        self.terms = RewardTerms(terms, policy, mode)

    # -- called by the trainer ----------------------------------------------------------------------------------------

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of an action in the state and of one in the next."""
        spec = sample_noise_spec(self.policy)
        return {"action": spec, "next_action": spec}

    def graph_key(self) -> Hashable:
        """Return whether the actor steps in the next gradient step, and what is not frozen."""
        updaters = (self.actor_updater, self.critic_updater, self.temperature_updater)
        return self.num_updates % self.config.actor_every == 0, *(each.trainable() for each in updaters)

    # -- one gradient step ---------------------------------------------------------------------------------------------

    def update(
        self, sample: Mapping[str, Any], weight: Tensor | None, noise: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Step the critics and their statistics; every so often the actor and the temperature."""
        minibatch = {**cleaned(sample), "weight": weight, "noise": noise}
        minibatch["next_action"], minibatch["cost"] = self.next_action(minibatch)
        with torch.no_grad():  # the critics as they are before the step
            value, following, moments = self.together(minibatch)
        minibatch["target"] = target = self.targets({**minibatch, "following": following})
        numbers = self.critic_updater.step(self.critic_losses, minibatch)
        self._members.update_normalization(moments)
        if self.num_updates % self.config.actor_every == 0:
            with frozen(self.critic):
                numbers |= self.actor_updater.step(self.actor_losses, minibatch)
            if self.config.learn_temperature:
                minibatch["entropy_gap"] = numbers["entropy"] - self.target_entropy
                numbers |= self.temperature_updater.step(self.temperature.losses, minibatch)
        numbers |= self.terms.step(minibatch)
        self.num_updates += 1
        numbers["temperature"] = self.temperature.value().detach()
        if self.config.prioritized:
            numbers["td_error"] = (value - target).abs().mean(dim=0)
        return numbers

    @torch.no_grad()
    def next_action(self, minibatch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return a' and α log π(a'|s')."""
        distribution, _, _ = self.policy.act(minibatch["obs_next"], {}, {})
        action, log_prob = distribution.sample_with_log_prob(minibatch["noise"]["next_action"])
        return action, self.temperature.value() * log_prob

    def together(self, minibatch: Mapping[str, Any]) -> tuple[Tensor, Tensor, list[EnsembleMoments]]:
        """Return Q(s, a) [K, B], Q(s', a') [K, B] and the moments of one forward pass over both halves."""
        halves = [
            self.critic.joined(self.critic.features(minibatch[obs], {})[0], minibatch[action])
            for obs, action in (("obs", "act"), ("obs_next", "next_action"))
        ]
        valid = counted(minibatch)
        both = None if valid is None else torch.cat([valid, valid])
        values, moments = self._members.train_step(torch.cat(halves), both)
        value, following = values.squeeze(-1).chunk(2, dim=1)
        return value, following, moments

    @torch.no_grad()
    def targets(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Compute TD targets from 'following', Q(s', a') [K, B] of all critics, and 'cost', α log π(a'|s')."""
        return td_target(
            minibatch["rew"], minibatch["discount"], minibatch["following"].amin(dim=0) - minibatch["cost"]
        )

    def critic_losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Return the squared errors of all critics, summed over them."""
        value, _, _ = self.together(minibatch)
        error = (value - minibatch["target"]).square().sum(dim=0)
        loss = weighted_mean(error, counted(minibatch), minibatch["weight"])
        return {"critic_loss": (1.0, loss)}, {"q_value": counted_mean(value.detach().mean(dim=0), counted(minibatch))}

    def actor_losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Compute the policy loss."""
        distribution, _, _ = self.policy.act(minibatch["obs"], {}, {})
        action, log_prob = distribution.sample_with_log_prob(minibatch["noise"]["action"])
        value = self.critic(minibatch["obs"], action).amin(dim=0)
        loss = counted_mean(self.temperature.value().detach() * log_prob - value, counted(minibatch))
        return {"actor_loss": (1.0, loss)}, {"entropy": -counted_mean(log_prob.detach(), counted(minibatch))}

    # -- saving --------------------------------------------------------------------------------------------------------

    def _observers(self) -> tuple[ActorPolicy, QFunction]:
        return self.policy, self.critic

    def _parts(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "critic": self.critic,
            "temperature": self.temperature,
            "actor_updater": self.actor_updater,
            "critic_updater": self.critic_updater,
            "temperature_updater": self.temperature_updater,
            "actor": self._actor,
            "terms": self.terms,
        }
