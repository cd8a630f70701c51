"""Old import paths: a module that moved is found under its old name too, with a warning that names the new one.

    import striderl.storage.pickers  ─▶  not found  ─▶  MovedModules  ─▶  the module at its new path
                                                            └─ DeprecationWarning: … is now …

Both tables are written by `tools/move_modules.py` from `tools/moves.toml`. Nothing is imported until an old name is
asked for.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGE = "striderl"

MODULES: dict[str, str] = {
    "algorithms.a2c": "algorithms.on_policy.a2c",
    "algorithms.appo": "algorithms.on_policy.appo",
    "algorithms.atppo": "algorithms.on_policy.appo",
    "algorithms.bcq": "algorithms.offline.bcq",
    "algorithms.behaviour_cloning": "algorithms.offline.behaviour_cloning",
    "algorithms.c51": "algorithms.value_based.distributional",
    "algorithms.cql": "algorithms.offline.cql",
    "algorithms.critic_kinds": "algorithms.actor_critic.critic_kinds",
    "algorithms.crossq": "algorithms.actor_critic.crossq",
    "algorithms.dagger": "algorithms.on_policy.dagger",
    "algorithms.ddpg": "algorithms.actor_critic.td3",
    "algorithms.dqn": "algorithms.value_based.dqn",
    "algorithms.estimator_ppo": "algorithms.on_policy.estimator_ppo",
    "algorithms.fast_td3": "algorithms.actor_critic.fast_td3",
    "algorithms.gail": "algorithms.on_policy.gail",
    "algorithms.iql": "algorithms.offline.iql",
    "algorithms.iqn": "algorithms.value_based.distributional",
    "algorithms.mixed_precision": "algorithms.on_policy.minibatches",
    "algorithms.ppo": "algorithms.on_policy.ppo",
    "algorithms.ppo_config": "algorithms.on_policy.ppo_config",
    "algorithms.prepared": "algorithms.on_policy.ppo",
    "algorithms.qr_dqn": "algorithms.value_based.distributional",
    "algorithms.rainbow": "algorithms.value_based.distributional",
    "algorithms.recurrent_dqn": "algorithms.value_based.recurrent_dqn",
    "algorithms.recurrent_sac": "algorithms.actor_critic.recurrent_sac",
    "algorithms.redq": "algorithms.actor_critic.sac",
    "algorithms.reinforce": "algorithms.on_policy.reinforce",
    "algorithms.reward_groups": "algorithms.on_policy.reward_groups",
    "algorithms.rollout_minibatches": "algorithms.on_policy.minibatches",
    "algorithms.sac": "algorithms.actor_critic.sac",
    "algorithms.sac_discrete": "algorithms.actor_critic.sac_discrete",
    "algorithms.std_floor": "algorithms.on_policy.ppo",
    "algorithms.target_network": "algorithms.replay_parts",
    "algorithms.td3": "algorithms.actor_critic.td3",
    "algorithms.td3_bc": "algorithms.offline.td3_bc",
    "algorithms.temperature": "algorithms.replay_parts",
    "algorithms.terms.adversarial_config": "algorithms.terms.discriminator",
    "algorithms.terms.adversarial_expert": "algorithms.terms.expert",
    "algorithms.terms.adversarial_features": "algorithms.terms.discriminator",
    "algorithms.terms.adversarial_judge": "algorithms.terms.discriminator",
    "algorithms.terms.distill_checks": "algorithms.terms.distill",
    "algorithms.terms.distill_config": "algorithms.terms.distill",
    "algorithms.terms.motion_expert": "algorithms.terms.expert",
    "algorithms.terms.motion_prior_config": "algorithms.terms.motion_prior",
    "algorithms.terms.motion_prior_window": "algorithms.terms.motion_prior",
    "algorithms.terms.term_list": "algorithms.terms.term",
    "algorithms.tppo": "algorithms.on_policy.tppo",
    "algorithms.tqc": "algorithms.actor_critic.sac",
    "checkpoint.limits": "checkpoint.errors",
    "checkpoint.manifest": "checkpoint.folder",
    "checkpoint.reader": "checkpoint.folder",
    "checkpoint.torch_archive": "checkpoint.foreign",
    "checkpoint.writer": "checkpoint.folder",
    "collect.acting_part": "collect.actors.base",
    "collect.behaviour_actor": "collect.actors.behaviours",
    "collect.behaviours": "collect.actors.behaviours",
    "collect.collected": "collect.delivery",
    "collect.collector_config": "collect.schedules",
    "collect.compiled_acting": "collect.recorded_steps",
    "collect.dagger_saver": "recording.dagger",
    "collect.demonstration_saver": "recording.demonstrations",
    "collect.episode_tally": "collect.delivery",
    "collect.motion_recorder": "recording.motion",
    "collect.noise_source": "collect.group",
    "collect.parameter_noise": "collect.actors.parameter_noise",
    "collect.policy_actor": "collect.actors.policy_actor",
    "collect.quadruped_clips": "recording.motion",
    "collect.recorded_teacher": "collect.teacher",
    "collect.recorder": "collect.recorded_steps",
    "collect.sampler_agents": "collect.samplers.agents",
    "collect.sampler_collectors": "collect.samplers.collectors",
    "collect.sampler_decorrelation": "collect.samplers.collectors",
    "collect.sampler_env_adapter": "collect.samplers.env_adapter",
    "collect.sampler_envs": "collect.samplers.envs",
    "collect.sampler_evaluation": "collect.samplers.collectors",
    "collect.sampler_examples": "collect.samplers.samplers",
    "collect.sampler_samples": "collect.samplers.samples",
    "collect.sampler_seeds": "collect.samplers.samples",
    "collect.sampler_trajectories": "collect.samplers.traj_info",
    "collect.saver_actors": "recording.actors",
    "collect.saver_buffer": "recording.episodes",
    "collect.saver_episodes": "recording.episodes",
    "collect.saver_student": "recording.dagger",
    "collect.saver_summary": "recording.demonstrations",
    "collect.teacher_acting": "collect.teacher",
    "collect.teacher_router": "collect.teacher",
    "collect.traj_info": "collect.samplers.traj_info",
    "compat.algorithm_learners": "compat.tianshou.algorithm_policy",
    "compat.algorithm_policy": "compat.tianshou.algorithm_policy",
    "compat.base_policy": "compat.tianshou.base_policy",
    "compat.buffer_returns": "compat.tianshou.base_policy",
    "compat.buffer_writer": "compat.tianshou.collector",
    "compat.components": "compat.parts",
    "compat.final_observations": "compat.st_rl.loop",
    "compat.forward_actor": "compat.tianshou.collector",
    "compat.functional_trainers": "compat.tianshou.trainers",
    "compat.generator_agent": "compat.generator.agent",
    "compat.generator_trainer": "compat.generator.trainer",
    "compat.loop_storage": "compat.st_rl.loop",
    "compat.player": "compat.parts",
    "compat.policy_checks": "compat.parts",
    "compat.ppo": "compat.st_rl.ppo",
    "compat.recorded_steps": "compat.st_rl.loop",
    "compat.replay_collector": "compat.tianshou.collector",
    "compat.rlpyt_agents": "compat.rlpyt.agents",
    "compat.rlpyt_algorithms": "compat.rlpyt.algorithms",
    "compat.rlpyt_runner": "compat.rlpyt.runner",
    "compat.rollout_targets": "compat.parts",
    "data.batch_parse": "data.batch_ops",
    "data.batch_rows": "data.batch_ops",
    "data.overrides": "data.checked_fields",
    "datasets.amp_loader": "datasets.motion.amp_loader",
    "datasets.array_pickle": "datasets.readers.array_pickle",
    "datasets.lerobot_frames": "datasets.readers.lerobot",
    "datasets.lerobot_reader": "datasets.readers.lerobot",
    "datasets.minari_reader": "datasets.readers.minari",
    "datasets.motion_arrays": "datasets.motion.clip_files",
    "datasets.motion_clip": "datasets.motion.clip",
    "datasets.motion_clip_file": "datasets.motion.clip_files",
    "datasets.motion_derivation": "datasets.motion.amp_loader",
    "datasets.motion_gait": "datasets.motion.gait",
    "datasets.motion_interpolation": "datasets.motion.clip",
    "datasets.motion_json": "datasets.motion.json_clips",
    "datasets.motion_mirror": "datasets.motion.clip",
    "datasets.motion_npz": "datasets.motion.clip_files",
    "datasets.motion_table": "datasets.motion.amp_loader",
    "datasets.old_pickles": "datasets.readers.old_pickles",
    "datasets.rollout_cursors": "datasets.playback.dataset",
    "datasets.rollout_dataset": "datasets.playback.dataset",
    "datasets.rollout_files": "datasets.playback.base",
    "datasets.rollout_import": "datasets.readers.episodes",
    "datasets.rollout_order": "datasets.playback.sources",
    "datasets.rollout_pages": "datasets.playback.frame_cache",
    "datasets.rollout_sources": "datasets.playback.sources",
    "datasets.trajectory_codecs": "datasets.trajectories.codecs",
    "datasets.trajectory_errors": "datasets.trajectories.spec",
    "datasets.trajectory_metadata": "datasets.trajectories.spec",
    "datasets.trajectory_read": "datasets.trajectories.store",
    "datasets.trajectory_record": "datasets.trajectories.shard",
    "datasets.trajectory_shard": "datasets.trajectories.shard",
    "datasets.trajectory_spec": "datasets.trajectories.spec",
    "datasets.trajectory_store": "datasets.trajectories.store",
    "datasets.trajectory_writer": "datasets.trajectories.writer",
    "envs.async_env": "envs.vec_env",
    "envs.check.behaviour": "envs.check.checker",
    "envs.check.report": "envs.check.values",
    "envs.check.rollout": "envs.check.checker",
    "envs.classic_control.drawing": "envs.classic_control.base",
    "envs.classic_control.starts": "envs.classic_control.base",
    "envs.gymnasium.action_part": "envs.gymnasium.rows",
    "envs.gymnasium.batched": "envs.gymnasium.vector",
    "envs.gymnasium.building": "envs.gymnasium.env",
    "envs.mujoco.commands": "envs.quadruped.commands",
    "envs.mujoco.config": "envs.mujoco.simulation",
    "envs.mujoco.depth_camera": "envs.quadruped.sight",
    "envs.mujoco.external_forces": "envs.mujoco.locomotion_spatial",
    "envs.mujoco.fitting": "envs.mujoco.base",
    "envs.mujoco.height_map": "envs.quadruped.terrain",
    "envs.mujoco.height_scan": "envs.quadruped.sight",
    "envs.mujoco.levels": "envs.quadruped.commands",
    "envs.mujoco.live_terms": "envs.mujoco.randomize",
    "envs.mujoco.parkour": "envs.quadruped.parkour",
    "envs.mujoco.parkour_field": "envs.quadruped.parkour",
    "envs.mujoco.quadruped": "envs.quadruped.velocity",
    "envs.mujoco.quadruped_base": "envs.quadruped.base",
    "envs.mujoco.quadruped_components": "envs.quadruped.base",
    "envs.mujoco.quadruped_model": "envs.quadruped.robot",
    "envs.mujoco.quadruped_motion": "envs.quadruped.trot",
    "envs.mujoco.quadruped_rewards": "envs.quadruped.rewards",
    "envs.mujoco.quadruped_state": "envs.quadruped.robot",
    "envs.mujoco.quadruped_tasks": "envs.quadruped.tasks",
    "envs.mujoco.quadruped_trot": "envs.quadruped.trot",
    "envs.mujoco.reward_terms": "envs.mujoco.base",
    "envs.mujoco.saving": "envs.mujoco.simulation",
    "envs.mujoco.terrain": "envs.quadruped.terrain",
    "envs.refusals": "envs.vec_env",
    "envs.rsl_rl.actuation": "envs.rsl_rl.control",
    "envs.rsl_rl.extras": "envs.rsl_rl.obs",
    "envs.sampling": "envs.check.probe",
    "envs.workers.config": "envs.workers.pool",
    "envs.workers.crew": "envs.workers.handle",
    "execution.allocator": "execution.updater",
    "execution.capture_cuda": "execution.capture",
    "execution.joint_program": "execution.traced",
    "execution.pure_program": "execution.traced",
    "export.commit": "export.metadata",
    "export.packages": "export.exported_policy",
    "export.programs": "export.bundle",
    "loggers.animation": "loggers.tensorboard_logger",
    "loggers.console_text": "loggers.console_logger",
    "loggers.csv_logger": "loggers.file_loggers",
    "loggers.jsonl_logger": "loggers.file_loggers",
    "loggers.line_file": "loggers.file_loggers",
    "loggers.mlflow_logger": "loggers.trackers",
    "loggers.neptune_logger": "loggers.trackers",
    "loggers.runs": "loggers.plots",
    "loggers.trackio_logger": "loggers.trackers",
    "loggers.wandb_logger": "loggers.trackers",
    "networks.activations": "networks.mlp",
    "networks.batch_renorm": "networks.ensemble",
    "networks.beta": "networks.distributions.beta",
    "networks.categorical": "networks.distributions.categorical",
    "networks.deterministic": "networks.distributions.deterministic",
    "networks.distribution": "networks.distributions.base",
    "networks.fused_layers": "networks.mlp",
    "networks.gaussian": "networks.distributions.gaussian",
    "networks.gaussian_head": "networks.heads.gaussian",
    "networks.head": "networks.heads.base",
    "networks.hybrid": "networks.distributions.base",
    "networks.noisy": "networks.heads.value",
    "networks.q_distributions": "networks.heads.value",
    "networks.recurrent_weights": "networks.memory",
    "networks.return_normalizers": "networks.normalizers",
    "networks.running_mean_std": "networks.normalizers",
    "networks.value_heads": "networks.heads.value",
    "ops.adversarial": "ops.imitation",
    "ops.distill_targets": "ops.imitation",
    "ops.distributional": "ops.td",
    "ops.offline": "ops.td",
    "ops.padding": "ops.trajectories",
    "ops.pooling": "ops.moments",
    "ops.projected_clamp": "networks.heads.gaussian",
    "ops.sequences": "ops.trajectories",
    "ops.teacher_schedules": "ops.ramps",
    "ops.trajectory_packing": "ops.trajectories",
    "ops.trajectory_slots": "ops.trajectories",
    "ops.triton_lstm": "ops.kernels.lstm",
    "ops.triton_mlp": "ops.kernels.mlp",
    "ops.triton_scan": "ops.kernels.columns",
    "ops.triton_shuffle": "ops.kernels.columns",
    "policies.transfer.layout": "policies.parameter_layout",
    "recipes.gymnasium": "recipes.general",
    "storage.packed_rows": "storage.replay.rows",
    "storage.pickers": "storage.replay.samplers",
    "storage.plain_add": "storage.replay.writer",
    "storage.queue_rollout": "storage.rollout_presets",
    "storage.replay_buffer_file": "storage.replay_buffer.file",
    "storage.replay_buffer_frames": "storage.replay_buffer.buffer",
    "storage.replay_buffer_kinds": "storage.replay_buffer.kinds",
    "storage.replay_buffer_rows": "storage.replay_buffer.rows",
    "storage.replay_buffer_step": "storage.replay_buffer.rows",
    "storage.replay_device": "storage.replay.device",
    "storage.replay_episodes": "storage.replay.reader",
    "storage.replay_layout": "storage.replay.rows",
    "storage.replay_priorities": "storage.replay_buffer.places",
    "storage.replay_reader": "storage.replay.reader",
    "storage.replay_recurrent": "storage.replay.reader",
    "storage.replay_state": "storage.replay.replay",
    "storage.replay_window": "storage.replay.views",
    "storage.replay_writer": "storage.replay.writer",
    "storage.ring_index": "storage.replay.ring",
    "storage.ring_places": "storage.replay_buffer.places",
    "storage.row_writer": "storage.rollout",
    "storage.state_pair": "storage.replay.state_pair",
    "storage.step_records": "storage.replay.rows",
    "storage.sum_tree": "storage.replay.sum_tree",
    "storage.views": "storage.replay.views",
    "storage.views_hindsight": "storage.replay.views",
    "storage.views_sequence": "storage.replay.views",
    "training.policy_settings": "policies.settings",
    "training.runners.adopt_env": "envs.wrap_env",
}
"""Old path to new path, both without the package's own name."""

