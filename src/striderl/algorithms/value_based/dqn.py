"""Deep Q-learning (Mnih et al. 2015): double, dueling, n-step and prioritized as settings.

    sample ─▶ target  y = r + discount · Q'(s', a*),   a* = argmax Q(s', ·) (double) or argmax Q'(s', ·)
           ─▶ loss    mean_B weight · huber(Q(s, a) - y)

`discount` is 0 where an episode terminated and gamma^n elsewhere, time limits included. Choices that a mask forbids in
s' are never a*. What is learned about a choice is passed in as `kind`: its mean (`Means`, here), or
its distribution (`distributional.py`). `q_policy` makes the network that fits.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from striderl.algorithms.building import OFF_POLICY, REPLAY_NETWORKS, BuildContext
from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.replay_parts import (
    OffPolicyLearner,
    TargetNetwork,
    cleaned,
    counted,
    module_updater,
    sampler_for,
)
from striderl.algorithms.reward_terms import RewardTerms
from striderl.algorithms.terms.term import Term
from striderl.collect.actors.behaviours import BehaviourActor, EpsilonGreedy, ExploringActor
from striderl.data.actions import ActionSpec, DiscreteSpec
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec
from striderl.networks.distributions.deterministic import QValues
from striderl.networks.heads.base import NO_OBS, Head
from striderl.networks.heads.value import QHead
from striderl.ops.ramps import Ramp
from striderl.ops.td import counted_mean, huber, rescaled, td_target, unscaled, weighted_mean
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.settings import actor_config, head_settings
from striderl.storage.replay.samplers import Sampler

_LOOKS = ("now", "next", "target")
"""The network on this state, on the next one to choose, and the target on the next one."""


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class DQNConfig:
    """Settings of DQN."""

    gamma: float = 0.99
    """Discount per step."""
    n_step: int = 1
    """Rewards that are summed before bootstrapping from the value."""
    double: bool = True
    """Choose the next action with the learning network, value it with the target."""
    target_every: int = 100
    """Gradient steps between two moves of the target network; each move extends the horizon of values by one n_step."""
    tau: float = 1.0
    """How far it moves; 1 makes it equal."""
    learning_rate: float = 5e-4
    """Of the Q-network; 1e-4 to 1e-3 is usual."""
    max_grad_norm: float = 10.0
    """Gradients are clipped to this norm; 0 means never."""
    epsilon: Ramp = field(default_factory=lambda: Ramp(start=1.0, end=0.05, num_steps=10_000))
    """Probability of a random action, over env steps."""
    prioritized: bool = False
    """Sample by TD error instead of uniformly."""
    alpha: float = 0.6
    """How much priorities matter; 0 is uniform."""
    beta: float = 0.4
    """How much of the bias of prioritized sampling is corrected at first; it grows to 1."""
    mode: str = ""
    """How gradient steps are run: 'eager', 'compiled', 'graphed' (CUDA) or 'auto'; empty: the run's own mode, and
    without a run eagerly."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not 0.0 <= self.gamma <= 1.0 or not 0.0 < self.tau <= 1.0:
            raise ValueError(f"gamma is in [0, 1] and tau in (0, 1], found {self.gamma} and {self.tau}")
        if self.n_step < 1 or self.target_every < 1:
            raise ValueError(f"n_step and target_every are at least 1, found {self.n_step} and {self.target_every}")


class Judged(NamedTuple):
    """The outputs of a kind for the actions of a minibatch, [B] each."""

    loss: Tensor
    """The loss."""
    value: Tensor
    """The Q-values of the actions."""
    error: Tensor
    """The priority of each sample."""


