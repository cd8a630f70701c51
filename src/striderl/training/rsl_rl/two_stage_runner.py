"""`TwoStageRunner`: learn from recordings first, then from the env.

    runner = TwoStageRunner(env, {**train_cfg, "pretrain_iterations": 200, "pretrain_dataset": {"data_dir": "demos"}})
    runner.learn(1000)

    stage 'pretrain'   dataset ─▶ labels, rewards ─▶ imitation, critic ─▶ …                        `dataset_env.py`
         │ hand_over   the policy stays, with its normalisers; everything else is reset:
         │             optimiser, learning rate, schedules, env, memories
    stage 'rl'         env ─▶ PPO, as in an OnPolicyRunner; the iteration count continues

With pretrain_iterations = -1 there is no second stage: DAgger from disk, while others record with the newest student.
The algorithm decides what the first stage learns:

    PPO                      imitation of the recorded actions, and the critic by the recorded rewards
    TPPO                     the same, by its own distill_target; with latents, those of its teacher
    TPPO, using_ppo=False    imitation alone: DAgger from disk

Samples of a recording never enter the surrogate loss: they are off-policy.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.on_policy.dagger import DAgger
from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.on_policy.tppo import TPPOConfig
from striderl.algorithms.terms.distill import KL, Distill
from striderl.collect.teacher import RecordedTeacher
from striderl.data.actions import ActionSpec, BoxSpec
from striderl.datasets.playback.dataset import RolloutDataset
from striderl.envs.vec_env import VecEnv
from striderl.policies.facade.inputs import Observations
from striderl.policies.run_reader import WEIGHTS
from striderl.training.callbacks.callback import NOTHING, Reaction, RunningTrainer
from striderl.training.distributed import Ranks
from striderl.training.experiment.runner_checkpoints import (
    Manipulator,
    checkpoint_path,
    load_state,
    load_weights,
    save_file,
    wanted_parts,
    weights_in,
)
from striderl.training.experiment.runner_config import PretrainSettings, RunnerConfig, TeacherSettings
from striderl.training.record import Record
from striderl.training.rsl_rl.dataset_env import PREFIX, DatasetEnv, not_recorded
from striderl.training.rsl_rl.on_policy_runner import OnPolicyRunner
from striderl.training.rsl_rl.stepping import Stepped
from striderl.training.rsl_rl.translate import Translation, translate

_log = logging.getLogger(__name__)

PRETRAIN, RL = "pretrain", "rl"
"""The two stages."""

_STAGE = "stage"
_OF_RECORDINGS = ("return_mean", "length_mean")


class TwoStageRunner(OnPolicyRunner):
    """Train from recordings, then by PPO; see the top of this module."""

    learns_from_recordings = True

    def __init__(
        self,
        env: Any,
        train_cfg: Any,
        log_dir: str | Path | None = None,
        device: torch.device | str = "cpu",
        registry_name: str | None = None,
    ) -> None:
        """Build everything from the config; the recordings are opened when they are first used."""
        super().__init__(env, train_cfg, log_dir, device, registry_name)
        pretrain = pretrain_of(self.config)
        self.rollout_dataset = RolloutDataset(
            num_envs=self.vec_env.num_envs,
            device=self.vec_env.device,
            share=(self.ranks.rank, self.ranks.world_size),
            **{"seed": self.seed, **pretrain.dataset},
        )
        self.pretrain_iterations = pretrain.iterations
        self.stage = RL if pretrain.iterations == 0 else PRETRAIN
        """The present stage: 'pretrain' or 'rl'."""
        self._reads = False
        self._foreign_obs = False

    def _read_config(self, train_cfg: Any) -> RunnerConfig:
        config = super()._read_config(train_cfg)
        pretrain_of(config)
        return with_recorded_teacher(config)

    # -- training ------------------------------------------------------------------------------------------------------

    def learn(
        self, num_learning_iterations: int | None = None, init_at_random_ep_len: bool = False, trial: Any = None
    ) -> tuple[float | None, float | None]:
        """Train through both stages; a trial gets the metrics of the second one only."""
        with self._locked_log_dir():
            return self._learn_both(num_learning_iterations, init_at_random_ep_len, trial)

    def _learn_both(
        self, num_learning_iterations: int | None, init_at_random_ep_len: bool, trial: Any
    ) -> tuple[float | None, float | None]:
        left = self.config.max_iterations if num_learning_iterations is None else num_learning_iterations
        while self.stage == PRETRAIN and left > 0:
            self._offer_first_weights()
            self.begin_reading()
            before = self.current_learning_iteration
            self._learn_from_recordings(left)
            left -= self.current_learning_iteration - before
            if self.stage == PRETRAIN and self.trainer.stop_reason:
                return self.metrics_velrmsd, self.metrics_CoT
        if left == 0:
            return self.metrics_velrmsd, self.metrics_CoT
        self._foreign_obs = False
        return super().learn(left, init_at_random_ep_len, trial)

    def _learn_from_recordings(self, num_iterations: int) -> None:
        """Train up to so many iterations of the first stage, and hand over where it is at its end."""
        budget = self.pretrain_iterations
        if budget >= 0:
            num_iterations = min(num_iterations, budget - self.current_learning_iteration)
        try:
            super().learn(max(0, num_iterations))
        except StopIteration:
            _log.warning("%s after %d iterations", self.trainer.stop_reason, self.current_learning_iteration)
            if self.writes and self.log_dir is not None:
                self.save(checkpoint_path(self.log_dir, self.current_learning_iteration))
        self._hand_over_if_due()

    def rollout_step(self, obs: Observations | None = None, critic_obs: Observations | None = None, /) -> Stepped:
        """Read one step of the recordings, or step all envs: (obs, critic_obs, rewards, dones, infos).

        In the first stage, and in the first step of the second, the given observations are not the env's and are
        ignored.
        """
        if self.stage == PRETRAIN:
            self.begin_reading()
            self._foreign_obs = True
            return self._manual.step(None, None)
        if self._foreign_obs:
            obs, critic_obs, self._foreign_obs = None, None, False
        return self._manual.step(obs, critic_obs)

    def learn_from_rollout(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Learn from what `rollout_step` collected; after the last iteration of the first stage, hand over."""
        numbers = super().learn_from_rollout()
        if self.stage == PRETRAIN:
            if self.rollout_dataset.is_over:
                self.trainer.stop_reason = "the recordings are at their end"
            self._hand_over_if_due()
        return numbers

    # -- the stages ----------------------------------------------------------------------------------------------------

    def hand_over(self) -> None:
        """Begin the second stage now: keep the policy, reset everything else."""
        if self.stage == RL:
            return
        before, iteration, read = self.alg.learner, self.current_learning_iteration, self._reads
        self.stage, self._reads, self._foreign_obs = RL, False, True
        self._learn_with(self._with_policy(self.config, self.vec_env), self.vec_env)
        if isinstance(before, PPO) and isinstance(self.alg.learner, PPO) and read:
            _keep_units(before, self.alg.learner)
        self.trainer.iteration = iteration
        self.rollout_dataset.close()
        _log.info("the env takes over after %d iterations from recordings", iteration)

    def _enter(self, stage: str) -> None:
        """Enter a stage without running the one before."""
        if stage == RL:
            self.hand_over()
        self.stage = stage

    def _hand_over_if_due(self) -> None:
        budget = self.pretrain_iterations
        if budget >= 0 and (self.trainer.stop_reason or self.current_learning_iteration >= budget):
            self.hand_over()

    def begin_reading(self) -> None:
        """Build the parts of the first stage, once; waits until something is recorded."""
        if self.stage == RL or self._reads:
            return
        config, policy, iteration = self.config, self.alg.policy, self.current_learning_iteration
        teacher = recorded_teacher(config, self.alg.learner)
        absent = not_recorded(self.rollout_dataset, self.vec_env.obs_spec)
        read = set(policy.actor_inputs) if teacher.behind is None and not config.estimation else set(absent)
        blank = [name for name in absent if name not in read]
        unseen = [name for name in blank if name in policy.critic_inputs]
        if unseen:
            _log.warning("%s were not recorded: the critic is not trained before the env is", ", ".join(unseen))
        env = DatasetEnv(self.rollout_dataset, self.vec_env, teacher, blank)
        first = pretraining_config(config, teacher, env.action_spec, critic=not unseen)
        self._learn_with(self._with_policy(first, env), env, [StopAtTheEnd(self.rollout_dataset, self.ranks)])
        self.trainer.iteration, self._reads = iteration, True

    def _with_policy(self, config: RunnerConfig, env: VecEnv) -> Translation:
        """Return the parts of a stage for the present policy: its optimiser updates the parameters from now on."""
        found = translate(config, env, self.env, self.seed, self.device)
        return found._replace(objects={**found.objects, "policy": self.alg.policy})

    # -- logs and checkpoints ------------------------------------------------------------------------------------------

    def log(self, locs: Mapping[str, Any], width: int = 80, pad: int = 40) -> None:
        """Log the metrics of an iteration; returns of recordings are 'Perf/dataset_…', not the policy's return."""
        record = locs.get("record", self.trainer.record)
        if record is not None and self.stage == PRETRAIN:
            renamed = {f"collect/{name}": f"collect/{PREFIX}{name}" for name in _OF_RECORDINGS}
            metrics = {renamed.get(name, name): value for name, value in record.metrics.items()}
            locs = {**locs, "record": replace(record, metrics=metrics)}
        super().log(locs, width, pad)

    def checkpoint(self, infos: Any = None) -> dict[str, Any]:
        """Return what `save` writes, stage included."""
        self.begin_reading()
        return {**super().checkpoint(infos), _STAGE: self.stage}

    def load(
        self,
        path: str | Path,
        load_optimizer: bool | Mapping[str, bool] = True,
        map_location: Any = None,
        manipulator: Manipulator | str | None = None,
        *,
        load_cfg: Mapping[str, bool] | None = None,
        strict: bool = True,
    ) -> Any:
        """Load a checkpoint, enter the stage that it was saved in, and return its infos.

        Where it is loaded in part, or through a manipulator, the stage stays as it is; of another stage's checkpoint
        only the weights can be loaded so.
        """
        state = load_state(path, map_location)
        stage = state.get(_STAGE, RL) if "trainer" in state else self.stage
        changed = manipulator or self.config.ckpt_manipulator
        if wanted_parts(load_optimizer, load_cfg).everything and strict and not changed:
            self._enter(stage)
        elif stage != self.stage and not changed:
            load_weights(self.alg.policy, weights_in(state), strict=strict)
            return state.get("infos")
        if "trainer" in state:
            self.begin_reading()
        return super().load(path, load_optimizer, map_location, manipulator, load_cfg=load_cfg, strict=strict)

    def close(self) -> None:
        """Finish the log and close the envs; calling it twice is fine."""
        super().close()
        self.vec_env.close()

    def _is_save_due(self, iteration: int, *, last: bool) -> bool:
        """Leave the first weights, which a recorder may be reading, until there are newer ones."""
        first = self.stage == PRETRAIN and iteration == 1
        return last or (not first and super()._is_save_due(iteration, last=last))

    def _offer_first_weights(self) -> None:
        """Save the policy before the first recording is read: a process that records with the student waits for it."""
        if not self.writes or self.log_dir is None or self._reads or self.current_learning_iteration:
            return
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self._describe_run(self.log_dir)  # by which `RunStudents` builds the student
        path = checkpoint_path(self.log_dir, 0)
        if not path.exists():
            weights = dict(self.alg.policy.state_dict())
            models = {"iter": 0, "infos": None, **self.alg.save()}
            save_file(path, models, {WEIGHTS: weights, "iter": 0, "infos": None})


