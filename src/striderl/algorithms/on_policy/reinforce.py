"""REINFORCE (Williams 1992): make actions more likely in proportion to the return after them.

    loss = -mean(log π(a_t | s_t) · (R_t - b(s_t)))        R_t = r_t + gamma · r_{t+1} + …

The return of an episode that is cut by the end of the rollout or a time limit is unknown. There are two options:

    baseline       the baseline b is a learned V; a cut episode bootstraps from V of what followed (V(final_obs) at a
                   time-out). Every sample counts.
    no baseline    the rest is unknown, so steps of episodes that do not terminate within the rollout
                   are left out: R_t is exact, without bias. the metric `used_fraction` is the share that is left; with
                   tasks that only time out it is 0, and nothing can be learned.

The factor gamma^t in front of each term, which the theorem for discounted returns has, is left out, as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.building import ON_POLICY, BuildContext, build_actor_critic, refuse_terms
from striderl.algorithms.on_policy_targets import (
    Losses,
    Targets,
    check_learner_parts,
    cut_before_invalid,
    next_values,
    policy_gradient_losses,
    reward_like,
    run_whole,
    take_step,
    whole_targets,
    zero_where_not,
)
from striderl.algorithms.terms.term import Term
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.data import tree
from striderl.data.arena import Columns
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.execution.modes import ExecutionConfig
from striderl.execution.updater import GroupConfig, ParameterGroup, Updater
from striderl.ops.moments import AllReduce
from striderl.ops.returns import backward_scan, discounted_returns
from striderl.policies.policy import Policy
from striderl.storage.rollout import RolloutStorage


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class REINFORCEConfig:
    """Settings of REINFORCE."""

    gamma: float = 0.99
    """Discount per step."""
    baseline: bool = True
    """Learn a value, subtract it from the returns, and bootstrap cut episodes with it; see the top of the module."""
    value_loss_coef: float = 1.0
    """Weight of the value loss; without a baseline there is none, and this stays as it is."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    learning_rate: float = 3e-4
    """The learning rate; much more makes one bad rollout undo what was learned."""
    max_grad_norm: float = 0.5
    """The gradient is clipped to this norm; 0 means never."""
    normalize_advantage: bool = True
    """Normalise the weights of the log-probabilities to mean 0 and standard deviation 1 in each rollout."""
    optimizer_class_name: str = "Adam"
    """Which optimiser."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma is between 0 and 1, found {self.gamma}")
        if self.learning_rate <= 0.0:
            raise ValueError(f"learning_rate is positive, found {self.learning_rate}")
        if self.baseline and self.value_loss_coef <= 0.0:
            raise ValueError(f"a baseline is learned with a positive value_loss_coef, found {self.value_loss_coef}")
        if not self.baseline and self.value_loss_coef != REINFORCEConfig.value_loss_coef:
            raise ValueError(f"value_loss_coef={self.value_loss_coef} has no effect without a baseline; leave it out")


class REINFORCE:
    """Losses, targets and the update of REINFORCE for a policy."""

    Config = REINFORCEConfig
    summary = "the policy gradient with or without a learned baseline"
    loop = ON_POLICY
    learns_in_ranks = True

    @classmethod
    def build_policy(cls, config: REINFORCEConfig, context: BuildContext) -> Policy:
        """Build the policy alone."""
        return build_actor_critic(context)

    @classmethod
    def build(cls, config: REINFORCEConfig, context: BuildContext, terms: Sequence[Term] = ()) -> REINFORCE:
        """Build REINFORCE from its config; it takes no terms."""
        refuse_terms(context, terms)
        return cls(cls.build_policy(config, context), config, mode=context.mode, reduce=context.reduce)

    def __init__(
        self,
        policy: Policy,
        config: REINFORCEConfig | None = None,
        *,
        mode: str | ExecutionConfig = "eager",
        reduce: AllReduce | None = None,
    ) -> None:
        """Create the updater of the policy; without a baseline the critic is not updated.

        See `PPO` for mode and reduce.
        """
        check_learner_parts("REINFORCE", policy, config, REINFORCEConfig)
        self.policy = policy
        self.config = config = config or REINFORCEConfig()
        group = GroupConfig(
            optimizer=config.optimizer_class_name,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
        )
        self.updater = Updater({"policy": ParameterGroup(policy.parameters(), group)}, mode=mode, reduce=reduce)

    @property
    def num_updates_per_rollout(self) -> int:
        """Number of gradient steps per rollout: one."""
        return 1

    def actor(self) -> PolicyActor:
        """Return the actor that collects: samples of the policy."""
        return PolicyActor(self.policy)

    def check_rollout(self, num_steps: int, num_envs: int, columns: Columns | None = None) -> None:
        """Accept rollouts of any size; how many samples an episode that is cut costs is in `used_fraction`."""

    @torch.no_grad()
    def prepare(
        self,
        storage: RolloutStorage,
        *,
        initial_state: dict[str, Tensor],
        last_obs: Mapping[str, Tensor],
        last_state: Mapping[str, Tensor],
    ) -> Targets:
        """Compute discounted returns, and which samples have one."""
        data = storage.data
        valid, terminated = data["valid"], data["terminated"]
        truncated = cut_before_invalid(data["truncated"], valid)
        if self.config.baseline:
            value = data["policy"]["value"]
            following = zero_where_not(next_values(self.policy, storage, last_obs, last_state), valid)
            counts = valid
        else:
            value = torch.zeros_like(data["rew"])
            following = value
            counts = valid & ends_within(terminated, truncated)
        reward = reward_like(value, zero_where_not(data["rew"], valid))
        returns = discounted_returns(reward, following, terminated, truncated, gamma=self.config.gamma)
        with self.updater.pooled():
            return whole_targets(
                storage,
                returns=returns,
                advantage=returns - value,
                counts=counts,
                initial_state=initial_state,
                normalize=self.config.normalize_advantage,
            )

    def losses(self, targets: Targets) -> tuple[Losses, dict[str, Tensor]]:
        """Return name → (weight, loss), and metrics."""
        config = self.config
        output = run_whole(self.policy, targets)
        value_coef = config.value_loss_coef if config.baseline else 0.0
        losses, stats = policy_gradient_losses(output, targets, value_coef=value_coef, entropy_coef=config.entropy_coef)
        return losses, {**stats, "used_fraction": targets.counts.to(torch.float32).mean()}

    def update(self, prepared: Targets, generator: torch.Generator) -> dict[str, Tensor]:
        """Take one step on the whole rollout; nothing is shuffled, so the generator is not used."""
        return take_step(self.updater, self.losses, prepared)

    @torch.no_grad()
    def update_normalization(self, columns: Mapping[str, Any]) -> None:
        """Update the normalisers from stored columns, after the step."""
        with self.updater.pooled():
            self.policy.update_normalization(columns["obs"], columns["valid"])

    def state_dict(self) -> dict[str, Any]:
        """Return the policy and its optimiser, as copies: training goes on without changing them."""
        return {"policy": tree.copy(dict(self.policy.state_dict())), "updater": self.updater.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved policy and optimiser."""
        self.policy.load_state_dict(state["policy"])
        self.updater.load_state_dict(state["updater"])


def ends_within(terminated: Tensor, truncated: Tensor) -> Tensor:
    """Return where [T, N] the episode that a step belongs to terminates later in the data, without being cut."""
    going = (~(terminated | truncated)).float()
    return backward_scan(terminated.float(), going) > 0.0
