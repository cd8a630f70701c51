"""Build a policy, an algorithm and a teacher from a `RunnerConfig` and an env.

    obs_groups = {"actor": ("policy",), "critic": ("policy", "privileged")}       a set is a list of groups
                     └ components of the env in these groups, or with these names

A set that the config does not name is the env's group of the same name, else the actor's set; the actor itself
takes 'actor', 'policy' or 'state', whichever the env has. A teacher is an object, the folder of a run, or the weights
of a class:

    Teacher(policy)                                                    as it is
    {"teacher_ac_path": "runs/walk/2026-…"}                            a run's folder, which holds everything
    {"teacher_ac_path": "logs/walk"}                                   a runner's log_dir: the newest checkpoint
    {"teacher_ac_path": "logs/walk/model_1500", "class_name": …, …}    one checkpoint of it, or an older log_dir
    {"teacher_ac_path": "old/model_1500.pt", "class_name": …, …}       rsl_rl's or st_rl's file, with its normaliser
    {"teachers": [{…}, {…}], "component": "skill"}                     several, routed by an observation component
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from striderl.algorithms.on_policy.appo import ATPPOConfig
from striderl.algorithms.on_policy.dagger import DAgger
from striderl.algorithms.on_policy.estimator_ppo import estimations
from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.on_policy.tppo import TPPO
from striderl.algorithms.terms.rnd import RandomNetworkDistillation, RNDConfig
from striderl.algorithms.terms.term import Term
from striderl.checkpoint.foreign import read_rsl_rl
from striderl.collect.teacher import Teacher, TeacherRouter
from striderl.data.actions import BoxSpec, DictActionSpec
from striderl.data.naming import suggestion, unknown
from striderl.data.specs import ObsSpec
from striderl.envs.vec_env import VecEnv
from striderl.execution.modes import ExecutionConfig
from striderl.networks.discriminator import AMPDiscriminator
from striderl.ops.moments import AllReduce
from striderl.policies.encode import Encode
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.policy import Policy, PolicyConfig
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
from striderl.policies.stage import StageRecipe
from striderl.policies.stages import NormalizeObs
from striderl.policies.transfer.parts import load_parts, part_names
from striderl.policies.transfer.rsl_rl_names import load_rsl_rl
from striderl.training.experiment.loading import load_run
from striderl.training.experiment.log_dir import is_log_dir
from striderl.training.experiment.run_folder import SPECS_FILE
from striderl.training.experiment.runner_checkpoints import load_state, weights_in
from striderl.training.experiment.runner_config import (
    ModelPair,
    ModelSettings,
    PresetSettings,
    RunnerConfig,
    without_rsl_rl_defaults,
)
from striderl.training.rsl_rl.build_terms import DISCRIMINATOR, build_motion, symmetry_term
from striderl.training.rsl_rl.config_policy import Keys, read_preset

POLICIES: Mapping[str, Callable[..., StatefulPolicy]] = {
    "ActorCritic": ActorCritic,
    "ActorCriticRecurrent": ActorCriticRecurrent,
    "DeterministicPolicy": DeterministicPolicy,
    "EncoderActorCritic": EncoderActorCritic,
    "EncoderActorCriticRecurrent": EncoderActorCriticRecurrent,
    "StateAc": StateAc,
    "StateAcRecurrent": StateAcRecurrent,
    "EncoderStateAc": EncoderStateAc,
    "EncoderStateAcRecurrent": EncoderStateAcRecurrent,
    "PrivilegeStateAcRecurrent": PrivilegeStateAcRecurrent,
    "AmpActorCritic": AmpActorCritic,
    "AmpActorCriticRecurrent": AmpActorCriticRecurrent,
    "EncoderAmpActorCriticRecurrent": EncoderAmpActorCriticRecurrent,
    "VisualDeterministicAC": VisualDeterministicAC,
    "VisualDeterministicRecurrent": VisualDeterministicRecurrent,
}
"""Policies that a config may name by class."""

AMP_POLICIES = (AmpActorCritic, AmpActorCriticRecurrent, EncoderAmpActorCriticRecurrent)
"""Policies that come with a discriminator."""

LATENT_SIZE = 0
"""Size of an image's encoding: the flattened feature maps, as in rsl_rl."""


