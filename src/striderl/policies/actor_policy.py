"""`ActorPolicy`: stages, a body and a head, without a critic, for algorithms with critics of their own.

    obs ─ stages ─▶ MLP ─▶ head ─▶ distribution     of actions, or the greedy choice over Q-values

It acts like a `Policy` (`act`, `decide`, `settled`, `state_spec`, `update_normalization`), so behaviours, evaluation,
agents and export work with both. It has no batch normalisation or the like: the exported network is the one that
was trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from striderl.data.actions import ActionSpec
from striderl.data.checked_fields import suggests_fields
from striderl.data.naming import unknown
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.networks.distributions.base import Distribution
from striderl.networks.heads.base import Head
from striderl.networks.mlp import MlpModel, as_sizes, weight_dtype
from striderl.ops.moments import AllReduce
from striderl.policies.acting import lean_call, run_body
from striderl.policies.arguments import as_names
from striderl.policies.component_defaults import component_defaults
from striderl.policies.estimate import check_order
from striderl.policies.heads import build_head
from striderl.policies.policy import masked
from striderl.policies.stage import (
    Memo,
    Obs,
    Pipeline,
    StageInput,
    StageOutput,
    StageRecipe,
    State,
    as_stages,
    flat_features,
    inner,
    only,
    outer,
)


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class ActorConfig:
    """The configuration of an actor; plain data, saved with a run."""

    obs: tuple[str, ...] = ("policy",)
    """Components or groups that it reads."""
    stages: tuple[StageRecipe, ...] = ()
    """Its stages, in order."""
    hidden_dims: tuple[int, ...] = (256, 256)
    """Hidden layers between the stages and the head."""
    activation: str = "relu"
    """The nonlinearity of the body."""
    head: str = "gaussian"
    """The head for real-valued actions: 'gaussian', 'squashed_gaussian', 'beta' or 'deterministic'."""
    head_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of that head by name."""
    flatten_images: bool = False
    """Give images to the layers as plain numbers; otherwise each that no stage encodes gets a CNN of its own."""
    one_hot: bool = True
    """Turn Discrete and MultiDiscrete components into one-hot vectors; otherwise they enter as the numbers they are."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "obs", as_names(self.obs, "ActorConfig.obs"))
        object.__setattr__(self, "hidden_dims", as_sizes(self.hidden_dims))
        object.__setattr__(self, "stages", as_stages(self.stages, "ActorConfig.stages"))


class ActorPolicy(nn.Module):
    """Stages, body and head; see the picture at the top of this module."""

    def __init__(
        self,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        config: ActorConfig | None = None,
        *,
        make_head: Callable[[int], Head[Any]] | None = None,
    ) -> None:
        """Build everything for these observations and actions; `make_head(feature size)` replaces the config's head."""
        super().__init__()
        self.obs_spec, self.action_spec = obs_spec, action_spec
        self.config = config = config or ActorConfig()
        check_order(config.stages)
        self.actor_inputs = obs_spec.select(config.obs)
        self.critic_inputs = ObsSpec({})
        defaults = component_defaults(
            self.actor_inputs, config.stages, flatten_images=config.flatten_images, one_hot=config.one_hot
        )
        defaults.log("actor")
        self.actor = Pipeline(self.actor_inputs, config.stages, obs_spec, name="actor", defaults=defaults)
        self.actor_body = MlpModel(self.actor.output_spec.size, config.hidden_dims, None, config.activation)
        self._plain = plain_component(self.actor)
        size = self.actor_body.output_size
        self.head: Head[Any] = (
            build_head(action_spec, size, config.head, config.head_settings) if make_head is None else make_head(size)
        )
        for name in self.head.mask_components:
            if name not in obs_spec:
                raise KeyError(unknown("component", name, obs_spec, where="the observation, where action masks are,"))

    def state_spec(self) -> dict[str, TensorSpec]:
        """Return the spec of one env's memory; it starts as zeros."""
        return {f"actor/{name}": spec for name, spec in self.actor.state_spec().items()}

    def stage_draw_spec(self) -> dict[str, TensorSpec]:
        """Return the random decisions that are stored with each step."""
        return {f"actor/{name}": spec for name, spec in self.actor.stage_draw_spec().items()}

    def noise(self) -> dict[str, NoiseSpec]:
        """Return the random numbers that the stages need for each env and step."""
        return {f"actor/{name}": spec for name, spec in self.actor.noise().items()}

    def initial_state(self, num_envs: int, device: torch.device | None = None) -> dict[str, Tensor]:
        """Return the memory at the start of an episode."""
        device = device or next(self.parameters()).device
        return {name: torch.zeros(num_envs, *spec.shape, device=device) for name, spec in self.state_spec().items()}

    def decide(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn the noise of one step into the stages' decisions."""
        return outer(self.actor.decide(inner(noise, "actor")), "actor")

    def settled(self, like: Tensor) -> dict[str, Tensor]:
        """Return the stages' decisions in deterministic inference, for the leading shape of `like`."""
        return outer(self.actor.settled(like), "actor")

    def update_normalization(self, obs: Obs, valid: Tensor | None = None, all_reduce: AllReduce | None = None) -> None:
        """Update the normalisers from raw observations [..., …] where `valid` [...] is true."""
        self.actor.update_normalization(obs, valid, all_reduce)

    def act(
        self, obs: Obs, state: State, stage_draws: Memo, resets: Tensor | None = None, valid: Tensor | None = None
    ) -> tuple[Distribution[Any], dict[str, Tensor], dict[str, Tensor]]:
        """Run one step [B, …] or a sequence [T, B, …]; returns (distribution, state, aux)."""
        features, new_state, aux, given = self.features(obs, state, stage_draws, resets, valid)
        distribution: Distribution[Any] = lean_call(self.head, features, given)
        return distribution, new_state, aux

    forward = act

    def features(
        self, obs: Obs, state: State, stage_draws: Memo, resets: Tensor | None = None, valid: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Run all but the head; returns (features, state, aux, the observation that masks are read from)."""
        if self._plain in obs and valid is None and obs[self._plain].dtype is weight_dtype(self.actor_body):
            return run_body(self.actor_body, obs[self._plain]), dict(state), {}, dict(obs)
        passed, given = self._passed(obs, state, stage_draws, resets, valid)
        features = run_body(self.actor_body, flat_features(passed.obs, self.actor.output_spec, self))
        return features, {**state, **outer(passed.state, "actor")}, outer(passed.aux, "actor"), given

    def remembered(self, obs: Obs, state: State, resets: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """Run the stages alone over a sequence [T, B, …]; returns the state after it."""
        passed, _ = self._passed(obs, state, {}, resets, valid)
        return {**state, **outer(passed.state, "actor")}

    def _passed(
        self, obs: Obs, state: State, stage_draws: Memo, resets: Tensor | None, valid: Tensor | None
    ) -> tuple[StageOutput, dict[str, Tensor]]:
        """Return the output of the stages, and the observation without what is not valid."""
        given = StageInput(masked(obs, valid), state, stage_draws, resets, valid)
        passed: StageOutput = self.actor(
            given._replace(
                obs=only(given.obs, self.actor.input_spec, who="the actor"),
                state=inner(state, "actor"),
                stage_draws=inner(stage_draws, "actor"),
                whole=given.obs,
            )
        )
        return passed, dict(given.obs)


def plain_component(pipeline: Pipeline) -> str:
    """Return the one component that goes into the layers as it is; empty when there are stages or several."""
    (name, *others) = pipeline.input_spec
    return name if not pipeline.stages and not others and len(pipeline.input_spec[name].shape) == 1 else ""
