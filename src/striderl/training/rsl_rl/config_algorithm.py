"""The algorithm's part of a config, of any generation: the settings of PPO and its terms.

    {"class_name": "PPO", "clip_param": 0.2, …, "rnd_cfg": {…}, "symmetry_cfg": {…}}                          rsl_rl
    {"class_name": "PPO", "ppo": {"clip_param": 0.2, …}, "empirical_normalization": True}                     st_rl
    {"class_name": "TPPO", "teacher_policy": {"class_name": "ActorCritic", "teacher_ac_path": …, …}, …}       st_rl
    {"teacher_policy_class_name": "ActorCritic", "teacher_ac_path": "logs/…", "teacher_policy": {…}, …}       parkour
    {"class_name": "APPO", "discriminator_loss_coef": 1.0, "mimic_loss_coef": 0.0, "amp_obs_dim": 60,         st_rl
     "motion_files": ["trot.npz"], "motion_loader": {"mirror": True}, "motion_prior": {"frames": 2, …}}       ours

Without 'expert' and 'motion_files' the env gives the expert: infos['observations']['ref_obs'] is the robot's motion,
infos['ref_motion'] the reference. `mimic_loss_coef` is the weight of a reward, minus the distance of the
two: as a loss it would have no gradient in any parameter.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.algorithms.on_policy.tppo import TPPOConfig
from striderl.algorithms.terms.estimation import Estimation
from striderl.algorithms.terms.mimic import MimicConfig
from striderl.algorithms.terms.motion_prior import MotionPriorConfig
from striderl.algorithms.terms.rnd import RNDConfig
from striderl.data.naming import unknown
from striderl.data.registry import is_reference
from striderl.training.experiment.runner_config import (
    NEWER_RSL_RL_DEFAULTS,
    MotionSettings,
    SymmetrySettings,
    TeacherSettings,
    rsl_rl_ppo_config,
)
from striderl.training.rsl_rl.config_policy import Keys, as_tuple, bare_class_name

_log = logging.getLogger(__name__)

# -- teacher -----------------------------------------------------------------------------------------------------------


PATH, CLASS = "teacher_ac_path", "class_name"
"""Keys of a teacher's weights and class."""


def read_teacher(keys: Keys) -> TeacherSettings:
    """Read the settings of teacher and distillation from an algorithm's dict."""
    own = tuple(each.name for each in fields(TPPOConfig) if each.name != "ppo")
    teacher = keys.take("teacher_policy", {})
    beside = {PATH: keys.take(PATH), CLASS: keys.take("teacher_policy_class_name")}
    found = {name: value for name, value in beside.items() if value is not None}
    if found:
        if not isinstance(teacher, Mapping):
            raise ValueError(f"{keys.where} has {sorted(found)} beside a teacher that is given as an object; keep one")
        if PATH in found and teacher.get(PATH, found[PATH]) != found[PATH]:
            raise ValueError(f"{keys.where} has two values of {PATH!r}, beside 'teacher_policy' and in it; keep one")
        if CLASS in found and teacher.get(CLASS, found[CLASS]) != found[CLASS]:
            _log.warning(
                "teacher_policy_class_name %r is not used: teacher_policy has the class_name %r",
                found[CLASS],
                teacher[CLASS],
            )
        teacher = {**found, **teacher}
    settings: dict[str, Any] = keys.take_all(own)
    return TeacherSettings(teacher=teacher, config=TPPOConfig(**settings))


# -- motion prior ------------------------------------------------------------------------------------------------------


OPEN = ("components", "frames")
"""Settings that are inferred from the env where a config leaves them out."""


def read_motion(keys: Keys) -> MotionSettings:
    """Read the settings of the motion prior from an algorithm's dict."""
    prior = keys.part("motion_prior").rest()
    for name in ("components", "hidden_dims"):
        if name in prior:
            prior[name] = as_tuple(prior[name], f"{keys.where}['motion_prior'][{name!r}]")
    given = {name: prior[name] for name in OPEN if name in prior}
    if len(given) == 1:
        raise ValueError(f"{keys.where}['motion_prior'] has {list(given)}; give components and frames, or neither")
    config = replace(MotionPriorConfig(**prior), loss_weight=float(keys.take("discriminator_loss_coef", 1.0)))
    weight = float(keys.take("mimic_loss_coef", 0.0))
    return MotionSettings(
        expert=_expert(keys),
        prior=config,
        mimic=MimicConfig(weight=weight, kind="distance") if weight else None,
        find_window=not given,
        amp_obs_dim=int(keys.take("amp_obs_dim", 0)),
        loader=keys.part("motion_loader").rest(),
    )


