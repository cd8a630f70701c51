"""A runner's log_dir as the folder of a run, which `striderl evaluate`, `play`, `export`, `plot` and `resume` read.

    logs/walk/
      config.json            the runner and its train_cfg, its env by name, its policy's config
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

from striderl.checkpoint.errors import FileRefused
from striderl.checkpoint.safe_files import read_text
from striderl.checkpoint.trust import remember, require_trust
from striderl.data.naming import saved_name, unknown
from striderl.data.registry import GYMNASIUM, OBJECT, is_reference, load_reference
from striderl.envs.tasks import modules_named
from striderl.envs.vec_env import VecEnv
from striderl.policies.encode import Encode
from striderl.policies.estimate import Adapt, Estimate
from striderl.policies.policy import PolicyConfig
from striderl.policies.settings import OwnNetwork
from striderl.policies.stages import NormalizeObs, OneHot, Override, Remember
from striderl.training.experiment.config_json import ConfigError, from_plain, to_plain
from striderl.training.experiment.run_config import CONFIG_FILE, EnvSettings
from striderl.training.experiment.run_folder import write_specs
from striderl.training.experiment.runner_checkpoints import checkpoint_path
from striderl.training.experiment.runner_config import ModelPair, PresetSettings, RunnerConfig
from striderl.training.experiment.seal import accepted_content, read_plain, read_sealed, write_sealed

_log = logging.getLogger(__name__)

RUNNER, TRAIN_CFG, NO_OBJECT = "runner", "train_cfg", "object that no file can hold"
OWN_CONFIG = "RunnerConfig"
"""The only key of a stored train_cfg that was a `RunnerConfig` and not a dict."""
SCHEMA = 2
STAGES: Mapping[str, type[Any]] = {
    "NormalizeObs": NormalizeObs,
    "OneHot": OneHot,
    "Remember": Remember,
    "Override": Override,
    "Encode": Encode,
    "Estimate": Estimate,
    "Adapt": Adapt,
    "OwnNetwork": OwnNetwork,
}
"""The stages of this library, by the name under which they are saved; others are 'module:Class'."""

_POLICY_KINDS: Mapping[str, type[Any]] = {"PresetSettings": PresetSettings, "ModelPair": ModelPair}
_LISTS = ("trunk", "actor", "critic")
_MODEL = re.compile(r"model_(\d+)(\.pt)?")


@dataclass(frozen=True, kw_only=True)
class LogDir:
    """The content of a log_dir's config.json."""

    runner: str
    """The runner's class."""
    env: EnvSettings
    """The env, by name; 'object:CLASS' where no file can name it."""
    policy: PolicyConfig
    """The policy's config."""
    train_cfg: Mapping[str, Any] | RunnerConfig
    """The runner's train_cfg; a dict as plain data."""
    device: str
    """The training device."""
    objects: tuple[str, ...]
    """The places of objects in train_cfg that no file can hold; train_cfg is then empty."""


def write_log_dir(
    folder: Path, *, runner: str, env: VecEnv, user_env: Any, policy: PolicyConfig, train_cfg: Any, device: Any
) -> None:
    """Write config.json and specs.json; another program's config.json is left unchanged, with a warning."""
    task, settings = name_of_env(user_env)
    try:
        content = {
            "schema": SCHEMA,
            RUNNER: runner,
            "env": {"task": task, "num_envs": env.num_envs, "settings": to_plain(settings)},
            "policy": policy_to_plain(policy),
            TRAIN_CFG: _config_to_plain(train_cfg)
            if isinstance(train_cfg, RunnerConfig)
            else plain_settings(train_cfg),
            "device": str(device),
        }
    except ConfigError as error:
        _log.warning("%s: not readable by 'striderl evaluate' and the like: %s", folder, error)
        return
    if os.path.lexists(folder / CONFIG_FILE) and not is_log_dir(folder):
        _log.warning("%s is not of this runner and stays; 'striderl evaluate' does not read this folder", CONFIG_FILE)
        return
    if accepted_content(folder, CONFIG_FILE) != content:
        if _modules(content, env=True):
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
    folder = Path(folder)
    content = read_sealed(folder, CONFIG_FILE)
    if content.get("schema") != SCHEMA:
        raise ConfigError(
            f"{folder / CONFIG_FILE} has schema {content.get('schema')!r}; this version reads schema {SCHEMA}"
        )
    require_trust(folder / CONFIG_FILE, content, _modules(content, env=builds_env), trust=trust)
    missing = tuple(_objects(content[TRAIN_CFG]))
    try:
        return LogDir(
            runner=content[RUNNER],
            env=from_plain(EnvSettings, content["env"], "env"),
            policy=policy_from_plain(content["policy"]),
            train_cfg={} if missing else _config_from_plain(content[TRAIN_CFG]),
            device=str(content["device"]),
            objects=missing,
        )
    except KeyError as error:
        raise ConfigError(f"{folder / CONFIG_FILE}: there is no {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{folder / CONFIG_FILE}: {error}") from error


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
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {error}") from error
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


