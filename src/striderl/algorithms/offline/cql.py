"""CQL (Kumar et al. 2020): learning from a dataset with critics that are pessimistic for actions outside of it.

    CQL              SAC's critic loss + penalty · mean_B Σ_k ( log Σ_j exp Q_k(s, a_j) / p(a_j) - Q_k(s, a) )
    Conservative     DQN's loss        + penalty · mean_B     ( log Σ_a exp Q(s, a) - Q(s, a) ),   for choices

a_j are actions at random, and samples of the policy in s and in s'; each counts by the density it was drawn with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from striderl.algorithms.actor_critic.sac import SAC, SACConfig
from striderl.algorithms.building import OFFLINE, BuildContext, build_critics, refuse_terms
from striderl.algorithms.on_policy_targets import Losses
from striderl.algorithms.replay_parts import sample_noise_spec
from striderl.algorithms.terms.term import Term
from striderl.algorithms.value_based.dqn import Judged, Means, Seen
from striderl.collect.actors.behaviours import box_bounds
from striderl.data.actions import DiscreteSpec
from striderl.data.checked_fields import suggests_fields
from striderl.data.noise import NoiseSpec
from striderl.networks.distributions.deterministic import QValues
from striderl.networks.heads.base import Head
from striderl.ops.losses import valid_mean
from striderl.ops.td import conservative_gap, huber
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.value_functions import QFunction


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class CQLConfig(SACConfig):
    """Settings of CQL: those of SAC, and three."""

    penalty: float = 5.0
    """The weight of the conservative penalty; 1 to 10 is usual."""
    num_actions: int = 4
    """How many actions are drawn in each of three ways."""
    entropy_in_target: bool = False
    """Put the entropy into the critics' targets, as SAC does; the authors leave it out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty < 0.0 or self.num_actions < 1:
            raise ValueError(f"penalty >= 0 and num_actions >= 1, found {self.penalty} and {self.num_actions}")


class CQL(SAC):
    """SAC with a conservative penalty on its critics."""

    Config: ClassVar[type[Any]] = CQLConfig
    summary = "conservative Q-learning from a dataset, for real-valued actions"
    loop = OFFLINE
    takes_terms = False

    @classmethod
    def build(cls, config: CQLConfig, context: BuildContext, terms: Sequence[Term] = ()) -> CQL:
        """Build the learner from its config; it takes no terms."""
        refuse_terms(context, terms)
        return cls(cls.build_policy(config, context), build_critics(context), context.own_mode(config))

    def __init__(
        self,
        policy: ActorPolicy,
        critic: QFunction,
        config: CQLConfig | None = None,
        *,
        terms: Sequence[Term] = (),
    ) -> None:
        """Create SAC with the penalty; all actions have bounds."""
        config = config or CQLConfig()
        super().__init__(policy, critic, config, terms=terms)
        if critic.config.num_outputs != 1:
            raise ValueError(f"CQL wants critics with one value each, found num_outputs={critic.config.num_outputs}")
        self.penalty, self.num_actions, self.entropy_in_target = (
            config.penalty,
            config.num_actions,
            config.entropy_in_target,
        )
        device = next(policy.parameters()).device
        low, high, _ = box_bounds(policy.action_spec, "CQL")
        if not bool((low.isfinite() & high.isfinite()).all()):
            raise ValueError("CQL draws actions at random and wants bounds on all of them")
        self._low, self._range = low.to(device), (high - low).to(device)
        self._flat_density = -math.fsum(math.log(width) for width in (high - low).flatten().tolist())

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return SAC's, and that of the actions to be penalised."""
        several = (self.num_actions, *sample_noise_spec(self.policy).shape)
        return {
            **super().noise(),
            "random_actions": NoiseSpec(shape=(self.num_actions, *self._low.shape), kind="uniform"),
            "policy_actions": NoiseSpec(shape=several, kind="normal"),
            "next_policy_actions": NoiseSpec(shape=several, kind="normal"),
        }

    @torch.no_grad()
    def targets(self, minibatch: Mapping[str, Any]) -> Tensor:
        """Compute TD targets, before the penalty."""
        if self.entropy_in_target:
            return super().targets(minibatch)
        distribution, _, _ = self.policy.act(minibatch["obs_next"], {}, {})
        members = self.target.network(minibatch["obs_next"], distribution.sample(minibatch["noise"]["next_action"]))
        return self.kind.bootstrap(members, minibatch["rew"], minibatch["discount"], None, minibatch["noise"])

    def critic_losses(self, minibatch: Mapping[str, Any]) -> tuple[Losses, dict[str, Tensor]]:
        """Return SAC's loss and the penalty."""
        losses, numbers = super().critic_losses(minibatch)
        actions, density = self._candidates(minibatch)
        features, _ = self.critic.features(minibatch["obs"], {})
        values = self.critic.value(features.expand(actions.shape[0], *features.shape), actions)
        taken = self.critic.value(features, minibatch["act"])
        gap = conservative_gap(values.transpose(0, 1), density.unsqueeze(1), taken).sum(dim=0)
        loss = valid_mean(gap, minibatch["valid"])
        return {**losses, "conservative_loss": (self.penalty, loss)}, numbers

    @torch.no_grad()
    def _candidates(self, minibatch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return actions [J, B, …] and their log-densities [J, B]."""
        noise = minibatch["noise"]
        random = self._low + self._range * noise["random_actions"].transpose(0, 1)
        actions = [random]
        densities = [torch.full(random.shape[:2], self._flat_density, dtype=random.dtype, device=random.device)]
        for state, name in (("obs", "policy_actions"), ("obs_next", "next_policy_actions")):
            distribution, _, _ = self.policy.act(minibatch[state], {}, {})
            action, density = distribution.sample_with_log_prob(noise[name].transpose(0, 1))
            actions.append(action)
            densities.append(density)
        return torch.cat(actions), torch.cat(densities)


class Conservative:
    """Learns Q-values of choices that are pessimistic for choices the data does not have; for `q_policy` and `DQN`."""

    def __init__(self, *, penalty: float = 1.0, dueling: bool = False) -> None:
        """Set the weight of the penalty and the form of the head."""
        if penalty < 0.0:
            raise ValueError(f"penalty is not negative, found {penalty}")
        self.penalty = penalty
        self._means = Means(dueling=dueling)

    def head(self, input_size: int, action_spec: DiscreteSpec) -> Head[Any]:
        """Build one Q-value per choice."""
        return self._means.head(input_size, action_spec)

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return nothing."""
        return {}

    def targets(self, seen: Seen, choice: Tensor | None, minibatch: Mapping[str, Any]) -> Tensor:
        """Return r + discount · Q'(s', a*)."""
        return self._means.targets(seen, choice, minibatch)

    def judge(self, seen: Seen, minibatch: Mapping[str, Any]) -> Judged:
        """Return the Huber loss, plus the penalty: log-sum-exp over all allowed choices minus the taken one."""
        values: QValues = seen()
        value = values.value_of(minibatch["act"])
        difference = value - minibatch["target"]
        # forbidden choices have values so low that they add nothing
        gap = torch.logsumexp(values.values, dim=-1) - value
        return Judged(huber(difference) + self.penalty * gap, value.detach(), difference.detach().abs())
