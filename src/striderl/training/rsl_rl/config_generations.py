"""Convert dict configs of all rsl_rl generations, and of st_rl, to the schema `RunnerConfig`.

A config's keys determine its generation; no version number is needed:

    v1      'runner' with policy_class_name and algorithm_class_name                  legged_gym, parkour
    v2      'policy' with class_name, empirical_normalization at the top              Isaac Lab up to 2.1, st_rl
    v3      'policy', and obs_groups or normalisation per network                     Isaac Lab 2.2 on, Playground
    v4, v5  'actor' and 'critic'; v5 has a distribution_cfg                           mjlab, Isaac Lab of today

Recordings to learn from first have st_rl's keys and a few of ours:

    {"pretrain_iterations": 500, "pretrain_dataset": {"data_dir": "demos", "dataset_loops": 0, …},         st_rl
     "pretrain_target": "mse_sum", "pretrain_weight": 1.0, "pretrain_learning_rate": 1e-3}                 ours

A key that no generation has is an error with a suggestion. Keys that only concern launch scripts and dashboards are
accepted and listed in `RunnerConfig.ignored`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from striderl.training.experiment.runner_config import ModelPair, PresetSettings, PretrainSettings, RunnerConfig
from striderl.training.rsl_rl.config_algorithm import AlgorithmPart, read_algorithm
from striderl.training.rsl_rl.config_policy import Keys, as_tuple, bare_class_name, read_models, read_preset

IRRELEVANT = (
    "check_for_nan",
    "checkpoint",
    "clearml_project",
    "clip_actions",
    "description",
    "device",
    "experiment_name",
    "inference_mode_rollout",
    "init_member_classes",
    "load_checkpoint",
    "load_run",
    "multi_gpu",
    "neptune_project",
    "resume",
    "resume_path",
    "wandb_tags",
)
"""Settings for launch scripts, env wrappers and dashboards; a runner does not use them."""

_COUNTS = ("num_steps_per_env", "max_iterations", "save_interval", "log_interval", "seed", "warmup_steps")


def read_train_config(train_cfg: Any) -> RunnerConfig:
    """Return the schema for a `RunnerConfig`, a dict of any generation, or a config object that can become a dict."""
    if isinstance(train_cfg, RunnerConfig):
        return train_cfg
    given = as_dict(train_cfg)
    whole = given.get("runner")
    if isinstance(whole, Mapping) and "algorithm" in whole and ("policy" in whole or "actor" in whole):
        others = sorted(set(given) - {"runner"})
        if others:
            raise ValueError(f"train_cfg['runner'] is a whole config, and train_cfg has {others} beside it; keep one")
        given = dict(whole)  # the yaml files of rsl_rl 3 on, from which programs take the part 'runner'
    keys = Keys(given, "train_cfg")
    if "student" in keys or "teacher" in keys:
        raise ValueError(
            "train_cfg has 'student' or 'teacher': it is a config for distillation; use DistillationRunner"
        )
    generation = _generation(keys)
    read = {"v1": _read_v1, "v2": _read_policy, "v3": _read_policy, "v4": _read_models, "v5": _read_models}
    return read[generation](keys, generation)


def read_distillation_config(train_cfg: Any) -> RunnerConfig:
    """Return what a DistillationRunner has in common with other runners; student and teacher are read on their own."""
    if isinstance(train_cfg, RunnerConfig):
        raise TypeError("a DistillationRunner wants rsl_rl's dict with 'student', 'teacher' and 'algorithm'")
    keys = Keys(as_dict(train_cfg), "train_cfg")
    for name in ("student", "teacher", "algorithm"):
        if keys.take(name) is None:
            raise ValueError(f"train_cfg wants {name!r} for a distillation; found {sorted(as_dict(train_cfg))}")
    keys.take("policy")
    keys.take("obs_groups")
    name = bare_class_name(keys.take("class_name", "DistillationRunner"), "train_cfg['class_name']")
    config = RunnerConfig(
        runner_class_name=name, mode=_mode(keys), generation="v5", **_tracking(keys), **keys.take_all(_COUNTS)
    )
    return replace(config, ignored=keys.finish(IRRELEVANT))


def without_functions(train_cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a file without those that import a function, which a policy does not need."""
    return {
        name: without_functions(value) if isinstance(value, Mapping) else value
        for name, value in train_cfg.items()
        if name != "symmetry_cfg"
    }


