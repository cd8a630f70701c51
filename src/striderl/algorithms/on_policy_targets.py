"""Shared by algorithms that use a rollout as a whole: next values, masks, losses, and the class they derive from.

    rollout [T, N] ──next_values──▶ next values ──(returns: the algorithm's own)──▶ Targets ──losses──▶ Updater

The whole rollout goes through the policy as one sequence, so policies with memory need no second path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from striderl.algorithms.building import ON_POLICY, BuildContext, build_actor_critic, refuse_terms
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.data import tree
from striderl.data.arena import Columns
from striderl.execution.modes import ExecutionConfig
from striderl.execution.updater import GroupConfig, ParameterGroup, Updater
from striderl.networks.heads.table import DeterministicHead
from striderl.ops.losses import explained_variance, mean_std, normalised, valid_mean, value_loss
from striderl.ops.moments import AllReduce
from striderl.policies.policy import Policy, PolicyOutput
from striderl.storage.rollout import RolloutStorage

if TYPE_CHECKING:
    from typing import Self

Losses = dict[str, tuple[float | Tensor, Tensor]]
"""Name → (weight, loss)."""


class Targets(NamedTuple):
    """A rollout with its targets, [T, N, …] each; zeros in samples that are not used."""

    columns: Mapping[str, Any]
    """The stored columns."""
    act: Any
    """The actions: a tensor, or a dict of them."""
    returns: Tensor
    """The value targets."""
    advantage: Tensor
    """The weight of each action's log-probability, [T, N]."""
    counts: Tensor
    """Which samples are learned from."""
    resets: Tensor
    """True where a new episode begins, before that step is processed."""
    readable: Tensor
    """False where a sample is not valid and its observation is not finite: no network may read it."""
    initial_state: dict[str, Tensor]
    """The policy's memory before the first step, [N, …] each; empty when it has none."""


# -- targets -----------------------------------------------------------------------------------------------------------


def next_values(
    policy: Policy, storage: RolloutStorage, last_obs: Mapping[str, Tensor], last_state: Mapping[str, Tensor]
) -> Tensor:
    """Return the value of what followed each step, [T, N] or [T, N, V].

    Where an episode was truncated that is V(final_obs), and V(s_t) where the env gives no final observation. Nothing
    followed a step that terminated: 0 there, whatever the next episode starts with.
    """
    value: Tensor = storage.data["policy"]["value"]
    last, _ = policy.value(last_obs, last_state, policy.settled(value.new_zeros(storage.num_envs)))
    if storage.finals is None:
        return storage.next_values(value, last)
    pool = storage.finals.arena.data
    final, _ = policy.value(pool["obs"], pool["state"], policy.settled(value.new_zeros(storage.finals.size + 1)))
    return storage.next_values(value, last, final)


def reward_like(value: Tensor, reward: Tensor) -> Tensor:
    """Return the reward [T, N] in the shape of the values: each of several values is of the same reward."""
    return reward if value.dim() == reward.dim() else reward.unsqueeze(-1).expand_as(value)


def cut_before_invalid(truncated: Tensor, valid: Tensor) -> Tensor:
    """Return `truncated` [T, N], true also where the next step is not valid: returns must not include it."""
    return truncated | torch.cat([~valid[1:], torch.zeros_like(valid[:1])])


def whole_targets(
    storage: RolloutStorage,
    *,
    returns: Tensor,
    advantage: Tensor,
    counts: Tensor,
    initial_state: dict[str, Tensor],
    normalize: bool,
) -> Targets:
    """Combine a rollout and its targets; several values' advantages are added up."""
    data = storage.data
    valid = data["valid"]
    advantage = zero_where_not(advantage if advantage.dim() == 2 else advantage.sum(dim=-1), counts)
    done = data["terminated"] | data["truncated"]
    return Targets(
        columns=data,
        act=tree.map(lambda leaf: zero_where_not(leaf, valid), data["act"]),
        returns=zero_where_not(returns, counts),
        advantage=normalised(advantage, counts) if normalize else advantage,
        counts=counts,
        resets=torch.cat([torch.zeros_like(done[:1]), done[:-1]]),
        readable=valid | finite_rows(data["obs"], valid),
        initial_state=initial_state,
    )


def zero_where_not(x: Tensor, counts: Tensor) -> Tensor:
    """Return x [T, N, …] with zeros where `counts` [T, N] is false: there it may hold NaN, which would spread."""
    return torch.where(counts.view(*counts.shape, *[1] * (x.dim() - counts.dim())), x, torch.zeros_like(x))