class QKind(Protocol):
    """What is learned about each choice: its mean, or its distribution."""

    def head(self, input_size: int, action_spec: DiscreteSpec) -> Head[Any]:
        """Build the head."""
        ...

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the random numbers that one sample needs in one gradient step, besides those of noisy layers."""
        ...

    def targets(self, seen: Seen, choice: Tensor | None, minibatch: Mapping[str, Any]) -> Tensor:
        """Compute TD targets, [B] or [B, M]; `seen(policy)` reads the next state with the target.

        `choice` is the next action when it was chosen by the learning network, else the target chooses.
        """
        ...

    def judge(self, seen: Seen, minibatch: Mapping[str, Any]) -> Judged:
        """Compute the loss of the network for the actions taken against the targets."""
        ...


class Seen(Protocol):
    """A network bound to one side of the minibatch."""

    def __call__(self, extra: Mapping[str, Tensor] = ..., /) -> Any:
        """Return the head's distribution; `extra` are further components for the head."""
        ...


class Means:
    """Learns the mean of the returns: plain Q-learning."""

    def __init__(self, *, dueling: bool = False, noisy: bool = False, rescale: bool = False) -> None:
        """Set the form of the head; `rescale` learns h(Q) instead of Q, for returns of very different sizes."""
        self.dueling, self.noisy, self.rescale = dueling, noisy, rescale

    def head(self, input_size: int, action_spec: DiscreteSpec) -> Head[Any]:
        """Build one Q-value per choice."""
        return QHead(input_size, action_spec.n, dueling=self.dueling, mask=action_spec.mask, noisy=self.noisy)

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return nothing."""
        return {}

    def targets(self, seen: Seen, choice: Tensor | None, minibatch: Mapping[str, Any]) -> Tensor:
        """Return r + discount · Q'(s', a*)."""
        slow: QValues = seen()
        value = slow.values.amax(dim=-1) if choice is None else slow.value_of(choice)
        if not self.rescale:
            return td_target(minibatch["rew"], minibatch["discount"], value)
        return rescaled(td_target(minibatch["rew"], minibatch["discount"], unscaled(value)))

    def judge(self, seen: Seen, minibatch: Mapping[str, Any]) -> Judged:
        """Return the Huber loss."""
        values: QValues = seen()
        value = values.value_of(minibatch["act"])
        difference = value - minibatch["target"]
        return Judged(huber(difference), value.detach(), difference.detach().abs())


def q_policy(
    obs_spec: ObsSpec, action_spec: ActionSpec, config: ActorConfig | None = None, kind: QKind | None = None
) -> ActorPolicy:
    """Build the network of a Q-learner: stages and layers of the config, then the head of the kind."""
    if not isinstance(action_spec, DiscreteSpec):
        raise TypeError(f"DQN wants one discrete action, found {type(action_spec).__name__}")
    made = kind or Means()
    return ActorPolicy(obs_spec, action_spec, config, make_head=lambda size: made.head(size, action_spec))


def build_q_network(context: BuildContext, kind: QKind, *, memory: bool = False) -> ActorPolicy:
    """Build the Q-network of a run; its seed sets the initial weights."""
    head_settings(context.networks, context.action_spec)  # raises for a setting of a head that is not used
    config = actor_config(context.networks, context.obs_spec, {}, memory=memory)
    with context.seeded():
        return q_policy(context.obs_spec, context.action_spec, config, kind).to(context.device)


class DQN(OffPolicyLearner):
    """Losses, targets and the update of DQN for a Q-network."""

    config: DQNConfig
    Config: ClassVar[type[Any]] = DQNConfig
    summary = "deep Q-learning from replay, for choices"
    loop = OFF_POLICY
    learns_in_ranks = True
    actions = frozenset({"discrete"})
    takes_terms = True
    policy_settings: ClassVar[Mapping[str, Any]] = REPLAY_NETWORKS

    @classmethod
    def kind_of(cls, config: Any) -> QKind:
        """Return what is learned about each choice, by the config of this algorithm."""
        return Means()

    @classmethod
    def build_policy(cls, config: Any, context: BuildContext) -> ActorPolicy:
        """Build the Q-network alone."""
        return build_q_network(context, cls.kind_of(config))

    @classmethod
    def build(cls, config: Any, context: BuildContext, terms: Sequence[Term] = ()) -> DQN:
        """Build the learner from its config."""
        return cls(cls.build_policy(config, context), context.own_mode(config), terms=terms)

    def __init__(
        self,
        policy: ActorPolicy,
        config: DQNConfig | None = None,
        kind: QKind | None = None,
        *,
        actor: ExploringActor | None = None,
        terms: Sequence[Term] = (),
    ) -> None:
        """Create the updater of the network and copy it as the target; `kind` is what it was made with.

        `actor` collects instead of ε-greedy choices; the rewards of `terms` are added when samples are read.
        """
        self.config = config = config or self.Config()
        self.policy, self.kind = policy, kind or self.kind_of(config)
        self.updater = module_updater("policy", policy, config.learning_rate, config.max_grad_norm, config.mode)
        self.target = TargetNetwork(policy)
        self.num_updates = 0
        self._actor = actor or BehaviourActor(policy, EpsilonGreedy(policy.action_spec, config.epsilon))
        self.terms = RewardTerms(terms, policy, config.mode)

    # -- called by the trainer ----------------------------------------------------------------------------------------

    def sampler(self, seed: int) -> Sampler:
        """Return a uniform or prioritized sampler."""
        return sampler_for(seed, self.config.prioritized, alpha=self.config.alpha, beta=self.config.beta)

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of the kind, and that of noisy layers for each of three forward passes."""
        noisy = self.policy.head.head_noise()
        looks = {f"{look}/{name}": spec for look in _LOOKS for name, spec in noisy.items()}
        return {**self.kind.noise(), **looks}

    def graph_key(self) -> Hashable:
        """Return whether the target network moves after the next gradient step, and what is not frozen."""
        return (self.num_updates + 1) % self.config.target_every == 0, self.updater.trainable()

    # -- one gradient step ---------------------------------------------------------------------------------------------

    def update(
        self, sample: Mapping[str, Any], weight: Tensor | None, noise: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Step the network, and move the target when it is due."""
        minibatch = cleaned(sample)
        minibatch |= {"weight": weight, "noise": noise}
        if self.config.prioritized:
            minibatch["target"] = self.targets(minibatch)
        numbers = self.updater.step(self.losses, minibatch)
        numbers |= self.terms.step(minibatch)
        self.num_updates += 1
        if self.num_updates % self.config.target_every == 0:
            self.target.follow(self.config.tau)
        if self.config.prioritized:
            with torch.no_grad():
                numbers["td_error"] = self.kind.judge(self._look("now", self.policy, minibatch), minibatch).error
        return numbers

    @torch.no_grad()
    def targets(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Compute TD targets of the actions taken."""
        # forbidden choices have the least value there is
        choice = self._look("next", self.policy, minibatch)().values.argmax(dim=-1) if self.config.double else None
        return self.kind.targets(self._look("target", self.target.network, minibatch), choice, minibatch)

    def losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Return the loss of the actions taken; targets that are not given are computed, as a part of one program."""
        if "target" not in minibatch:
            minibatch = {**minibatch, "target": self.targets(minibatch)}
        judged = self.kind.judge(self._look("now", self.policy, minibatch), minibatch)
        loss = weighted_mean(judged.loss, counted(minibatch), minibatch["weight"])
        return {"q_loss": (1.0, loss)}, {"q_value": counted_mean(judged.value, counted(minibatch))}

    def _look(self, look: str, policy: ActorPolicy, minibatch: Mapping[str, Any]) -> Seen:
        """Return a network on this state or the next, with noise of its own in noisy layers."""
        obs = minibatch["obs" if look == "now" else "obs_next"]
        noisy = {name: minibatch["noise"][f"{look}/{name}"] for name in policy.head.head_noise()}

        def seen(extra: Mapping[str, Tensor] = NO_OBS, /) -> Any:
            distribution, _, _ = policy.act({**obs, **noisy, **extra}, {}, {})
            return distribution

        return seen

    # -- saving --------------------------------------------------------------------------------------------------------

    def _parts(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "target": self.target,
            "updater": self.updater,
            "actor": self._actor,
            "terms": self.terms,
        }