# -- the policy as data ------------------------------------------------------------------------------------------------


def policy_to_plain(config: PolicyConfig) -> dict[str, Any]:
    """Return a policy's config as plain data, each stage with its name."""
    plain = {each.name: getattr(config, each.name) for each in fields(config)}
    for name in _LISTS:
        plain[name] = [{"stage": _stage_name(stage), **to_plain(stage)} for stage in plain[name]]
    return {name: to_plain(value) for name, value in plain.items()}


def policy_from_plain(data: Mapping[str, Any]) -> PolicyConfig:
    """Return the config of a policy from plain data."""
    stages = {name: tuple(_stage(part, f"policy.{name}") for part in data.get(name, ())) for name in _LISTS}
    return from_plain(PolicyConfig, data, "policy", stages)


def _stage_name(stage: Any) -> str:
    name = saved_name(stage)
    if type(stage) is STAGES.get(name):
        return name
    if not is_dataclass(stage) or "<" in type(stage).__qualname__:
        raise ConfigError(f"the stage {type(stage).__name__} is no dataclass of a module, so no file can name it")
    return f"{type(stage).__module__}:{type(stage).__qualname__}"


def _stage(part: Any, where: str) -> Any:
    if not isinstance(part, Mapping) or not isinstance(part.get("stage"), str):
        raise ConfigError(f"{where}: wanted a stage with its name, found {part!r}")
    name = part["stage"]
    if name not in STAGES and not is_reference(name):
        raise ConfigError(unknown("stage", name, STAGES, where=where))
    kind = STAGES[name] if name in STAGES else load_reference(name)
    return from_plain(kind, {key: value for key, value in part.items() if key != "stage"}, where)


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
        policy_from_plain(described)
        if kind == PolicyConfig.__name__
        else from_plain(_POLICY_KINDS[kind], described, "train_cfg.policy")
    )
    return from_plain(RunnerConfig, data[OWN_CONFIG], TRAIN_CFG, {"policy": policy})


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


def _modules(content: Mapping[str, Any], *, env: bool) -> list[str]:
    """Return the modules that building the parts would import: of own stages and networks, of functions, of the env."""
    policy = content.get("policy")
    stages = [part for name in _LISTS for part in (policy.get(name) or ())] if isinstance(policy, Mapping) else []
    named = [text for part in stages if isinstance(part, Mapping) for text in (part.get("stage"), part.get("network"))]
    found = [text for text in named if isinstance(text, str) and is_reference(text)]
    if env:
        found += [text for text in _functions(content.get(TRAIN_CFG)) if is_reference(text)]
        about = content.get("env")
        if isinstance(about, Mapping) and isinstance(about.get("task"), str):
            found += [f"{name}:" for name in modules_named(about["task"], about.get("settings") or {})]
    return [text.partition(":")[0] for text in found]


def _functions(value: Any) -> Iterator[str]:
    """Return the names of functions that reading a train_cfg imports."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            if name == "data_augmentation_func" and isinstance(part, str):
                yield part
            else:
                yield from _functions(part)
    elif isinstance(value, list):
        for part in value:
            yield from _functions(part)
