"""Settings for tasks and algorithms without a recipe of their own: a fair start, not a tuned one.

general_ppo("gymnasium:LunarLander-v3")        any task with PPO
general(recipe("quadruped"), "fast_sac")       the envs and evaluations of a recipe, another algorithm's defaults
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from striderl.algorithms.building import OFF_POLICY, OFFLINE, ON_POLICY, facts_of
from striderl.algorithms.on_policy.ppo import PPOConfig
from striderl.policies.settings import PolicySettings
from striderl.training.experiment.run_config import (
    PLANS,
    CheckpointSettings,
    EnvSettings,
    EvaluationSettings,
    LoggingSettings,
    RunConfig,
)
from striderl.training.plans import OnPolicyPlan


def general_ppo(task: str) -> RunConfig[PPOConfig, OnPolicyPlan]:
    """Return settings for any task, 'gymnasium:Id-v0' and envs of one's own among them."""
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


def general(base: RunConfig[Any, Any], algorithm: str) -> RunConfig[Any, Any]:
    """Return a recipe with another algorithm: its defaults, its networks, its loop; envs and evaluations stay."""
    facts = facts_of(algorithm)
    if facts.loop == ON_POLICY:
        num_envs = base.env.num_envs
    else:
        num_envs = max(base.env.num_envs, facts.min_envs) if facts.min_envs > 1 else 1
    total = {} if facts.loop == OFFLINE else {"total_steps": getattr(base.plan, "total_steps", 0) or 1_000_000}
    if facts.loop == OFFLINE:
        total = {"total_iterations": 20}
    plan = PLANS[facts.loop](**{**facts.loop_settings(num_envs), **total})
    named = {"actor_obs": base.policy.actor_obs, "critic_obs": base.policy.critic_obs}
    own = facts.policy_settings
    policy = replace(base.policy, **own) if facts.loop == ON_POLICY else PolicySettings(**{**named, **own})
    return replace(
        base,
        env=replace(base.env, num_envs=num_envs),
        policy=policy,
        algorithm_name=algorithm,
        algorithm=facts.config(),
        plan=plan,
        collector=type(base.collector)(),
        evaluation=replace(base.evaluation, every=10 if facts.loop == OFF_POLICY else base.evaluation.every),
        terms={},
    )


def derived(base: RunConfig[Any, Any], algorithm: str) -> RunConfig[Any, Any]:
    """Return a recipe with an algorithm that is derived from its own, so that a changed PPO is compared with PPO.

    Settings that the derived Config has added, or has other defaults for, are its own.
    """
    kind, usual = facts_of(algorithm).config, type(base.algorithm)()
    own = kind()
    kept = {
        each.name: getattr(base.algorithm, each.name)
        for each in fields(usual)
        if hasattr(own, each.name) and getattr(own, each.name) == getattr(usual, each.name)
    }
    return replace(base, algorithm_name=algorithm, algorithm=kind(**kept), terms={})
