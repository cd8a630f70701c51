"""Classic control learned from replay: few env steps, many gradient steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from striderl.algorithms.actor_critic.sac import SACConfig
from striderl.algorithms.actor_critic.td3 import TD3Config
from striderl.algorithms.value_based.dqn import DQNConfig
from striderl.ops.ramps import Ramp
from striderl.policies.settings import PolicySettings
from striderl.training.experiment.run_config import (
    CheckpointSettings,
    EnvSettings,
    EvaluationSettings,
    LoggingSettings,
    RunConfig,
    StopSettings,
)
from striderl.training.plans import OffPolicyPlan


def cartpole_dqn() -> RunConfig[DQNConfig, OffPolicyPlan]:
    """CartPole with double DQN and three-step returns: 475 or more after about 25,000 steps."""
    return RunConfig(
        env=EnvSettings(task="cartpole", num_envs=4),
        policy=PolicySettings(
            normalize_obs=False, actor_hidden_dims=(120, 84), critic_hidden_dims=(120, 84), activation="relu"
        ),
        algorithm_name="dqn",
        algorithm=DQNConfig(
            gamma=0.99,
            n_step=3,
            double=True,
            target_every=100,
            tau=1.0,
            learning_rate=5e-4,
            max_grad_norm=10.0,
            epsilon=Ramp(start=1.0, end=0.05, num_steps=10_000),
        ),
        plan=OffPolicyPlan(
            num_steps_per_env=250,
            train_every=1,
            num_updates_per_round=2,
            batch_size=128,
            learning_starts=1_000,
            buffer_size=100_000,
            total_steps=80_000,
        ),
        evaluation=EvaluationSettings(every=4, num_episodes=20, num_envs=10),
        stop=StopSettings(metric="evaluate/return_mean", value=475.0),
        checkpoints=CheckpointSettings(every=10),
        logging=LoggingSettings(console_every=4),
        num_threads=1,
    )


def pendulum_sac() -> RunConfig[SACConfig, OffPolicyPlan]:
    """Pendulum with SAC: swings up after a few thousand steps."""
    return RunConfig(
        env=EnvSettings(task="pendulum", num_envs=1),
        policy=PolicySettings(
            normalize_obs=False,
            actor_hidden_dims=(128, 128),
            critic_hidden_dims=(128, 128),
            activation="relu",
            head="squashed_gaussian",
        ),
        algorithm_name="sac",
        algorithm=SACConfig(
            gamma=0.99,
            n_step=1,
            tau=0.005,
            actor_learning_rate=1e-3,
            critic_learning_rate=1e-3,
            temperature_learning_rate=1e-3,
            init_temperature=1.0,
        ),
        plan=_pendulum_plan(),
        evaluation=EvaluationSettings(every=4, num_episodes=20, num_envs=20),
        stop=StopSettings(metric="evaluate/return_mean", value=-180.0),
        checkpoints=CheckpointSettings(every=10),
        logging=LoggingSettings(console_every=4),
        num_threads=1,
    )


def pendulum_td3() -> RunConfig[TD3Config, OffPolicyPlan]:
    """Pendulum with TD3: swings up after a few thousand steps."""
    return RunConfig(
        env=EnvSettings(task="pendulum", num_envs=1),
        policy=PolicySettings(
            normalize_obs=False,
            actor_hidden_dims=(128, 128),
            critic_hidden_dims=(128, 128),
            activation="relu",
            head="deterministic",
        ),
        algorithm_name="td3",
        algorithm=TD3Config(
            gamma=0.99,
            n_step=1,
            tau=0.005,
            actor_learning_rate=1e-3,
            critic_learning_rate=1e-3,
            actor_every=2,
            exploration_std=0.1,
            smoothing_std=0.2,
            smoothing_clip=0.5,
        ),
        plan=_pendulum_plan(),
        evaluation=EvaluationSettings(every=4, num_episodes=20, num_envs=20),
        stop=StopSettings(metric="evaluate/return_mean", value=-180.0),
        checkpoints=CheckpointSettings(every=10),
        logging=LoggingSettings(console_every=4),
        num_threads=1,
    )


def _pendulum_plan() -> OffPolicyPlan:
    return OffPolicyPlan(
        num_steps_per_env=250,
        train_every=1,
        num_updates_per_round=1,
        batch_size=256,
        learning_starts=1_000,
        buffer_size=50_000,
        total_steps=20_000,
    )


CLASSIC_CONTROL_REPLAY: Mapping[tuple[str, str], Callable[[], RunConfig[Any, Any]]] = {
    ("cartpole", "dqn"): cartpole_dqn,
    ("pendulum", "sac"): pendulum_sac,
    ("pendulum", "td3"): pendulum_td3,
}
"""The recipes of this file."""
