"""IQL (Kostrikov et al. 2021): learning from a dataset without ever evaluating an action outside it.

value    mean_B expectile( min_k Q'_k(s, a) - V(s) )
critic   mean_B Σ_k ( Q_k(s, a) - r - discount · V(s') )²
actor    -mean_B exp(temperature · (min_k Q'_k(s, a) - V(s))) · log π(a|s)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from striderl.algorithms.building import CRITIC_SEED, OFFLINE, REPLAY_NETWORKS, BuildContext, build_actor, refuse_terms
from striderl.algorithms.offline.behaviour_cloning import check_likelihood
from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.replay_parts import TargetNetwork, cleaned, load_parts, module_updater, sampler_for, save_parts
from striderl.algorithms.terms.term import Term
from striderl.collect.actors.behaviours import BehaviourActor, Sample
from striderl.data.actions import DiscreteSpec
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.noise import NoiseSpec
from striderl.ops.losses import valid_mean
from striderl.ops.td import advantage_weight, expectile, td_target, weighted_mean
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.settings import q_function_config
from striderl.policies.value_functions import ChoiceQFunction, QFunction, ValueFunction
from striderl.storage.replay.replay import View
from striderl.storage.replay.samplers import Sampler
from striderl.storage.replay.views import NStep


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class IQLConfig:
    """Settings of IQL."""

    gamma: float = 0.99
    """Discount per step."""
    expectile: float = 0.7
    """How near V comes to the best action of the data; 0.5 is the mean, towards 1 the best."""
    temperature: float = 3.0
    """How much better actions are preferred; 0 is behaviour cloning."""
    tau: float = 0.005
    """How far the target critics move in each step."""
    learning_rate: float = 3e-4
    """Of all three networks."""
    max_grad_norm: float = 0.0
    """Gradients are clipped to this norm; 0 means never."""
    mode: str = ""
    """How gradient steps are run: 'eager', 'compiled', 'graphed' (CUDA) or 'auto'; empty: the run's own mode, and
    without a run eagerly."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not 0.0 <= self.gamma <= 1.0 or not 0.0 < self.tau <= 1.0:
            raise ValueError(f"gamma is in [0, 1] and tau in (0, 1], found {self.gamma} and {self.tau}")
        if not 0.0 < self.expectile < 1.0 or self.temperature < 0.0:
            raise ValueError(
                f"expectile is in (0, 1) and temperature not negative, found {self.expectile} and {self.temperature}"
            )


