"""Sub-policies of a mutex: ready ones, and trained ones out of their run folders.

A run folder holds the class of its policy and the units of its actions:

    config.json   ["policy"]                                   arguments of the policy class
                  ["policy"]["class_name"], ["runner"]["policy_class_name"]      the class, when it is not given
                  ["control"]["action_scale"]                  one number, or one per action
                  ["normalization"]["obs_scales"]["lin_vel"]   what velocities are multiplied by in its observations

Weights have this library's names or st_rl's. Folders with specs.json, which `striderl train` and the runners make, are
read by a function that is given: `load_sub_policy` of `training/experiment/loading.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from striderl.data.actions import ActionSpec
from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec
from striderl.policies.facade.routed import policy_of
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.mutex.settings import Scale
from striderl.policies.policy import Policy
from striderl.policies.presets.amp import AmpActorCritic, AmpActorCriticRecurrent, EncoderAmpActorCriticRecurrent
from striderl.policies.presets.base import ActorCritic, ActorCriticRecurrent, DeterministicPolicy
from striderl.policies.presets.encoder import (
    EncoderActorCritic,
    EncoderActorCriticRecurrent,
    VisualDeterministicAC,
    VisualDeterministicRecurrent,
)
from striderl.policies.presets.state import (
    EncoderStateAc,
    EncoderStateAcRecurrent,
    PrivilegeStateAcRecurrent,
    StateAc,
    StateAcRecurrent,
)
from striderl.policies.run_reader import newest_model, read_run
from striderl.policies.spaces import Segments
from striderl.policies.transfer.rsl_rl_names import with_weights

SPECS = "specs.json"
"""The file that folders of this library have, and others have not."""

SUB_POLICY_CLASSES: dict[str, type[StatefulPolicy]] = {
    "ActorCritic": ActorCritic,
    "ActorCriticRecurrent": ActorCriticRecurrent,
    "AmpActorCritic": AmpActorCritic,
    "AmpActorCriticRecurrent": AmpActorCriticRecurrent,
    "DeterministicPolicy": DeterministicPolicy,
    "EncoderActorCritic": EncoderActorCritic,
    "EncoderActorCriticRecurrent": EncoderActorCriticRecurrent,
    "EncoderAmpActorCriticRecurrent": EncoderAmpActorCriticRecurrent,
    "EncoderStateAc": EncoderStateAc,
    "EncoderStateAcRecurrent": EncoderStateAcRecurrent,
    "PrivilegeStateAcRecurrent": PrivilegeStateAcRecurrent,
    "StateAc": StateAc,
    "StateAcRecurrent": StateAcRecurrent,
    "VisualDeterministicAC": VisualDeterministicAC,
    "VisualDeterministicRecurrent": VisualDeterministicRecurrent,
}
"""The classes that a run folder's policy may have."""


@dataclass(frozen=True, kw_only=True)
class EnvSizes:
    """The sizes and specs that every policy class gets."""

    num_actor_obs: int | ObsSpec
    """How many numbers the actor reads, or their spec."""
    num_critic_obs: int | ObsSpec | None
    """How many numbers the critic reads, or their spec; None when they are the actor's."""
    num_actions: int | ActionSpec
    """How many actions there are, or their spec."""
    obs_segments: Segments | None
    """The names of the actor's components."""
    critic_obs_segments: Segments | None
    """The names of the critic's components."""


class SubPolicy(NamedTuple):
    """One policy of a mutex, with its units."""

    policy: Policy
    action_scale: Scale
    """What its env multiplied actions by."""
    cmd_scale: float | None
    """What its env multiplied velocity commands by in the observation; None if its run has none."""


LoadSubPolicy = Callable[[Path], SubPolicy]
"""Reads the folder of a run that describes its own policy."""


def ready_policies(
    sub_policies: Sequence[Policy | StatefulPolicy], sub_action_scales: Sequence[Scale]
) -> list[SubPolicy]:
    """Return policies that are built already."""
    if len(sub_policies) != len(sub_action_scales):
        raise ValueError(
            f"found {len(sub_policies)} sub_policies and {len(sub_action_scales)} sub_action_scales; give one scale "
            "for each policy"
        )
    pure = [policy_of(one, deterministic=True) if isinstance(one, StatefulPolicy) else one for one in sub_policies]
    return [SubPolicy(policy, scale, 1.0) for policy, scale in zip(pure, sub_action_scales)]


