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

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from striderl.algorithms.on_policy_targets import (
    Losses,
    Targets,
    WholeRolloutLearner,
    cut_before_invalid,
    next_values,
    policy_gradient_losses,
    reward_like,
    run_whole,
    whole_targets,
    zero_where_not,
)
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.execution.updater import GroupConfig
from striderl.ops.returns import backward_scan, discounted_returns
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


class REINFORCE(WholeRolloutLearner):
    """Losses, targets and the update of REINFORCE for a policy."""

    config: REINFORCEConfig
    Config = REINFORCEConfig
    summary = "the policy gradient with or without a learned baseline"

    def optimizer_settings(self) -> GroupConfig:
        """Return the optimiser and its settings; without a baseline the critic is not updated, having no loss."""
        config = self.config
        return GroupConfig(
            optimizer=config.optimizer_class_name,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
        )

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


def ends_within(terminated: Tensor, truncated: Tensor) -> Tensor:
    """Return where [T, N] the episode that a step belongs to terminates later in the data, without being cut."""
    going = (~(terminated | truncated)).float()
    return backward_scan(terminated.float(), going) > 0.0
