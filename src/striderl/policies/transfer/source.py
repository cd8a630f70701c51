"""The policy that saved some weights, built again so that its layout can be read.

Best is that policy itself, or its observation and config. Where only its observation is known, it is taken to have been
like the policy that takes the weights over, without what that has for components that are new.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from striderl.data.specs import ObsSpec
from striderl.policies.encode import Encode
from striderl.policies.estimate import Adapt, Estimate
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.spaces import Spaces
from striderl.policies.stage import StageRecipe
from striderl.policies.stages import NormalizeObs, Override

Source = Policy | ObsSpec | Spaces | tuple[ObsSpec, PolicyConfig]
"""Who saved the weights: the policy; what it observed (as a spec, or as sizes and segments); or that and its config."""


def source_spec(source: Source) -> ObsSpec:
    """Return what the source observed."""
    if isinstance(source, Policy):
        return source.obs_spec
    if isinstance(source, tuple):
        return source[0]
    return source.obs if isinstance(source, Spaces) else source


def source_policy(policy: Policy, source: Source) -> Policy:
    """Return a policy with the layout of the source; its weights mean nothing."""
    if isinstance(source, Policy):
        return source
    if isinstance(source, tuple):
        return _built(source[0], policy, source[1])
    old = source_spec(source)
    config = policy.config
    actor = source.actor if isinstance(source, Spaces) else _seen(old, policy.actor_inputs, policy.obs_spec)
    critic = source.critic if isinstance(source, Spaces) else _seen(old, policy.critic_inputs, policy.obs_spec)
    return _built(
        old,
        policy,
        replace(
            config,
            actor_obs=actor,
            critic_obs=critic,
            trunk=_restricted(config.trunk, old),
            actor=_restricted(config.actor, old),
            critic=_restricted(config.critic, old),
        ),
    )


def _built(old: ObsSpec, policy: Policy, config: PolicyConfig) -> Policy:
    with torch.random.fork_rng(devices=[]):  # nobody's random numbers change because weights were loaded
        return Policy(old, policy.action_spec, config)


def _seen(old: ObsSpec, now: ObsSpec, whole: ObsSpec) -> tuple[str, ...]:
    """Return what a list saw: of what it sees now, what there was, and of what is gone, the same groups."""
    groups = {component.group for component in now.values()}
    return tuple(name for name in old if name in now or (name not in whole and old[name].group in groups))


def _restricted(recipes: tuple[StageRecipe, ...], old: ObsSpec) -> tuple[StageRecipe, ...]:
    """Return the stages without components that the old observation does not have; a stage left empty is left out."""
    kept: list[StageRecipe] = []
    for recipe in recipes:
        if isinstance(recipe, Encode):
            kept += _restricted_encode(recipe, old)
        elif isinstance(recipe, NormalizeObs) and recipe.components:
            names = _there(recipe.components, old)
            kept += [replace(recipe, components=names)] if names else []
        elif isinstance(recipe, (Estimate, Adapt)):
            kept += _restricted_prediction(recipe, old)
        elif not (isinstance(recipe, Override) and recipe.component not in old):
            kept.append(recipe)
    return tuple(kept)


def _there(names: tuple[str, ...], old: ObsSpec) -> tuple[str, ...]:
    return tuple(name for name in names if name in old)


def _restricted_encode(recipe: Encode, old: ObsSpec) -> list[Encode]:
    places = [at for at, name in enumerate(recipe.components) if name in old]
    if not places:
        return []

    def each(setting: Any) -> Any:
        return tuple(setting[at] for at in places) if isinstance(setting, (tuple, list)) else setting

    names = tuple(recipe.components[at] for at in places)
    copies = tuple((name, copy) for name, copy in recipe.copies if name in names and copy in old)
    model, settings = each(recipe.model), each(recipe.settings)
    return [replace(recipe, components=names, model=model, settings=settings, copies=copies)]


def _restricted_prediction(recipe: Estimate | Adapt, old: ObsSpec) -> list[Estimate | Adapt]:
    truths = recipe.truth_components or recipe.target_components
    pairs = [pair for pair in zip(recipe.target_components, truths) if all(name in old for name in pair)]
    if not pairs:
        return []
    targets, found = tuple(target for target, _ in pairs), tuple(truth for _, truth in pairs)
    reads = _there(recipe.obs_components, old)
    return [
        replace(
            recipe,
            obs_components=reads,
            target_components=targets,
            truth_components=found if recipe.truth_components else (),
        )
    ]