def finite_rows(obs: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """Return where every real-valued component is finite, with the leading shape of `like`."""
    finite = torch.ones_like(like)
    for value in obs.values():
        if value.is_floating_point():
            finite = finite & value.isfinite().reshape(*like.shape, -1).all(dim=-1)
    return finite


# -- losses and the step -----------------------------------------------------------------------------------------------


def run_whole(policy: Policy, targets: Targets) -> PolicyOutput:
    """Run the policy over the whole rollout as one sequence."""
    stored = targets.columns
    stage_draws = stored["policy"]["memo"]
    output: PolicyOutput = policy(stored["obs"], targets.initial_state, stage_draws, targets.resets, targets.readable)
    return output


def policy_gradient_losses(
    output: PolicyOutput, targets: Targets, *, value_coef: float, entropy_coef: float
) -> tuple[Losses, dict[str, Tensor]]:
    """Return policy loss -mean(log π · A), value loss and entropy with their weights, and metrics.

    A value weight of 0 leaves the value loss out.
    """
    counts = targets.counts
    gain = output.distribution.log_prob(targets.act) * targets.advantage
    entropy = valid_mean(output.distribution.entropy(), counts)
    losses: Losses = {"policy_loss": (1.0, -valid_mean(gain, counts)), "entropy": (entropy_coef, -entropy)}
    if value_coef:
        # without a clip the old value is not used
        losses["value_loss"] = (value_coef, value_loss(output.value, output.value, targets.returns, None, counts))
    stats = {"entropy": entropy.detach()}
    with torch.no_grad():
        if value_coef:
            stats["explained_variance"] = explained_variance(output.value, targets.returns, counts).mean()
        stats |= mean_std(output.distribution.params(), counts)
    return losses, stats


def check_learner_parts(who: str, policy: object, config: object, config_type: type) -> None:
    """Raise for wrong types of policy or config, and for a policy that cannot be learned from its log-probabilities."""
    if not isinstance(policy, Policy):
        raise TypeError(
            f"{who} wants a striderl.policies.Policy, found {type(policy).__name__}; for an ActorCritic and keyword "
            "settings, as in a hand-written loop, use striderl.compat.PPO"
        )
    if config is not None and not isinstance(config, config_type):
        raise TypeError(
            f"{who} wants a {config_type.__name__}, found {type(config).__name__}; "
            f"from a dict: {config_type.__name__}(**settings)"
        )
    # its densities and entropies are zero whatever it does, so the actor would silently stay as it is
    if any(isinstance(part, DeterministicHead) for part in policy.head.modules()):
        raise ValueError(
            f"{who} wants a head with a distribution of actions, found {type(policy.head).__name__}, which has neither "
            "log-probabilities nor entropy; use head='gaussian', or DAgger for a student that only copies"
        )


# -- what these algorithms share ---------------------------------------------------------------------------------------


class WholeRolloutLearner:
    """An on-policy algorithm that takes its steps on the whole rollout; a subclass has `prepare` and `losses`."""

    Config: ClassVar[type[Any]]
    config: Any
    loop = ON_POLICY
    learns_in_ranks = True

    @classmethod
    def build_policy(cls, config: Any, context: BuildContext) -> Policy:
        """Build the policy alone."""
        return build_actor_critic(context)

    @classmethod
    def build(cls, config: Any, context: BuildContext, terms: Sequence[object] = ()) -> Self:
        """Build the algorithm from its config; it takes no terms."""
        refuse_terms(context, terms)
        return cls(cls.build_policy(config, context), config, mode=context.mode, reduce=context.reduce)

    def __init__(
        self,
        policy: Policy,
        config: Any = None,
        *,
        mode: str | ExecutionConfig = "eager",
        reduce: AllReduce | None = None,
    ) -> None:
        """Create the updater of the policy, from a config of the type `Config`; see `PPO` for mode and reduce."""
        check_learner_parts(type(self).__name__, policy, config, self.Config)
        self.policy = policy
        self.config = self.Config() if config is None else config
        group = ParameterGroup(policy.parameters(), self.optimizer_settings())
        self.updater = Updater({"policy": group}, mode=mode, reduce=reduce)

    def optimizer_settings(self) -> GroupConfig:
        """Return the optimiser and its settings."""
        return GroupConfig(
            optimizer=self.config.optimizer_class_name,
            learning_rate=self.config.learning_rate,
            max_grad_norm=self.config.max_grad_norm,
            eps=self.config.optimizer_eps,
        )

    @property
    def num_updates_per_rollout(self) -> int:
        """Number of gradient steps per rollout."""
        return 1

    def actor(self) -> PolicyActor:
        """Return the actor that collects: samples of the policy."""
        return PolicyActor(self.policy)

    def check_rollout(self, num_steps: int, num_envs: int, columns: Columns | None = None) -> None:
        """Accept rollouts of any size."""

    def losses(self, prepared: Any) -> tuple[Losses, dict[str, Tensor]]:
        """Return name → (weight, loss), and metrics."""
        raise NotImplementedError

    def update(self, prepared: Any, generator: torch.Generator) -> dict[str, Tensor]:
        """Take the gradient steps on the whole rollout; nothing is shuffled, so the generator is not used."""
        self.updater.attach()
        numbers = self.updater.run(self.losses, [prepared] * self.num_updates_per_rollout).mean
        group = self.updater.groups["policy"]
        return {
            **numbers,
            "learning_rate": group.learning_rate.clone(),
            "skipped_updates": group.num_skipped.clone(),
        }

    @torch.no_grad()
    def update_normalization(self, columns: Mapping[str, Any]) -> None:
        """Update the normalisers from stored columns, after the steps."""
        with self.updater.pooled():
            self.policy.update_normalization(columns["obs"], columns["valid"])

    def state_dict(self) -> dict[str, Any]:
        """Return the policy and its optimiser, as copies: training goes on without changing them."""
        return {"policy": tree.copy(dict(self.policy.state_dict())), "updater": self.updater.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved policy and optimiser."""
        self.policy.load_state_dict(state["policy"])
        self.updater.load_state_dict(state["updater"])
