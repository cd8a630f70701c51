"""Build terms from settings and an env: motion terms, and symmetry from rsl_rl's mirror functions.

    settings, discriminator of the policy ──▶ size of a motion ──▶ components and frames ──▶ expert ──▶ terms

    function(env=, obs={group: [n, …]}, actions=[n, A])  ──▶  ({group: [k·n, …]}, [k·n, A])     k copies, the first is
                                                                the given one; rows n to 2n are mirrored, and used

The term `Symmetry` takes a mirror as two functions. One mirror is used; a function that gives more than two copies is
named once in the log. The older form (v1, v2) takes one vector at a time and obs_type= 'policy' or 'critic'.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.on_policy.appo import motion_terms
from striderl.algorithms.terms.expert import EnvExpert, as_expert
from striderl.algorithms.terms.motion_prior import MotionPriorConfig
from striderl.algorithms.terms.symmetry import Symmetry
from striderl.algorithms.terms.term import Term
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.envs.vec_env import VecEnv
from striderl.networks.discriminator import AMPDiscriminator
from striderl.policies.policy import Policy
from striderl.training.experiment.runner_config import MotionSettings, PresetSettings, RunnerConfig, SymmetrySettings

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


def symmetry_term(settings: SymmetrySettings, env: Any, spec: ObsSpec) -> Symmetry:
    """Make the term from a config's function, which is handed the user's own env."""
    mirror = GroupMirror(settings, env, spec)
    return Symmetry(
        mirror_obs=mirror.obs,
        mirror_act=mirror.act,
        augment=settings.augment,
        mirror_loss_weight=settings.mirror_loss_weight,
    )


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
