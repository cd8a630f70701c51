"""FastTD3 and FastSAC (Seo et al. 2025): settings for thousands of parallel envs on a GPU.

large batches · a few gradient steps per step of all envs · a distribution over returns · normalised observations ·
noise of a different strength in every env · weight decay

Each function returns an algorithm and the plan for this number of envs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch

from striderl.algorithms.actor_critic.critic_kinds import CategoricalReturns
from striderl.algorithms.actor_critic.sac import SAC, SACConfig
from striderl.algorithms.actor_critic.td3 import TD3, TD3Config
from striderl.algorithms.building import BuildContext, build_critics
from striderl.algorithms.terms.term import Term
from striderl.collect.actors.behaviours import SpreadNoise
from striderl.data.actions import ActionSpec
from striderl.data.checked_fields import suggests_fields
from striderl.data.specs import ObsSpec
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.stages import NormalizeObs
from striderl.policies.value_functions import QFunction, QFunctionConfig


class FastSettings(NamedTuple):
    """How an `OffPolicyPlan` is filled in: `OffPolicyPlan(**settings._asdict(), total_steps=…)`."""

    num_steps_per_env: int
    """Steps of each env in an iteration."""
    num_updates_per_round: int
    """Gradient steps after every step of all envs."""
    batch_size: int
    """Samples of a gradient step."""
    learning_starts: int
    """Random steps over all envs before the first."""
    buffer_size: int
    """Steps that are kept over all envs."""


def fast_settings(
    num_envs: int, *, num_updates: int = 2, batch_size: int = 32_768, steps_kept_per_env: int = 5_120
) -> FastSettings:
    """Return settings for this number of envs; with few of them, batches are no larger than 16 steps of each."""
    return FastSettings(
        num_steps_per_env=24,
        num_updates_per_round=num_updates,
        batch_size=min(batch_size, 16 * num_envs),
        learning_starts=10 * num_envs,
        buffer_size=steps_kept_per_env * num_envs,
    )


def fast_td3(
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    *,
    num_envs: int,
    low: float = -250.0,
    high: float = 250.0,
    num_atoms: int = 101,
    actor_hidden_dims: tuple[int, ...] = (512, 256, 128),
    critic_hidden_dims: tuple[int, ...] = (1024, 512, 256),
    config: TD3Config | None = None,
    device: torch.device | str = "cpu",
    actor_obs: tuple[str, ...] = ActorConfig.obs,
    critic_obs: tuple[str, ...] = QFunctionConfig.obs,
) -> tuple[TD3, FastSettings]:
    """Build FastTD3 for returns between low and high on the envs' device, and return it with its plan.

    actor_obs, critic_obs: components or groups that each reads; 'policy' is also what mjlab calls 'actor'.
    """
    policy = ActorPolicy(
        obs_spec,
        action_spec,
        ActorConfig(obs=actor_obs, hidden_dims=actor_hidden_dims, stages=(NormalizeObs(),), head="deterministic"),
    ).to(device)
    kind = CategoricalReturns(low=low, high=high, num_atoms=num_atoms)
    critic = QFunction(obs_spec, action_spec, _critic(critic_obs, critic_hidden_dims, num_atoms)).to(device)
    config = config or TD3Config(
        gamma=0.97,
        tau=0.1,
        actor_learning_rate=3e-4,
        critic_learning_rate=3e-4,
        smoothing_std=0.001,
        smoothing_clip=0.5,
        actor_every=2,
        weight_decay=0.1,
        mode="auto",
    )
    behaviour = SpreadNoise(action_spec, low=0.001, high=0.4)
    return TD3(policy, critic, config, behaviour=behaviour, kind=kind), fast_settings(num_envs)


def fast_sac(
    obs_spec: ObsSpec,
    action_spec: ActionSpec,
    *,
    num_envs: int,
    low: float = -250.0,
    high: float = 250.0,
    num_atoms: int = 101,
    actor_hidden_dims: tuple[int, ...] = (512, 256, 128),
    critic_hidden_dims: tuple[int, ...] = (1024, 512, 256),
    config: SACConfig | None = None,
    device: torch.device | str = "cpu",
    actor_obs: tuple[str, ...] = ActorConfig.obs,
    critic_obs: tuple[str, ...] = QFunctionConfig.obs,
) -> tuple[SAC, FastSettings]:
    """Build FastSAC for returns between low and high on the envs' device, and return it with its plan.

    actor_obs, critic_obs: components or groups that each reads; 'policy' is also what mjlab calls 'actor'.
    """
    policy = ActorPolicy(
        obs_spec,
        action_spec,
        ActorConfig(obs=actor_obs, hidden_dims=actor_hidden_dims, stages=(NormalizeObs(),), head="squashed_gaussian"),
    ).to(device)
    kind = CategoricalReturns(low=low, high=high, num_atoms=num_atoms)
    critic = QFunction(obs_spec, action_spec, _critic(critic_obs, critic_hidden_dims, num_atoms)).to(device)
    config = config or SACConfig(
        gamma=0.97, tau=0.1, init_temperature=0.001, weight_decay=0.1, target_entropy=0.0, mode="auto"
    )
    return SAC(policy, critic, config, kind), fast_settings(num_envs, num_updates=4)


def _critic(obs: tuple[str, ...], hidden_dims: tuple[int, ...], num_atoms: int) -> QFunctionConfig:
    return QFunctionConfig(
        obs=obs, hidden_dims=hidden_dims, stages=(NormalizeObs(),), num_outputs=num_atoms, layer_norm=True
    )


FAST_NETWORKS: Mapping[str, Any] = {
    "normalize_obs": True,
    "actor_hidden_dims": (512, 256, 128),
    "critic_hidden_dims": (1024, 512, 256),
    "activation": "relu",
}
"""The networks that both have by default."""


def _fast_critics(config: FastTD3Config | FastSACConfig, context: BuildContext) -> QFunction:
    return build_critics(context, num_outputs=config.num_atoms, layer_norm=True)


def _returns(config: FastTD3Config | FastSACConfig) -> CategoricalReturns:
    return CategoricalReturns(low=config.low, high=config.high, num_atoms=config.num_atoms)


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class FastTD3Config(TD3Config):
    """Settings of FastTD3: those of TD3 with other defaults, and those of the distribution over returns."""

    gamma: float = 0.97
    """Discount per step."""
    tau: float = 0.1
    """How far the target networks move in each step."""
    actor_learning_rate: float = 3e-4
    """Of the policy."""
    critic_learning_rate: float = 3e-4
    """Of the Q-functions."""
    smoothing_std: float = 0.001
    """Noise of target actions, as a share of half the action's range."""
    weight_decay: float = 0.1
    """Decay of the weights of policy and critics (AdamW)."""
    low: float = -250.0
    """The smallest return; those below count as this."""
    high: float = 250.0
    """The largest return; those above count as this."""
    num_atoms: int = 101
    """Returns between them whose probabilities are learned."""
    noise_low: float = 0.001
    """Exploration noise of the quietest env; the others are spread up to `noise_high`."""
    noise_high: float = 0.4
    """Exploration noise of the loudest env."""


