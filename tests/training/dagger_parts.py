"""A teacher and a process that records with it: what a test of DAgger by two processes is made of."""

from __future__ import annotations

from pathlib import Path

import torch

from striderl.algorithms.on_policy.ppo import PPOConfig
from striderl.algorithms.on_policy.tppo import TPPOConfig
from striderl.envs.tasks import make
from striderl.envs.vec_env import VecEnv
from striderl.policies.policy import Policy, PolicyConfig
from striderl.recording.dagger import DaggerSaver
from striderl.training.demonstrations import RunStudents
from striderl.training.experiment.runner_config import PretrainSettings, RunnerConfig, TeacherSettings

SMALL = {"actor_hidden_dims": (8,), "critic_hidden_dims": (4,)}


def make_env() -> VecEnv:
    return make("pendulum", num_envs=4)


def make_teacher(env: VecEnv) -> Policy:
    """The same in every process; its actions are near 1.5 everywhere, those of a new student near 0."""
    torch.manual_seed(11)
    policy = Policy(env.obs_spec, env.action_spec, PolicyConfig(**SMALL))
    torch.nn.init.constant_(dict(policy.named_parameters())["head.mean_layer.linear.bias"], 1.5)
    return policy


def learner_config(folder: Path) -> RunnerConfig:
    return RunnerConfig(
        policy=PolicyConfig(**SMALL),
        algorithm=PPOConfig(num_learning_epochs=2, num_mini_batches=2, learning_rate=1e-2),
        teacher=TeacherSettings(teacher=None, config=TPPOConfig(using_ppo=False, distill_target="real")),
        pretrain=PretrainSettings(
            iterations=-1,
            dataset={"data_dir": str(folder / "demos"), "dataset_loops": 0, "wait_timeout": 60.0},
        ),
        num_steps_per_env=8,
        save_interval=1,
        logger="none",
        runner_class_name="TwoStageRunner",
    )


def record(folder: Path) -> None:
    """Record, always with the newest student, until the process is ended."""
    torch.set_num_threads(1)
    with make_env() as env:
        DaggerSaver(
            env,
            make_teacher(env),
            folder / "demos",
            rollout_storage_length=8,
            min_timesteps=100_000,
            min_episodes=1,
            training_policy_logdir=folder / "learner",
            load_student=RunStudents(env, train_cfg=learner_config(folder)),
            teacher_act_prob=0.0,
            action_sample_std=1e-6,
            max_trajectory_length=8,
        ).collect_and_save()