def as_dict(train_cfg: Any) -> dict[str, Any]:
    """Return a config as a dict: from a dict, a dataclass (mjlab) or an object with to_dict() (Isaac Lab)."""
    if isinstance(train_cfg, Mapping):
        return dict(train_cfg)
    if dataclasses.is_dataclass(train_cfg) and not isinstance(train_cfg, type):
        return dataclasses.asdict(train_cfg)
    if callable(getattr(train_cfg, "to_dict", None)):
        return dict(train_cfg.to_dict())
    raise TypeError(f"train_cfg: wanted a RunnerConfig or a dict of settings, found {type(train_cfg).__name__}")


def _generation(keys: Keys) -> str:
    if "runner" in keys:
        return "v1"
    if "actor" in keys and "critic" in keys:
        return "v5" if "distribution_cfg" in keys_inside(keys, "actor") else "v4"
    if "policy" in keys:
        inside = keys_inside(keys, "policy")
        newer = "obs_groups" in keys or "actor_obs_normalization" in inside or "critic_obs_normalization" in inside
        return "v3" if newer else "v2"
    raise ValueError(
        "train_cfg has neither 'runner' (rsl_rl 1) nor 'policy' (2, 3) nor 'actor' and 'critic' (4, 5); "
        f"found {sorted(keys.rest())}"
    )


def keys_inside(keys: Keys, name: str) -> Keys:
    """Return a nested dict without marking it as used."""
    return Keys(keys.peek(name), f"{keys.where}[{name!r}]")


def _read_v1(keys: Keys, generation: str) -> RunnerConfig:
    runner = keys.part("runner")
    algorithm = read_algorithm(
        keys.take("algorithm", {}),
        "train_cfg['algorithm']",
        generation,
        class_name=runner.take("algorithm_class_name", ""),
    )
    normalize = bool(runner.take("empirical_normalization", False)) or algorithm.empirical_normalization
    policy = read_preset(
        keys.take("policy", {}),
        "train_cfg['policy']",
        class_name=runner.take("policy_class_name", ""),
        normalize=normalize,
    )
    outside, inside = keys.take_all(("seed",)), runner.take_all(("seed",))
    if outside and {**outside, **inside} != outside:
        raise ValueError(
            f"train_cfg['seed']={outside['seed']} and train_cfg['runner']['seed']={inside['seed']}: there is one seed"
        )
    return _flat(runner, generation, policy, algorithm, keys, **{**outside, **inside})


def _read_policy(keys: Keys, generation: str) -> RunnerConfig:
    algorithm = read_algorithm(keys.take("algorithm", {}), "train_cfg['algorithm']", generation)
    normalize = bool(keys.take("empirical_normalization", False)) or algorithm.empirical_normalization
    policy = read_preset(keys.take("policy"), "train_cfg['policy']", normalize=normalize)
    return _flat(keys, generation, policy, algorithm)


def _read_models(keys: Keys, generation: str) -> RunnerConfig:
    algorithm = read_algorithm(keys.take("algorithm", {}), "train_cfg['algorithm']", generation)
    models = read_models(keys.take("actor"), keys.take("critic"), share_encoders=algorithm.share_encoders)
    if keys.take("empirical_normalization", False):
        models = replace(
            models,
            actor=replace(models.actor, obs_normalization=True),
            critic=replace(models.critic, obs_normalization=True),
        )
    return _flat(keys, generation, models, algorithm)