def _expert(keys: Keys) -> Any:
    expert, files = keys.take("expert"), keys.take("motion_files")
    if expert is not None and files is not None:
        raise ValueError(f"{keys.where} has 'expert' and 'motion_files', which mean the same; keep one")
    if files is not None:
        return list(files) if isinstance(files, (list, tuple)) else [files]
    return "env" if expert is None else expert


# -- the whole ---------------------------------------------------------------------------------------------------------


ALGORITHMS = ("PPO", "EstimatorPPO", "TPPO", "EstimatorTPPO", "APPO", "ATPPO")
"""The algorithms a runner's config may name."""

OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "rmsprop": "RMSprop"}
"""How rsl_rl's names of optimisers are spelled here."""

IRRELEVANT = ("grad_reduce_bucket_mb", "multi_gpu_cfg")
"""Settings of gradient exchange, which has no buckets here."""


class AlgorithmPart(NamedTuple):
    """The content of the algorithm's dict."""

    settings: dict[str, Any]
    """Fields of `RunnerConfig`: the algorithm and its terms."""
    empirical_normalization: bool
    """Whether observations are normalised, which belongs to the policy's stages."""
    share_encoders: bool
    """Whether actor and critic share encoders, which belongs to the policy."""
    ignored: tuple[str, ...]
    """Settings without a meaning here."""


def read_algorithm(given: Any, where: str, generation: str, *, class_name: str = "") -> AlgorithmPart:
    """Read the algorithm's dict; `class_name` is what v1 keeps elsewhere."""
    keys = _with_nested(given, where)
    name = bare_class_name(keys.take("class_name", class_name or "PPO"), f"{where}['class_name']")
    if name not in ALGORITHMS:
        raise ValueError(unknown("algorithm", name, ALGORITHMS, where="the table of algorithms"))
    rnd, symmetry = keys.take("rnd_cfg"), keys.take("symmetry_cfg")
    normalization = _flag(keys, "empirical_normalization")
    share = _flag(keys, "share_cnn_encoders")
    settings: dict[str, Any] = {}
    if name.startswith("Estimator"):
        settings["estimation"] = _estimations(keys)
    if name.endswith("TPPO"):
        settings["teacher"] = read_teacher(keys)
    if name in ("APPO", "ATPPO"):
        settings["motion"] = read_motion(keys)
    settings["algorithm"] = config = _ppo_config(keys, newer=generation in ("v4", "v5"))
    if rnd is not None:
        settings["rnd"] = _rnd(rnd, f"{where}['rnd_cfg']", gamma=config.gamma)
    if symmetry is not None:
        settings["symmetry"] = _symmetry(symmetry, f"{where}['symmetry_cfg']", flat=generation in ("v1", "v2"))
    return AlgorithmPart(settings, normalization, share, keys.finish(IRRELEVANT))


def _with_nested(given: Any, where: str) -> Keys:
    """Merge st_rl's nested 'ppo' into the other settings; a key in both is an error."""
    keys = Keys(given, where)
    if "ppo" not in keys:
        return keys
    nested, outer = keys.part("ppo").rest(), keys.rest()
    both = sorted(set(nested) & set(outer))
    if both:
        raise ValueError(f"{where} has {both} twice, beside 'ppo' and in it; keep one")
    return Keys({**outer, **nested}, where)


def _ppo_fields() -> tuple[str, ...]:
    return tuple(each.name for each in fields(PPOConfig))


