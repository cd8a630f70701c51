"""DAgger with run folders: load the student of a `DaggerSaver` from a training that is under way.

    saver = DaggerSaver(env, load_teacher("runs/teacher"), "demos", training_policy_logdir="runs/student",
                        load_student=RunStudents(env))
    saver.collect_and_save()

    training_policy_logdir is
      the folder of a run      config.json, specs.json, checkpoints/step_…           complete
      a runner's log_dir       config.json, specs.json, model_0/ model_50/ …          complete
      that of another library  model_50.pt, and config.json with the train_cfg; or give RunStudents the train_cfg, or a
                               student of the right shape, which is then copied

The trainer may write at the same time: a checkpoint that is incomplete, or was deleted meanwhile, is skipped until the
next look. Nothing is read again before there is a newer one.
"""

from __future__ import annotations

import copy
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from striderl.checkpoint.errors import CheckpointError, FileRefused
from striderl.checkpoint.safe_files import read_json
from striderl.checkpoint.store import CheckpointStore
from striderl.envs.vec_env import VecEnv
from striderl.policies.facade.routed import policy_of
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.policy import Policy
from striderl.policies.transfer.rsl_rl_names import with_weights
from striderl.policies.transfer.rsl_rl_state import ACTOR, CRITIC, RslRlLayout
from striderl.recording.dagger import Student, StudentPolicy
from striderl.training.experiment.config_json import ConfigError
from striderl.training.experiment.loading import build_run_policy
from striderl.training.experiment.log_dir import AGENT_PARAMS, is_log_dir, read_agent_params
from striderl.training.experiment.run_config import CONFIG_FILE, read_run_config
from striderl.training.experiment.run_folder import SPECS_FILE, RunFolder, read_specs
from striderl.training.experiment.runner_checkpoints import load_state, weights_in
from striderl.training.rsl_rl.config_generations import read_train_config, without_functions
from striderl.training.rsl_rl.translate import component_order, policy_config

_log = logging.getLogger(__name__)

_NUMBERED = re.compile(r"model_(\d+)(\.pt)?")
_OF_THE_ENV = (
    "num_actor_obs",
    "num_critic_obs",
    "num_actions",
    "obs_segments",
    "critic_obs_segments",
    "privileged_obs_segments",
)
"""Settings of a saved policy that describe its env."""
_NOT_NOW = (CheckpointError, OSError, ConfigError)
"""Errors that reading a folder may raise while it is being written to."""


class RunStudents:
    """Read the newest student of a folder; see `LoadStudent`."""

    def __init__(
        self, env: VecEnv, policy: StudentPolicy | StatefulPolicy | None = None, train_cfg: Any = None
    ) -> None:
        """Build students for an env; a runner's log_dir without a config needs one of the last two arguments."""
        if policy is not None and train_cfg is not None:
            raise ValueError("policy and train_cfg both say what the student is; give one")
        self._env, self._train_cfg = env, train_cfg
        self._policy = policy_of(policy, deterministic=True) if isinstance(policy, StatefulPolicy) else policy
        self._orders: dict[str, tuple[str, ...]] = {}
        self._said = ""

    def __call__(self, folder: Path, known: str) -> Student | None:
        """Return the newest student, or None while there is no newer one that can be read."""
        try:
            if self._policy is None and (folder / SPECS_FILE).is_file() and not is_log_dir(folder):
                return self._of_run(folder, known)
            return self._of_runner(folder, known)
        except _NOT_NOW as error:
            if str(error) != self._said:  # once is enough while it stays so
                self._said = str(error)
                _log.info("no new student yet: %s", error)
            return None

    def _of_run(self, folder: Path, known: str) -> Student | None:
        root = RunFolder(folder)
        store = CheckpointStore(root.checkpoints)
        newest = store.latest()
        if newest is None or newest.name == known:
            return None
        checkpoint = store.load("last")
        if checkpoint.path.name == known:
            return None  # the newest is damaged, and the one before it is already loaded
        config = read_run_config(folder, builds_env=False)
        obs_spec, action_spec, _ = read_specs(folder)
        policy = build_run_policy(config, obs_spec, action_spec)
        policy.load_state_dict(checkpoint.state["algorithm"]["policy"])
        return Student(policy, int(checkpoint.state.get("iteration", 0)), checkpoint.path.name)

    def _of_runner(self, folder: Path, known: str) -> Student | None:
        found = [(int(match[1]), path) for path in _children(folder) if (match := _NUMBERED.fullmatch(path.name))]
        if not found:
            return None
        iteration, path = max(found)
        if path.name == known:
            return None
        state = load_state(path)
        policy = copy.deepcopy(self.model(folder))
        if isinstance(policy, Policy) and "actor_state_dict" in state:
            layout = RslRlLayout(policy, self._orders)
            for who in (ACTOR, CRITIC):
                layout.load(who, state[f"{who}_state_dict"])
        elif isinstance(policy, Policy):
            policy = with_weights(policy, path, weights_in(state))
        else:
            policy.load_state_dict(weights_in(state))
        return Student(policy, iteration, path.name)

    def model(self, folder: Path) -> StudentPolicy:
        """Return a student of the right shape, built once."""
        if self._policy is None and self._train_cfg is None and is_log_dir(folder):
            obs_spec, action_spec, _ = read_specs(folder)
            self._policy = build_run_policy(read_run_config(folder, builds_env=False), obs_spec, action_spec)
        if self._policy is None:
            given = self._train_cfg if self._train_cfg is not None else without_functions(_saved_config(folder))
            config = read_train_config(given)
            with torch.random.fork_rng(devices=[]):
                self._policy = Policy(self._env.obs_spec, self._env.action_spec, policy_config(config, self._env))
            self._orders = component_order(config, self._env)
        return self._policy


def _children(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _saved_config(folder: Path) -> Mapping[str, Any]:
    path = folder / CONFIG_FILE
    if not os.path.lexists(path) and (folder / AGENT_PARAMS).is_file():
        return read_agent_params(folder)
    if not os.path.lexists(path):
        raise ValueError(
            f"{str(folder)!r} does not say what its student is made of: it has no {SPECS_FILE}, {CONFIG_FILE} or "
            f"{AGENT_PARAMS}; give RunStudents a policy or a train_cfg"
        )
    try:
        content = read_json(path)
    except FileRefused as error:
        raise ValueError(str(error)) from error
    if not isinstance(content, dict):
        raise ValueError(f"{str(path)!r} wants a table of settings, found {type(content).__name__}")
    if isinstance(content.get("runner"), dict) and isinstance(content.get("policy"), dict):
        # parkour and st_rl write the env's settings into the same file, and sizes that the env at hand has
        policy = {name: value for name, value in content["policy"].items() if name not in _OF_THE_ENV}
        name = content["runner"].get("policy_class_name", "ActorCritic")
        return {"policy": {"class_name": name, **policy}, "algorithm": {}}
    return content
