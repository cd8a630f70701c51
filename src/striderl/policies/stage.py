"""Stages: the parts a policy is composed of, each a pure function of tensors.

A policy is a list of stages and a head. Every stage takes the observation as named components and returns it
changed: normalised, an image replaced by its latent, a missing quantity by an estimate, everything by a memory.

    {"joints": [B, 12], "image": [B, 1, 48, 64]}
          │ Encode("image")
    {"joints": [B, 12], "image": [B, 32]}              the latent replaces the image
          │ Remember("lstm")
    {"memory": [B, 256]}  ──▶ flatten ──▶ MLP ──▶ head

What a user writes is a frozen recipe (`Encode(components=("image",), …)`): plain data that is saved with a run. Given
the spec of its input, a recipe builds its module, a `Stage`. Stages keep no state between calls and draw nothing:
memory goes in and out as `state`, random decisions come in as `stage_draws`, made from declared noise while collecting
and read back from storage in the update, so that the update repeats what the rollout did.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from striderl.data.naming import saved_name, unknown
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.networks.conv import as_float_image
from striderl.networks.mlp import weight_dtype
from striderl.ops.moments import AllReduce

Obs = Mapping[str, Tensor]
State = Mapping[str, Tensor]
Memo = Mapping[str, Tensor]

NOTHING: Mapping[str, Tensor] = {}
"""No tensors; never written to."""


class StageInput(NamedTuple):
    """The input of a stage: one step [B, …], or a sequence [T, B, …] with resets inside."""

    obs: Obs
    """The components, from the stage before."""
    state: State
    """This stage's memory, [B, …] each; empty when it has none."""
    stage_draws: Memo
    """This stage's random decisions, shaped like the step or the sequence; empty when it makes none."""
    resets: Tensor | None = None
    """Bool [T, B], or [B] for a step: true where a new episode begins, before that step is processed."""
    valid: Tensor | None = None
    """Bool [T, B], or [B] for a step: false in padding; components are zero there already."""
    whole: Obs = NOTHING
    """All inputs of the policy, after the trunk: the true values of estimates are read here."""


class StageOutput(NamedTuple):
    """The output of a stage."""

    obs: dict[str, Tensor]
    """The components for the next stage."""
    state: dict[str, Tensor]
    """The memory after the last step."""
    aux: dict[str, Tensor]
    """Outputs for losses and tools: 'latent/<component>', 'estimate', …; shaped like the step or the sequence."""


class Stage(nn.Module, ABC):
    """One part of a policy, built for its input components."""

    input_spec: ObsSpec
    """The input components."""
    output_spec: ObsSpec
    """The output components."""
    wants_raw: bool = False
    """Whether `update_normalization` needs this stage's raw input, so that it has to come first."""

    @abstractmethod
    def forward(self, stage_input: StageInput) -> StageOutput:
        """Run the stage; inputs are not changed and no state is kept."""

    def update_normalization(self, obs: Obs, valid: Tensor | None = None, all_reduce: AllReduce | None = None) -> None:
        """Update statistics from raw components [..., …] where `valid` [...] is true; most stages have none."""

    def state_spec(self) -> Mapping[str, TensorSpec]:
        """Return the spec of the memory of one env; it starts as zeros."""
        return {}

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the random numbers needed for each env and step while collecting."""
        return {}

    def stage_draw_spec(self) -> Mapping[str, TensorSpec]:
        """Return the decisions that are stored with each step."""
        return {}

    def decide(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn noise [B, …] into the decisions of one step."""
        return {}

    def settled(self, like: Tensor) -> dict[str, Tensor]:
        """Return the decisions of deterministic inference, for the leading shape of `like` ([B] or [T, B])."""
        return {}


@runtime_checkable
class StageRecipe(Protocol):
    """Plain data that builds a stage for given components."""

    def build(self, spec: ObsSpec, whole: ObsSpec) -> Stage:
        """Build the module for its input; `whole` is the env's whole observation, such as what can be estimated.

        Settings that do not fit raise here, with the fix in the message.
        """
        ...