def _ppo_config(keys: Keys, *, newer: bool) -> PPOConfig:
    optimizer = keys.take("optimizer")
    given = keys.take_all(_ppo_fields())
    if optimizer is not None:
        if "optimizer_class_name" in given:
            raise ValueError(f"{keys.where} has 'optimizer' and 'optimizer_class_name', which mean the same; keep one")
        given["optimizer_class_name"] = OPTIMIZERS.get(str(optimizer).lower(), optimizer)
    return rsl_rl_ppo_config(**{**(NEWER_RSL_RL_DEFAULTS if newer else {}), **given})


def _estimations(keys: Keys) -> tuple[Estimation, ...]:
    """Read the estimator's loss; an adaptor has the same, unless it is given one of its own."""
    estimator, adaptor = _estimation(keys, "estimator", "Estimate"), _estimation(keys, "adaptor", "Adapt")
    return tuple(each for each in (estimator or Estimation(), adaptor) if each is not None)


def _estimation(keys: Keys, who: str, stage: str) -> Estimation | None:
    names = {"weight": f"{who}_loss_coef", "loss": f"{who}_loss_func", "loss_kwargs": f"{who}_loss_kwargs"}
    given = {field: value for field, name in names.items() if (value := keys.take(name)) is not None}
    return Estimation(stage=stage, **given) if given else None


def _rnd(given: Any, where: str, *, gamma: float) -> RNDConfig:
    """Translate rsl_rl's RND settings; its observations and the time per step come from the env."""
    keys = Keys(given, where)
    schedule = keys.part("weight_schedule")
    mode = schedule.take("mode", "constant")
    named = {
        "weight": keys.take("weight", 0.0),
        "normalize_obs": _flag(
            keys, "state_normalization" if "gate_normalization" not in keys else "gate_normalization"
        ),
        "normalize_reward": _flag(keys, "reward_normalization"),
        "learning_rate": keys.take("learning_rate", 1e-3),
        "num_outputs": keys.take("num_outputs", 1),
        "activation": keys.take("activation", "elu"),
        "predictor_hidden_dims": as_tuple(keys.take("predictor_hidden_dims", (256, 256)), where),
        "target_hidden_dims": as_tuple(keys.take("target_hidden_dims", (256, 256)), where),
    }
    if mode != "constant":
        named |= {
            "weight_schedule": mode,
            "initial_step": schedule.take("initial_step", 0) if mode == "linear" else 0,
            "final_step": schedule.take("final_step", 0),
            "final_weight": schedule.take("final_value", 0.0),
        }
    schedule.finish()
    keys.finish(("class_name",))
    return RNDConfig(gamma=gamma, **named)


def _symmetry(given: Any, where: str, *, flat: bool) -> SymmetrySettings | None:
    keys = Keys(given, where)
    augment, mirror = _flag(keys, "use_data_augmentation"), _flag(keys, "use_mirror_loss")
    function, weight = keys.take("data_augmentation_func"), keys.take("mirror_loss_coeff", 0.0)
    keys.finish(("class_name",))
    if not augment and not mirror:
        return None
    if function is None:
        _log.warning("%s is not used: it has no data_augmentation_func, a function or 'module:function'", where)
        return None
    return SymmetrySettings(
        function=_function(function, f"{where}['data_augmentation_func']"),
        augment=augment,
        mirror_loss_weight=float(weight) if mirror else 0.0,
        flat=flat,
    )


def _function(given: Any, where: str) -> Callable[..., Any]:
    """Return the function that a config names as 'package.module:function', or that it holds itself."""
    if callable(given):
        return given  # type: ignore[no-any-return]
    if not isinstance(given, str) or not is_reference(given):
        raise TypeError(f"{where}: wanted a function or 'package.module:function', found {given!r}")
    module, _, name = given.partition(":")
    found = vars(importlib.import_module(module))
    if not callable(found.get(name)):
        raise ValueError(
            unknown("function", name, [key for key, value in found.items() if callable(value)], where=where)
        )
    return found[name]  # type: ignore[no-any-return]


def _flag(keys: Keys, name: str) -> bool:
    value = keys.take(name, False)
    if not isinstance(value, bool):
        raise TypeError(f"{keys.where}[{name!r}]: wanted True or False, found {type(value).__name__} {value!r}")
    return value
