"""Build actor-critics and teachers by class name, from st_rl's configs and run folders.

    parts_of(train_cfg, env)              for `PPO(cfg, env)`: a model for the env, settings, the shapes of the storage
    build_teacher({"class_name": …, …})   for `TPPO(teacher_policy=…)`: a model with its weights and its normaliser
    load_run("logs/walk")                 a run folder of st_rl: config.json and the newest model_<n>.pt

Names are looked up in `CLASSES`; nothing that a file names is imported, and weights are read without running code.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from striderl.checkpoint.foreign import read_torch_archive
from striderl.checkpoint.safe_files import read_json
from striderl.compat.st_rl import encoders, estimators, modules, normalizers
from striderl.data.naming import unknown
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.policy import Policy
from striderl.training.experiment.loading import load_run as read_own_run
from striderl.training.experiment.run_folder import SPECS_FILE

_log = logging.getLogger(__name__)

CLASSES: Mapping[str, Any] = {
    kind.__name__: kind
    for kind in (
        modules.ActorCritic,
        modules.ActorCriticRecurrent,
        modules.AmpActorCritic,
        modules.AmpActorCriticRecurrent,
        encoders.EncoderActorCritic,
        encoders.EncoderActorCriticRecurrent,
        encoders.EncoderAmpActorCriticRecurrent,
        estimators.EncoderStateAc,
        estimators.EncoderStateAcRecurrent,
        estimators.PrivilegeStateAcRecurrent,
        estimators.StateAc,
        estimators.StateAcRecurrent,
        encoders.VisualDeterministicAC,
        encoders.VisualDeterministicRecurrent,
    )
}
"""Every actor-critic that a config may name."""


MOTIONS = ("ref_obs", "ref_motion")
"""Components of recordings that a discriminator reads, and no policy."""


class AlgorithmParts(NamedTuple):
    """What `PPO(cfg, env)` is made of."""

    model: nn.Module
    settings: dict[str, Any]
    storage: tuple[Any, ...]


class LoadedPolicy(NamedTuple):
    """A model with weights, and the normaliser that its observations go through."""

    model: Any
    normalizer: nn.Module


def class_of(class_name: Any) -> Any:
    """Return an actor-critic class: of the table by name, or a class as it is."""
    if isinstance(class_name, type):
        return class_name
    bare = str(class_name).rpartition(":")[2].rpartition(".")[2]
    if bare not in CLASSES:
        raise ValueError(unknown("policy class", bare, CLASSES, where="striderl.compat.st_rl"))
    return CLASSES[bare]


def parts_of(cfg: Mapping[str, Any], env: Any) -> AlgorithmParts:
    """Build the model of cfg["policy"] for an env, and return the settings of cfg["algorithm"] with it."""
    runner = cfg.get("runner", {}) if isinstance(cfg.get("runner"), Mapping) else {}
    policy, algorithm = dict(cfg.get("policy", {})), dict(cfg.get("algorithm", {}))
    algorithm.pop("class_name", None)
    name = policy.pop("class_name", None) or runner.get("policy_class_name") or "ActorCritic"
    obs, critic = observations_of(env)
    sizes = (obs.shape[-1], obs.shape[-1] if critic is None else critic.shape[-1], int(env.num_actions))
    for key in ("obs_segments", "critic_obs_segments", "privileged_obs_segments"):
        if key not in policy and getattr(env, key, None):
            policy[key] = getattr(env, key)
    model = class_of(name)(*sizes, **policy)
    settings = {"device": cfg.get("device", getattr(env, "device", "cpu")), **algorithm}
    if "empirical_normalization" in cfg:
        settings["empirical_normalization"] = cfg["empirical_normalization"]
    steps = int(cfg.get("num_steps_per_env", runner.get("num_steps_per_env", 24)))
    shapes = ([sizes[0]], [None] if critic is None else [sizes[1]], [sizes[2]])
    return AlgorithmParts(model, settings, (int(env.num_envs), steps, *shapes))


def observations_of(env: Any) -> tuple[Tensor, Tensor | None]:
    """Return the present observations of actor and critic, of an env of any generation; None where they are one."""
    found = env.get_observations()
    extras: Mapping[str, Any] = {}
    if isinstance(found, tuple):
        found, extras = found[0], found[1] if isinstance(found[1], Mapping) else {}
    obs, critic = actor_and_critic(found, extras)
    if critic is None and hasattr(env, "get_privileged_observations"):
        critic = env.get_privileged_observations()
    return obs, critic


def actor_and_critic(found: Any, extras: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return the observations of actor and critic out of a vector and extras, or out of groups by name."""
    if not isinstance(found, Tensor):
        groups = {name: found[name] for name in found.keys()}  # noqa: SIM118 (a TensorDict wants keys())
        obs = next(groups[name] for name in ("policy", "actor", "obs", *groups) if name in groups)
        return obs, groups.get("critic", groups.get("privileged"))
    return found, extras.get("observations", {}).get("critic")


