"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018), and DDPG (Lillicrap et al. 2016) as settings.

    sample ─▶ target  y = r + discount · min_k Q'_k(s', π'(s') + clipped noise)
           ─▶ critic  mean_B Σ_k (Q_k(s, a) - y)²
           ─▶ actor   -mean_B Q_0(s, π(s)),   every `actor_every` steps, together with the target networks

DDPG is TD3 with one critic, no smoothing noise, an actor step every time, and an Ornstein-Uhlenbeck walk for
exploration. `discount` is 0 where an episode terminated and gamma^n elsewhere, time limits included.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from striderl.algorithms.actor_critic.critic_kinds import ClippedMeans, CriticKind
from striderl.algorithms.building import OFF_POLICY, REPLAY_NETWORKS, BuildContext, build_actor, build_critics
from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.replay_parts import (
    OffPolicyLearner,
    TargetNetwork,
    check_head,
    cleaned,
    counted,
    frozen,
    module_updater,
)
from striderl.algorithms.reward_terms import RewardTerms
from striderl.algorithms.terms.term import Term
from striderl.collect.actors.behaviours import (
    Behaviour,
    BehaviourActor,
    ExploringActor,
    GaussianNoise,
    OrnsteinUhlenbeck,
    box_bounds,
)
from striderl.data.actions import ActionSpec
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec
from striderl.ops.td import counted_mean, weighted_mean
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.value_functions import QFunction, QFunctionConfig


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class TD3Config:
    """Settings of TD3."""

    gamma: float = 0.99
    """Discount per step."""
    n_step: int = 1
    """Rewards that are summed before bootstrapping from the value."""
    tau: float = 0.005
    """How far the targets move in each of their updates."""
    actor_learning_rate: float = 1e-3
    """Of the policy; 3e-4 to 1e-3 is usual."""
    critic_learning_rate: float = 1e-3
    """Of the Q-functions; 3e-4 to 1e-3 is usual."""
    actor_every: int = 2
    """Steps of the critics per step of the actor and the targets."""
    exploration_std: float = 0.1
    """Noise on the actions while collecting, in units of half their range."""
    smoothing_std: float = 0.2
    """Noise on the target's actions, in the same units; 0 for none."""
    smoothing_clip: float = 0.5
    """That noise is kept within this."""
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
        if min(self.exploration_std, self.smoothing_std, self.smoothing_clip) < 0.0:
            raise ValueError("exploration_std, smoothing_std and smoothing_clip are not negative")


def ddpg_config(*, actor_learning_rate: float = 1e-3, critic_learning_rate: float = 1e-3) -> TD3Config:
    """Return the settings that make TD3 into DDPG; give it a `QFunction` with one member."""
    return TD3Config(
        actor_learning_rate=actor_learning_rate,
        critic_learning_rate=critic_learning_rate,
        actor_every=1,
        smoothing_std=0.0,
    )


