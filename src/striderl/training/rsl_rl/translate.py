"""Translate a runner's config and its env to a `RunConfig` and live objects, which `experiment/assembly.py` builds.

    train_cfg ──▶ RunnerConfig ┐                ┌─▶ RunConfig    policy, algorithm, terms, plan, seed, mode
                           env ┴─▶ translate ───┴─▶ objects      teacher, expert, discriminator, symmetry

    obs_groups = {"actor": ("policy",), "critic": ("policy", "privileged")}       a set is a list of groups
                     └ components of the env in these groups, or with these names

A set that the config does not name is the env's group of the same name, else the actor's set; the actor itself
takes 'actor', 'policy' or 'state', whichever the env has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from striderl.algorithms.building import DISCRIMINATOR_SEED
from striderl.algorithms.on_policy.appo import ATPPOConfig
from striderl.algorithms.on_policy.estimator_ppo import estimations
from striderl.algorithms.on_policy.tppo import TPPOConfig
from striderl.algorithms.terms.estimation import EstimatorConfig
from striderl.algorithms.terms.rnd import RNDConfig
from striderl.algorithms.terms.symmetry import SymmetryConfig
from striderl.data.actions import BoxSpec, DictActionSpec
from striderl.data.naming import suggestion, unknown
from striderl.data.specs import ObsSpec
from striderl.envs.vec_env import VecEnv
from striderl.networks.discriminator import AMPDiscriminator
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
from striderl.training.experiment.log_dir import name_of_env
from striderl.training.experiment.run_config import EnvSettings, RunConfig
from striderl.training.experiment.runner_config import (
    ModelPair,
    ModelSettings,
    PresetSettings,
    RunnerConfig,
    without_rsl_rl_defaults,
)
from striderl.training.plans import OnPolicyPlan
from striderl.training.rsl_rl.live_objects import DISCRIMINATOR, GroupMirror, build_teacher, motion_parts

_log = logging.getLogger(__name__)

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


class Translation(NamedTuple):
    """A runner's config as a run's."""

    config: RunConfig[Any, Any]
    """Everything that files can hold."""
    objects: dict[str, Any]
    """Live parts, by the names under which algorithm and terms ask for them."""


def translate(config: RunnerConfig, env: VecEnv, user_env: Any, seed: int, device: torch.device) -> Translation:
    """Translate a runner's config for an env; `user_env` is passed to a symmetry function."""
    sets = resolve_sets(config, env)
    policy, objects = policy_config(config, env), _motion_objects(config, env, seed)
    terms: dict[str, Any] = dict(_estimators(config, policy))
    if config.symmetry is not None:
        mirror, given = GroupMirror(config.symmetry, user_env, env.obs_spec), config.symmetry
        objects["symmetry"] = (mirror.obs, mirror.act)
        terms["symmetry"] = SymmetryConfig(augment=given.augment, mirror_loss_weight=given.mirror_loss_weight)
    if config.rnd is not None:
        terms["rnd"] = config.rnd if config.generation == "striderl" else _completed(config.rnd, env, sets.rnd)
    if config.motion is not None:
        found, objects["expert"] = motion_parts(config.motion, env, objects.get("discriminator"))
        terms |= found
    if config.teacher is not None:
        settings = _teaching(config)
        seen = sets.critic if settings.label_action_with_critic_obs else sets.actor
        candidates = (seen, *(each for each in (sets.critic, sets.actor) if each != seen))
        objects["teacher"] = build_teacher(
            config.teacher.teacher, lambda preset: _teacher_policy(preset, env, sets, candidates)
        )
    return Translation(
        run_config_of(
            config,
            env,
            user_env,
            policy=policy,
            algorithm_name="ppo" if config.teacher is None else "tppo",
            algorithm=config.algorithm if config.teacher is None else _teaching(config),
            terms=terms,
            seed=seed,
            device=str(device),
        ),
        objects,
    )


def run_config_of(config: RunnerConfig, env: VecEnv, user_env: Any, **parts: Any) -> RunConfig[Any, Any]:
    """Return the run's config with these parts; env, plan and mode are those of the runner's."""
    task, settings = name_of_env(user_env)
    return RunConfig(
        env=EnvSettings(task=task, num_envs=env.num_envs, settings=settings),
        plan=OnPolicyPlan(num_steps_per_env=config.num_steps_per_env, warmup_steps=config.warmup_steps),
        mode=config.mode,
        tf32=False,  # the program around a runner sets torch's switches
        **parts,
    )


def policy_config(config: RunnerConfig, env: VecEnv) -> PolicyConfig:
    """Return the policy for the env's specs, stage by stage."""
    sets = resolve_sets(config, env)
    if isinstance(config.policy, PolicyConfig):
        if config.obs_groups:
            raise ValueError("obs_groups beside a PolicyConfig: it names its own actor_obs and critic_obs; keep one")
        return config.policy
    if isinstance(config.policy, PresetSettings):
        return _preset_config(config.policy, env, sets)
    return model_config(config.policy, env.obs_spec, actor=sets.actor, critic=sets.critic)


def _estimators(config: RunnerConfig, policy: PolicyConfig) -> dict[str, EstimatorConfig]:
    """Return the losses of estimator and adaptor; one alone is that of both."""
    given = config.estimation
    found = estimations(policy, given[0]) if len(given) == 1 else given
    return {
        f"estimation_{number}" if number > 1 else "estimation": EstimatorConfig(
            weight=each.weight, loss=each.loss, loss_kwargs=each.loss_kwargs, stage=each.stage
        )
        for number, each in enumerate(found, start=1)
    }


def _teaching(config: RunnerConfig) -> TPPOConfig:
    assert config.teacher is not None
    settings = replace(config.teacher.config, ppo=config.algorithm)
    if not settings.using_ppo:
        settings = replace(settings, ppo=without_rsl_rl_defaults(config.algorithm))
    if config.motion is not None:
        ATPPOConfig(tppo=settings)  # without PPO rewards are not used
    return settings


def _motion_objects(config: RunnerConfig, env: VecEnv, seed: int) -> dict[str, Any]:
    """Return the discriminator of the policy's class, if it has one; its weights depend on the seed."""
    preset = config.policy
    if not isinstance(preset, PresetSettings) or DISCRIMINATOR not in preset.settings:
        return {}
    if config.motion is None:
        _log.warning("%s has no effect with this algorithm; APPO and ATPPO learn one", DISCRIMINATOR)
        return {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + DISCRIMINATOR_SEED)
        model = preset_model(preset.class_name, preset.settings, env, resolve_sets(config, env))
    found: AMPDiscriminator | None = model.discriminator if isinstance(model, AMP_POLICIES) else None
    return {} if found is None else {"discriminator": found}


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
    config = _preset_config(replace(preset, settings=settings), env, replace(sets, actor=found))
    with torch.random.fork_rng(devices=[]):
        return Policy(env.obs_spec, env.action_spec, config)


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