def _keep_units(before: PPO, after: PPO) -> None:
    """Copy the value normaliser: the critic predicts normalised returns."""
    if before.value_normalizer is not None and after.value_normalizer is not None:
        after.value_normalizer.load_state_dict(before.value_normalizer.state_dict())


# -- the first stage ---------------------------------------------------------------------------------------------------


def pretrain_of(config: RunnerConfig) -> PretrainSettings:
    """Return the settings of the first stage, or raise without them."""
    if config.pretrain is None:
        raise ValueError(
            "TwoStageRunner wants 'pretrain_iterations' and 'pretrain_dataset', or RunnerConfig.pretrain; "
            "without recordings use OnPolicyRunner"
        )
    return config.pretrain


def with_recorded_teacher(config: RunnerConfig) -> RunnerConfig:
    """Return a config whose teacher is the recording, where there is no other and the second stage never runs."""
    given = config.teacher
    if given is None or pretrain_of(config).iterations >= 0 or not (given.teacher is None or given.teacher == {}):
        return config
    return replace(config, teacher=replace(given, teacher=RecordedTeacher()))


def recorded_teacher(config: RunnerConfig, algorithm: PPO | DAgger) -> RecordedTeacher:
    """Return the teacher of the first stage; it wraps the second's where its latents are learned."""
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

    The learning rate does not follow the KL, which is large in imitation; and there is no entropy bonus.
    """
    pretrain = pretrain_of(config)
    if config.teacher is None:
        usual = "mse_sum" if isinstance(action_spec, BoxSpec) else "max_log_prob"
        settings = TPPOConfig(distill_target=pretrain.target or usual, distillation_loss_coef=pretrain.weight)
    else:
        own = config.teacher.config
        settings = replace(own, distill_target=pretrain.target or own.distill_target)
    # named rewards come from the env and from terms, which this stage does not have
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
    """End a stage when the recordings of all processes are exhausted."""

    def __init__(self, dataset: RolloutDataset, ranks: Ranks) -> None:
        self.dataset, self.ranks = dataset, ranks

    def on_iteration(self, record: Record, run: RunningTrainer) -> Reaction:
        """Check whether steps are left."""
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