def _flat(
    keys: Keys,
    generation: str,
    policy: PresetSettings | ModelPair,
    algorithm: AlgorithmPart,
    around: Keys | None = None,
    **counts: int,
) -> RunnerConfig:
    """Read the settings that v2 to v5 keep at the top, and v1 in 'runner'; `around` is what v1 has beside it."""
    places = [keys] if around is None else [keys, around]
    keys.take("policy")  # Isaac Lab leaves an empty one next to actor and critic
    runner = keys.take("class_name", places[-1].take("runner_class_name", "OnPolicyRunner"))
    settings = {
        "runner_class_name": bare_class_name(runner, f"{keys.where}['class_name']"),
        **_tracking(*places),
        "mode": _mode(keys),
        "ckpt_manipulator": keys.take("ckpt_manipulator", ""),
        "pretrain": read_pretrain(keys),
        "obs_groups": _obs_groups(keys),
        **keys.take_all(_COUNTS),
        **counts,
    }
    ignored = (*(name for place in reversed(places) for name in place.finish(IRRELEVANT)), *algorithm.ignored)
    return RunnerConfig(policy=policy, generation=generation, ignored=ignored, **settings, **algorithm.settings)


def _mode(keys: Keys) -> str:
    """Return how steps are run: `mode`, a setting of ours, or the equivalent of torch's compile mode.

    Which of torch's modes was meant is decided by the updater.
    """
    compiles = keys.take("torch_compile_mode") not in (None, "none")
    return str(keys.take("mode", "compiled" if compiles else "auto"))


_WRITERS = {"tensorboardlogwriter": "tensorboard", "wandblogwriter": "wandb", "neptunelogwriter": "neptune"}


def _tracking(*places: Keys) -> dict[str, Any]:
    """Read the logger, by name or as rsl_rl 5's dict with its class, and the names of the run in a tracker."""
    keys = places[0]
    given = keys.take("logger", "tensorboard")
    inside = Keys(given if isinstance(given, Mapping) else {"class_name": given}, f"{keys.where}['logger']")
    name = bare_class_name(inside.take("class_name", "tensorboard"), f"{keys.where}['logger']").lower()
    found: dict[str, Any] = {"logger": _WRITERS.get(name, name)}
    project, entity = inside.take("project_name", inside.take("project")), inside.take("entity")
    inside.rest()  # further arguments of that class
    for place in places:
        found |= place.take_all(("run_name", "wandb_project", "wandb_entity", "upload_model"))
    return {**found, **({"wandb_project": project} if project else {}), **({"wandb_entity": entity} if entity else {})}


def _obs_groups(keys: Keys) -> dict[str, tuple[str, ...]]:
    """Return the observation groups of each network; v3's name of the acting network, 'policy', becomes 'actor'."""
    given = keys.part("obs_groups").rest()
    found = {name: as_tuple(groups, f"obs_groups[{name!r}]") for name, groups in given.items()}
    for name, groups in found.items():
        if not all(isinstance(group, str) for group in groups):
            raise TypeError(f"obs_groups[{name!r}]: wanted names of groups, found {groups!r}")
    if "policy" in found and "actor" not in found:
        found["actor"] = found.pop("policy")
    return found


# -- recordings --------------------------------------------------------------------------------------------------------


_WANTED = ("pretrain_iterations", "pretrain_dataset")
_FURTHER = ("pretrain_target", "pretrain_weight", "pretrain_learning_rate")


def read_pretrain(keys: Keys) -> PretrainSettings | None:
    """Take what belongs to the first stage out of a config; None where there is none."""
    given: dict[str, Any] = keys.take_all((*_WANTED, *_FURTHER))
    if not given:
        return None
    missing = [name for name in _WANTED if name not in given]
    if missing:
        raise ValueError(f"{keys.where} has {sorted(given)} without {missing}; learning from recordings wants both")
    return PretrainSettings(**{name.removeprefix("pretrain_"): value for name, value in given.items()})
