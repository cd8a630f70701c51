"""FastTD3 and FastSAC (Seo et al. 2025): settings for thousands of parallel envs on a GPU.

large batches · a few gradient steps per step of all envs · a distribution over returns · normalised observations ·
noise of a different strength in every env · weight decay

Each function returns an algorithm and the plan that goes with so many envs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from striderl.algorithms.critic_kinds import CategoricalReturns
from striderl.algorithms.sac import SAC, SACConfig
from striderl.algorithms.td3 import TD3, TD3Config
from striderl.collect.actors.behaviours import SpreadNoise
from striderl.data.actions import ActionSpec
from striderl.data.specs import ObsSpec
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.q_function import QFunction, QFunctionConfig
from striderl.policies.stages import NormalizeObs


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
    """Return what suits so many envs; with few of them, batches are no larger than 16 steps of each."""
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
) -> tuple[TD3, FastSettings]:
    """Build FastTD3 for returns between low and high on the envs' device, and say how to plan it."""
    policy = ActorPolicy(
        obs_spec,
        action_spec,
        ActorConfig(hidden_dims=actor_hidden_dims, stages=(NormalizeObs(),), head="deterministic"),
    ).to(device)
    kind = CategoricalReturns(low=low, high=high, num_atoms=num_atoms)
    critic = QFunction(obs_spec, action_spec, _critic(critic_hidden_dims, num_atoms)).to(device)
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
) -> tuple[SAC, FastSettings]:
    """Build FastSAC for returns between low and high on the envs' device, and say how to plan it."""
    policy = ActorPolicy(
        obs_spec,
        action_spec,
        ActorConfig(hidden_dims=actor_hidden_dims, stages=(NormalizeObs(),), head="squashed_gaussian"),
    ).to(device)
    kind = CategoricalReturns(low=low, high=high, num_atoms=num_atoms)
    critic = QFunction(obs_spec, action_spec, _critic(critic_hidden_dims, num_atoms)).to(device)
    config = config or SACConfig(
        gamma=0.97, tau=0.1, init_temperature=0.001, weight_decay=0.1, target_entropy=0.0, mode="auto"
    )
    return SAC(policy, critic, config, kind), fast_settings(num_envs, num_updates=4)


def _critic(hidden_dims: tuple[int, ...], num_atoms: int) -> QFunctionConfig:
    return QFunctionConfig(hidden_dims=hidden_dims, stages=(NormalizeObs(),), num_outputs=num_atoms, layer_norm=True)
