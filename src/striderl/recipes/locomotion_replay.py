"""Gymnasium's locomotion tasks learned from replay: a hundred times fewer env steps than PPO, each with more work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from striderl.algorithms.actor_critic.sac import SACConfig
from striderl.policies.settings import PolicySettings
from striderl.training.experiment.run_config import (
    CheckpointSettings,
    EnvSettings,
    EvaluationSettings,
    LoggingSettings,
    RunConfig,
)
from striderl.training.plans import OffPolicyPlan


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
        mode="compiled",
    )


LOCOMOTION_REPLAY: Mapping[tuple[str, str], Callable[[], RunConfig[Any, Any]]] = {
    ("half_cheetah", "sac"): half_cheetah_sac,
}
"""The recipes of this file."""
