"""Look inside a policy: the latent of a component, the estimate, and the observation with its latents in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from striderl.data.naming import unknown
from striderl.data.specs import ObsSpec
from striderl.networks.distributions.base import Distribution
from striderl.policies.encode import EncodeStage
from striderl.policies.estimate import PredictStage
from striderl.policies.policy import Policy
from striderl.policies.stage import NOTHING, Memo, Obs, Pipeline, StageInput, State, inner, outer
from striderl.policies.stages import RememberStage


def encoder_latent(policy: Policy, obs: Obs, component: str, *, critic: bool = False) -> Tensor:
    """Return the latent [.., size] of a component, as the actor's encoder makes it, or the critic's.

    Only the component itself is needed; stages with a memory or with decisions are passed over.
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
    """Return the flat estimate [.., K] of the policy's `Estimate` (or 'Adapt') stage from what a call gave as `aux`."""
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

    Only stages that keep and decide nothing may come before it: embedding has no memory to advance.
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
