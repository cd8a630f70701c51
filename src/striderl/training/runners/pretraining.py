"""The first of two stages: which algorithm learns from recordings, and when they are at their end.

    PPO                      imitation of the recorded actions, and the critic by the recorded rewards
    TPPO                     the same, by its own distill_target; with latents, those of its teacher
    TPPO, using_ppo=False    imitation alone: DAgger from disk

Samples of a recording never are in the surrogate: they are not the policy's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from striderl.algorithms.on_policy.dagger import DAgger
from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.on_policy.tppo import TPPOConfig
from striderl.algorithms.terms.distill import KL, Distill
from striderl.collect.teacher import RecordedTeacher
from striderl.data.actions import ActionSpec, BoxSpec
from striderl.datasets.playback.dataset import RolloutDataset
from striderl.training.consumers.consumer import NOTHING, Reaction, Run
from striderl.training.distributed import Ranks
from striderl.training.record import Record
from striderl.training.runners.runner_config import PretrainSettings, RunnerConfig, TeacherSettings


def pretrain_of(config: RunnerConfig) -> PretrainSettings:
    """Return the settings of the first stage, or say that there are none."""
    if config.pretrain is None:
        raise ValueError(
            "TwoStageRunner wants 'pretrain_iterations' and 'pretrain_dataset', or RunnerConfig.pretrain; "
            "without recordings use OnPolicyRunner"
        )
    return config.pretrain


def with_recorded_teacher(config: RunnerConfig) -> RunnerConfig:
    """Return a config whose teacher is the recording, where there is no other and the env is never learned from."""
    given = config.teacher
    if given is None or pretrain_of(config).iterations >= 0 or not (given.teacher is None or given.teacher == {}):
        return config
    return replace(config, teacher=replace(given, teacher=RecordedTeacher()))


def recorded_teacher(config: RunnerConfig, algorithm: PPO | DAgger) -> RecordedTeacher:
    """Return the teacher of the first stage; the one of the second is behind it where its latents are learned."""
    if config.teacher is None:
        return RecordedTeacher()
    settings = config.teacher.config
    target = pretrain_of(config).target or settings.distill_target
    if target != KL and not settings.distill_latent_obs_component_mapping:
        return RecordedTeacher()
    teacher = next(term.teacher for term in algorithm.terms if isinstance(term, Distill))
    return RecordedTeacher(None if isinstance(teacher, RecordedTeacher) else teacher)


def pretraining_config(
    config: RunnerConfig, teacher: RecordedTeacher, action_spec: ActionSpec, *, critic: bool
) -> RunnerConfig:
    """Return the config of the first stage; without `critic`, only the actor learns.

    The learning rate does not follow the KL, which imitation means to be large; and nothing is paid for entropy.
    """
    pretrain = pretrain_of(config)
    if config.teacher is None:
        usual = "mse_sum" if isinstance(action_spec, BoxSpec) else "max_log_prob"
        settings = TPPOConfig(distill_target=pretrain.target or usual, distillation_loss_coef=pretrain.weight)
    else:
        own = config.teacher.config
        settings = replace(own, distill_target=pretrain.target or own.distill_target)
    # rewards by name come from the env and from terms, which are not there
    values = critic and settings.using_ppo and not config.algorithm.reward_groups
    rate = pretrain.learning_rate or config.algorithm.learning_rate
    algorithm = replace(config.algorithm, schedule="fixed", entropy_coef=0.0, learning_rate=rate)
    settings = replace(settings, teacher_act_prob=1.0, using_ppo=values, teacher_samples="leave", ppo=algorithm)
    return replace(
        config,
        algorithm=algorithm,
        teacher=TeacherSettings(teacher=teacher, config=settings),
        rnd=None,
        motion=None,
        warmup_steps=0,
    )


class StopAtTheEnd:
    """Ends a stage when the recordings of all processes are at their end."""

    def __init__(self, dataset: RolloutDataset, ranks: Ranks) -> None:
        self.dataset, self.ranks = dataset, ranks

    def consume(self, record: Record, run: Run) -> Reaction:
        """Look whether there is something left."""
        over = self.dataset.is_over
        if self.ranks.world_size > 1:
            over_here = torch.tensor([float(over)], device=self.ranks.device)
            over = float(self.ranks.all_reduce_sum(over_here)) == self.ranks.world_size
        return Reaction(stop="the recordings are at their end") if over else NOTHING

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the dataset is saved with the collector."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load nothing."""

    def close(self) -> None:
        """Do nothing."""