class StageDefaults(Protocol):
    """The stages that a list adds by default; see `component_defaults.py`."""

    def adapted(self, recipe: StageRecipe, spec: ObsSpec) -> StageRecipe | None:
        """Return a recipe fitted to what is added later, or None where nothing is left of it."""
        ...

    def before(self, recipe: StageRecipe | None, spec: ObsSpec) -> tuple[StageRecipe, ...]:
        """Return the stages before this recipe, or, for None, at the end of the list."""
        ...


class Pipeline(nn.Module):
    """Stages in a row; state, stage draws and aux of stage i are under its position and name, '1_Remember/hidden'."""

    def __init__(
        self,
        spec: ObsSpec,
        recipes: tuple[StageRecipe, ...],
        whole: ObsSpec | None = None,
        *,
        raw: bool = True,
        name: str = "",
        defaults: StageDefaults | None = None,
    ) -> None:
        """Build each stage for what the one before gives; `raw`: components come as the env gave them.

        `name` is what the list is called in error messages; `defaults` may add stages.
        """
        super().__init__()
        self._prefix = f"{name}/" if name else ""
        self.input_spec = spec
        self.stages = nn.ModuleDict()
        self.output_spec = spec
        for given in (*recipes, None):
            wanted = () if defaults is None else defaults.before(given, self.output_spec)
            recipe = given if given is None or defaults is None else defaults.adapted(given, self.output_spec)
            for each in wanted if recipe is None else (*wanted, recipe):
                self._append(each, self.output_spec if whole is None else whole, raw=raw)
        found = self.named_stages()
        self._memories = {name: (stage.state_spec(), stage.input_spec) for name, stage in found if stage.state_spec()}

    def _append(self, recipe: StageRecipe, whole: ObsSpec, *, raw: bool) -> None:
        position, stage = len(self.stages), recipe.build(self.output_spec, whole)
        if stage.wants_raw and not (raw and position == 0):
            raise ValueError(
                f"{type(recipe).__name__} learns from raw observations and must be the first stage; "
                "put it first in the trunk, or first in both lists when there is no trunk"
            )
        self.stages[f"{position}_{saved_name(recipe)}"] = stage
        self.output_spec = stage.output_spec

    def forward(self, stage_input: StageInput, first: int = 0, last: int | None = None) -> StageOutput:
        """Run all stages, or those from position `first` to before `last`."""
        obs: dict[str, Tensor] = dict(stage_input.obs)
        state: dict[str, Tensor] = {}
        aux: dict[str, Tensor] = {}
        for name, stage in list(self.stages.items())[first:last]:
            memory = inner(stage_input.state, name)
            if name in self._memories and not torch.compiler.is_compiling():
                wanted, reads = self._memories[name]
                require_state(memory, wanted, batch_of(obs, reads), f"{self._prefix}{name}")
            passed = stage(
                stage_input._replace(obs=obs, state=memory, stage_draws=inner(stage_input.stage_draws, name))
            )
            obs = passed.obs
            state |= outer(passed.state, name)
            aux |= outer(passed.aux, name)
        return StageOutput(obs, state, aux)

    def named_stages(self) -> list[tuple[str, Stage]]:
        """Return the stages with their names, in order."""
        found: list[tuple[str, Stage]] = []
        for name, stage in self.stages.items():
            assert isinstance(stage, Stage)
            found.append((name, stage))
        return found

    def update_normalization(self, obs: Obs, valid: Tensor | None = None, all_reduce: AllReduce | None = None) -> None:
        """Update the statistics of all stages from raw components."""
        for _, stage in self.named_stages():
            stage.update_normalization(obs, valid, all_reduce)

    def state_spec(self) -> dict[str, TensorSpec]:
        """Return the memory of all stages."""
        return self._gathered(lambda stage: stage.state_spec())

    def noise(self) -> dict[str, NoiseSpec]:
        """Return the noise of all stages."""
        return self._gathered(lambda stage: stage.noise())

    def stage_draw_spec(self) -> dict[str, TensorSpec]:
        """Return the decisions of all stages."""
        return self._gathered(lambda stage: stage.stage_draw_spec())

    def decide(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn the noise of one step into the decisions of all stages."""
        return self._gathered_by_name(lambda name, stage: stage.decide(inner(noise, name)))

    def settled(self, like: Tensor) -> dict[str, Tensor]:
        """Return the decisions of deterministic inference."""
        return self._gathered(lambda stage: stage.settled(like))

    def _gathered(self, ask: Callable[[Stage], Mapping[str, Any]]) -> dict[str, Any]:
        return self._gathered_by_name(lambda _, stage: ask(stage))

    def _gathered_by_name(self, ask: Callable[[str, Stage], Mapping[str, Any]]) -> dict[str, Any]:
        named = ((name, ask(name, stage)) for name, stage in self.named_stages())
        return {f"{name}/{key}": value for name, found in named for key, value in found.items()}


def require_state(state: State, wanted: Mapping[str, TensorSpec], batch: int, owner: str) -> None:
    """Raise unless a stage's memory is there, for as many envs as the observation has."""
    for name, spec in wanted.items():
        if name not in state:
            raise KeyError(
                f"the state has no '{owner}/{name}'; begin with policy.initial_state({batch}) and give each step the "
                "state that the one before returned"
            )
        if state[name].shape != (batch, *spec.shape):
            raise ValueError(
                f"the state '{owner}/{name}' is {tuple(state[name].shape)} and the observation is for {batch} envs, "
                f"which wants {(batch, *spec.shape)}; begin with policy.initial_state({batch})"
            )


def batch_of(obs: Obs, spec: ObsSpec) -> int:
    """Return B of components [B, …] or [T, B, …]; a trunk may be run without the critic's components."""
    name = next(name for name in spec if name in obs)
    return obs[name].shape[obs[name].dim() - len(spec[name].shape) - 1]


def as_stages(stages: Any, what: str) -> tuple[StageRecipe, ...]:
    """Return recipes as a tuple; one that stands alone, or a class in the place of a recipe, raises with the fix."""
    if isinstance(stages, StageRecipe) or not isinstance(stages, (tuple, list)):
        raise TypeError(f"{what} wants a tuple of stages such as (Remember(),), found {stages!r}")
    for stage in stages:
        if isinstance(stage, type):
            raise TypeError(f"{what} has the class {stage.__name__}; make a stage of it: {stage.__name__}(…)")
        if not isinstance(stage, StageRecipe):
            raise TypeError(f"{what} has {stage!r}, which is no stage: it has no method 'build(spec, whole)'")
    return tuple(stages)


def inner(whole: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Return the entries 'part/name' under 'name'."""
    prefix = f"{part}/"
    return {key.removeprefix(prefix): value for key, value in whole.items() if key.startswith(prefix)}


def outer(entries: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Return the entries 'name' under 'part/name'."""
    return {f"{part}/{key}": value for key, value in entries.items()}


def flat_features(obs: Obs, spec: ObsSpec, network: nn.Module) -> Tensor:
    """Join components into one [.., size] vector of the network's dtype; bytes of images become numbers in [0, 1]."""
    dtype = weight_dtype(network)
    cast = {name: as_float_image(obs[name], dtype) if is_image(part) else obs[name] for name, part in spec.items()}
    flat: Tensor = spec.flatten(cast).to(dtype)
    return flat


def is_image(component: TensorSpec) -> bool:
    """Return whether a component is an image of bytes, (channels, height, width)."""
    return component.dtype == "uint8" and len(component.shape) == 3


def only(obs: Obs, spec: ObsSpec, *, who: str) -> dict[str, Tensor]:
    """Return the components of a spec; raise for a missing one, with the stage that needs it."""
    for name in spec:
        if name not in obs:
            raise KeyError(unknown("component", name, obs, where=f"the observation given to {who}"))
    return {name: obs[name] for name in spec}