def flat(observation: Any) -> Tensor:
    """Return a vector [N, …] as it is, and components by name side by side in their order, without motions."""
    if not isinstance(observation, Mapping):
        vector: Tensor = observation
        return vector
    seen = [value for name, value in observation.items() if name not in MOTIONS]
    return torch.cat([value.flatten(1).float() for value in seen], dim=1)


def build_teacher(teacher_policy: Any, class_name: str = "ActorCritic", path: str | None = None) -> LoadedPolicy:
    """Return a teacher: a module as it is, or one built from a dict and loaded from its 'teacher_ac_path'.

    The class name is that of the dict; `class_name` is for dicts without one. The path may be a file, or a run folder
    whose config.json has the settings that the dict leaves out.
    """
    if teacher_policy is None:
        raise ValueError(
            'TPPO wants a teacher: give teacher_policy, a module or {"class_name": …, "teacher_ac_path": …}'
        )
    if not isinstance(teacher_policy, Mapping):
        return LoadedPolicy(teacher_policy, nn.Identity())
    settings = dict(teacher_policy)
    name = settings.pop("class_name", None) or settings.pop("teacher_policy_class_name", None) or class_name
    where = settings.pop("teacher_ac_path", None) or path
    if where is not None and Path(where).is_dir():
        return load_run(where, class_name=name, **settings)
    model = class_of(name)(**settings)
    if where is None:
        _log.warning("no snapshot is loaded for the teacher: give teacher_policy['teacher_ac_path']")
        return LoadedPolicy(model, nn.Identity())
    return load_policy(model, where)


def load_policy(model: nn.Module, path: str | Path) -> LoadedPolicy:
    """Load weights and normaliser of a checkpoint of st_rl or rsl_rl 1 to 3 into a model."""
    state = read_torch_archive(path)
    if "model_state_dict" not in state:
        raise KeyError(unknown("entry", "model_state_dict", state, where=str(path)))
    model.load_state_dict(state["model_state_dict"])
    statistics = state.get("obs_norm_state_dict")
    normalizer: nn.Module = nn.Identity()
    if statistics:
        normalizer = normalizers.EmpiricalNormalization(tuple(statistics["_mean"].shape[1:]))
        normalizer.load_state_dict(statistics)
    return LoadedPolicy(model.eval(), normalizer.eval())


def load_run(folder: str | Path, *, class_name: str | None = None, **sizes: Any) -> LoadedPolicy:
    """Build and load the policy of a run folder: its config.json, and the newest model_<n>.pt.

    A folder that `striderl train` or a runner of this library made is read as well.

    sizes: num_actor_obs, num_critic_obs, num_actions and segments, where the config does not have them.
    """
    folder = Path(folder)
    if (folder / SPECS_FILE).is_file():
        return LoadedPolicy(StatefulPolicy(_policy_of(folder)).eval(), nn.Identity())
    config = read_json(folder / "config.json")
    policy = dict(config.get("policy", {}))
    runner = config.get("runner", {}) if isinstance(config.get("runner"), Mapping) else {}
    name = policy.pop("class_name", None) or runner.get("policy_class_name") or class_name or "ActorCritic"
    return load_policy(class_of(name)(**{**policy, **sizes}), newest_model(folder))


def _policy_of(folder: Path) -> Policy:
    policy = read_own_run(folder, builds_env=False).policy
    if not isinstance(policy, Policy):
        raise TypeError(f"the run {str(folder)!r} has no critic; wanted that of an on-policy algorithm")
    return policy


def newest_model(folder: str | Path) -> Path:
    """Return the file model_<n>.pt with the largest number."""
    found = {
        int(path.stem.rpartition("_")[2]): path
        for path in Path(folder).glob("model_*.pt")
        if path.stem.rpartition("_")[2].isdecimal()
    }
    if not found:
        raise FileNotFoundError(
            f"{str(folder)!r} has no model_<n>.pt; found {sorted(p.name for p in Path(folder).iterdir())}"
        )
    return found[max(found)]