def build_policy(config: RunnerConfig, env: VecEnv, device: torch.device, seed: int) -> Policy:
    """Build the policy for the env's specs, on the device; its weights depend on the seed."""
    sets = resolve_sets(config, env)
    if isinstance(config.policy, PolicyConfig):
        settings = config.policy
        if config.obs_groups:
            raise ValueError("obs_groups beside a PolicyConfig: it names its own actor_obs and critic_obs; keep one")
    elif isinstance(config.policy, PresetSettings):
        settings = _preset_config(config.policy, env, sets)
    else:
        settings = model_config(config.policy, env.obs_spec, actor=sets.actor, critic=sets.critic)
    # in a fork: a runner must not change what the user's own generator draws next
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = Policy(env.obs_spec, env.action_spec, settings)
    return policy.to(device)


def build_algorithm(
    config: RunnerConfig,
    policy: Policy,
    env: VecEnv,
    user_env: Any,
    seed: int,
    *,
    reduce: AllReduce | None = None,
    mode: str | ExecutionConfig = "",
) -> PPO | DAgger:
    """Build PPO with its terms; `user_env` is passed to a symmetry function, `mode` replaces the config's."""
    mode = mode or config.mode
    device = next(policy.parameters()).device
    given = config.estimation
    terms: list[Term] = [*(estimations(policy, given[0]) if len(given) == 1 else given)]
    if config.symmetry is not None:
        terms.append(symmetry_term(config.symmetry, user_env, env.obs_spec))
    if config.rnd is not None:
        rnd = config.rnd
        if config.generation != "striderl":
            rnd = _completed(rnd, env, resolve_sets(config, env).rnd)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 1)
            terms.append(RandomNetworkDistillation(env.obs_spec, env.num_envs, rnd, device))
    terms += build_motion(config, policy, env, _discriminator(config, env, seed + 2), seed + 2)
    if config.teacher is None:
        return PPO(policy, config.algorithm, terms=terms, mode=mode, reduce=reduce)
    settings = replace(config.teacher.config, ppo=config.algorithm)
    if not settings.using_ppo:
        settings = replace(settings, ppo=without_rsl_rl_defaults(config.algorithm))
    if config.motion is not None:
        ATPPOConfig(tppo=settings)  # without PPO rewards are not used
    sets = resolve_sets(config, env)
    seen = sets.critic if settings.label_action_with_critic_obs else sets.actor
    candidates = (seen, *(each for each in (sets.critic, sets.actor) if each != seen))
    teacher = build_teacher(config.teacher.teacher, lambda preset: _teacher_policy(preset, env, sets, candidates))
    return TPPO(policy, teacher, settings, terms, mode=mode, reduce=reduce)


def _discriminator(config: RunnerConfig, env: VecEnv, seed: int) -> AMPDiscriminator | None:
    """Build the discriminator of the policy's class, if it has one; its weights depend on the seed."""
    preset = config.policy
    if not isinstance(preset, PresetSettings) or DISCRIMINATOR not in preset.settings:
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = preset_model(preset.class_name, preset.settings, env, resolve_sets(config, env))
    return model.discriminator if isinstance(model, AMP_POLICIES) else None


def preset_policy(preset: PresetSettings, env: VecEnv, sets: ObsSets) -> Policy:
    """Build the pure policy of a class for this env, with weights that are still to be loaded."""
    with torch.random.fork_rng(devices=[]):
        return Policy(env.obs_spec, env.action_spec, _preset_config(preset, env, sets))


def _teacher_policy(
    preset: PresetSettings, env: VecEnv, sets: ObsSets, candidates: Sequence[tuple[str, ...]]
) -> Policy:
    """Build a teacher's policy; sizes and segments in its settings decide which of the components it reads."""
    settings = dict(preset.settings)
    size, num_actions = settings.pop("num_actor_obs", None), settings.pop("num_actions", None)
    segments = settings.pop("obs_segments", None)
    for name in ("num_critic_obs", "critic_obs_segments", "privileged_obs_segments"):
        settings.pop(name, None)  # a teacher's critic is not used
    spec = env.obs_spec
    found = candidates[0] if segments is None else tuple(_segment(name, spec) for name in segments)
    if size is not None and spec.select(found).size != size:
        fitting = [each for each in candidates if spec.select(each).size == size]
        if segments is not None or not fitting:
            there = " and ".join(str(spec.select(each).size) for each in ([found] if segments else candidates))
            raise ValueError(
                f"teacher_policy: num_actor_obs={size}, and the teacher can be given {there} numbers of this env; name "
                "the components that it reads with obs_segments"
            )
        found = fitting[0]
    own = env.action_spec.shape[0] if isinstance(env.action_spec, BoxSpec) else None
    if num_actions is not None and own is not None and num_actions != own:
        raise ValueError(f"teacher_policy: num_actions={num_actions}, and this env has {own}")
    return preset_policy(replace(preset, settings=settings), env, replace(sets, actor=found))


