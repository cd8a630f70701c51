"""A runner's log_dir as the folder of a run, which `striderl evaluate`, `play`, `export`, `plot` and `resume` read.

    logs/walk/
      config.json            the settings of any run, with the runner's class and its train_cfg
      specs.json             observation and action specs
      metrics.jsonl          the metrics of every logged iteration, with the names that `striderl plot` uses
      model_50.pt  model_100.pt   the checkpoints; of earlier versions model_50/

The policy is rebuilt from its own config, whatever generation of rsl_rl the train_cfg is written in. Training resumes
from the train_cfg. A part that no file can hold, such as a teacher object, has to be passed again: build the runner in
a program and call `load`.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from striderl.checkpoint.errors import MAX_DEPTH, MAX_JSON_NODES, FileRefused
from striderl.checkpoint.safe_files import read_text
from striderl.checkpoint.strict_json import is_small
from striderl.checkpoint.trust import remember
from striderl.data.registry import GYMNASIUM, OBJECT
from striderl.envs.vec_env import VecEnv
from striderl.policies.policy import PolicyConfig
from striderl.training.experiment.config_json import (
    RUNNER,
    TRAIN_CFG,
    ConfigError,
    from_plain,
    must_be_known,
    policy_from_plain,
    policy_to_plain,
)
from striderl.training.experiment.run_config import CONFIG_FILE, RunConfig, read_run_config
from striderl.training.experiment.run_folder import write_specs
from striderl.training.experiment.runner_checkpoints import checkpoint_path
from striderl.training.experiment.runner_config import ModelPair, PresetSettings, RunnerConfig
from striderl.training.experiment.seal import accepted_content, read_plain, read_sealed, write_sealed

_log = logging.getLogger(__name__)

NO_OBJECT = "object that no file can hold"
OWN_CONFIG = "RunnerConfig"
"""The only key of a stored train_cfg that was a `RunnerConfig` and not a dict."""
_POLICY_KINDS: Mapping[str, type[Any]] = {"PresetSettings": PresetSettings, "ModelPair": ModelPair}
_MODEL = re.compile(r"model_(\d+)(\.pt)?")


@dataclass(frozen=True, kw_only=True)
class LogDir:
    """The content of a log_dir's config.json."""

    config: RunConfig[Any, Any]
    """The settings, as of any run; the task is 'object:CLASS' where no file can name the env."""
    runner: str
    """The runner's class."""
    train_cfg: Mapping[str, Any] | RunnerConfig
    """The runner's train_cfg; a dict as plain data."""
    objects: tuple[str, ...]
    """The places of objects in train_cfg that no file can hold; train_cfg is then empty."""


def write_log_dir(folder: Path, config: RunConfig[Any, Any], env: VecEnv, *, runner: str, train_cfg: Any) -> None:
    """Write config.json and specs.json; another program's config.json is left unchanged, with a warning."""
    own = isinstance(train_cfg, RunnerConfig)
    try:
        content = {
            **config.to_dict(),
            RUNNER: runner,
            TRAIN_CFG: _config_to_plain(train_cfg) if own else plain_settings(train_cfg),
        }
    except ConfigError as error:
        _log.warning("%s: not readable by 'striderl evaluate' and the like: %s", folder, error)
        return
    if os.path.lexists(folder / CONFIG_FILE) and not is_log_dir(folder):
        _log.warning("%s is not of this runner and stays; 'striderl evaluate' does not read this folder", CONFIG_FILE)
        return
    if accepted_content(folder, CONFIG_FILE) != content:
        if must_be_known(content):
            remember(folder / CONFIG_FILE, content)
        write_sealed(folder, CONFIG_FILE, content)
    write_specs(folder, env.obs_spec, env.action_spec, env.step_dt, env.actuation)


def is_log_dir(folder: str | Path) -> bool:
    """Return whether a folder is a runner's, as far as its config.json can be read."""
    try:
        content = read_plain(Path(folder), CONFIG_FILE)
    except (OSError, ConfigError, FileRefused):
        return False
    return isinstance(content, Mapping) and isinstance(content.get(RUNNER), str) and TRAIN_CFG in content


def read_log_dir(folder: str | Path, *, trust: bool = False, builds_env: bool = True) -> LogDir:
    """Read config.json of a log_dir as the runner left it; see `read_run_config` for the arguments."""
    config = read_run_config(folder, trust=trust, builds_env=builds_env)
    content = read_sealed(Path(folder), CONFIG_FILE)
    missing = tuple(_objects(content[TRAIN_CFG]))
    return LogDir(
        config=config,
        runner=content[RUNNER],
        train_cfg={} if missing else _config_from_plain(content[TRAIN_CFG]),
        objects=missing,
    )


