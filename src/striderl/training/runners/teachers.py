"""Teachers from what a config says: an object, the folder of a run, or the weights of a class.

Teacher(policy)                                                    as it is
{"teacher_ac_path": "runs/walk/2026-…"}                            a run's folder: it says everything itself
{"teacher_ac_path": "logs/walk"}                                   a runner's log_dir as well: the newest checkpoint
{"teacher_ac_path": "logs/walk/model_1500", "class_name": …, …}    one checkpoint of it, or an older log_dir
{"teacher_ac_path": "old/model_1500.pt", "class_name": …, …}       rsl_rl's or st_rl's file, with its normaliser
{"teachers": [{…}, {…}], "component": "skill"}                     several, routed by an observation component
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from striderl.checkpoint.foreign import read_rsl_rl
from striderl.collect.teacher import Teacher, TeacherRouter
from striderl.policies.policy import Policy
from striderl.policies.transfer.parts import load_parts, part_names
from striderl.policies.transfer.rsl_rl_names import load_rsl_rl
from striderl.training.loading import load_run
from striderl.training.run_specs import SPECS_FILE
from striderl.training.runners.config_keys import Keys
from striderl.training.runners.config_policy import read_preset
from striderl.training.runners.log_dir import is_log_dir
from striderl.training.runners.partial_load import weights_in
from striderl.training.runners.run_files import load_state
from striderl.training.runners.runner_config import PresetSettings

MakePolicy = Callable[[PresetSettings], Policy]
"""Builds the policy of a class for the env at hand."""

_NUMBERED = re.compile(r"model_(\d+)(\.pt)?")


def load_teacher(
    folder: str | Path, which: str | int = "best", *, components: Mapping[str, str] | None = None
) -> Teacher:
    """Take the policy of a run's folder as a teacher: with its normalisers, and with what it observes, by name.

    which: the 'best', the 'last', or that of a number of env steps.
    components: other names that the student's env has for what the teacher observes.
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
            keys.rest()  # settings of its class, which the folder knows itself
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
    # the critic of a teacher is never asked, and may have been made for other observations
    load_parts(policy, weights, take=[part for part in part_names(policy) if part.partition("/")[0] != "critic"])
    return policy


def _is_ours(state: Mapping[str, Any]) -> bool:
    weights = state.get("model_state_dict")
    return isinstance(weights, Mapping) and any(str(name).startswith(("head.", "actor_body.")) for name in weights)


def _normalizes(weights: Mapping[str, Tensor], part: str) -> bool:
    return any(name.startswith((part, "trunk.")) and "_NormalizeObs." in name for name in weights)
