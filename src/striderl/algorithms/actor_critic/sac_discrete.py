"""Soft actor-critic for choices (Christodoulou 2019): expectations over all choices instead of samples.

    V(s') = Σ_a π(a|s') ( min_k Q'_k(s', a) - α log π(a|s') )              forbidden choices have π = 0
    target  y = r + discount · V(s')
    critic  mean_B Σ_k (Q_k(s, a) - y)²
    actor   mean_B Σ_a π(a|s) ( α log π(a|s) - min_k Q_k(s, a) )
    α       log α · mean_B ( entropy - share · log of the number of allowed choices )

Nothing is drawn in a gradient step.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from striderl.algorithms.building import CRITIC_SEED, OFF_POLICY, REPLAY_NETWORKS, BuildContext, build_actor
from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.replay_parts import (
    OffPolicyLearner,
    TargetNetwork,
    Temperature,
    cleaned,
    counted,
    module_updater,
)
from striderl.algorithms.reward_terms import RewardTerms
from striderl.algorithms.terms.term import Term
from striderl.collect.actors.behaviours import BehaviourActor, ExploringActor, Sample
from striderl.data.actions import ActionSpec, DiscreteSpec
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.specs import ObsSpec
from striderl.networks.distributions.categorical import FORBIDDEN, Categorical
from striderl.ops.td import counted_mean, td_target, weighted_mean
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.settings import q_function_config
from striderl.policies.value_functions import ChoiceQFunction, QFunctionConfig


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class DiscreteSACConfig:
    """Settings of discrete SAC."""

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
    """Follow `entropy_share`; otherwise α stays."""
    entropy_share: float = 0.5
    """The policy's entropy is led to this share of the largest, that of uniform choices; the paper has 0.98."""
    max_grad_norm: float = 0.0
    """Gradients are clipped to this norm; 0 means never."""
    prioritized: bool = False
    """Sample by TD error instead of uniformly."""
    mode: str = ""
    """How gradient steps are run: 'eager', 'compiled', 'graphed' (CUDA) or 'auto'; empty: the run's own mode, and
    without a run eagerly."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not 0.0 <= self.gamma <= 1.0 or not 0.0 < self.tau <= 1.0 or self.n_step < 1:
            raise ValueError(
                f"gamma is in [0, 1], tau in (0, 1], n_step at least 1; found {self.gamma}, {self.tau}, {self.n_step}"
            )
        if not 0.0 < self.entropy_share <= 1.0:
            raise ValueError(f"entropy_share is in (0, 1], found {self.entropy_share}")


def discrete_sac(
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    *,
    actor: ActorConfig | None = None,
    critic: QFunctionConfig | None = None,
    config: DiscreteSACConfig | None = None,
) -> DiscreteSAC:
    """Build discrete SAC for these observations and choices."""
    policy = ActorPolicy(obs_spec, action_spec, actor)
    return DiscreteSAC(policy, ChoiceQFunction(obs_spec, action_spec, critic), config)


class DiscreteSAC(OffPolicyLearner):
    """Losses, targets and the update of discrete SAC for a policy and its Q-functions."""

    config: DiscreteSACConfig
    Config = DiscreteSACConfig
    summary = "soft actor-critic from replay, for choices"
    loop = OFF_POLICY
    learns_in_ranks = True
    actions = frozenset({"discrete"})
    takes_terms = True
    policy_settings: ClassVar[Mapping[str, Any]] = REPLAY_NETWORKS

    @classmethod
    def build_policy(cls, config: DiscreteSACConfig, context: BuildContext) -> ActorPolicy:
        """Build the policy alone."""
        return build_actor(context)

    @classmethod
    def build(cls, config: DiscreteSACConfig, context: BuildContext, terms: Sequence[Term] = ()) -> DiscreteSAC:
        """Build the learner from its config."""
        policy = cls.build_policy(config, context)
        with context.seeded(CRITIC_SEED):
            settings = q_function_config(context.networks, context.obs_spec)
            critic = ChoiceQFunction(context.obs_spec, context.action_spec, settings).to(context.device)
        return cls(policy, critic, context.own_mode(config), terms=terms)

    def __init__(
        self,
        policy: ActorPolicy,
        critic: ChoiceQFunction,
        config: DiscreteSACConfig | None = None,
        *,
        actor: ExploringActor | None = None,
        terms: Sequence[Term] = (),
    ) -> None:
        """Create the updaters of both, and copy the critics as targets."""
        if not isinstance(policy.action_spec, DiscreteSpec):
            raise TypeError(f"DiscreteSAC wants one discrete action, found {type(policy.action_spec).__name__}")
        self.policy, self.critic = policy, critic
        self.config = config = config or DiscreteSACConfig()
        self.temperature = Temperature(config.init_temperature).to(next(policy.parameters()).device)
        norm, mode = config.max_grad_norm, config.mode
        self.actor_updater = module_updater("actor", policy, config.actor_learning_rate, norm, mode)
        self.critic_updater = module_updater("critic", critic, config.critic_learning_rate, norm, mode)
        self.temperature_updater = module_updater(
            "temperature", self.temperature, config.temperature_learning_rate, norm, mode
        )
        self.target = TargetNetwork(critic)
        self.num_updates = 0
        self._actor = actor or BehaviourActor(policy, Sample())
        self.terms = RewardTerms(terms, policy, mode)

    # -- called by the trainer ----------------------------------------------------------------------------------------

    def graph_key(self) -> Hashable:
        """Return what is not frozen: but for that, all gradient steps are alike."""
        updaters = (self.actor_updater, self.critic_updater, self.temperature_updater)
        return tuple(each.trainable() for each in updaters)

    # -- one gradient step ---------------------------------------------------------------------------------------------

    def update(
        self, sample: Mapping[str, Any], weight: Tensor | None, noise: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Step the critics, then the actor and the temperature, then update the target networks."""
        minibatch = {**cleaned(sample), "weight": weight, "noise": noise}
        if self.config.prioritized:
            minibatch["target"] = self.targets(minibatch)
        numbers = self.critic_updater.step(self.critic_losses, minibatch)
        minibatch["least"] = self.least_values(minibatch)
        numbers |= self.actor_updater.step(self.actor_losses, minibatch)
        if self.config.learn_temperature:
            minibatch["entropy_gap"] = numbers["entropy_gap"]
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
        """Compute TD targets of the choices made."""
        log_probs = self._log_probs(minibatch["obs_next"])
        least = self.target.network(minibatch["obs_next"]).amin(dim=0)
        value = soft_value(log_probs, least, self.temperature.value())
        return td_target(minibatch["rew"], minibatch["discount"], value)

    def critic_losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Return the squared errors of all critics; targets that are not given are computed."""
        target = minibatch["target"] if "target" in minibatch else self.targets(minibatch)
        value = self._value_of_choices(minibatch)
        loss = weighted_mean((value - target).square().sum(dim=0), counted(minibatch), minibatch["weight"])
        return {"critic_loss": (1.0, loss)}, {"q_value": counted_mean(value.detach().mean(dim=0), counted(minibatch))}

    def actor_losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Return minus the soft value of the policy, and its entropy minus the target entropy."""
        log_probs = self._log_probs(minibatch["obs"])
        value = soft_value(log_probs, minibatch["least"], self.temperature.value().detach())
        allowed = (log_probs.detach() > 0.5 * FORBIDDEN).sum(dim=-1).to(value.dtype)
        entropy = Categorical(log_probs.detach()).entropy()
        gap = entropy - self.config.entropy_share * allowed.log()
        numbers = {
            "entropy": counted_mean(entropy, counted(minibatch)),
            "entropy_gap": counted_mean(gap, counted(minibatch)),
        }
        return {"actor_loss": (1.0, -counted_mean(value, counted(minibatch)))}, numbers

    def _log_probs(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return log π(a|s) of all choices [B, n]."""
        distribution, _, _ = self.policy.act(obs, {}, {})
        assert isinstance(distribution, Categorical)
        return distribution.log_probs

    @torch.no_grad()
    def least_values(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Return the least Q-value of every choice [B, n], without gradient."""
        least: Tensor = self.critic(minibatch["obs"]).amin(dim=0)
        return least

    def _value_of_choices(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Return the Q-values [K, B] of the choices made, of every critic."""
        members: Tensor = self.critic(minibatch["obs"])
        index = minibatch["act"].long().view(1, -1, 1).expand(members.shape[0], -1, 1)
        return members.gather(-1, index).squeeze(-1)

    @torch.no_grad()
    def _td_error(self, minibatch: Mapping[str, Any]) -> Tensor:
        error: Tensor = (self._value_of_choices(minibatch) - minibatch["target"]).abs().mean(dim=0)
        return error

    # -- saving --------------------------------------------------------------------------------------------------------

    def _observers(self) -> tuple[ActorPolicy, ChoiceQFunction]:
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


def soft_value(log_probs: Tensor, values: Tensor, temperature: Tensor) -> Tensor:
    """Return Σ_a π(a) (Q(a) - α log π(a)) over the allowed choices, [B]."""
    probs = log_probs.exp()
    allowed = log_probs > 0.5 * FORBIDDEN
    terms = probs * (values - temperature * torch.where(allowed, log_probs, torch.zeros_like(log_probs)))
    return torch.where(allowed, terms, torch.zeros_like(terms)).sum(dim=-1)
