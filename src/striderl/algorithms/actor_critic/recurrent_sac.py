"""SAC for policies and critics with memory, from replayed sequences.

    policy   stored memory ─ burn-in ─▶ along the woven sequence ─▶ π(s_t), π(s_{t+n})
    critics  zero memory   ─ burn-in ─▶ along the woven sequence ─▶ features ─ with an action ─▶ Q_k(s_t, a)

The actor stores its memory while it collects; critics do not act, so theirs begins from zero with the burn-in (and
exactly where the episode itself begins in it). The losses are those of `sac.py`, over all steps of all sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from striderl.algorithms.actor_critic.critic_kinds import ClippedMeans, CriticKind
from striderl.algorithms.actor_critic.sac import SACConfig
from striderl.algorithms.building import OFF_POLICY, REPLAY_NETWORKS, BuildContext, build_actor, build_critics
from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.replay_parts import (
    OffPolicyLearner,
    TargetNetwork,
    Temperature,
    cleaned,
    frozen,
    module_updater,
    sample_noise_spec,
)
from striderl.algorithms.reward_terms import RewardTerms
from striderl.algorithms.sequence_learning import (
    SEQUENCE_BATCHES,
    ReplayState,
    SequenceConfig,
    flat_noise,
    laid_out,
    per_step,
    warmed_up,
    woven_features,
)
from striderl.algorithms.terms.term import Term
from striderl.collect.actors.behaviours import BehaviourActor, Sample, box_bounds, policy_memory
from striderl.data.checked_fields import suggests_fields
from striderl.data.noise import NoiseSpec
from striderl.networks.distributions.base import Distribution
from striderl.ops.td import counted_mean, weighted_mean
from striderl.ops.trajectories import sequence_priority
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.value_functions import QFunction
from striderl.storage.replay.replay import View
from striderl.storage.replay.views import SequenceView


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class RecurrentSACConfig(SACConfig):
    """Settings of recurrent SAC: those of SAC, and those of sequences."""

    sequence: SequenceConfig = field(default_factory=SequenceConfig)
    """How sequences are replayed."""


class RecurrentSAC(OffPolicyLearner):
    """Losses, targets and the update of SAC on sequences."""

    config: SACConfig
    Config: ClassVar[type[Any]] = RecurrentSACConfig
    summary = "soft actor-critic with a memory from replayed sequences, for real-valued actions"
    loop = OFF_POLICY
    learns_in_ranks = True
    actions = frozenset({"box"})
    takes_terms = True
    policy_settings: ClassVar[Mapping[str, Any]] = {**REPLAY_NETWORKS, "kind": "lstm", "head": "squashed_gaussian"}

    @staticmethod
    def loop_settings(num_envs: int) -> Mapping[str, Any]:
        """Return batches of fewer samples, which are sequences."""
        return SEQUENCE_BATCHES

    @classmethod
    def build_policy(cls, config: RecurrentSACConfig, context: BuildContext) -> ActorPolicy:
        """Build the policy alone."""
        return build_actor(context, "squashed_gaussian", memory=True)

    @classmethod
    def build(cls, config: RecurrentSACConfig, context: BuildContext, terms: Sequence[Term] = ()) -> RecurrentSAC:
        """Build the learner from its config."""
        policy, critic = cls.build_policy(config, context), build_critics(context)
        return cls(policy, critic, context.own_mode(config), sequence=config.sequence, terms=terms)

    def __init__(
        self,
        policy: ActorPolicy,
        critic: QFunction,
        config: SACConfig | None = None,
        kind: CriticKind | None = None,
        *,
        sequence: SequenceConfig | None = None,
        terms: Sequence[Term] = (),
    ) -> None:
        """Create the updaters of both, and copy the critics as targets.

        The rewards of `terms` are added when samples are read.
        """
        self.policy, self.critic, self.kind = policy, critic, kind or ClippedMeans()
        self.kind.check(critic.config.num_members, critic.config.num_outputs)
        self.config, self.sequence = config or SACConfig(), sequence or SequenceConfig()
        config = self.config
        self.temperature = Temperature(config.init_temperature).to(next(policy.parameters()).device)
        low, _, _ = box_bounds(policy.action_spec, "RecurrentSAC")
        self.target_entropy = -float(low.numel()) if config.target_entropy is None else config.target_entropy
        norm, mode, decay = config.max_grad_norm, config.mode, config.weight_decay
        self.actor_updater = module_updater("actor", policy, config.actor_learning_rate, norm, mode, decay)
        self.critic_updater = module_updater("critic", critic, config.critic_learning_rate, norm, mode, decay)
        self.temperature_updater = module_updater(
            "temperature", self.temperature, config.temperature_learning_rate, norm, mode
        )
        self.target = TargetNetwork(critic)
        self.terms = RewardTerms(terms, policy, config.mode)
        self.num_updates = 0
        self._actor: BehaviourActor = BehaviourActor(policy, Sample())

    # -- called by the trainer ----------------------------------------------------------------------------------------

    def view(self) -> View:
        """Return sequences with their burn-in."""
        return SequenceView(self.sequence.length, burn_in=self.sequence.burn_in)

    def replay_state(self) -> ReplayState:
        """Return the spec of the actor's memory in the replay."""
        return ReplayState(self._actor.memory_columns(), self.sequence.state_every)

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of two actions for every step of a sequence, and that of the critic ensemble."""
        spec = sample_noise_spec(self.policy)
        steps = {"action": spec, "next_action": spec, **self.kind.noise(self.critic.config.num_members)}
        return per_step(steps, self.sequence.length)

    # -- one gradient step ---------------------------------------------------------------------------------------------

    def update(
        self, sample: Mapping[str, Any], weight: Tensor | None, noise: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Step the critics, then the actor and the temperature, then update the target networks."""
        minibatch = self.minibatch(sample, weight, noise)
        minibatch["target"] = self.targets(minibatch)
        numbers = self.critic_updater.step(self.critic_losses, minibatch)
        if self.num_updates % self.config.actor_every == 0:
            minibatch["features"] = self.critic_features(minibatch)
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
            numbers["td_error"] = self._priority(minibatch)
        return numbers

    def minibatch(
        self, sample: Mapping[str, Any], weight: Tensor | None, noise: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Return the inputs of the losses, with all memories after the burn-in."""
        clean, burn_in = self.terms.relabelled(cleaned(sample)), self.sequence.burn_in
        return {
            **laid_out(clean, weight, burn_in, gamma=self.config.gamma, n_step=self.config.n_step),
            "noise": flat_noise(noise),
            "state": warmed_up(self.policy, clean, policy_memory(clean["state"]), burn_in),
            "critic_state": self._critic_memory(self.critic, clean),
            "target_state": self._critic_memory(self.target.network, clean),
        }

    @torch.no_grad()
    def _critic_memory(self, critic: QFunction, sample: Mapping[str, Any]) -> dict[str, Tensor]:
        burn_in, valid = self.sequence.burn_in, sample["valid"]
        state = {
            name: torch.zeros(valid.shape[1], *spec.shape, device=valid.device)
            for name, spec in critic.state_spec().items()
        }
        if not burn_in:
            return state
        obs = {name: value[:burn_in] for name, value in sample["obs"].items()}
        after = critic.features(obs, state, sample["resets"][:burn_in], valid[:burn_in])[1]
        return {name: value.clone(memory_format=torch.contiguous_format) for name, value in after.items()}

    @torch.no_grad()
    def targets(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Compute TD targets of the actions taken, [T · B] or [T · B, M]."""
        distribution = self._policy_at("there", minibatch)
        action, log_prob = distribution.sample_with_log_prob(minibatch["noise"]["next_action"])
        features = self._woven(self.target.network, minibatch, "target_state").index_select(0, minibatch["there"])
        members = self.target.network.value(features, action)
        cost = self.temperature.value() * log_prob
        return self.kind.bootstrap(members, minibatch["rew"], minibatch["discount"], cost, minibatch["noise"])

    def critic_losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Return the errors of all critics in the valid steps."""
        members = self._members(minibatch)
        loss = weighted_mean(self.kind.loss(members, minibatch["target"]), minibatch["valid"], minibatch["weight"])
        value = self.kind.means(members.detach()).mean(dim=0)
        return {"critic_loss": (1.0, loss)}, {"q_value": counted_mean(value, minibatch["valid"])}

    def actor_losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Compute the policy loss in the valid steps."""
        distribution = self._policy_at("here", minibatch)
        action, log_prob = distribution.sample_with_log_prob(minibatch["noise"]["action"])
        value = self.kind.for_actor(self.critic.value(minibatch["features"], action))
        loss = counted_mean(self.temperature.value().detach() * log_prob - value, minibatch["valid"])
        return {"actor_loss": (1.0, loss)}, {"entropy": -counted_mean(log_prob.detach(), minibatch["valid"])}

    def _policy_at(self, place: str, minibatch: Mapping[str, Any]) -> Distribution[Any]:
        """Return the policy's distributions at 'here' or 'there'."""
        features = woven_features(self.policy, minibatch, minibatch["state"]).index_select(0, minibatch[place])
        distribution: Distribution[Any] = self.policy.head(features)
        return distribution

    def _members(self, minibatch: Mapping[str, Any]) -> Tensor:
        features = self._woven(self.critic, minibatch, "critic_state").index_select(0, minibatch["here"])
        return self.critic.value(features, minibatch["act"])

    @torch.no_grad()
    def critic_features(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Return the critics' features [T · B, F] at the steps to learn from, without gradient."""
        return self._woven(self.critic, minibatch, "critic_state").index_select(0, minibatch["here"])

    def _woven(self, critic: QFunction, minibatch: Mapping[str, Any], state: str) -> Tensor:
        """Return a critic's features [L · B, F] along the woven sequence."""
        resets, valid = minibatch["woven_resets"], minibatch["woven_valid"]
        features, _ = critic.features(minibatch["woven"], minibatch[state], resets, valid)
        return features.flatten(0, 1)

    @torch.no_grad()
    def _priority(self, minibatch: Mapping[str, Any]) -> Tensor:
        means, shape = self.kind.means(self._members(minibatch)), (self.sequence.length, -1)
        error = (means - self.kind.target_mean(minibatch["target"])).abs().mean(dim=0)
        return sequence_priority(error.view(shape), minibatch["valid"].view(shape), self.sequence.eta)

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
            "terms": self.terms,
        }
