"""Any task of Gymnasium: settings that are a fair start for small observations and either kind of action."""

from __future__ import annotations

from striderl.algorithms.ppo import PPOConfig
from striderl.training.plans import OnPolicyPlan
from striderl.training.policy_settings import PolicySettings
from striderl.training.run_config import CheckpointSettings, EnvSettings, EvaluationSettings, LoggingSettings, RunConfig


def gymnasium_ppo(task: str) -> RunConfig[PPOConfig, OnPolicyPlan]:
    """Return settings for a task named 'gymnasium:Id-v0'; resuming starts new episodes, as such envs save no state."""
    return RunConfig(
        env=EnvSettings(task=task, num_envs=8),
        policy=PolicySettings(
            normalize_obs=True, actor_hidden_dims=(64, 64), critic_hidden_dims=(64, 64), activation="tanh"
        ),
        algorithm_name="ppo",
        algorithm=PPOConfig(
            num_learning_epochs=5,
            num_mini_batches=4,
            clip_param=0.2,
            gamma=0.99,
            lam=0.95,
            value_loss_coef=1.0,
            entropy_coef=0.005,
            learning_rate=1e-3,
            max_grad_norm=0.5,
            use_clipped_value_loss=True,
            schedule="adaptive",
            desired_kl=0.01,
            normalize_advantage_per_mini_batch=False,
            optimizer_class_name="Adam",
        ),
        plan=OnPolicyPlan(num_steps_per_env=128, total_steps=1_000_000),
        evaluation=EvaluationSettings(every=20, num_episodes=10, num_envs=5),
        checkpoints=CheckpointSettings(every=50),
        logging=LoggingSettings(console_every=10),
        num_threads=1,
    )
