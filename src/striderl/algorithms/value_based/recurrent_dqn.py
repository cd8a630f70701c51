"""DQN for networks with memory, from replayed sequences (R2D2, Kapturowski et al. 2019).

    stored memory ─ burn-in ─▶ network along the woven sequence ─▶ Q(s_t, ·), Q(s_{t+n}, ·)
    target  y = Σ r + discount · Q'(s_{t+n}, a*)               windows of n steps within the sequence
    loss    mean over steps and sequences; priority of a sequence: η · largest + (1 - η) · mean error

Every kind of DQN works (`Means(rescale=True)` is R2D2's own); so do double, dueling and noisy. The collecting actor
stores its memory in the replay: `replay_state` defines what and how often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from striderl.algorithms.building import OFF_POLICY, REPLAY_NETWORKS, BuildContext
from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.replay_parts import OffPolicyLearner, TargetNetwork, cleaned, module_updater, sampler_for
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
from striderl.algorithms.value_based.dqn import DQNConfig, Judged, Means, QKind, Seen, build_q_network
from striderl.collect.actors.behaviours import BehaviourActor, EpsilonGreedy, policy_memory
from striderl.data.checked_fields import suggests_fields
from striderl.data.noise import NoiseSpec
from striderl.networks.heads.base import NO_OBS
from striderl.ops.td import counted_mean, weighted_mean
from striderl.ops.trajectories import sequence_priority
from striderl.policies.actor_policy import ActorPolicy
from striderl.storage.replay.replay import View
from striderl.storage.replay.samplers import Sampler
from striderl.storage.replay.views import SequenceView

_LOOKS = ("now", "next", "target")


class RecurrentDQN(OffPolicyLearner):
    """Losses, targets and the update of DQN on sequences."""

    config: DQNConfig

    @staticmethod
    def loop_settings(num_envs: int) -> Mapping[str, Any]:
        """Return batches of fewer samples, which are sequences."""
        return SEQUENCE_BATCHES

    def __init__(
        self,
        policy: ActorPolicy,
        config: DQNConfig | None = None,
        kind: QKind | None = None,
        *,
        sequence: SequenceConfig | None = None,
        terms: Sequence[Term] = (),
    ) -> None:
        """Create the updater of the network and copy it as the target; `kind` is what it was made with.

        The rewards of `terms` are added when samples are read.
        """
        self.policy, self.kind = policy, kind or Means()
        self.config, self.sequence = config or DQNConfig(), sequence or SequenceConfig()
        config = self.config
        self.updater = module_updater("policy", policy, config.learning_rate, config.max_grad_norm, config.mode)
        self.target = TargetNetwork(policy)
        self.terms = RewardTerms(terms, policy, config.mode)
        self.num_updates = 0
        self._actor: BehaviourActor = BehaviourActor(policy, EpsilonGreedy(policy.action_spec, config.epsilon))

    # -- called by the trainer ----------------------------------------------------------------------------------------

    def view(self) -> View:
        """Return sequences with their burn-in."""
        return SequenceView(self.sequence.length, burn_in=self.sequence.burn_in)

    def sampler(self, seed: int) -> Sampler:
        """Return a uniform or prioritized sampler of the starts of sequences."""
        return sampler_for(seed, self.config.prioritized, alpha=self.config.alpha, beta=self.config.beta)

    def replay_state(self) -> ReplayState:
        """Return the spec of the actor's memory in the replay."""
        return ReplayState(self._actor.memory_columns(), self.sequence.state_every)

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of the kind and of noisy layers, for every step of a sequence."""
        noisy = self.policy.head.head_noise()
        looks = {f"{look}/{name}": spec for look in _LOOKS for name, spec in noisy.items()}
        return per_step({**self.kind.noise(), **looks}, self.sequence.length)

    # -- one gradient step ---------------------------------------------------------------------------------------------

    def update(
        self, sample: Mapping[str, Any], weight: Tensor | None, noise: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Step the network, and move the target when it is due."""
        minibatch = self.minibatch(sample, weight, noise)
        if self.config.prioritized:
            minibatch["slow"] = self._slow(minibatch)  # read twice
        numbers = self.updater.step(self.losses, minibatch)
        numbers |= self.terms.step(minibatch)
        self.num_updates += 1
        if self.num_updates % self.config.target_every == 0:
            self.target.follow(self.config.tau)
        if self.config.prioritized:
            numbers["td_error"] = self._priority(minibatch)
        return numbers

    def minibatch(
        self, sample: Mapping[str, Any], weight: Tensor | None, noise: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Return the inputs of the losses, with the memories of both networks after the burn-in."""
        clean, burn_in = self.terms.relabelled(cleaned(sample)), self.sequence.burn_in
        stored = policy_memory(clean["state"])
        return {
            **laid_out(clean, weight, burn_in, gamma=self.config.gamma, n_step=self.config.n_step),
            "noise": flat_noise(noise),
            "state": warmed_up(self.policy, clean, stored, burn_in),
            "target_state": warmed_up(self.target.network, clean, stored, burn_in),
        }

    def losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Return the loss of the actions taken in the valid steps."""
        judged = self._judged(minibatch)
        loss = weighted_mean(judged.loss, minibatch["valid"], minibatch["weight"])
        return {"q_loss": (1.0, loss)}, {"q_value": counted_mean(judged.value, minibatch["valid"])}

    def _judged(self, minibatch: Mapping[str, Any]) -> Judged:
        """Judge the actions taken by their targets; the network runs once along the sequence for both."""
        features = woven_features(self.policy, minibatch, minibatch["state"])
        target = self.targets({**minibatch, "features": features.detach()})
        return self.kind.judge(self._look("now", self.policy, features, minibatch), {**minibatch, "target": target})

    @torch.no_grad()
    def _slow(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Return the target network's features along the sequence."""
        return woven_features(self.target.network, minibatch, minibatch["target_state"])

    @torch.no_grad()
    def targets(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Compute TD targets of the actions taken, [T · B] or [T · B, M]; features that are not given are computed."""
        slow = minibatch["slow"] if "slow" in minibatch else self._slow(minibatch)
        choice = None
        if self.config.double:
            given = minibatch.get("features")
            features = woven_features(self.policy, minibatch, minibatch["state"]) if given is None else given
            choice = self._look("next", self.policy, features, minibatch)().values.argmax(dim=-1)
        return self.kind.targets(self._look("target", self.target.network, slow, minibatch), choice, minibatch)

    def _look(self, look: str, policy: ActorPolicy, features: Tensor, minibatch: Mapping[str, Any]) -> Seen:
        """Return a network's head on the steps, or after their windows."""
        now = look == "now"
        obs, place = minibatch["obs" if now else "obs_next"], minibatch["here" if now else "there"]
        noisy = {name: minibatch["noise"][f"{look}/{name}"] for name in policy.head.head_noise()}
        rows = features.index_select(0, place)

        def seen(extra: Mapping[str, Tensor] = NO_OBS, /) -> Any:
            return policy.head(rows, {**obs, **noisy, **extra})

        return seen

    @torch.no_grad()
    def _priority(self, minibatch: Mapping[str, Any]) -> Tensor:
        shape = (self.sequence.length, -1)
        return sequence_priority(
            self._judged(minibatch).error.view(shape), minibatch["valid"].view(shape), self.sequence.eta
        )

    # -- saving --------------------------------------------------------------------------------------------------------

    def _parts(self) -> dict[str, Any]:
        return {"policy": self.policy, "target": self.target, "updater": self.updater, "terms": self.terms}


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class R2D2Config(DQNConfig):
    """Settings of R2D2: those of DQN with other defaults, and those of sequences."""

    learning_rate: float = 1e-4
    """Of Adam, as R2D2's authors have it: rescaled values of long returns differ little between actions, so that larger
    steps swing the policy."""
    n_step: int = 3
    """Rewards that are summed before bootstrapping from the value."""
    prioritized: bool = True
    """Sample sequences by TD error instead of uniformly."""
    rescale: bool = True
    """Learn h(Q) instead of Q, for returns of very different sizes."""
    sequence: SequenceConfig = field(default_factory=SequenceConfig)
    """How sequences are replayed."""


class R2D2(RecurrentDQN):
    """DQN with a memory from prioritized sequences; its network is `q_policy(…, kind=Means(rescale=True))`."""

    Config: ClassVar[type[Any]] = R2D2Config
    summary = "deep Q-learning with a memory from replayed sequences, for choices"
    loop = OFF_POLICY
    learns_in_ranks = True
    actions = frozenset({"discrete"})
    takes_terms = True
    policy_settings: ClassVar[Mapping[str, Any]] = {**REPLAY_NETWORKS, "kind": "lstm"}

    @classmethod
    def build_policy(cls, config: R2D2Config, context: BuildContext) -> ActorPolicy:
        """Build the Q-network alone."""
        return build_q_network(context, Means(rescale=config.rescale), memory=True)

    @classmethod
    def build(cls, config: R2D2Config, context: BuildContext, terms: Sequence[Term] = ()) -> R2D2:
        """Build the learner from its config."""
        policy, kind = cls.build_policy(config, context), Means(rescale=config.rescale)
        return cls(policy, context.own_mode(config), kind, sequence=config.sequence, terms=terms)
