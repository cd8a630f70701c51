"""`Policy`: a shared trunk, then an actor list and a critic list of stages, each with a body and a head.

                 ┌─ actor stages ─▶ MLP ─▶ head ─▶ distribution of actions
    obs ─ trunk ─┤
                 └─ critic stages ─▶ MLP ─▶ value head ─▶ values

Actor and critic choose their components by name or group, so a privileged critic is a longer list of names and
nothing else. One step [B, …] and a sequence [T, B, …] with resets inside go through the same code and give the same
numbers. The policy keeps nothing and draws nothing: see `stage.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from striderl.data.actions import ActionSpec
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.networks.distribution import Distribution
from striderl.networks.mlp import MlpModel
from striderl.networks.value_heads import ValueHead
from striderl.policies.head_settings import build_head
from striderl.policies.stage import Flow, Memo, Obs, Pipeline, StageRecipe, State


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """What a policy is made of; plain data, saved with a run."""

    actor_obs: tuple[str, ...] = ("policy",)
    """Components or groups that the actor sees."""
    critic_obs: tuple[str, ...] = ("policy", "critic")
    """Components or groups that the critic sees; groups the env does not have are left out of the default only."""
    trunk: tuple[StageRecipe, ...] = ()
    """Stages before both lists, with parameters that actor and critic share."""
    actor: tuple[StageRecipe, ...] = ()
    """The actor's own stages, in order."""
    critic: tuple[StageRecipe, ...] = ()
    """The critic's own stages, in order."""
    actor_hidden_dims: tuple[int, ...] = (256, 256, 256)
    """Hidden layers between the actor's stages and its head."""
    critic_hidden_dims: tuple[int, ...] = (256, 256, 256)
    """Hidden layers between the critic's stages and the value."""
    activation: str = "elu"
    """The nonlinearity of both bodies."""
    head: str = "gaussian"
    """The head for real-valued actions: 'gaussian', 'squashed_gaussian', 'beta' or 'deterministic'."""
    head_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of that head by name, such as {'init_std': 0.5, 'std_type': 'log'}."""
    num_values: int = 1
    """How many values the critic predicts, one per reward group."""


class PolicyOutput(NamedTuple):
    """What a policy says about a step or a sequence."""

    distribution: Distribution[Any]
    """Of actions."""
    value: Tensor
    """[..], or [.., V] for several values."""
    state: dict[str, Tensor]
    """Memory after the last step, [B, …] each."""
    aux: dict[str, Tensor]
    """What stages want seen, named 'actor/1_Estimate/estimate' and so on."""


class Policy(nn.Module):
    """Trunk, actor and critic; see the picture at the top of this module."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, config: PolicyConfig | None = None) -> None:
        """Build everything for these observations and actions; a component that is missing is named here."""
        super().__init__()
        self.obs_spec, self.action_spec = obs_spec, action_spec
        self.config = config = config or PolicyConfig()
        self.actor_inputs = obs_spec.select(config.actor_obs)
        self.critic_inputs = obs_spec.select(_present(config.critic_obs, obs_spec))
        both = obs_spec.select([*self.actor_inputs, *self.critic_inputs])
        self.trunk = Pipeline(both, config.trunk)
        shared = self.trunk.output_spec
        self.actor = Pipeline(_still_there(shared, self.actor_inputs), config.actor)
        self.critic = Pipeline(_still_there(shared, self.critic_inputs), config.critic)
        activation = config.activation
        self.actor_body = MlpModel(self.actor.output_spec.size, config.actor_hidden_dims, None, activation)
        self.critic_body = MlpModel(self.critic.output_spec.size, config.critic_hidden_dims, None, activation)
        self.head = build_head(action_spec, self.actor_body.output_size, config.head, config.head_settings)
        self.value_head = ValueHead(self.critic_body.output_size, config.num_values)

    # -- what is declared ----------------------------------------------------------------------------------------------

    def state_spec(self) -> dict[str, TensorSpec]:
        """Return what one env's memory is made of; it starts as zeros."""
        return self._gathered("state_spec")

    def memo_spec(self) -> dict[str, TensorSpec]:
        """Return the random decisions that are stored with each step."""
        return self._gathered("memo_spec")

    def noise(self) -> dict[str, NoiseSpec]:
        """Return the random numbers that the stages want for each env and step; sampling wants its own."""
        return self._gathered("noise")

    def initial_state(self, num_envs: int, device: torch.device | None = None) -> dict[str, Tensor]:
        """Return the memory at the start of an episode."""
        device = device or next(self.parameters()).device
        return {name: torch.zeros(num_envs, *spec.shape, device=device) for name, spec in self.state_spec().items()}

    def decide(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn the noise of one step into the stages' decisions."""
        return {
            f"{part}/{key}": value
            for part, pipeline in self._pipelines().items()
            for key, value in pipeline.decide(_inner(noise, part)).items()
        }

    def settled(self, like: Tensor) -> dict[str, Tensor]:
        """Return the stages' decisions in deterministic inference, for the leading shape of `like`."""
        return {
            f"{part}/{key}": value
            for part, pipeline in self._pipelines().items()
            for key, value in pipeline.settled(like).items()
        }

    # -- running -------------------------------------------------------------------------------------------------------

    def forward(
        self, obs: Obs, state: State, memo: Memo, resets: Tensor | None = None, valid: Tensor | None = None
    ) -> PolicyOutput:
        """Run actor and critic on one step [B, …] or on a sequence [T, B, …]."""
        obs = _masked(obs, valid)
        shared = self.trunk(Flow(obs, _inner(state, "trunk"), _inner(memo, "trunk"), resets, valid))
        distribution, actor_state, actor_aux = self._act(obs, shared.obs, state, memo, resets, valid)
        value, critic_state, critic_aux = self._value(shared.obs, state, memo, resets, valid)
        new_state = {**_outer(shared.state, "trunk"), **actor_state, **critic_state}
        return PolicyOutput(distribution, value, new_state, {**_outer(shared.aux, "trunk"), **actor_aux, **critic_aux})

    def act(
        self, obs: Obs, state: State, memo: Memo, resets: Tensor | None = None, valid: Tensor | None = None
    ) -> tuple[Distribution[Any], dict[str, Tensor], dict[str, Tensor]]:
        """Run the actor alone; the critic's memory is passed on as it is. Returns (distribution, state, aux)."""
        obs = _masked(obs, valid)
        shared = self.trunk(Flow(obs, _inner(state, "trunk"), _inner(memo, "trunk"), resets, valid))
        distribution, actor_state, aux = self._act(obs, shared.obs, state, memo, resets, valid)
        new_state = {**dict(state), **_outer(shared.state, "trunk"), **actor_state}
        return distribution, new_state, {**_outer(shared.aux, "trunk"), **aux}

    def value(
        self, obs: Obs, state: State, memo: Memo, resets: Tensor | None = None, valid: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run the critic alone, for bootstrapping; returns (values, the new state)."""
        obs = _masked(obs, valid)
        shared = self.trunk(Flow(obs, _inner(state, "trunk"), _inner(memo, "trunk"), resets, valid))
        value, critic_state, _ = self._value(shared.obs, state, memo, resets, valid)
        return value, {**dict(state), **_outer(shared.state, "trunk"), **critic_state}

    def _act(
        self, obs: Obs, shared: Obs, state: State, memo: Memo, resets: Tensor | None, valid: Tensor | None
    ) -> tuple[Distribution[Any], dict[str, Tensor], dict[str, Tensor]]:
        seen = _only(shared, self.actor.input_spec)
        passed = self.actor(Flow(seen, _inner(state, "actor"), _inner(memo, "actor"), resets, valid))
        features = self.actor_body(self.actor.output_spec.flatten(passed.obs))
        return self.head(features, obs), _outer(passed.state, "actor"), _outer(passed.aux, "actor")

    def _value(
        self, shared: Obs, state: State, memo: Memo, resets: Tensor | None, valid: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        seen = _only(shared, self.critic.input_spec)
        passed = self.critic(Flow(seen, _inner(state, "critic"), _inner(memo, "critic"), resets, valid))
        value: Tensor = self.value_head(self.critic_body(self.critic.output_spec.flatten(passed.obs)))
        return value, _outer(passed.state, "critic"), _outer(passed.aux, "critic")

    def _pipelines(self) -> dict[str, Pipeline]:
        return {"trunk": self.trunk, "actor": self.actor, "critic": self.critic}

    def _gathered(self, what: str) -> dict[str, Any]:
        tables = {
            "state_spec": lambda pipeline: pipeline.state_spec(),
            "memo_spec": lambda pipeline: pipeline.memo_spec(),
            "noise": lambda pipeline: pipeline.noise(),
        }
        return {
            f"{part}/{key}": value
            for part, pipeline in self._pipelines().items()
            for key, value in tables[what](pipeline).items()
        }


def _present(wanted: tuple[str, ...], spec: ObsSpec) -> list[str]:
    """Drop the group 'critic' from the default when the env has no privileged observations."""
    if wanted == PolicyConfig.critic_obs:
        return [name for name in wanted if name in spec or name in spec.groups]
    return list(wanted)


def _still_there(shared: ObsSpec, wanted: ObsSpec) -> ObsSpec:
    """Return what is left of the wanted components after the trunk, which may have replaced all by one memory."""
    left = [name for name in wanted if name in shared]
    added = [name for name in shared if name not in wanted and shared[name].group == "trunk"]
    return shared.select([*left, *added])


def _only(obs: Obs, spec: ObsSpec) -> dict[str, Tensor]:
    return {name: obs[name] for name in spec}


def _masked(obs: Obs, valid: Tensor | None) -> dict[str, Tensor]:
    """Zero the components where samples are not valid: `where`, because NaN times zero is NaN."""
    if valid is None:
        return dict(obs)
    return {
        name: torch.where(valid.view(*valid.shape, *[1] * (value.dim() - valid.dim())), value, torch.zeros_like(value))
        for name, value in obs.items()
    }


def _inner(whole: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    prefix = f"{part}/"
    return {key.removeprefix(prefix): value for key, value in whole.items() if key.startswith(prefix)}


def _outer(inner: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    return {f"{part}/{key}": value for key, value in inner.items()}