class FastTD3(TD3):
    """TD3 for thousands of envs: distributional critics, large batches, noise of another strength in each env."""

    Config: ClassVar[type[Any]] = FastTD3Config
    summary = "TD3 for thousands of envs: large batches, a distribution over returns, for real-valued actions"
    policy_settings: ClassVar[Mapping[str, Any]] = {**FAST_NETWORKS, "head": "deterministic"}

    min_envs = 128

    @staticmethod
    def loop_settings(num_envs: int) -> Mapping[str, Any]:
        """Return settings for this number of envs."""
        return fast_settings(num_envs)._asdict()

    @classmethod
    def build(cls, config: FastTD3Config, context: BuildContext, terms: Sequence[Term] = ()) -> FastTD3:
        """Build the learner from its config."""
        policy, critic = cls.build_policy(config, context), _fast_critics(config, context)
        spread = SpreadNoise(context.action_spec, low=config.noise_low, high=config.noise_high)
        return cls(policy, critic, context.own_mode(config), behaviour=spread, kind=_returns(config), terms=terms)


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class FastSACConfig(SACConfig):
    """Settings of FastSAC: those of SAC with other defaults, and those of the distribution over returns."""

    gamma: float = 0.97
    """Discount per step."""
    tau: float = 0.1
    """How far the target critics move in each step."""
    init_temperature: float = 0.001
    """The first α."""
    target_entropy: float | None = 0.0
    """Target entropy of the policy; minus the number of actions when None."""
    weight_decay: float = 0.1
    """Decay of the weights of policy and critics (AdamW)."""
    low: float = -250.0
    """The smallest return; those below count as this."""
    high: float = 250.0
    """The largest return; those above count as this."""
    num_atoms: int = 101
    """Returns between them whose probabilities are learned."""


class FastSAC(SAC):
    """SAC for hundreds to thousands of envs: distributional critics, large batches."""

    Config: ClassVar[type[Any]] = FastSACConfig
    summary = "SAC for thousands of envs: large batches, a distribution over returns, for real-valued actions"
    policy_settings: ClassVar[Mapping[str, Any]] = {**FAST_NETWORKS, "head": "squashed_gaussian"}

    min_envs = 128

    @staticmethod
    def loop_settings(num_envs: int) -> Mapping[str, Any]:
        """Return settings for this number of envs."""
        return fast_settings(num_envs, num_updates=4)._asdict()

    @classmethod
    def build(cls, config: FastSACConfig, context: BuildContext, terms: Sequence[Term] = ()) -> FastSAC:
        """Build the learner from its config."""
        policy, critic = cls.build_policy(config, context), _fast_critics(config, context)
        return cls(policy, critic, context.own_mode(config), _returns(config), terms=terms)
