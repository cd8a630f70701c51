"""Deep Q-learning (Mnih et al. 2015): double, dueling, n-step and prioritized as settings.

    sample ─▶ target  y = r + discount · Q'(s', a*),   a* = argmax Q(s', ·) (double) or argmax Q'(s', ·)
           ─▶ loss    mean_B weight · huber(Q(s, a) - y)

`discount` is 0 where an episode terminated and gamma^n elsewhere, time limits included. Choices that a mask forbids in
s' are never a*. The networks are an `ActorPolicy` with a Q head, made by `q_policy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.replay_parts import load_parts, module_updater, picker_for, save_parts
from striderl.algorithms.target_network import TargetNetwork
from striderl.collect.behaviour_actor import BehaviourActor
from striderl.collect.behaviours import EpsilonGreedy
from striderl.data.actions import ActionSpec, DiscreteSpec
from striderl.data.checked_fields import check_field_types
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec
from striderl.networks.deterministic import QValues
from striderl.networks.value_heads import QHead
from striderl.ops.losses import valid_mean
from striderl.ops.ramps import Ramp
from striderl.ops.td import huber, td_target, weighted_mean
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.storage.pickers import Picker
from striderl.storage.replay import View
from striderl.storage.views import NStep


@dataclass(frozen=True, kw_only=True)
class DQNConfig:
    """Settings of DQN."""

    gamma: float = 0.99
    """Discount per step."""
    n_step: int = 1
    """Rewards that are summed before the value is trusted."""
    double: bool = True
    """Choose the next action with the learning network, value it with the target."""
    target_every: int = 500
    """Gradient steps between two moves of the target network."""
    tau: float = 1.0
    """How far it moves; 1 makes it equal."""
    learning_rate: float = 2.5e-4
    """Of the Q-network."""
    max_grad_norm: float = 10.0
    """Gradients are scaled down to this norm; 0 means never."""
    epsilon: Ramp = field(default_factory=lambda: Ramp(start=1.0, end=0.05, num_steps=10_000))
    """Probability of a random action, over env steps."""
    prioritized: bool = False
    """Sample by TD error instead of uniformly."""
    alpha: float = 0.6
    """How much priorities matter; 0 is uniform."""
    beta: float = 0.4
    """How much of the bias of prioritized sampling is corrected at first; it grows to 1."""
    mode: str = "eager"
    """How gradient steps are run: 'eager' or 'compiled'."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not 0.0 <= self.gamma <= 1.0 or not 0.0 < self.tau <= 1.0:
            raise ValueError(f"gamma is in [0, 1] and tau in (0, 1], found {self.gamma} and {self.tau}")
        if self.n_step < 1 or self.target_every < 1:
            raise ValueError(f"n_step and target_every are at least 1, found {self.n_step} and {self.target_every}")


def q_policy(
    obs_spec: ObsSpec, action_spec: ActionSpec, config: ActorConfig | None = None, *, dueling: bool = False
) -> ActorPolicy:
    """Build the network of DQN: stages and layers of the config, then one Q-value per choice."""
    if not isinstance(action_spec, DiscreteSpec):
        raise TypeError(f"DQN wants one discrete action, found {type(action_spec).__name__}")
    return ActorPolicy(
        obs_spec,
        action_spec,
        config,
        make_head=lambda size: QHead(size, action_spec.n, dueling=dueling, mask=action_spec.mask),
    )


class DQN:
    """Losses, targets and the update of DQN for a Q-network."""

    def __init__(self, policy: ActorPolicy, config: DQNConfig | None = None) -> None:
        """Take the network's parameters into an updater, and copy it as the target."""
        self.policy = policy
        self.config = config = config or DQNConfig()
        self.updater = module_updater("policy", policy, config.learning_rate, config.max_grad_norm, config.mode)
        self.target = TargetNetwork(policy)
        self.num_updates = 0
        self._actor = BehaviourActor(policy, EpsilonGreedy(policy.action_spec, config.epsilon))

    # -- what the trainer asks -----------------------------------------------------------------------------------------

    def actor(self) -> BehaviourActor:
        """Return who collects: ε-greedy."""
        return self._actor

    def view(self) -> View:
        """Return n-step samples."""
        return NStep(self.config.n_step, gamma=self.config.gamma)

    def picker(self, seed: int) -> Picker:
        """Return uniform or prioritized picking."""
        return picker_for(seed, self.config.prioritized, alpha=self.config.alpha, beta=self.config.beta)

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return nothing: a step draws nothing."""
        return {}

    def explore(self, env_steps: int, *, random: bool) -> None:
        """Set ε, or act at random before learning starts."""
        self._actor.random = random
        self._actor.behaviour.at(env_steps)

    # -- one gradient step ---------------------------------------------------------------------------------------------

    def update(
        self, sample: Mapping[str, Any], weight: Tensor | None, noise: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Step the network, and move the target when it is time."""
        minibatch = {**sample, "weight": weight}
        minibatch["target"] = self.targets(minibatch)
        numbers = self.updater.step(self.losses, minibatch)
        self.num_updates += 1
        if self.num_updates % self.config.target_every == 0:
            self.target.follow(self.config.tau)
        if self.config.prioritized:
            numbers["td_error"] = self._td_error(minibatch)
        return numbers

    @torch.no_grad()
    def targets(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Return what the network should say about the actions taken."""
        slow = _values(self.target.network, minibatch["obs_next"])
        choice = _values(self.policy, minibatch["obs_next"]).mode() if self.config.double else slow.mode()
        return td_target(minibatch["rew"], minibatch["discount"], slow.value_of(choice))

    def losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Return the Huber loss of the actions taken."""
        value = _values(self.policy, minibatch["obs"]).value_of(minibatch["act"])
        loss = weighted_mean(huber(value - minibatch["target"]), minibatch["valid"], minibatch["weight"])
        return {"q_loss": (1.0, loss)}, {"q_value": valid_mean(value.detach(), minibatch["valid"])}

    @torch.no_grad()
    def _td_error(self, minibatch: Mapping[str, Any]) -> Tensor:
        error: Tensor = (_values(self.policy, minibatch["obs"]).value_of(minibatch["act"]) - minibatch["target"]).abs()
        return error

    @torch.no_grad()
    def absorb(self, columns: Mapping[str, Any]) -> None:
        """Let the normalisers learn from samples."""
        self.policy.absorb(columns["obs"], columns["valid"])

    # -- saving --------------------------------------------------------------------------------------------------------

    def _parts(self) -> dict[str, Any]:
        return {"policy": self.policy, "target": self.target, "updater": self.updater}

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything learned."""
        return {**save_parts(self._parts()), "num_updates": self.num_updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what was saved."""
        load_parts(self._parts(), state)
        self.num_updates = int(state["num_updates"])


def _values(policy: ActorPolicy, obs: Mapping[str, Tensor]) -> QValues:
    distribution, _, _ = policy.act(obs, {}, {})
    if not isinstance(distribution, QValues):
        raise TypeError(f"DQN wants a policy with a Q head; make it with q_policy, not {type(policy.head).__name__}")
    return distribution
