"""Classic control: small tasks that are learned in seconds to a minute on one core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from striderl.algorithms.on_policy.a2c import A2CConfig
from striderl.algorithms.on_policy.ppo import PPOConfig
from striderl.algorithms.on_policy.reinforce import REINFORCEConfig
from striderl.algorithms.terms.rnd import RNDConfig
from striderl.policies.settings import PolicySettings
from striderl.training.experiment.run_config import (
    CheckpointSettings,
    EnvSettings,
    EvaluationSettings,
    LoggingSettings,
    RunConfig,
    StopSettings,
)
from striderl.training.plans import OnPolicyPlan

SMALL = PolicySettings(normalize_obs=False, actor_hidden_dims=(64, 64), critic_hidden_dims=(64, 64), activation="tanh")
"""Two small networks; the observations are of order one already."""


def cartpole_ppo() -> RunConfig[PPOConfig, OnPolicyPlan]:
    """CartPole with PPO: greedy return 475 or more in about ten seconds."""
    return RunConfig(
        env=EnvSettings(task="cartpole", num_envs=8),
        policy=SMALL,
        algorithm_name="ppo",
        algorithm=PPOConfig(
            num_learning_epochs=4,
            num_mini_batches=4,
            clip_param=0.2,
            gamma=0.98,
            lam=0.8,
            value_loss_coef=1.0,
            entropy_coef=0.0,
            learning_rate=2.5e-3,
            max_grad_norm=0.5,
            use_clipped_value_loss=True,
            schedule="fixed",
            desired_kl=0.01,
            normalize_advantage_per_mini_batch=False,
            optimizer_class_name="Adam",
        ),
        plan=OnPolicyPlan(num_steps_per_env=128, total_steps=100_000),
        evaluation=EvaluationSettings(every=10, num_episodes=20, num_envs=10),
        stop=StopSettings(metric="evaluate/return_mean", value=475.0),
        checkpoints=CheckpointSettings(every=20),
        logging=LoggingSettings(console_every=10),
        num_threads=1,
    )


def cartpole_a2c() -> RunConfig[A2CConfig, OnPolicyPlan]:
    """CartPole with A2C."""
    return RunConfig(
        env=EnvSettings(task="cartpole", num_envs=16),
        policy=SMALL,
        algorithm_name="a2c",
        algorithm=A2CConfig(
            gamma=0.99,
            lam=1.0,
            num_return_steps=0,
            value_loss_coef=0.5,
            entropy_coef=0.0,
            learning_rate=2e-3,
            max_grad_norm=0.5,
            normalize_advantage=False,
            optimizer_class_name="RMSprop",
            optimizer_eps=1e-5,
        ),
        plan=OnPolicyPlan(num_steps_per_env=16, total_steps=500_000),
        evaluation=EvaluationSettings(every=100, num_episodes=20, num_envs=10),
        stop=StopSettings(metric="evaluate/return_mean", value=475.0),
        checkpoints=CheckpointSettings(every=200),
        logging=LoggingSettings(console_every=10),
        num_threads=1,
    )


def cartpole_reinforce() -> RunConfig[REINFORCEConfig, OnPolicyPlan]:
    """CartPole with REINFORCE and a learned baseline."""
    return RunConfig(
        env=EnvSettings(task="cartpole", num_envs=16),
        policy=SMALL,
        algorithm_name="reinforce",
        algorithm=REINFORCEConfig(
            gamma=0.99,
            baseline=True,
            value_loss_coef=0.5,
            entropy_coef=0.0,
            learning_rate=3e-3,
            max_grad_norm=0.5,
            normalize_advantage=True,
            optimizer_class_name="Adam",
        ),
        plan=OnPolicyPlan(num_steps_per_env=64, total_steps=500_000),
        evaluation=EvaluationSettings(every=25, num_episodes=20, num_envs=10),
        stop=StopSettings(metric="evaluate/return_mean", value=475.0),
        checkpoints=CheckpointSettings(every=50),
        logging=LoggingSettings(console_every=10),
        num_threads=1,
    )


def pendulum_ppo() -> RunConfig[PPOConfig, OnPolicyPlan]:
    """Pendulum with PPO: greedy return about -165 after 200,000 steps."""
    return RunConfig(
        env=EnvSettings(task="pendulum", num_envs=16),
        policy=PolicySettings(
            normalize_obs=True,
            actor_hidden_dims=(64, 64),
            critic_hidden_dims=(64, 64),
            activation="tanh",
            init_std=1.0,
        ),
        algorithm_name="ppo",
        algorithm=PPOConfig(
            num_learning_epochs=10,
            num_mini_batches=8,
            clip_param=0.2,
            gamma=0.9,
            lam=0.95,
            value_loss_coef=1.0,
            entropy_coef=0.0,
            learning_rate=1e-3,
            max_grad_norm=1.0,
            use_clipped_value_loss=False,
            schedule="fixed",
            desired_kl=0.01,
            lr_scheduler_class_name="LinearLR",
            # smaller steps towards the end of the 98 rollouts: the last policy is to be as good as the best one
            lr_scheduler={"start_factor": 1.0, "end_factor": 0.1, "total_iters": 98},
            normalize_advantage_per_mini_batch=False,
            normalize_values=True,
            optimizer_class_name="Adam",
        ),
        plan=OnPolicyPlan(num_steps_per_env=128, total_steps=200_000),
        evaluation=EvaluationSettings(every=10, num_episodes=20, num_envs=20),
        stop=StopSettings(metric="evaluate/return_mean", value=-180.0),
        checkpoints=CheckpointSettings(every=50),
        logging=LoggingSettings(console_every=10),
        num_threads=1,
    )


def acrobot_ppo() -> RunConfig[PPOConfig, OnPolicyPlan]:
    """Acrobot with PPO: greedy return above -100."""
    return RunConfig(
        env=EnvSettings(task="acrobot", num_envs=16),
        policy=PolicySettings(
            normalize_obs=True, actor_hidden_dims=(64, 64), critic_hidden_dims=(64, 64), activation="tanh"
        ),
        algorithm_name="ppo",
        algorithm=PPOConfig(
            num_learning_epochs=4,
            num_mini_batches=16,
            clip_param=0.2,
            gamma=0.99,
            lam=0.94,
            value_loss_coef=1.0,
            entropy_coef=0.01,
            learning_rate=5e-4,
            max_grad_norm=0.5,
            use_clipped_value_loss=True,
            schedule="fixed",
            desired_kl=0.01,
            normalize_advantage_per_mini_batch=False,
            optimizer_class_name="Adam",
        ),
        plan=OnPolicyPlan(num_steps_per_env=128, total_steps=300_000),
        evaluation=EvaluationSettings(every=10, num_episodes=20, num_envs=20),
        stop=StopSettings(metric="evaluate/return_mean", value=-85.0),
        checkpoints=CheckpointSettings(every=20),
        logging=LoggingSettings(console_every=10),
        num_threads=1,
    )


def mountain_car_ppo() -> RunConfig[PPOConfig, OnPolicyPlan]:
    """MountainCar with PPO: greedy return above -130; the first goal is found by many envs with rewarded novelty."""
    return RunConfig(
        env=EnvSettings(task="mountain_car", num_envs=16),
        policy=PolicySettings(
            normalize_obs=True, actor_hidden_dims=(64, 64), critic_hidden_dims=(64, 64), activation="tanh"
        ),
        algorithm_name="ppo",
        algorithm=PPOConfig(
            num_learning_epochs=4,
            num_mini_batches=16,
            clip_param=0.2,
            gamma=0.99,
            lam=0.98,
            value_loss_coef=1.0,
            entropy_coef=0.0,
            learning_rate=1e-3,
            max_grad_norm=0.5,
            use_clipped_value_loss=True,
            schedule="fixed",
            desired_kl=0.01,
            normalize_advantage_per_mini_batch=False,
            optimizer_class_name="Adam",
        ),
        terms={"rnd": RNDConfig()},
        plan=OnPolicyPlan(num_steps_per_env=128, total_steps=1_000_000),
        evaluation=EvaluationSettings(every=10, num_episodes=20, num_envs=20),
        stop=StopSettings(metric="evaluate/return_mean", value=-115.0),
        checkpoints=CheckpointSettings(every=50),
        logging=LoggingSettings(console_every=10),
        num_threads=1,
    )


def mountain_car_continuous_ppo() -> RunConfig[PPOConfig, OnPolicyPlan]:
    """MountainCarContinuous with PPO: greedy return above 90, thanks to a wide first exploration."""
    return RunConfig(
        env=EnvSettings(task="mountain_car_continuous", num_envs=16),
        policy=PolicySettings(
            normalize_obs=True,
            actor_hidden_dims=(64, 64),
            critic_hidden_dims=(64, 64),
            activation="tanh",
            init_std=2.0,
        ),
        algorithm_name="ppo",
        algorithm=PPOConfig(
            num_learning_epochs=10,
            num_mini_batches=8,
            clip_param=0.2,
            gamma=0.99,
            lam=0.95,
            value_loss_coef=1.0,
            entropy_coef=0.0,
            learning_rate=3e-4,
            max_grad_norm=0.5,
            use_clipped_value_loss=False,
            schedule="fixed",
            desired_kl=0.01,
            normalize_advantage_per_mini_batch=False,
            optimizer_class_name="Adam",
        ),
        terms={"rnd": RNDConfig()},
        plan=OnPolicyPlan(num_steps_per_env=128, total_steps=500_000),
        evaluation=EvaluationSettings(every=10, num_episodes=20, num_envs=20),
        stop=StopSettings(metric="evaluate/return_mean", value=90.0),
        checkpoints=CheckpointSettings(every=50),
        logging=LoggingSettings(console_every=10),
        num_threads=1,
    )


CLASSIC_CONTROL: Mapping[tuple[str, str], Callable[[], RunConfig[Any, Any]]] = {
    ("cartpole", "ppo"): cartpole_ppo,
    ("cartpole", "a2c"): cartpole_a2c,
    ("cartpole", "reinforce"): cartpole_reinforce,
    ("pendulum", "ppo"): pendulum_ppo,
    ("acrobot", "ppo"): acrobot_ppo,
    ("mountain_car", "ppo"): mountain_car_ppo,
    ("mountain_car_continuous", "ppo"): mountain_car_continuous_ppo,
}
"""The recipes of this file."""