def _segment(name: str, spec: ObsSpec) -> str:
    """Return the env's component of a segment: the critic's where it has one of this name, else the actor's."""
    for known in (f"critic/{name}", name):
        if known in spec:
            return known
    raise KeyError(f"teacher_policy['obs_segments']: {unknown('component', name, spec, where='the env')}")


def _completed(rnd: RNDConfig, env: VecEnv, components: tuple[str, ...]) -> RNDConfig:
    """Add the env's sizes; a hidden layer of size -1 is, in rsl_rl, as wide as the input."""
    size = env.obs_spec.select(components).size
    return replace(
        rnd,
        obs_components=components,
        step_dt=env.step_dt or 1.0,
        predictor_hidden_dims=tuple(size if each == -1 else each for each in rnd.predictor_hidden_dims),
        target_hidden_dims=tuple(size if each == -1 else each for each in rnd.target_hidden_dims),
    )


def resolve_sets(config: RunnerConfig, env: VecEnv) -> ObsSets:
    """Return the components of this env that each network reads."""
    if isinstance(config.policy, PolicyConfig):
        seen = config.policy.actor_obs
        return ObsSets(actor=seen, critic=config.policy.critic_obs, rnd=seen)
    return resolve_obs_sets(config.obs_groups, env.obs_spec, type(env).__name__)


def component_order(config: RunnerConfig, env: VecEnv) -> dict[str, tuple[str, ...]]:
    """Return the components of actor and critic in the order of the config's obs_groups, as rsl_rl joins them."""
    sets = resolve_sets(config, env)
    found: dict[str, tuple[str, ...]] = {}
    for who, components in (("actor", sets.actor), ("critic", sets.critic)):
        groups = config.obs_groups.get(who, ())
        listed = [name for group in groups for name in env.obs_spec.select([group])]
        found[who] = tuple(dict.fromkeys(listed)) if sorted(set(listed)) == sorted(components) else components
    return found


# -- a class name with settings ----------------------------------------------------------------------------------------


def preset_model(class_name: str, settings: Mapping[str, Any], env: VecEnv, sets: ObsSets) -> StatefulPolicy:
    """Build a class of the table for the components of actor and critic."""
    if class_name not in POLICIES:
        raise ValueError(unknown("policy", class_name, POLICIES, where="the table of policies"))
    spec, masks = env.obs_spec, _mask_components(env)
    return POLICIES[class_name](
        spec.select([*sets.actor, *masks]),
        num_critic_obs=spec.select([*sets.critic, *masks]),
        num_actions=env.action_spec,
        **settings,
    )


def _preset_config(preset: PresetSettings, env: VecEnv, sets: ObsSets) -> PolicyConfig:
    """Return the class's policy with normalising stages in front and the head's further settings."""
    with torch.random.fork_rng(devices=[]):
        found = preset_model(preset.class_name, preset.settings, env, sets).policy.config
    config = replace(found, head_settings={**found.head_settings, **preset.head_settings})
    if found.trunk and (preset.normalize_actor_obs or preset.normalize_critic_obs):
        if not (preset.normalize_actor_obs and preset.normalize_critic_obs):
            raise ValueError("actor and critic share encoders: normalise the observations of both or of none")
        both = _normalizer(env.obs_spec, (*sets.actor, *sets.critic))
        return replace(config, trunk=(*both, *config.trunk))
    actor = _normalizer(env.obs_spec, sets.actor) if preset.normalize_actor_obs else ()
    critic = _normalizer(env.obs_spec, sets.critic) if preset.normalize_critic_obs else ()
    return replace(config, actor=(*actor, *config.actor), critic=(*critic, *config.critic))


def _normalizer(spec: ObsSpec, names: tuple[str, ...]) -> tuple[StageRecipe, ...]:
    """Return the stage that normalises the vectors among these components; images are left alone."""
    vectors = tuple(
        name
        for name in spec.select(names)
        if len(spec[name].shape) < 2 and spec[name].dtype.startswith("float") and spec[name].group != "action_mask"
    )
    return (NormalizeObs(components=vectors),) if vectors else ()


def _mask_components(env: VecEnv) -> tuple[str, ...]:
    action = env.action_spec
    parts = list(action.parts.values()) if isinstance(action, DictActionSpec) else [action]
    return tuple(part.mask for part in parts if not isinstance(part, BoxSpec) and part.mask)


