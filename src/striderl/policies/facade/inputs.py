"""Inputs of `StatefulPolicy`: flat vectors to named components; and access to latents and estimates.

    [.., num_obs] or {"joints": …, "scan": …} ─▶ {"joints": [.., 12], "scan": [.., 187]}

Available are the latent of a component, the estimate, and the observation with its latents in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec
from striderl.networks.distributions.base import Distribution
from striderl.policies.encode import EncodeStage
from striderl.policies.estimate import PredictStage
from striderl.policies.policy import Policy
from striderl.policies.stage import NOTHING, Memo, Obs, Pipeline, StageInput, State, inner, outer
from striderl.policies.stages import RememberStage

Observations = Tensor | np.ndarray[Any, Any] | Mapping[str, Tensor] | Mapping[str, np.ndarray[Any, Any]]
"""A flat tensor or array [.., num_obs], or named components."""

UNNAMED = ("obs", "privileged_obs")
"""What flat vectors without segments are called: two of them of one size are the same vector."""


def named(observations: Observations, spec: ObsSpec, device: torch.device | None = None) -> dict[str, Tensor]:
    """Return named components; a flat vector is cut in the order of the spec, and arrays become tensors."""
    if isinstance(observations, Mapping):
        return {name: _as_tensor(value, f"component {name!r}", device) for name, value in observations.items()}
    components: dict[str, Tensor] = spec.split(_as_tensor(observations, "the observation", device))
    return components


def lead_of(obs: Mapping[str, Tensor], spec: ObsSpec) -> tuple[int, ...]:
    """Return the leading shape, [N] of a step or [T, B] of a minibatch; raise with a missing component."""
    spec.require(obs)
    name = spec.names[0]
    return tuple(obs[name].shape[: obs[name].dim() - len(spec[name].shape)])


def as_mask(masks: Tensor | None) -> Tensor | None:
    """Return masks of any dtype as bool."""
    return None if masks is None else masks.bool()


def as_dones(dones: Any) -> Tensor:
    """Return dones of any dtype, a tensor, an array or a list, as bool [N]."""
    return torch.as_tensor(dones).reshape(-1).bool()


def critic_view(policy: Policy, given: Observations, critic_given: Observations | None) -> Observations:
    """Return the critic's observations: its own observations, else the actor's where they have the same layout."""
    if critic_given is not None:
        return critic_given
    actor, critic = _layout(policy.actor_inputs), _layout(policy.critic_inputs)
    if not isinstance(given, Mapping) and actor != critic:
        raise ValueError(
            f"the critic sees {_text(policy.critic_inputs)} and the actor {_text(policy.actor_inputs)}; "
            "give critic_observations"
        )
    return given


def check_truths(policy: Policy, obs: Mapping[str, Tensor]) -> None:
    """Raise when the actor may have to read a true value that was not given."""
    for _, stage in policy.actor.named_stages():
        missing = [name for name in stage.wanted_truths if name not in obs] if isinstance(stage, PredictStage) else []
        if missing:
            raise ValueError(
                f"the actor reads {missing} where the adaptor's estimate does not replace it; give "
                "critic_observations, or set privilege_replace_state_prob to 1"
            )


def _as_tensor(value: Any, what: str, device: torch.device | None) -> Tensor:
    """Return a tensor as it is and an array as a tensor; float64, numpy's default, becomes float32."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray):
        raise TypeError(
            f"{what} is a {type(value).__name__}; wanted a tensor or an array [.., size], or a dict of them"
        )
    copied = torch.from_numpy(np.array(value))  # a copy, because the input may be read-only
    return copied.to(device, torch.float32 if copied.dtype == torch.float64 else copied.dtype)


def _layout(spec: ObsSpec) -> list[tuple[str, tuple[int, ...]]]:
    """Return names and shapes in order, in which a critic's copy is what the actor's component is."""
    names = ["" if name in UNNAMED else name.removeprefix("critic/") for name in spec]
    return [(name, part.shape) for name, part in zip(names, spec.values())]


