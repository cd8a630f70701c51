"""Live objects of a runner, which no config can hold: expert motions, mirrors, teachers.

    function(env=, obs={group: [n, …]}, actions=[n, A])  ──▶  ({group: [k·n, …]}, [k·n, A])     k copies, the first is
                                                                the given one; rows n to 2n are mirrored, and used

The term `Symmetry` takes a mirror as two functions. One mirror is used; a function that gives more than two copies is
named once in the log. The older form (v1, v2) takes one vector at a time and obs_type= 'policy' or 'critic'.

A teacher is an object, the folder of a run, or the weights of a class:

    Teacher(policy)                                                    as it is
    {"teacher_ac_path": "runs/walk/2026-…"}                            a run's folder, which holds everything
    {"teacher_ac_path": "logs/walk"}                                   a runner's log_dir: the newest checkpoint
    {"teacher_ac_path": "logs/walk/model_1500", "class_name": …, …}    one checkpoint of it, or an older log_dir
    {"teacher_ac_path": "old/model_1500.pt", "class_name": …, …}       rsl_rl's or st_rl's file, with its normaliser
    {"teachers": [{…}, {…}], "component": "skill"}                     several, routed by an observation component
"""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.terms.expert import EnvExpert, as_expert
from striderl.algorithms.terms.motion_prior import MotionPriorConfig
from striderl.checkpoint.foreign import read_rsl_rl
from striderl.collect.teacher import Teacher, TeacherRouter
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.envs.vec_env import VecEnv
from striderl.networks.discriminator import AMPDiscriminator
from striderl.policies.policy import Policy
from striderl.policies.transfer.parts import load_parts, part_names
from striderl.policies.transfer.rsl_rl_names import load_rsl_rl
from striderl.training.experiment.loading import load_run
from striderl.training.experiment.log_dir import is_log_dir
from striderl.training.experiment.run_folder import SPECS_FILE
from striderl.training.experiment.runner_checkpoints import load_state, weights_in
from striderl.training.experiment.runner_config import MotionSettings, PresetSettings, RunnerConfig, SymmetrySettings
from striderl.training.rsl_rl.config_policy import Keys, read_preset

# -- motions -----------------------------------------------------------------------------------------------------------


DISCRIMINATOR = "amp_discriminator"
"""The setting of a policy's class that describes its discriminator."""

COMPONENTS = ("ref_obs", "motion")
"""What motions are called in envs: st_rl's name, and ours; the first that an env has is taken."""

_log = logging.getLogger(__name__)


def motion_info(config: RunnerConfig) -> dict[str, TensorSpec]:
    """Return the info columns that a wrapped env must pass on, because the motion terms read them."""
    motion = config.motion
    if motion is None:
        return {}
    if isinstance(motion.expert, EnvExpert):
        return {motion.expert.column: motion.expert.spec}
    if not _is_env(motion.expert) and motion.mimic is None:
        return {}
    expert = _env_expert(motion, _described(config))
    return {expert.column: expert.spec}


def motion_parts(
    motion: MotionSettings, env: VecEnv, discriminator: AMPDiscriminator | None
) -> tuple[dict[str, Any], Any]:
    """Return the settings of the motion terms by name, and the expert."""
    size = _size(motion, None if discriminator is None else discriminator.input_dim)
    prior = _with_window(motion.prior, env.obs_spec, size) if motion.find_window else motion.prior
    terms: dict[str, Any] = {"motion_prior": prior}
    if motion.mimic is not None:
        terms["mimic"] = replace(motion.mimic, components=prior.components)
    return terms, _expert(motion, prior, env, size)


def _expert(motion: MotionSettings, prior: MotionPriorConfig, env: VecEnv, size: int) -> Any:
    if _is_env(motion.expert):
        return _env_expert(motion, size)
    if not isinstance(motion.expert, (list, tuple)):
        return motion.expert
    from striderl.datasets.motion.amp_loader import AMPLoader, AMPLoaderConfig

    usual = {"time_between_frames": env.step_dt, "num_frames": prior.frames}
    return AMPLoader(motion.expert, AMPLoaderConfig(**{**usual, **motion.loader}), env.device)


def _is_env(expert: Any) -> bool:
    if isinstance(expert, str) and expert != "env":
        raise ValueError(f"the expert is 'env', an object, or a list of clips and their files; found {expert!r}")
    return isinstance(expert, str)


def _env_expert(motion: MotionSettings, size: int) -> EnvExpert:
    size = size or motion.amp_obs_dim
    if not size:
        raise ValueError("the env shows the expert: say how many numbers a motion has with amp_obs_dim")
    return EnvExpert(shape=(size,))


