"""The motion prior's part of an algorithm's config, in the words of st_rl and a few of ours.

    {"class_name": "APPO", "discriminator_loss_coef": 1.0, "mimic_loss_coef": 0.0, "amp_obs_dim": 60,       st_rl
     "motion_files": ["trot.npz"], "motion_loader": {"mirror": True}, "motion_prior": {"frames": 2, …}}     ours

Without 'expert' and 'motion_files' the env shows the expert: infos['observations']['ref_obs'] is what the robot does,
infos['ref_motion'] what it should look like. `mimic_loss_coef` is the weight of a reward, minus the distance of the
two: as a loss it would have no gradient in any parameter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from striderl.algorithms.terms.mimic import MimicConfig
from striderl.algorithms.terms.motion_prior import MotionPriorConfig
from striderl.training.runners.config_keys import Keys, as_tuple
from striderl.training.runners.runner_config import MotionSettings

OPEN = ("components", "frames")
"""What is found out from the env where a config does not say."""


def read_motion(keys: Keys) -> MotionSettings:
    """Take what belongs to the motion prior out of an algorithm's dict."""
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
