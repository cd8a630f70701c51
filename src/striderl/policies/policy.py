"""`Policy`: a shared trunk, then an actor list and a critic list of stages, each with a body and a head.

                 ┌─ actor stages ─▶ MLP ─▶ head ─▶ distribution of actions
    obs ─ trunk ─┤
                 └─ critic stages ─▶ MLP ─▶ value head ─▶ values

Actor and critic choose their components by name or group, so a privileged critic is a longer list of names and
nothing else. One step [B, …] and a sequence [T, B, …] with resets inside go through the same code and give the same
numbers. The policy keeps no state and draws nothing: see `stage.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from striderl.data.actions import ActionSpec
from striderl.data.checked_fields import refuse_overrides, suggests_fields
from striderl.data.naming import saved_name, unknown
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.networks.distributions.base import Distribution
from striderl.networks.heads.base import Head
from striderl.networks.heads.value import ValueHead
from striderl.networks.mlp import MlpModel, as_sizes, weight_dtype
from striderl.networks.normalizers import EmpiricalNormalization
from striderl.ops.moments import AllReduce
from striderl.policies.acting import is_watched, lean_call, run_body
from striderl.policies.arguments import as_names
from striderl.policies.component_defaults import component_defaults
from striderl.policies.estimate import check_order
from striderl.policies.heads import ModeHead, build_head
from striderl.policies.parameter_layout import input_columns
from striderl.policies.stage import (
    NOTHING,
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
from striderl.policies.stages import NormalizeStage, module_key


@suggests_fields
@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """The configuration of a policy; plain data, saved with a run."""

    actor_obs: tuple[str, ...] = ("policy",)
    """Components or groups that the actor reads."""
    critic_obs: tuple[str, ...] = ("policy", "critic")
    """Components or groups that the critic reads; groups the env does not have are left out of the default only."""
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
    deterministic: bool = False
    """A sample is the mode, for algorithms that explore in another way; log-probabilities stay those of the head."""
    num_values: int = 1
    """How many values the critic predicts, one per reward group."""
    flatten_images: bool = False
    """Give images to the layers as plain numbers; otherwise each that no stage encodes gets a CNN of its own."""
    one_hot: bool = True
    """Turn Discrete and MultiDiscrete components into one-hot vectors; otherwise they enter as the numbers they are."""

    def __post_init__(self) -> None:
        # one name or one size may be given without a tuple around it, as anywhere else in this library
        for field_name, names in (("actor_obs", self.actor_obs), ("critic_obs", self.critic_obs)):
            object.__setattr__(self, field_name, as_names(names, f"PolicyConfig.{field_name}"))
        object.__setattr__(self, "actor_hidden_dims", as_sizes(self.actor_hidden_dims))
        object.__setattr__(self, "critic_hidden_dims", as_sizes(self.critic_hidden_dims))
        for field_name, stages in (("trunk", self.trunk), ("actor", self.actor), ("critic", self.critic)):
            object.__setattr__(self, field_name, as_stages(stages, f"PolicyConfig.{field_name}"))

    @property
    def normalize_obs(self) -> bool:
        """Whether a stage normalises observations."""
        return any(saved_name(stage) == "NormalizeObs" for stage in (*self.trunk, *self.actor, *self.critic))


class PolicyOutput(NamedTuple):
    """The outputs of a policy for a step or a sequence."""

    distribution: Distribution[Any]
    """Of actions."""
    value: Tensor
    """[..], or [.., V] for several values."""
    state: dict[str, Tensor]
    """Memory after the last step, [B, …] each."""
    aux: dict[str, Tensor]
    """Further outputs of stages, named 'actor/1_Estimate/estimate' and so on."""


class _Reads(NamedTuple):
    """The inputs of a body without stages before it."""

    spec: ObsSpec
    vector: str
    """The only component, when it is a single vector; otherwise empty."""
    size: int


_TOGETHER = {
    "act": ("forward", "in collection and updates, which call forward; define forward alike, or a stage or a head"),
    "value": ("forward", "on the values that are learned, which are forward's; define forward alike"),
    "forward": ("act", "in evaluation, Agent and exports, which call act; define act alike, or a stage or a head"),
}
"""Methods that act as one: name → the other that a subclass defines with it, and where it has no effect alone."""


class Policy(nn.Module):
    """Trunk, actor and critic; see the picture at the top of this module."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        alone = {name: why for name, (other, why) in _TOGETHER.items() if getattr(cls, other) is getattr(Policy, other)}
        refuse_overrides(cls, alone)

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, config: PolicyConfig | None = None) -> None:
        """Build everything for these observations and actions; raise for a missing component."""
        super().__init__()
        self.obs_spec, self.action_spec = obs_spec, action_spec
        self.config = config = config or PolicyConfig()
        self.actor_inputs = obs_spec.select(config.actor_obs)
        self.critic_inputs = obs_spec.select(_present(config.critic_obs, obs_spec))
        for stages in (config.trunk, config.actor, config.critic):
            check_order(stages)
        both = obs_spec.select([*self.actor_inputs, *self.critic_inputs])
        defaults = component_defaults(
            both,
            (*config.trunk, *config.actor, *config.critic),
            flatten_images=config.flatten_images,
            one_hot=config.one_hot,
        )
        defaults.log("policy")
        self.trunk = Pipeline(both, config.trunk, obs_spec, name="trunk", defaults=replace(defaults, at_end=False))
        shared, raw = self.trunk.output_spec, not config.trunk
        _check_leak(shared, self.actor_inputs, both)
        self.actor, self.critic = (
            Pipeline(_still_there(shared, seen), recipes, obs_spec, raw=raw, name=name, defaults=defaults)
            for name, seen, recipes in (
                ("actor", self.actor_inputs, config.actor),
                ("critic", self.critic_inputs, config.critic),
            )
        )
        activation = config.activation
        self.actor_body = MlpModel(self.actor.output_spec.size, config.actor_hidden_dims, None, activation)
        self.critic_body = MlpModel(self.critic.output_spec.size, config.critic_hidden_dims, None, activation)
        head = build_head(action_spec, self.actor_body.output_size, config.head, config.head_settings)
        for name in head.mask_components:
            if name not in obs_spec:
                raise KeyError(unknown("component", name, obs_spec, where="the observation, where action masks are,"))
        self.head: Head[Any] = ModeHead(head) if config.deterministic else head
        self.value_head = ValueHead(self.critic_body.output_size, config.num_values)
        self.is_plain = not self.trunk.stages and all(
            len(each.stages) < 2 and all(isinstance(stage, NormalizeStage) for stage in each.stages.values())
            for each in (self.actor, self.critic)
        )
        self.has_stages = any(len(pipeline.stages) > 0 for pipeline in self._pipelines().values())
        self._actor_reads = self._critic_reads = _reads(self.actor.output_spec)
        if list(self.critic.output_spec) != list(self.actor.output_spec):
            self._critic_reads = _reads(self.critic.output_spec)

    # -- what is declared ----------------------------------------------------------------------------------------------

    def state_spec(self) -> dict[str, TensorSpec]:
        """Return the spec of one env's memory; it starts as zeros."""
        return self._gathered(lambda pipeline: pipeline.state_spec())

    def stage_draw_spec(self) -> dict[str, TensorSpec]:
        """Return the random decisions that are stored with each step."""
        return self._gathered(lambda pipeline: pipeline.stage_draw_spec())

    def noise(self) -> dict[str, NoiseSpec]:
        """Return the random numbers that the stages need for each env and step; sampling needs its own."""
        return self._gathered(lambda pipeline: pipeline.noise())

    def initial_state(self, num_envs: int, device: torch.device | None = None) -> dict[str, Tensor]:
        """Return the memory at the start of an episode."""
        device = device or next(self.parameters()).device
        return {name: torch.zeros(num_envs, *spec.shape, device=device) for name, spec in self.state_spec().items()}

    def decide(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn the noise of one step into the stages' decisions."""
        if self.is_plain:  # normalisers decide nothing
            return {}
        return {
            key: value
            for part, pipeline in self._pipelines().items()
            for key, value in outer(pipeline.decide(inner(noise, part)), part).items()
        }

    def settled(self, like: Tensor) -> dict[str, Tensor]:
        """Return the stages' decisions in deterministic inference, for the leading shape of `like`."""
        return self._gathered(lambda pipeline: pipeline.settled(like))

    def _gathered(self, ask: Callable[[Pipeline], Mapping[str, Any]]) -> dict[str, Any]:
        return {
            f"{part}/{key}": value
            for part, pipeline in self._pipelines().items()
            for key, value in ask(pipeline).items()
        }

    def input_columns(self) -> dict[str, dict[str, slice]]:
        """Return which columns of which parameter read which observation component."""
        return input_columns(self)

    def update_normalization(self, obs: Obs, valid: Tensor | None = None, all_reduce: AllReduce | None = None) -> None:
        """Update the normalisers from raw observations [..., …] where `valid` [...] is true.

        Once per iteration, after the last minibatch: the update must use the statistics of the rollout.
        """
        for pipeline in self._pipelines().values():
            pipeline.update_normalization(obs, valid, all_reduce)

    # -- running -------------------------------------------------------------------------------------------------------

    def forward(
        self, obs: Obs, state: State, stage_draws: Memo, resets: Tensor | None = None, valid: Tensor | None = None
    ) -> PolicyOutput:
        """Run actor and critic on one step [B, …] or on a sequence [T, B, …]."""
        if self.is_plain and not torch.compiler.is_compiling():
            plain = self._forward_plain(masked(obs, valid))
            if plain is not None:
                return plain
        given = StageInput(masked(obs, valid), state, stage_draws, resets, valid)
        shared = self._trunk(given)
        acted, valued = self._actor(given, shared), self._critic(given, shared)
        return PolicyOutput(
            self._distribution(acted, given),
            self._values(valued),
            {**outer(shared.state, "trunk"), **outer(acted.state, "actor"), **outer(valued.state, "critic")},
            {**outer(shared.aux, "trunk"), **outer(acted.aux, "actor"), **outer(valued.aux, "critic")},
        )

    def _forward_plain(self, obs: Obs) -> PolicyOutput | None:
        """Run a policy without stages, or with normalisers alone: no memory, no aux, nothing to pass between stages.

        Returns None for an observation that does not fit; the general path raises for it.
        """
        dtype = weight_dtype(self.actor_body if self.config.actor_hidden_dims else self)
        acted = valued = self._features(obs, self._actor_reads, dtype, self.actor)
        if self._critic_reads is not self._actor_reads or self.has_stages:
            valued = self._features(obs, self._critic_reads, dtype, self.critic)
        if acted is None or valued is None:
            return None
        distribution: Distribution[Any] = lean_call(self.head, run_body(self.actor_body, acted), obs)
        values: Tensor = lean_call(self.value_head, run_body(self.critic_body, valued))
        return PolicyOutput(distribution, values, {}, {})

    def _features(self, obs: Obs, reads: _Reads, dtype: torch.dtype, pipeline: Pipeline) -> Tensor | None:
        """Return what `flat_features` does, or None when a component is missing; one vector is used as it is.

        With a normaliser, it is None for everything but one vector on the CPU.
        """
        if reads.vector:
            value = obs.get(reads.vector)
            # contiguous: strides may lead to another kernel, which rounds in another way
            if value is not None and value.dtype is dtype and value.is_contiguous() and value.shape[-1] == reads.size:
                return value if not pipeline.stages else normalized_on_cpu(pipeline, reads.vector, value)
        if pipeline.stages:
            return None
        if any(name not in obs for name in reads.spec):
            return None
        return flat_features(obs, reads.spec, self)

    def act(
        self, obs: Obs, state: State, stage_draws: Memo, resets: Tensor | None = None, valid: Tensor | None = None
    ) -> tuple[Distribution[Any], dict[str, Tensor], dict[str, Tensor]]:
        """Run the actor alone; the critic's memory is passed on as it is. Returns (distribution, state, aux)."""
        given = StageInput(masked(obs, valid), state, stage_draws, resets, valid)
        shared = self._trunk(given)
        acted = self._actor(given, shared)
        new_state = {**state, **outer(shared.state, "trunk"), **outer(acted.state, "actor")}
        aux = {**outer(shared.aux, "trunk"), **outer(acted.aux, "actor")}
        return self._distribution(acted, given), new_state, aux

    def value(
        self, obs: Obs, state: State, stage_draws: Memo, resets: Tensor | None = None, valid: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run the critic alone, for bootstrapping; returns (values, the new state)."""
        given = StageInput(masked(obs, valid), state, stage_draws, resets, valid)
        shared = self._trunk(given)
        valued = self._critic(given, shared)
        return self._values(valued), {**state, **outer(shared.state, "trunk"), **outer(valued.state, "critic")}

    def finish(self, obs: Obs, given: Obs = NOTHING) -> Distribution[Any]:
        """Return the distribution for what the actor's stages gave; action masks are read from `given`."""
        features = flat_features(obs, self.actor.output_spec, self)
        distribution: Distribution[Any] = self.head(self.actor_body(features), given)
        return distribution

    def _trunk(self, given: StageInput) -> StageOutput:
        stage_input = given._replace(
            state=inner(given.state, "trunk"), stage_draws=inner(given.stage_draws, "trunk"), whole=given.obs
        )
        passed: StageOutput = self.trunk(stage_input)
        return passed

    def _actor(self, given: StageInput, shared: StageOutput) -> StageOutput:
        passed: StageOutput = self.actor(_part_of(given, shared, "actor", self.actor.input_spec))
        return passed

    def _critic(self, given: StageInput, shared: StageOutput) -> StageOutput:
        passed: StageOutput = self.critic(_part_of(given, shared, "critic", self.critic.input_spec))
        return passed

    def _distribution(self, acted: StageOutput, given: StageInput) -> Distribution[Any]:
        return self.finish(acted.obs, given.obs)

    def _values(self, valued: StageOutput) -> Tensor:
        features = flat_features(valued.obs, self.critic.output_spec, self)
        values: Tensor = self.value_head(self.critic_body(features))
        return values

    def _pipelines(self) -> dict[str, Pipeline]:
        return {"trunk": self.trunk, "actor": self.actor, "critic": self.critic}


def normalized_on_cpu(pipeline: Pipeline, name: str, value: Tensor) -> Tensor | None:
    """Return a component after the one normaliser of a list; None where it has hooks, or on a GPU."""
    (stage,) = pipeline.stages.values()
    assert isinstance(stage, NormalizeStage)
    normalizer = stage.normalizers._modules.get(module_key(name))
    if normalizer is None:
        return value
    if value.device.type != "cpu" or any(map(is_watched, (pipeline, stage, normalizer))):
        return None
    assert isinstance(normalizer, EmpiricalNormalization)
    return normalizer.call_on_cpu(value)


def _reads(spec: ObsSpec) -> _Reads:
    first = next(iter(spec), "")
    return _Reads(spec, first if len(spec) == 1 and len(spec[first].shape) == 1 else "", spec.size)


def _part_of(given: StageInput, shared: StageOutput, part: str, spec: ObsSpec) -> StageInput:
    """Return what one list of stages is given, after the trunk."""
    return given._replace(
        obs=only(shared.obs, spec, who=f"the {part}"),
        state=inner(given.state, part),
        stage_draws=inner(given.stage_draws, part),
        whole={**given.obs, **shared.obs},
    )


def _present(wanted: tuple[str, ...], spec: ObsSpec) -> list[str]:
    """Drop the group 'critic' from the default when the env has no privileged observations."""
    if wanted == PolicyConfig.critic_obs:
        return [name for name in wanted if spec.resolve(name) is not None]
    return list(wanted)


def _still_there(shared: ObsSpec, wanted: ObsSpec) -> ObsSpec:
    """Return what is left of the requested components after the trunk, which may have replaced all by one memory."""
    left = [name for name in wanted if name in shared]
    added = [name for name in shared if name not in wanted and shared[name].group == "trunk"]
    return shared.select([*left, *added])


def _check_leak(shared: ObsSpec, actor: ObsSpec, both: ObsSpec) -> None:
    """Raise when the trunk mixes critic-only components into something that the actor reads."""
    privileged = [name for name in both if name not in actor]
    mixed = [name for name in shared if name not in both]
    if privileged and mixed:
        raise ValueError(
            f"the trunk makes {mixed} out of all components, and so would show the actor {privileged}, which only the "
            "critic sees; give actor and critic stages of their own, or the same components"
        )


def masked(obs: Obs, valid: Tensor | None) -> dict[str, Tensor]:
    """Zero the components where samples are not valid: `where`, because NaN times zero is NaN."""
    if valid is None:
        return dict(obs)
    return {
        name: torch.where(valid.view(*valid.shape, *[1] * (value.dim() - valid.dim())), value, torch.zeros_like(value))
        for name, value in obs.items()
    }
