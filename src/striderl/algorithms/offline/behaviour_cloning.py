"""Behaviour cloning: imitate the actions of the data.

loss = -mean_B log π(a|s)      or      mean_B |mode π(s) - a|²      for real-valued actions

Rewards and next observations are not used, so how episodes ended makes no difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from striderl.algorithms.building import OFFLINE, REPLAY_NETWORKS, BuildContext, build_actor, refuse_terms
from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.replay_parts import cleaned, load_parts, module_updater, save_parts
from striderl.algorithms.terms.term import Term
from striderl.collect.actors.behaviours import BehaviourActor, Greedy
from striderl.data.actions import BoxSpec
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.naming import unknown
from striderl.data.noise import NoiseSpec
from striderl.networks.heads.table import DeterministicHead
from striderl.ops.td import weighted_mean
from striderl.policies.actor_policy import ActorPolicy
from striderl.storage.replay.replay import View
from striderl.storage.replay.samplers import Sampler, Uniform
from striderl.storage.replay.views import NStep

LOSSES = ("log_prob", "mse")


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class BehaviourCloningConfig:
    """Settings of behaviour cloning."""

    loss: str = "log_prob"
    """'log_prob': the likelihood of the actions; 'mse': the distance of the mode, for real-valued actions."""
    learning_rate: float = 1e-3
    """Of the policy."""
    max_grad_norm: float = 0.0
    """Gradients are clipped to this norm; 0 means never."""
    mode: str = ""
    """How gradient steps are run: 'eager', 'compiled', 'graphed' (CUDA) or 'auto'; empty: the run's own mode, and
    without a run eagerly."""

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ValueError(unknown("loss", self.loss, LOSSES, where="BehaviourCloningConfig"))
        check_field_types(self)


class BehaviourCloning:
    """Losses and the update of behaviour cloning for a policy."""

    Config = BehaviourCloningConfig
    summary = "behaviour cloning of a dataset"
    loop = OFFLINE
    learns_in_ranks = True
    policy_settings: ClassVar[Mapping[str, Any]] = REPLAY_NETWORKS

    @classmethod
    def build_policy(cls, config: BehaviourCloningConfig, context: BuildContext) -> ActorPolicy:
        """Build the policy alone."""
        return build_actor(context)

    @classmethod
    def build(
        cls, config: BehaviourCloningConfig, context: BuildContext, terms: Sequence[Term] = ()
    ) -> BehaviourCloning:
        """Build the learner from its config; it takes no terms."""
        refuse_terms(context, terms)
        return cls(cls.build_policy(config, context), context.own_mode(config))

    def __init__(self, policy: ActorPolicy, config: BehaviourCloningConfig | None = None) -> None:
        """Create the updater of the policy."""
        self.policy = policy
        self.config = config = config or BehaviourCloningConfig()
        if config.loss == "log_prob":
            check_likelihood(policy)
        elif not isinstance(policy.action_spec, BoxSpec):
            raise ValueError(f"loss 'mse' is for real-valued actions, found {type(policy.action_spec).__name__}")
        self.updater = module_updater("policy", policy, config.learning_rate, config.max_grad_norm, config.mode)
        self._actor = BehaviourActor(policy, Greedy())

    def actor(self) -> BehaviourActor:
        """Return the actor that would collect: the policy's mode."""
        return self._actor

    def view(self) -> View:
        """Return single steps."""
        return NStep(1, gamma=1.0)

    def sampler(self, seed: int) -> Sampler:
        """Return a uniform sampler."""
        return Uniform(seed=seed)

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return nothing: a step draws nothing."""
        return {}

    def explore(self, env_steps: int, *, random: bool) -> None:
        """Act at random before learning starts."""
        self._actor.random = random
        self._actor.at(env_steps)

    def update(
        self, sample: Mapping[str, Any], weight: Tensor | None, noise: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Take one step towards the actions of the sample."""
        return self.updater.step(self.losses, {**cleaned(sample), "weight": weight})

    def losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Compute the imitation loss."""
        distribution, _, _ = self.policy.act(minibatch["obs"], {}, {})
        valid = minibatch["valid"]
        if self.config.loss == "mse":
            error = (distribution.mode() - minibatch["act"]).square().flatten(1).mean(dim=-1)
        else:
            error = -distribution.log_prob(minibatch["act"])
        return {"imitation_loss": (1.0, weighted_mean(error, valid, minibatch["weight"]))}, {}

    @torch.no_grad()
    def update_normalization(self, columns: Mapping[str, Any]) -> None:
        """Update the normalisers from samples."""
        self.policy.update_normalization(columns["obs"], columns["valid"])

    def _parts(self) -> dict[str, Any]:
        return {"policy": self.policy, "updater": self.updater}

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything learned."""
        return save_parts(self._parts())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        load_parts(self._parts(), state)


def check_likelihood(policy: ActorPolicy) -> None:
    """Raise when a policy has no likelihood of actions: the loss would have no gradient."""
    if isinstance(policy.head, DeterministicHead):
        raise ValueError("a deterministic head has no likelihood to learn from; use another head, or loss='mse'")


BC = BehaviourCloning
"""The short name of the field."""
