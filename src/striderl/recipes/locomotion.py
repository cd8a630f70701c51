"""Gymnasium's locomotion tasks, simulated in batches by MuJoCo; a million steps take a few minutes on two cores.

SAC learns from replay, with a hundred times fewer env steps than PPO, each with more work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from striderl.algorithms.actor_critic.sac import SACConfig
from striderl.algorithms.on_policy.ppo import PPOConfig
from striderl.policies.settings import PolicySettings
from striderl.training.experiment.run_config import (
    CheckpointSettings,
    EnvSettings,
    EvaluationSettings,
    LoggingSettings,
    RunConfig,
)
from striderl.training.plans import OffPolicyPlan, OnPolicyPlan

Config = RunConfig[PPOConfig, OnPolicyPlan]


def half_cheetah_ppo() -> Config:
    """HalfCheetah with PPO, which looks less far ahead here: no fall ends an episode."""
    config = _locomotion("half_cheetah", total_steps=3_000_000)
    return replace(config, algorithm=replace(config.algorithm, gamma=0.98, lam=0.92))


def hopper_ppo() -> Config:
    """Hopper with PPO."""
    return _locomotion("hopper", total_steps=3_000_000)


def walker2d_ppo() -> Config:
    """Walker2d with PPO."""
    return _locomotion("walker2d", total_steps=5_000_000)


def ant_ppo() -> Config:
    """Ant with PPO; most of its observation is contact forces, which the normaliser scales."""
    return _locomotion("ant", total_steps=5_000_000)


def humanoid_ppo() -> Config:
    """Humanoid with PPO: larger networks and more envs for 17 joints."""
    config = _locomotion("humanoid", total_steps=20_000_000)
    wide = replace(config.policy, actor_hidden_dims=(256, 256, 128), critic_hidden_dims=(256, 256, 128))
    return replace(
        config,
        policy=wide,
        env=replace(config.env, num_envs=128),
        plan=replace(config.plan, num_steps_per_env=32, warmup_steps=8),
    )


def _locomotion(task: str, *, total_steps: int) -> Config:
    """Return what the tasks have in common."""
    return RunConfig(
        env=EnvSettings(task=task, num_envs=16),
        policy=PolicySettings(
            normalize_obs=True,
            actor_hidden_dims=(128, 128),
            critic_hidden_dims=(128, 128),
            activation="tanh",
            init_std=0.5,
        ),
        algorithm_name="ppo",
        algorithm=PPOConfig(
            num_learning_epochs=5,
            num_mini_batches=8,
            clip_param=0.2,
            gamma=0.99,
            lam=0.95,
            value_loss_coef=0.5,
            entropy_coef=0.0,
            learning_rate=3e-4,
            max_grad_norm=0.5,
            use_clipped_value_loss=False,
            schedule="adaptive",
            desired_kl=0.015,
            normalize_advantage_per_mini_batch=True,
            normalize_values=True,
            optimizer_class_name="Adam",
        ),
        plan=OnPolicyPlan(num_steps_per_env=128, total_steps=total_steps, warmup_steps=64),
        evaluation=EvaluationSettings(every=40, num_episodes=16, num_envs=16),
        checkpoints=CheckpointSettings(every=100),
        logging=LoggingSettings(console_every=10),
    )


LOCOMOTION: Mapping[tuple[str, str], Callable[[], RunConfig[Any, Any]]] = {
    ("half_cheetah", "ppo"): half_cheetah_ppo,
    ("hopper", "ppo"): hopper_ppo,
    ("walker2d", "ppo"): walker2d_ppo,
    ("ant", "ppo"): ant_ppo,
    ("humanoid", "ppo"): humanoid_ppo,
}
"""The recipes of this file."""


# -- from replay -------------------------------------------------------------------------------------------------------


def half_cheetah_sac() -> RunConfig[SACConfig, OffPolicyPlan]:
    """HalfCheetah with SAC and the settings of the paper: one env, one gradient step per env step."""
    return RunConfig(
        env=EnvSettings(task="half_cheetah", num_envs=1),
        policy=PolicySettings(
            normalize_obs=False,
            actor_hidden_dims=(256, 256),
            critic_hidden_dims=(256, 256),
            activation="relu",
            head="squashed_gaussian",
        ),
        algorithm_name="sac",
        algorithm=SACConfig(
            gamma=0.99,
            n_step=1,
            tau=0.005,
            actor_learning_rate=3e-4,
            critic_learning_rate=3e-4,
            temperature_learning_rate=3e-4,
            init_temperature=1.0,
        ),
        plan=OffPolicyPlan(
            num_steps_per_env=1_000,
            train_every=1,
            num_updates_per_round=1,
            batch_size=256,
            learning_starts=10_000,
            buffer_size=1_000_000,
            total_steps=300_000,
        ),
        evaluation=EvaluationSettings(every=10, num_episodes=10, num_envs=10),
        checkpoints=CheckpointSettings(every=50),
        logging=LoggingSettings(console_every=5),
        num_threads=1,
    )


LOCOMOTION_REPLAY: Mapping[tuple[str, str], Callable[[], RunConfig[Any, Any]]] = {
    ("half_cheetah", "sac"): half_cheetah_sac,
}
"""The recipes of this file."""