def _text(spec: ObsSpec) -> str:
    """Return '9 numbers (a 4, b 5)'."""
    return f"{spec.size} numbers (" + ", ".join(f"{name} {part.size}" for name, part in spec.items()) + ")"


# -- inside -----------------------------------------------------------------------------------------------------------


def encoder_latent(policy: Policy, obs: Obs, component: str, *, critic: bool = False) -> Tensor:
    """Return the latent [.., size] of a component, as the actor's encoder makes it, or the critic's.

    Only the component itself is needed; stages with a memory or with decisions are skipped.
    """
    if component not in obs:
        raise KeyError(unknown("component", component, obs, where="the observation"))
    found: Obs = {component: obs[component]}
    encoded: list[str] = []
    for pipeline in (policy.trunk, policy.critic if critic else policy.actor):
        for _, stage in pipeline.named_stages():
            if isinstance(stage, EncodeStage):
                encoded += stage.network_of
                if component in stage.network_of:
                    return stage.latent(component, found)
            elif component in stage.input_spec and not isinstance(stage, (PredictStage, RememberStage)):
                found = stage(StageInput(found, NOTHING, NOTHING)).obs
    who = "the critic" if critic else "the actor"
    raise KeyError(unknown("encoder of component", component, encoded, where=who))


def estimates(aux: Mapping[str, Tensor], stage: str = "Estimate") -> Tensor:
    """Return the flat estimate [.., K] of the policy's `Estimate` (or 'Adapt') stage from the `aux` of a call."""
    for key, value in aux.items():
        if key.endswith(f"_{stage}/estimate"):
            return value
    raise KeyError(unknown("stage", stage, [key for key in aux if key.endswith("/estimate")], where="the policy"))


def embedded_spec(policy: Policy) -> ObsSpec:
    """Return the layout of an observation whose encoded components are latents already."""
    position = _after_encoders(policy.actor)
    stages = policy.actor.named_stages()
    return stages[position - 1][1].output_spec if position else policy.actor.input_spec


def embed(policy: Policy, obs: Obs) -> dict[str, Tensor]:
    """Run the actor up to its last encoder and return the components, latents in place.

    Only stages without memory and decisions may come before it: embedding has no memory to advance.
    """
    position = _after_encoders(policy.actor)
    shared = policy.trunk(StageInput(obs, NOTHING, NOTHING, whole=obs)).obs
    seen = {name: shared[name] for name in policy.actor.input_spec}
    passed = policy.actor(StageInput(seen, NOTHING, NOTHING, whole={**obs, **shared}), 0, position)
    embedded: dict[str, Tensor] = passed.obs
    return embedded


def act_embedded(
    policy: Policy,
    embedded: Obs,
    state: State,
    stage_draws: Memo,
    resets: Tensor | None = None,
    valid: Tensor | None = None,
) -> tuple[Distribution[Any], dict[str, Tensor]]:
    """Run the rest of the actor on what `embed` returned; returns (distribution, the new state)."""
    stage_input = StageInput(embedded, inner(state, "actor"), inner(stage_draws, "actor"), resets, valid, embedded)
    passed = policy.actor(stage_input, _after_encoders(policy.actor))
    return policy.finish(passed.obs, embedded), {**state, **outer(passed.state, "actor")}


def _after_encoders(pipeline: Pipeline) -> int:
    """Return the position after the last encoder; 0 when the list has none, because the trunk may have it."""
    position = 0
    for place, (_, stage) in enumerate(pipeline.named_stages()):
        if isinstance(stage, EncodeStage):
            position = place + 1
    for name, stage in pipeline.named_stages()[:position]:
        if stage.state_spec() or stage.stage_draw_spec():
            raise ValueError(
                f"the observation cannot be embedded ahead of the step: stage {name!r} comes before the encoder and "
                "has a memory or makes decisions; use act, or put the encoder first"
            )
    return position
