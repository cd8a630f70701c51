"""Advantage actor-critic (Mnih et al. 2016, the synchronous form): one gradient step per rollout.

    rollout [T, N] ──prepare──▶ GAE or n-step returns ──▶ -mean(log π · A) + c_v · value loss - c_e · entropy ──▶ step

With `lam` = 1 an advantage extends to the end of the rollout, which is the n-step return of the paper with n up to T.
`num_return_steps` extends at most that many steps ahead instead.
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
)
from striderl.algorithms.terms.term import Term
from striderl.collect.actors.policy_actor import PolicyActor
from striderl.data import tree
from striderl.data.arena import Columns
from striderl.data.checked_fields import check_field_types, suggests_fields
from striderl.execution.modes import ExecutionConfig
from striderl.execution.updater import GroupConfig, ParameterGroup, Updater
from striderl.ops.moments import AllReduce
from striderl.ops.returns import gae, n_step_returns
from striderl.policies.policy import Policy
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


class A2C:
    """Losses, targets and the update of A2C for a policy."""

    Config = A2CConfig
    summary = "advantage actor-critic, on-policy, one step per rollout"
    loop = ON_POLICY
    learns_in_ranks = True

    @classmethod
    def build_policy(cls, config: A2CConfig, context: BuildContext) -> Policy:
        """Build the policy alone."""
        return build_actor_critic(context)

    @classmethod
    def build(cls, config: A2CConfig, context: BuildContext, terms: Sequence[Term] = ()) -> A2C:
        """Build A2C from its config; it takes no terms."""
        refuse_terms(context, terms)
        return cls(cls.build_policy(config, context), config, mode=context.mode, reduce=context.reduce)

    def __init__(
        self,
        policy: Policy,
        config: A2CConfig | None = None,
        *,
        mode: str | ExecutionConfig = "eager",
        reduce: AllReduce | None = None,
    ) -> None:
        """Create the updater of the policy; see `PPO` for mode and reduce."""
        check_learner_parts("A2C", policy, config, A2CConfig)
        self.policy = policy
        self.config = config = config or A2CConfig()
        group = GroupConfig(
            optimizer=config.optimizer_class_name,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
            eps=config.optimizer_eps,
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