def trained_policies(
    sub_policy_paths: Sequence[str | Path],
    class_names: str | Sequence[str],
    sizes: EnvSizes,
    load: LoadSubPolicy | None = None,
) -> list[SubPolicy]:
    """Return the policies of run folders; `class_names` is one for all, one for each, or empty: those of the runs.

    Folders that `striderl train` or a runner of this library made, which have specs.json, are read by `load`, and so
    are all where no class names are given.
    """
    own = [(Path(path) / SPECS).is_file() for path in sub_policy_paths]
    if load is not None and class_names and all(own):
        raise ValueError(
            f"sub_policy_class_name={class_names!r} has no effect with load_sub_policy: all run folders describe their "
            "policies; leave it out"
        )
    if load is None and any(own):
        raise ValueError(
            f"{str(sub_policy_paths[own.index(True)])!r} is a run folder of this library: give "
            "load_sub_policy=striderl.training.load_sub_policy, which reads it"
        )
    names = [class_names] * len(sub_policy_paths) if isinstance(class_names, str) else list(class_names)
    if len(names) != len(sub_policy_paths):
        raise ValueError(
            f"found {len(names)} sub-policy class names for {len(sub_policy_paths)} run folders; "
            "give one for all, or one for each"
        )
    return [
        load(Path(path)) if load is not None and (is_own or not name) else _trained_policy(Path(path), name, sizes)
        for path, name, is_own in zip(sub_policy_paths, names, own)
    ]


def _trained_policy(folder: Path, class_name: str, sizes: EnvSizes) -> SubPolicy:
    config, weights = read_run(folder)
    settings = dict(_entry(config, folder, "policy"))
    said = settings.pop("class_name", "") or config.get("runner", {}).get("policy_class_name", "")
    name = class_name or said
    if name not in SUB_POLICY_CLASSES:
        raise ValueError(unknown("policy class", name, SUB_POLICY_CLASSES, where=f"a mutex, for {str(folder)!r},"))
    segments = {
        "obs_segments": settings.pop("obs_segments", sizes.obs_segments),
        "critic_obs_segments": _critic_segments(settings, folder) or sizes.critic_obs_segments,
    }
    # the arguments are data out of a file; the class raises for unknown ones by name
    build: Any = SUB_POLICY_CLASSES[name]
    model: StatefulPolicy = build(sizes.num_actor_obs, sizes.num_critic_obs, sizes.num_actions, **segments, **settings)
    policy = with_weights(model.policy, newest_model(folder), weights).eval()
    scale: Scale = _entry(config, folder, "control", "action_scale")
    return SubPolicy(policy, scale, config.get("normalization", {}).get("obs_scales", {}).get("lin_vel"))


def _critic_segments(settings: dict[str, Any], folder: Path) -> Segments | None:
    """Take the critic's segments out of a run's settings, under the newer or the older name."""
    newer: Segments | None = settings.pop("critic_obs_segments", None)
    older: Segments | None = settings.pop("privileged_obs_segments", None)
    if newer is not None and older is not None:
        raise ValueError(
            f"the config.json of {str(folder)!r} has critic_obs_segments and privileged_obs_segments, two names of one "
            "thing; keep one of them"
        )
    return older if newer is None else newer


def _entry(config: Mapping[str, Any], folder: Path, *keys: str) -> Any:
    """Return a nested setting; one that is missing is named with its place."""
    found: Any = config
    for depth, key in enumerate(keys):
        if not isinstance(found, Mapping) or key not in found:
            place = "".join(f"[{part!r}]" for part in keys[: depth + 1])
            there = sorted(found) if isinstance(found, Mapping) else type(found).__name__
            raise KeyError(f"the config.json of {str(folder)!r} has no {place}, which a mutex reads; it has {there}")
        found = found[key]
    return found