class IQL:
    """Losses, targets and the update of IQL."""

    Config = IQLConfig
    summary = "implicit Q-learning from a dataset"
    loop = OFFLINE
    learns_in_ranks = True
    actions = frozenset({"box", "discrete"})
    policy_settings: ClassVar[Mapping[str, Any]] = REPLAY_NETWORKS

    @classmethod
    def build_policy(cls, config: IQLConfig, context: BuildContext) -> ActorPolicy:
        """Build the policy alone."""
        return build_actor(context)

    @classmethod
    def build(cls, config: IQLConfig, context: BuildContext, terms: Sequence[Term] = ()) -> IQL:
        """Build the learner from its config; choices have critics of their own, and it takes no terms."""
        refuse_terms(context, terms)
        policy = cls.build_policy(config, context)
        settings = q_function_config(context.networks, context.obs_spec)
        discrete = isinstance(context.action_spec, DiscreteSpec)
        with context.seeded(CRITIC_SEED):
            make_critic = ChoiceQFunction if discrete else QFunction
            critic: QFunction | ChoiceQFunction = make_critic(context.obs_spec, context.action_spec, settings)
            value = ValueFunction(context.obs_spec, settings)
        return cls(policy, critic.to(context.device), value.to(context.device), context.own_mode(config))

    def __init__(
        self,
        policy: ActorPolicy,
        critic: QFunction | ChoiceQFunction,
        value: ValueFunction,
        config: IQLConfig | None = None,
    ) -> None:
        """Create the updaters of all three, and copy the critics as targets.

        Choices have critics of their own, a `ChoiceQFunction`.
        """
        check_likelihood(policy)
        if isinstance(critic, QFunction) and critic.config.num_outputs != 1:
            raise ValueError(f"IQL wants critics with one value each, found num_outputs={critic.config.num_outputs}")
        self.policy, self.critic, self.value = policy, critic, value
        self.config = config = config or IQLConfig()
        rate, norm = config.learning_rate, config.max_grad_norm
        self.actor_updater = module_updater("actor", policy, rate, norm, config.mode)
        self.critic_updater = module_updater("critic", critic, rate, norm, config.mode)
        self.value_updater = module_updater("value", value, rate, norm, config.mode)
        self.target = TargetNetwork(critic)
        self._actor = BehaviourActor(policy, Sample())

    def actor(self) -> BehaviourActor:
        """Return the actor that collects, when training continues in an env: samples of the policy."""
        return self._actor

    def view(self) -> View:
        """Return single steps."""
        return NStep(1, gamma=self.config.gamma)

    def sampler(self, seed: int) -> Sampler:
        """Return a uniform sampler."""
        return sampler_for(seed, False)

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return nothing: a step draws nothing."""
        return {}

    def explore(self, env_steps: int, *, random: bool) -> None:
        """Act at random before learning starts."""
        self._actor.random = random
        self._actor.at(env_steps)

    # -- one gradient step ---------------------------------------------------------------------------------------------

    def update(
        self, sample: Mapping[str, Any], weight: Tensor | None, noise: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Step the value, the actor and the critics, then update the target networks."""
        minibatch = {**cleaned(sample), "weight": weight}
        with torch.no_grad():
            minibatch["q_value"] = members_of(self.target.network, minibatch).amin(dim=0)
        numbers = self.value_updater.step(self.value_losses, minibatch)
        with torch.no_grad():
            minibatch["advantage"] = minibatch["q_value"] - self.value(minibatch["obs"])
            following = self.value(minibatch["obs_next"])
            minibatch["target"] = td_target(minibatch["rew"], minibatch["discount"], following)
        numbers |= self.actor_updater.step(self.actor_losses, minibatch)
        numbers |= self.critic_updater.step(self.critic_losses, minibatch)
        self.target.follow(self.config.tau)
        return numbers

    def value_losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Compute the expectile loss of V against Q over the actions of the data."""
        value = self.value(minibatch["obs"])
        error = expectile(minibatch["q_value"] - value, self.config.expectile)
        loss = weighted_mean(error, minibatch["valid"], minibatch["weight"])
        return {"value_loss": (1.0, loss)}, {"value": valid_mean(value.detach(), minibatch["valid"])}

    def actor_losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Compute minus the advantage-weighted log-likelihood of the actions."""
        distribution, _, _ = self.policy.act(minibatch["obs"], {}, {})
        weight = advantage_weight(minibatch["advantage"], self.config.temperature)
        loss = -valid_mean(weight * distribution.log_prob(minibatch["act"]), minibatch["valid"])
        return {"actor_loss": (1.0, loss)}, {"advantage": valid_mean(minibatch["advantage"], minibatch["valid"])}

    def critic_losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Return the squared errors of all critics."""
        members = members_of(self.critic, minibatch)
        loss = weighted_mean((members - minibatch["target"]).square(), minibatch["valid"], minibatch["weight"])
        return {"critic_loss": (1.0, loss)}, {}

    @torch.no_grad()
    def update_normalization(self, columns: Mapping[str, Any]) -> None:
        """Update the normalisers from samples."""
        for part in (self.policy, self.critic, self.value):
            part.update_normalization(columns["obs"], columns["valid"])

    # -- saving --------------------------------------------------------------------------------------------------------

    def _parts(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "critic": self.critic,
            "value": self.value,
            "target": self.target,
            "actor_updater": self.actor_updater,
            "critic_updater": self.critic_updater,
            "value_updater": self.value_updater,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything learned."""
        return save_parts(self._parts())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        load_parts(self._parts(), state)


def members_of(critic: QFunction | ChoiceQFunction, minibatch: Mapping[str, Any]) -> Tensor:
    """Return the Q-values of each critic for the actions of a minibatch, [K, B]."""
    if isinstance(critic, QFunction):
        values: Tensor = critic(minibatch["obs"], minibatch["act"])
        return values
    every: Tensor = critic(minibatch["obs"])
    taken = minibatch["act"].long().view(1, -1, 1).expand(every.shape[0], -1, 1)
    return every.gather(-1, taken).squeeze(-1)