# -- two networks ------------------------------------------------------------------------------------------------------


def model_config(pair: ModelPair, spec: ObsSpec, *, actor: tuple[str, ...], critic: tuple[str, ...]) -> PolicyConfig:
    """Return the policy of two networks that read these components."""
    shared: tuple[StageRecipe, ...] = ()
    if pair.share_encoders:
        common = tuple(name for name in actor if name in critic)
        shared = _encoder(pair.actor, spec, common, "share_cnn_encoders")
    return PolicyConfig(
        actor_obs=actor,
        critic_obs=critic,
        trunk=shared,
        actor=_stages(pair.actor, spec, actor, "actor", encode=not shared),
        critic=_stages(pair.critic, spec, critic, "critic", encode=not shared),
        actor_hidden_dims=pair.actor.hidden_dims,
        critic_hidden_dims=pair.critic.hidden_dims,
        activation=pair.actor.activation,
        head=pair.head,
        head_settings=pair.head_settings,
        flatten_images=True,  # the config names what is encoded
    )


def _stages(
    model: ModelSettings, spec: ObsSpec, names: tuple[str, ...], who: str, *, encode: bool
) -> tuple[StageRecipe, ...]:
    normalize = _normalizer(spec, names) if model.obs_normalization else ()
    encoder = _encoder(model, spec, names, who) if encode else ()
    memory = () if model.memory is None else (model.memory,)
    return (*normalize, *encoder, *memory)


def _encoder(model: ModelSettings, spec: ObsSpec, names: tuple[str, ...], who: str) -> tuple[StageRecipe, ...]:
    if model.encoder is None:
        return ()
    images = tuple(name for name in names if len(spec[name].shape) == 3)
    if not images:
        raise ValueError(
            f"{who}: cnn_cfg has no effect, because none of the components {list(names)} is an image "
            "(channels, height, width)"
        )
    settings = model.encoder
    if all(isinstance(each, Mapping) for each in settings.values()):
        missing = [name for name in images if name not in settings]
        if missing:
            raise KeyError(f"{who}: cnn_cfg has no entry for the images {missing}; it has {sorted(settings)}")
        return (
            Encode(
                components=images,
                model="Conv2dHeadModel",
                settings=tuple(settings[name] for name in images),
                output_size=LATENT_SIZE,
            ),
        )
    return (Encode(components=images, model="Conv2dHeadModel", settings=settings, output_size=LATENT_SIZE),)


# -- observations ------------------------------------------------------------------------------------------------------


_ACTING = ("actor", "policy", "state")
_PRIVILEGED = ("critic", "privileged_state")


@dataclass(frozen=True, kw_only=True)
class ObsSets:
    """Component names by network."""

    actor: tuple[str, ...]
    """The actor's components."""
    critic: tuple[str, ...]
    """The critic's components."""
    rnd: tuple[str, ...]
    """The components for the novelty reward."""


def resolve_obs_sets(obs_groups: Mapping[str, tuple[str, ...]], spec: ObsSpec, env_name: str) -> ObsSets:
    """Return the components of every set; a group that the env does not have is an error that names both."""
    acting = obs_groups.get("actor") or tuple(name for name in _ACTING if _known(name, spec))[:1]
    if not acting:
        raise KeyError(
            f"which observations does the actor see? {env_name} gives the groups {list(spec.groups)}; "
            "name some in obs_groups['actor']"
        )
    privileged = obs_groups.get("critic") or tuple(name for name in _PRIVILEGED if _known(name, spec))[:1]
    novelty = obs_groups.get("rnd_state") or (("rnd_state",) if _known("rnd_state", spec) else ())
    actor = _components(acting, spec, "actor", env_name)
    return ObsSets(
        actor=actor,
        critic=_components(privileged, spec, "critic", env_name) if privileged else actor,
        rnd=_components(novelty, spec, "rnd_state", env_name) if novelty else actor,
    )


def _known(name: str, spec: ObsSpec) -> bool:
    return spec.resolve(name) is not None


def _components(groups: tuple[str, ...], spec: ObsSpec, who: str, env_name: str) -> tuple[str, ...]:
    for group in groups:
        if not _known(group, spec):
            choices = list(dict.fromkeys([*spec.groups, *spec]))
            raise KeyError(
                f"obs_groups[{who!r}] wants the observation group {group!r}; {env_name} gives {choices}. "
                f"{suggestion(group, choices)}"
            )
    return spec.select(groups).names


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