class TD3(OffPolicyLearner):
    """Losses, targets and the update of TD3 for a deterministic policy and its Q-functions."""

    config: TD3Config
    Config: ClassVar[type[Any]] = TD3Config
    summary = "twin delayed deterministic policy gradient from replay, for real-valued actions"
    loop = OFF_POLICY
    learns_in_ranks = True
    actions = frozenset({"box"})
    takes_terms = True
    policy_settings: ClassVar[Mapping[str, Any]] = {**REPLAY_NETWORKS, "head": "deterministic"}

    @classmethod
    def build_policy(cls, config: Any, context: BuildContext) -> ActorPolicy:
        """Build the policy alone."""
        return build_actor(context, "deterministic")

    @classmethod
    def build(cls, config: Any, context: BuildContext, terms: Sequence[Term] = ()) -> TD3:
        """Build the learner from its config."""
        policy = cls.build_policy(config, context)
        return cls(policy, build_critics(context), context.own_mode(config), terms=terms)

    def __init__(
        self,
        policy: ActorPolicy,
        critic: QFunction,
        config: TD3Config | None = None,
        *,
        behaviour: Behaviour | None = None,
        kind: CriticKind | None = None,
        actor: ExploringActor | None = None,
        terms: Sequence[Term] = (),
    ) -> None:
        """Create the updaters of both, and copy both as targets; Gaussian noise explores by default.

        `kind` is how the critics are reduced, `actor` replaces the policy with a behaviour, and the rewards of
        `terms` are added when samples are read.
        """
        check_head(policy, "TD3", deterministic=True)
        self.policy, self.critic, self.kind = policy, critic, kind or ClippedMeans()
        self.kind.check(critic.config.num_members, critic.config.num_outputs)
        if behaviour is not None and actor is not None:
            raise ValueError("TD3 takes a behaviour or an actor; the actor has a behaviour of its own")
        self.config = config = config or TD3Config()
        self.actor_updater = module_updater(
            "actor", policy, config.actor_learning_rate, config.max_grad_norm, config.mode, config.weight_decay
        )
        self.critic_updater = module_updater(
            "critic", critic, config.critic_learning_rate, config.max_grad_norm, config.mode, config.weight_decay
        )
        self.target_policy, self.target_critic = TargetNetwork(policy), TargetNetwork(critic)
        low, high, scale = box_bounds(policy.action_spec, "TD3")
        device = next(policy.parameters()).device
        self._low, self._high, self._scale = low.to(device), high.to(device), scale.to(device)
        self.num_updates = 0
        if behaviour is None:
            behaviour = GaussianNoise(policy.action_spec, config.exploration_std)
        self._actor = actor or BehaviourActor(policy, behaviour)
        self.terms = RewardTerms(terms, policy, config.mode)

    # -- called by the trainer ----------------------------------------------------------------------------------------

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the smoothing noise, and that of the critic ensemble."""
        smoothing = NoiseSpec(shape=tuple(self._low.shape), kind="normal")
        return {"smoothing": smoothing, **self.kind.noise(self.critic.config.num_members)}

    def graph_key(self) -> Hashable:
        """Return whether actor and targets are updated in the next gradient step, and what is not frozen."""
        updaters = (self.actor_updater, self.critic_updater)
        return (self.num_updates + 1) % self.config.actor_every == 0, *(each.trainable() for each in updaters)

    # -- one gradient step ---------------------------------------------------------------------------------------------

    def update(
        self, sample: Mapping[str, Any], weight: Tensor | None, noise: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Step the critics; every so often the actor, and update the target networks."""
        minibatch = {**cleaned(sample), "weight": weight, "noise": noise}
        if self.config.prioritized:
            minibatch["target"] = self.targets(minibatch)
        numbers = self.critic_updater.step(self.critic_losses, minibatch)
        numbers |= self.terms.step(minibatch)
        self.num_updates += 1
        if self.num_updates % self.config.actor_every == 0:
            with frozen(self.critic):
                numbers |= self.actor_updater.step(self.actor_losses, minibatch)
            self.target_policy.follow(self.config.tau)
            self.target_critic.follow(self.config.tau)
        if self.config.prioritized:
            numbers["td_error"] = self._td_error(minibatch)
        return numbers

    @torch.no_grad()
    def targets(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Compute TD targets."""
        distribution, _, _ = self.target_policy.network.act(minibatch["obs_next"], {}, {})
        wobble = (self.config.smoothing_std * minibatch["noise"]["smoothing"]).clamp(
            -self.config.smoothing_clip, self.config.smoothing_clip
        )
        action = (distribution.mode() + self._scale * wobble).clamp(self._low, self._high)
        members = self.target_critic.network(minibatch["obs_next"], action)
        return self.kind.bootstrap(members, minibatch["rew"], minibatch["discount"], None, minibatch["noise"])

    def critic_losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Return the errors of all critics; targets that are not given are computed, as a part of one program."""
        target = minibatch["target"] if "target" in minibatch else self.targets(minibatch)
        members = self.critic(minibatch["obs"], minibatch["act"])
        loss = weighted_mean(self.kind.loss(members, target), counted(minibatch), minibatch["weight"])
        value = self.kind.means(members.detach()).mean(dim=0)
        return {"critic_loss": (1.0, loss)}, {"q_value": counted_mean(value, counted(minibatch))}

    def actor_losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Return minus the value of the policy's actions."""
        distribution, _, _ = self.policy.act(minibatch["obs"], {}, {})
        value = self.kind.means(self.critic(minibatch["obs"], distribution.mode()))[0]
        return {"actor_loss": (1.0, -counted_mean(value, counted(minibatch)))}, {}

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
            "target_policy": self.target_policy,
            "target_critic": self.target_critic,
            "actor_updater": self.actor_updater,
            "critic_updater": self.critic_updater,
            "actor": self._actor,
            "terms": self.terms,
        }


# -- DDPG --------------------------------------------------------------------------------------------------------------


def ddpg(
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    *,
    actor: ActorConfig | None = None,
    critic: QFunctionConfig | None = None,
    config: TD3Config | None = None,
    behaviour: Behaviour | None = None,
) -> TD3:
    """Build DDPG for these observations and actions; `behaviour` replaces the walk."""
    policy = ActorPolicy(obs_spec, action_spec, actor or ActorConfig(head="deterministic"))
    members = replace(critic or QFunctionConfig(), num_members=1)
    walk = behaviour or OrnsteinUhlenbeck(action_spec, sigma=0.2)
    return TD3(policy, QFunction(obs_spec, action_spec, members), config or ddpg_config(), behaviour=walk)


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class DDPGConfig(TD3Config):
    """Settings of DDPG: those of TD3 with other defaults."""

    actor_learning_rate: float = 1e-3
    """Of the policy."""
    critic_learning_rate: float = 1e-3
    """Of the Q-function."""
    actor_every: int = 1
    """Steps of the critic per step of the actor."""
    smoothing_std: float = 0.0
    """Noise of target actions; DDPG has none."""
    walk_std: float = 0.2
    """Strength of the Ornstein-Uhlenbeck walk that explores, as a share of half the action's range."""


class DDPG(TD3):
    """TD3 with one critic, no smoothing, and a walk that explores."""

    Config: ClassVar[type[Any]] = DDPGConfig
    summary = "deep deterministic policy gradient from replay, for real-valued actions"

    @classmethod
    def build(cls, config: DDPGConfig, context: BuildContext, terms: Sequence[Term] = ()) -> DDPG:
        """Build the learner from its config."""
        policy, critic = cls.build_policy(config, context), build_critics(context, num_members=1)
        walk = OrnsteinUhlenbeck(context.action_spec, sigma=config.walk_std)
        return cls(policy, critic, context.own_mode(config), behaviour=walk, terms=terms)