def _size(motion: MotionSettings, described: int | None) -> int:
    """Return the size of a motion, 0 where it is unknown; contradicting settings raise."""
    known = {"amp_obs_dim": motion.amp_obs_dim, f"{DISCRIMINATOR}['input_dim']": described or 0}
    if not isinstance(motion.expert, (str, list, tuple)):
        known["the expert"] = as_expert(motion.expert).size
    told = {name: size for name, size in known.items() if size}
    if len(set(told.values())) > 1:
        raise ValueError(f"the size of a motion is told differently: {told}")
    return next(iter(told.values()), 0)


def _described(config: RunnerConfig) -> int:
    """Return the input size of the discriminator that the policy's settings describe, 0 where there is none."""
    settings: Mapping[str, Any] = config.policy.settings if isinstance(config.policy, PresetSettings) else {}
    return int(settings.get(DISCRIMINATOR, {}).get("input_dim", 0))


def _with_window(prior: MotionPriorConfig, spec: ObsSpec, size: int) -> MotionPriorConfig:
    """Return the prior with the component that the env has for motions, and as many frames as fill a motion."""
    found = [name for name in COMPONENTS if name in spec or name in spec.groups]
    if not found:
        raise KeyError(
            f"which observations are motions? The env gives {sorted(spec)}, none of {list(COMPONENTS)}; name them in "
            "motion_prior: {'components': […], 'frames': …}"
        )
    frame = spec.select(found[:1]).size
    if size % frame:
        raise ValueError(f"a motion has {size} numbers, which are no whole frames of {found[0]!r} with {frame}")
    return replace(prior, components=(found[0],), frames=size // frame or prior.frames)


# -- mirrors -----------------------------------------------------------------------------------------------------------


class GroupMirror:
    """Gather components into groups, call the function, and split the groups again."""

    def __init__(self, settings: SymmetrySettings, env: Any, spec: ObsSpec) -> None:
        self._function, self._flat, self._env = settings.function, settings.flat, env
        self._groups = {group: spec.select([group]) for group in spec.groups}
        self._has_tensordict = importlib.util.find_spec("tensordict") is not None
        self._told = False

    def obs(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all components mirrored, with the leading shape they came in."""
        name, component = next((name, spec[name]) for spec in self._groups.values() for name in spec)
        lead = tuple(obs[name].shape[: obs[name].dim() - len(component.shape)])
        rows = {key: value.reshape(-1, *value.shape[len(lead) :]) for key, value in obs.items()}
        count = next(iter(rows.values())).shape[0]
        found: dict[str, Tensor] = {}
        groups = {group: _joined(spec, rows) for group, spec in self._groups.items()}
        mirrored = self._ask_flat(groups) if self._flat else self._ask(groups, count)
        for group, spec in self._groups.items():
            half = self._second(mirrored[group], count, f"group {group!r}")
            found |= dict(spec.split(half)) if len(spec) > 1 else {spec.names[0]: half}
        return {key: found[key].reshape(*lead, *value.shape[len(lead) :]) for key, value in obs.items()}

    def act(self, actions: Tensor) -> Tensor:
        """Return the actions mirrored, [.., A]."""
        rows = actions.reshape(-1, actions.shape[-1])
        if self._flat:
            _, mirrored = self._function(obs=None, actions=rows, env=self._env, obs_type="policy")
        else:
            _, mirrored = self._function(env=self._env, obs=None, actions=rows)
        return self._second(mirrored, rows.shape[0], "the action").reshape(actions.shape)

    def _ask(self, groups: dict[str, Tensor], count: int) -> Any:
        given: Any = groups
        if self._has_tensordict:  # functions written for rsl_rl call methods of TensorDict
            from tensordict import TensorDict

            given = TensorDict(groups, batch_size=[count])
        mirrored, _ = self._function(env=self._env, obs=given, actions=None)
        missing = [group for group in groups if group not in mirrored.keys()]  # noqa: SIM118  (a TensorDict wants keys())
        if missing:
            raise KeyError(f"the symmetry function returned no observation group {missing}")
        return mirrored

    def _ask_flat(self, groups: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            group: self._function(obs=value, actions=None, env=self._env, obs_type=group)[0]
            for group, value in groups.items()
        }

    def _second(self, value: Tensor, count: int, what: str) -> Tensor:
        copies = value.shape[0] // count
        if copies < 2 or value.shape[0] % count:
            raise ValueError(
                f"the symmetry function wants to return {what} and mirrored copies behind, {count} rows each; "
                f"found {value.shape[0]} rows"
            )
        if copies > 2 and not self._told:
            self._told = True
            _log.warning("the symmetry function gives %d copies; the first mirrored one is used", copies)
        return torch.as_tensor(value[count : 2 * count])


def _joined(spec: ObsSpec, rows: Mapping[str, Tensor]) -> Tensor:
    """Return a group as its only component, or as all of them in one vector."""
    if len(spec) == 1:
        return rows[spec.names[0]]
    flat: Tensor = spec.flatten({name: rows[name] for name in spec})
    return flat


# -- teachers ----------------------------------------------------------------------------------------------------------


MakePolicy = Callable[[PresetSettings], Policy]
"""Builds the policy of a class for the env at hand."""

_NUMBERED = re.compile(r"model_(\d+)(\.pt)?")


def load_teacher(
    folder: str | Path, which: str | int = "best", *, components: Mapping[str, str] | None = None
) -> Teacher:
    """Load the policy of a run's folder as a teacher, with its normalisers and its observation components.

    which: the 'best', the 'last', or that of a number of env steps.
    components: names in the student's env of the components that the teacher observes, where they differ.
    """
    return Teacher(load_run(folder, which, builds_env=False).policy, components)


def build_teacher(given: Any, make_policy: MakePolicy) -> Teacher | TeacherRouter:
    """Return the teacher, or the teachers, that a config names."""
    if isinstance(given, (Teacher, TeacherRouter)):
        return given
    if not isinstance(given, Mapping):
        return Teacher(given)
    keys = Keys(given, "teacher_policy")
    if "teachers" in keys:
        several = [build_teacher(each, make_policy) for each in keys.take("teachers")]
        component = keys.take("component")
        keys.finish()
        if component is None or not all(isinstance(each, Teacher) for each in several):
            raise ValueError("teacher_policy['teachers'] wants 'component', and a list of single teachers")
        return TeacherRouter([each for each in several if isinstance(each, Teacher)], str(component))
    return _from_path(keys, make_policy)


def _from_path(keys: Keys, make_policy: MakePolicy) -> Teacher:
    path, components = keys.take("teacher_ac_path"), dict(keys.take("components", {}))
    if path is None:
        raise ValueError(
            "teacher_policy wants 'teacher_ac_path': the folder of a run, or a checkpoint with the class it was made by"
        )
    path = Path(path)
    if (path / SPECS_FILE).is_file():
        which = keys.take("which", "best")
        keys.take("class_name")
        if is_log_dir(path):
            keys.rest()  # settings of its class, which the folder contains
        keys.finish()
        return load_teacher(path, which, components=components)
    return Teacher(_from_weights(_newest(path), read_preset(keys.rest(), "teacher_policy"), make_policy), components)


def _newest(path: Path) -> Path:
    """Return the checkpoint itself, or the one with the highest number in a log_dir."""
    if not path.exists():
        raise FileNotFoundError(f"there is no teacher {str(path)!r}")
    found = (
        [(int(match[1]), each) for each in path.iterdir() if (match := _NUMBERED.fullmatch(each.name))]
        if (path.is_dir())
        else []
    )
    return max(found)[1] if found else path


def _from_weights(path: Path, preset: PresetSettings, make_policy: MakePolicy) -> Policy:
    """Build the class with the normalisers that the weights have, and load them."""
    foreign = read_rsl_rl(path) if path.is_file() and not _is_ours(load_state(path)) else None
    if foreign is not None:
        normalized = foreign.actor_normalizer is not None
        policy = make_policy(replace(preset, normalize_actor_obs=normalized, normalize_critic_obs=False))
        load_rsl_rl(policy, foreign, critic=False)
        return policy
    weights = weights_in(load_state(path))
    actor, critic = (_normalizes(weights, part) for part in ("actor.", "critic."))
    policy = make_policy(replace(preset, normalize_actor_obs=actor, normalize_critic_obs=critic))
    # the critic of a teacher is never used, and may have been built for other observations
    load_parts(policy, weights, take=[part for part in part_names(policy) if part.partition("/")[0] != "critic"])
    return policy


def _is_ours(state: Mapping[str, Any]) -> bool:
    weights = state.get("model_state_dict")
    return isinstance(weights, Mapping) and any(str(name).startswith(("head.", "actor_body.")) for name in weights)


def _normalizes(weights: Mapping[str, Tensor], part: str) -> bool:
    return any(name.startswith((part, "trunk.")) and "_NormalizeObs." in name for name in weights)
