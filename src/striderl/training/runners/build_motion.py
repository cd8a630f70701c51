"""From the settings of a motion prior and an env to the terms that learn from motions.

settings, discriminator of the policy ──▶ size of a motion ──▶ components and frames ──▶ expert ──▶ terms
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from striderl.algorithms.on_policy.appo import motion_terms
from striderl.algorithms.terms.expert import EnvExpert, as_expert
from striderl.algorithms.terms.motion_prior import MotionPriorConfig
from striderl.algorithms.terms.term import Term
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.envs.vec_env import VecEnv
from striderl.networks.discriminator import AMPDiscriminator
from striderl.policies.policy import Policy
from striderl.training.runners.runner_config import MotionSettings, PresetSettings, RunnerConfig

DISCRIMINATOR = "amp_discriminator"
"""The setting of a policy's class that describes its discriminator."""

COMPONENTS = ("ref_obs", "motion")
"""What motions are called in envs: st_rl's name, and ours; the first that an env has is taken."""

_log = logging.getLogger(__name__)


def motion_info(config: RunnerConfig) -> dict[str, TensorSpec]:
    """Return the info columns that an env of an older library must hand on, because the motion terms read them."""
    motion = config.motion
    if motion is None:
        return {}
    if isinstance(motion.expert, EnvExpert):
        return {motion.expert.column: motion.expert.spec}
    if not _is_env(motion.expert) and motion.mimic is None:
        return {}
    expert = _env_expert(motion, _described(config))
    return {expert.column: expert.spec}


def build_motion(
    config: RunnerConfig, policy: Policy, env: VecEnv, discriminator: AMPDiscriminator | None, seed: int
) -> list[Term]:
    """Return the terms of a config with motions, none where there are no settings for them.

    A discriminator that the policy's class does not bring is made from the settings of the prior and the seed.
    """
    motion = config.motion
    if motion is None:
        if discriminator is not None:
            _log.warning("%s has no effect with this algorithm; APPO and ATPPO learn one", DISCRIMINATOR)
        return []
    size = _size(motion, None if discriminator is None else discriminator.input_dim)
    prior = _with_window(motion.prior, env.obs_spec, size) if motion.find_window else motion.prior
    expert = _expert(motion, prior, env, size)
    mimic = None if motion.mimic is None else replace(motion.mimic, components=prior.components)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return motion_terms(policy, expert, prior, mimic, discriminator)


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
    """Return how many numbers a motion has, 0 where nothing says; what says differently is an error."""
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
