"""Advantage actor-critic (Mnih et al. 2016, the synchronous form): one gradient step per rollout.

    rollout [T, N] ──prepare──▶ GAE or n-step returns ──▶ -mean(log π · A) + c_v · value loss - c_e · entropy ──▶ step

With `lam` = 1 an advantage extends to the end of the rollout, which is the n-step return of the paper with n up to T.
`num_return_steps` extends at most that many steps ahead instead.
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
)
from striderl.data.arena import Columns
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.ops.returns import gae, n_step_returns
from striderl.storage.rollout import RolloutStorage


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class A2CConfig:
    """Settings of A2C."""

    gamma: float = 0.99
    """Discount per step."""
    lam: float = 1.0
    """GAE's lambda: 0 uses the values, 1 the rewards up to the rollout's end."""
    num_return_steps: int = 0
    """Steps of the return before bootstrapping from the value; 0 means GAE with `lam` instead."""
    value_loss_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    learning_rate: float = 7e-4
    """The learning rate."""
    max_grad_norm: float = 0.5
    """The gradient is clipped to this norm; 0 means never."""
    normalize_advantage: bool = False
    """Normalise the advantages of each rollout to mean 0 and standard deviation 1."""
    optimizer_class_name: str = "RMSprop"
    """Which optimiser."""
    optimizer_eps: float = 1e-5
    """The optimiser's epsilon, added to its denominator."""

    def __post_init__(self) -> None:
        check_field_types(self)
        if not (0.0 <= self.gamma <= 1.0 and 0.0 <= self.lam <= 1.0):
            raise ValueError(f"gamma and lam are between 0 and 1, found {self.gamma} and {self.lam}")
        if self.learning_rate <= 0.0:
            raise ValueError(f"learning_rate is positive, found {self.learning_rate}")
        if self.num_return_steps < 0 or self.value_loss_coef < 0.0:
            raise ValueError(
                "num_return_steps and value_loss_coef are not negative, "
                f"found {self.num_return_steps} and {self.value_loss_coef}"
            )
        if self.num_return_steps and self.lam != 1.0:
            raise ValueError(
                f"lam={self.lam} has no effect with num_return_steps={self.num_return_steps}; set one of them only"
            )


class A2C(WholeRolloutLearner):
    """Losses, targets and the update of A2C for a policy."""

    config: A2CConfig
    Config = A2CConfig
    summary = "advantage actor-critic, on-policy, one step per rollout"

    def check_rollout(self, num_steps: int, num_envs: int, columns: Columns | None = None) -> None:
        """Raise when the config needs longer rollouts than these."""
        if self.config.num_return_steps > num_steps:
            raise ValueError(
                f"num_return_steps={self.config.num_return_steps} looks further than a rollout of {num_steps} steps "
                f"goes; set it to {num_steps} or less, or use longer rollouts"
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
        """Compute next values, returns and advantages."""
        data = storage.data
        value, valid = data["policy"]["value"], data["valid"]
        following = next_values(self.policy, storage, last_obs, last_state)
        reward = reward_like(value, data["rew"])
        if self.config.num_return_steps:
            truncated = cut_before_invalid(data["truncated"], valid)
            gamma, count = self.config.gamma, self.config.num_return_steps
            returns = n_step_returns(reward, following, data["terminated"], truncated, gamma=gamma, n=count)
            advantage = returns - value
        else:
            gamma, lam = self.config.gamma, self.config.lam
            returns, advantage = gae(
                reward, value, following, data["terminated"], data["truncated"], gamma=gamma, lam=lam, valid=valid
            )
        with self.updater.pooled():
            return whole_targets(
                storage,
                returns=returns,
                advantage=advantage,
                counts=valid,
                initial_state=initial_state,
                normalize=self.config.normalize_advantage,
            )

    def losses(self, targets: Targets) -> tuple[Losses, dict[str, Tensor]]:
        """Return name → (weight, loss), and metrics."""
        output = run_whole(self.policy, targets)
        config = self.config
        return policy_gradient_losses(
            output, targets, value_coef=config.value_loss_coef, entropy_coef=config.entropy_coef
        )