def checkpoint_of(folder: Path, which: str | int) -> Path:
    """Return the checkpoint of an iteration; 'best' and 'last' are the newest: a runner ranks none."""
    found = {int(match[1]): path for path in folder.iterdir() if (match := _MODEL.fullmatch(path.name))}
    if not found:
        raise FileNotFoundError(f"{str(folder)!r} has no checkpoint yet; a runner writes model_0.pt, model_50.pt, …")
    if isinstance(which, str):
        return found[max(found)]
    if which not in found:
        raise FileNotFoundError(
            f"{str(checkpoint_path(folder, which + 1))!r} does not exist; there are the iterations {sorted(found)}"
        )
    return found[which]


AGENT_PARAMS = Path("params") / "agent.yaml"
"""The train_cfg that launch scripts of mjlab and Isaac Lab write into a log_dir."""


def read_agent_params(folder: Path) -> dict[str, Any]:
    """Read the train_cfg that a client's launch script has written beside its checkpoints; no object in it is made."""
    try:
        import yaml
    except ImportError as error:
        raise ImportError(f"{AGENT_PARAMS} is YAML; reading it wants the package 'pyyaml'") from error

    class Plain(yaml.SafeLoader):  # type: ignore[misc]
        """Reads tuples, which these scripts write, as lists."""

    Plain.add_constructor("tag:yaml.org,2002:python/tuple", lambda loader, node: loader.construct_sequence(node))
    path = folder / AGENT_PARAMS
    try:
        content = yaml.load(read_text(path), Plain)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not is_small(content, MAX_DEPTH):  # names of lists may be used again, also inside of themselves
        raise ConfigError(f"{path} is nested too deeply, or has more than {MAX_JSON_NODES} values")
    if not isinstance(content, dict):
        raise ConfigError(f"{path} wants a table of settings, found {type(content).__name__}")
    return content


def name_of_env(env: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the task and the settings by which `make` builds such an env again; 'object:CLASS' where it cannot."""
    if isinstance(env, VecEnv) and env.made_as is not None:
        return env.made_as
    spec: Any = getattr(env, "spec", None)
    if isinstance(getattr(spec, "id", None), str):
        return f"{GYMNASIUM}{spec.id}", dict(getattr(spec, "kwargs", None) or {})
    return f"{OBJECT}{type(env).__name__}", {}


# -- the train_cfg as data ---------------------------------------------------------------------------------------------


def plain_settings(value: Any) -> Any:
    """Return settings as plain data; functions and classes by name, other objects as placeholders."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain_settings(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain_settings(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (Path, torch.device)):
        return str(value)
    if (inspect.isfunction(value) or inspect.isclass(value)) and _importable(value):
        return f"{value.__module__}:{value.__qualname__}"
    return {NO_OBJECT: type(value).__name__}


def _config_to_plain(config: RunnerConfig) -> dict[str, Any]:
    policy = config.policy
    described = policy_to_plain(policy) if isinstance(policy, PolicyConfig) else plain_settings(policy)
    plain = {each.name: plain_settings(getattr(config, each.name)) for each in fields(config)}
    for name in ("symmetry", "teacher", "motion"):  # settings around an object
        if plain[name] is not None:
            plain[name] = {NO_OBJECT: type(getattr(config, name)).__name__}
    return {OWN_CONFIG: {**plain, "policy": {type(policy).__name__: described}}}


def _config_from_plain(data: Mapping[str, Any]) -> Mapping[str, Any] | RunnerConfig:
    if OWN_CONFIG not in data:
        return data
    ((kind, described),) = data[OWN_CONFIG]["policy"].items()
    policy = (
        _stages_of(described)
        if kind == PolicyConfig.__name__
        else from_plain(_POLICY_KINDS[kind], described, "train_cfg.policy")
    )
    return from_plain(RunnerConfig, data[OWN_CONFIG], TRAIN_CFG, {"policy": policy})


def _stages_of(data: Any) -> PolicyConfig:
    return policy_from_plain({"actor": [], **data})  # type: ignore[return-value]


def _importable(part: Any) -> bool:
    return part.__module__ != "__main__" and "<" not in part.__qualname__


def _objects(value: Any, place: str = TRAIN_CFG) -> Iterator[str]:
    if isinstance(value, Mapping):
        if NO_OBJECT in value:
            yield f"{place} (a {value[NO_OBJECT]})"
        for name, part in value.items():
            yield from _objects(part, f"{place}[{name!r}]")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _objects(part, f"{place}[{number}]")
