"""The built-in quadruped: flat ground, rough ground with height scan, blind or with depth camera, and parkour."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from striderl.algorithms.on_policy.ppo import PPOConfig
from striderl.algorithms.on_policy.tppo import TPPOConfig
from striderl.collect.schedules import CollectorConfig
from striderl.policies.settings import EncoderSettings, PolicySettings
from striderl.training.experiment.run_config import (
    CheckpointSettings,
    EnvSettings,
    EvaluationSettings,
    LoggingSettings,
    RunConfig,
)
from striderl.training.plans import OnPolicyPlan

Config = RunConfig[PPOConfig, OnPolicyPlan]
StudentConfig = RunConfig[TPPOConfig, OnPolicyPlan]


def quadruped_ppo() -> Config:
    """Follow velocity commands on flat ground; it walks after 0.8M steps, the rest makes it exact."""
    config = _quadruped("quadruped", total_steps=3_000_000)
    # a second of walking is foresight enough, a longer one adds noise to the advantages; a learning rate that follows
    # the KL falls to 1e-5 within most updates, for the critic too
    algorithm = replace(config.algorithm, schedule="fixed", learning_rate=5e-4, use_clipped_value_loss=False)
    algorithm = replace(algorithm, num_mini_batches=6, gamma=0.97)
    # twice as many envs would leave half as many updates of the same samples; minibatches of 512 are too small for two
    # of torch's threads
    return replace(config, algorithm=algorithm, env=replace(config.env, num_envs=128), num_threads=1)


def quadruped_demo() -> Config:
    """The same until it follows its commands to 0.15 m/s, what `make demo` trains: about 0.8M steps."""
    config = quadruped_ppo()
    return replace(
        config,
        plan=replace(config.plan, total_steps=2_400_000),
        stop=replace(config.stop, metric="evaluate/tracking_error", value=0.15, mode="min"),
        # a first run would wait for its compiler about as long as the programs gain in so few iterations
        switch_at="never",
    )


def quadruped_rough_ppo() -> Config:
    """Rough ground with a height scan, which has an encoder of its own."""
    config = _quadruped("quadruped_rough", total_steps=30_000_000)
    scan = EncoderSettings(component="height_scan", model="mlp", hidden_sizes=(128, 64), output_size=32)
    return replace(config, policy=replace(_wider(_networks(config)), encoders=(scan,)))


def quadruped_blind_ppo() -> Config:
    """Blind on rough ground: a recurrent actor, a critic with the height scan."""
    config = _quadruped("quadruped_blind", total_steps=30_000_000)
    scan = EncoderSettings(component="height_scan", model="mlp", hidden_sizes=(128, 64), output_size=32)
    policy = replace(_networks(config), kind="gru", memory_size=128, encoders=(scan,))
    return replace(config, policy=policy)


def quadruped_teacher() -> Config:
    """A teacher for the blind and the depth-camera quadruped: its actor gets the critic's components of both tasks.

    The ground stays on its three lowest levels, so that the returns of teacher and student can be compared.
    """
    config = _quadruped("quadruped_blind", total_steps=1_500_000)
    scan = EncoderSettings(component="height_scan", model="mlp", hidden_sizes=(128, 64), output_size=32)
    policy = replace(_networks(config), actor_obs=("policy", "critic"), encoders=(scan,))
    settings = {"rising": False, "first_levels": 3, "observe_motion": False}
    return replace(
        config,
        env=replace(config.env, settings=settings),
        policy=policy,
        evaluation=replace(config.evaluation, every=0),
        checkpoints=replace(config.checkpoints, every=50),
    )


def quadruped_blind_tppo() -> StudentConfig:
    """A recurrent student of that teacher, which is given with --teacher.run."""
    config = quadruped_teacher()
    return RunConfig(
        env=config.env,
        policy=replace(_networks(config), kind="gru", memory_size=128, actor_obs=("policy",), init_std=0.5),
        algorithm_name="tppo",
        algorithm=TPPOConfig(
            # the labels move the student further than a policy gradient should: a rate that follows the KL would stall
            ppo=replace(config.algorithm, schedule="fixed", learning_rate=5e-4),
            label_action_with_critic_obs=True,
            # the acting policy is drawn once per episode, of 42 rollouts: a schedule has little effect in a short run
            teacher_act_prob=0.2,
            distillation_loss_coef=1.0,
            distill_target="real",
        ),
        collector=config.collector,
        plan=replace(config.plan, total_steps=600_000),
        evaluation=config.evaluation,
        checkpoints=config.checkpoints,
        logging=config.logging,
    )


def quadruped_depth_ppo() -> Config:
    """Rough ground with a depth camera: the actor gets the image, the critic the true heights."""
    config = _quadruped("quadruped_depth", total_steps=30_000_000)
    image = EncoderSettings(
        component="forward_depth",
        model="conv",
        channels=(16, 32),
        kernel_sizes=(5, 3),
        strides=(2, 2),
        hidden_sizes=(64,),
        output_size=32,
    )
    scan = EncoderSettings(component="height_scan", model="mlp", hidden_sizes=(128, 64), output_size=32)
    seen = ("base_ang_vel", "projected_gravity", "command", "joint_pos", "joint_vel", "last_action", "critic")
    policy = replace(_wider(_networks(config)), encoders=(image, scan), critic_obs=seen)
    return replace(config, policy=policy, env=replace(config.env, num_envs=128))


def parkour_ppo() -> Config:
    """A lane of obstacles; the actor observes the next one, the critic the ground."""
    config = _quadruped("parkour", total_steps=30_000_000)
    scan = EncoderSettings(component="height_scan", model="mlp", hidden_sizes=(128, 64), output_size=32)
    return replace(
        config,
        policy=replace(_wider(_networks(config)), encoders=(scan,)),
        collector=replace(config.collector, decorrelation_steps=1199),
    )


def _networks(config: RunConfig[Any, Any]) -> PolicySettings:
    assert isinstance(config.policy, PolicySettings)  # of a recipe
    return config.policy


def _wider(policy: PolicySettings) -> PolicySettings:
    return replace(policy, actor_hidden_dims=(256, 128), critic_hidden_dims=(256, 128))


def _quadruped(task: str, *, total_steps: int) -> Config:
    """Return what the tasks have in common."""
    return RunConfig(
        env=EnvSettings(task=task, num_envs=256),
        policy=PolicySettings(
            normalize_obs=True,
            actor_hidden_dims=(128, 128),
            critic_hidden_dims=(128, 128),
            activation="elu",
            init_std=1.0,
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
            max_grad_norm=1.0,
            use_clipped_value_loss=True,
            schedule="adaptive",
            desired_kl=0.01,
            normalize_advantage_per_mini_batch=False,
            optimizer_class_name="Adam",
        ),
        # episodes of different ages from the start, so that time-outs do not come all at once
        collector=CollectorConfig(decorrelation_steps=999),
        plan=OnPolicyPlan(num_steps_per_env=24, total_steps=total_steps),
        evaluation=EvaluationSettings(every=50, num_episodes=32, num_envs=32),
        checkpoints=CheckpointSettings(every=100),
        logging=LoggingSettings(console_every=10),
    )


QUADRUPED: Mapping[tuple[str, str], Callable[[], RunConfig[Any, Any]]] = {
    ("quadruped", "ppo"): quadruped_ppo,
    ("quadruped_rough", "ppo"): quadruped_rough_ppo,
    ("quadruped_blind", "ppo"): quadruped_blind_ppo,
    ("quadruped_blind", "tppo"): quadruped_blind_tppo,
    ("quadruped_depth", "ppo"): quadruped_depth_ppo,
    ("parkour", "ppo"): parkour_ppo,
}
"""The recipes of this file."""
