"""Runners and policies by name, from explicit tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from striderl.data.naming import unknown
from striderl.envs.tasks import make
from striderl.envs.wrap_env import wrap_env
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.training.experiment.log_dir import checkpoint_of, read_log_dir
from striderl.training.rsl_rl.config_policy import bare_class_name
from striderl.training.rsl_rl.distillation import DistillationRunner
from striderl.training.rsl_rl.on_policy_runner import AmpPolicyRunner, OnPolicyRunner
from striderl.training.rsl_rl.translate import preset_model, resolve_obs_sets
from striderl.training.rsl_rl.two_stage_runner import TwoStageRunner

RUNNERS: Mapping[str, type[OnPolicyRunner]] = {
    "OnPolicyRunner": OnPolicyRunner,
    "AmpPolicyRunner": AmpPolicyRunner,
    "DistillationRunner": DistillationRunner,
    "TwoStageRunner": TwoStageRunner,
}
"""Every runner that a config may name."""


def build_runner(
    name: str,
    env: Any,
    train_cfg: Any,
    log_dir: str | Path | None = None,
    device: torch.device | str = "cpu",
) -> OnPolicyRunner:
    """Build the runner of this name; a name with its module, 'rsl_rl.runners:OnPolicyRunner', works as well."""
    bare = bare_class_name(name, "the name of a runner")
    if bare not in RUNNERS:
        raise ValueError(unknown("runner", bare, RUNNERS, where="the table of runners"))
    return RUNNERS[bare](env, train_cfg, log_dir, device)


def resume_runner(log_dir: str | Path, *, env: Any = None, device: str = "", trust: bool = False) -> OnPolicyRunner:
    """Rebuild the runner of a log_dir and load its newest checkpoint; `learn` then resumes.

    env: required where the folder cannot name the training env; otherwise replaces that one.
    trust: import modules that the folder names though it was made elsewhere.
    """
    about = read_log_dir(log_dir, trust=trust, builds_env=env is None)
    if about.objects:
        raise ValueError(
            f"{str(log_dir)!r} was trained with objects that no file can hold: {', '.join(about.objects)}. Build the "
            f"runner with them in a program and call runner.load({str(checkpoint_of(Path(log_dir), 'last'))!r})"
        )
    where, named = device or about.config.device, about.config.env
    if env is None:
        env = make(named.task, num_envs=named.num_envs, device=where, settings=named.settings)
    runner = build_runner(about.runner, env, about.train_cfg, log_dir, where)
    runner.load(checkpoint_of(Path(log_dir), "last"))
    return runner


def build_actor_critic(env: Any, class_name: str, policy_cfg: Mapping[str, Any]) -> StatefulPolicy:
    """Build a policy class for an env: sizes, component names and actions need not be in the config."""
    vec_env = wrap_env(env, device=getattr(env, "device", None) or "cpu")
    settings = {name: value for name, value in policy_cfg.items() if name != "class_name"}
    sets = resolve_obs_sets({}, vec_env.obs_spec, type(env).__name__)
    return preset_model(bare_class_name(class_name, "class_name"), settings, vec_env, sets)