NAMES: dict[str, str] = {
    "collect:DaggerSaver": "recording:DaggerSaver",
    "collect:DemonstrationSaver": "recording:DemonstrationSaver",
    "collect:LoadStudent": "recording:LoadStudent",
    "collect:MotionRecorder": "recording:MotionRecorder",
    "collect:MotionRecorderConfig": "recording:MotionRecorderConfig",
    "collect:Progress": "recording:Progress",
    "collect:Student": "recording:Student",
    "collect:quadruped_fields": "recording:quadruped_fields",
    "collect:quadruped_loader_config": "recording:quadruped_loader_config",
    "collect:quadruped_recorder_config": "recording:quadruped_recorder_config",
    "collect:record_motion": "recording:record_motion",
    "collect:trot_clip": "recording:trot_clip",
    "collect:trot_clips": "recording:trot_clips",
    "training:EncoderSettings": "policies:EncoderSettings",
    "training:PolicySettings": "policies:PolicySettings",
}
"""Public names that another package offers now, 'package:Name' to 'package:Name'."""


class MovedModules:
    """Finder and loader at the end of `sys.meta_path`, asked when nothing else was found."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for an old path."""
        package, _, rest = name.partition(".")
        found = package == PACKAGE and rest in MODULES
        return ModuleSpec(name, self) if found else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module at the new path, the same object."""
        new = f"{PACKAGE}.{MODULES[spec.name.partition('.')[2]]}"
        warnings.warn(
            f"{spec.name} is now {new}; the old path will go in a later version", DeprecationWarning, stacklevel=2
        )
        module = importlib.import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back; importing has set that of the old path."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def moved_name(package: str, name: str) -> Any:
    """Return what a package used to offer under this name, with a warning."""
    home, _, new_name = NAMES[f"{package.partition('.')[2]}:{name}"].partition(":")
    warnings.warn(
        f"{package}.{name} is now {PACKAGE}.{home}.{new_name}; the old name will go in a later version",
        DeprecationWarning,
        stacklevel=3,
    )
    return getattr(importlib.import_module(f"{PACKAGE}.{home}"), new_name)


def install() -> None:
    """Put the finder at the end of `sys.meta_path`, once."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
