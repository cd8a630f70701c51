"""Stages: the parts a policy is composed of, each a pure function of tensors.

A policy is a list of stages and a head. Every stage takes the observation as named components and gives it back
changed: normalised, an image replaced by its latent, a missing quantity by an estimate, everything by a memory.

    {"joints": [B, 12], "image": [B, 1, 48, 64]}
          │ Encode("image")
    {"joints": [B, 12], "image": [B, 32]}              the latent stands where the image stood
          │ Remember("lstm")
    {"memory": [B, 256]}  ──▶ flatten ──▶ MLP ──▶ head

What a user writes is a frozen recipe (`Encode(components=("image",), …)`): plain data that is saved with a run. Given
the spec of what comes in, a recipe builds its module, a `Stage`. Stages keep nothing between calls and draw nothing:
memory goes in and out as `state`, random decisions come in as `memo`, made from declared noise while collecting and
read back from storage in the update, so that the update repeats what the rollout did.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec, TensorSpec

Obs = Mapping[str, Tensor]
State = Mapping[str, Tensor]
Memo = Mapping[str, Tensor]


class Flow(NamedTuple):
    """What a stage is given: one step [B, …], or a sequence [T, B, …] with resets inside."""

    obs: Obs
    """The components, as the stage before left them."""
    state: State
    """This stage's memory, [B, …] each; empty when it has none."""
    memo: Memo
    """This stage's random decisions, shaped like the step or the sequence; empty when it makes none."""
    resets: Tensor | None = None
    """Only in a sequence: bool [T, B], true where a new episode begins, before that step is consumed."""
    valid: Tensor | None = None
    """Only in a sequence: bool [T, B], false in padding; components are zero there already."""


class Passed(NamedTuple):
    """What a stage gives back."""

    obs: dict[str, Tensor]
    """The components for the next stage."""
    state: dict[str, Tensor]
    """The memory after the last step."""
    aux: dict[str, Tensor]
    """What losses and tools may want: 'latent/<component>', 'estimate', …; shaped like the step or the sequence."""


class Stage(nn.Module, ABC):
    """One part of a policy, built for the components that come in."""

    input_spec: ObsSpec
    """What comes in."""
    output_spec: ObsSpec
    """What goes out."""

    @abstractmethod
    def forward(self, flow: Flow) -> Passed:
        """Do this stage's work; nothing given is changed and nothing is kept."""

    def state_spec(self) -> Mapping[str, TensorSpec]:
        """Return what the memory of one env is made of; it starts as zeros."""
        return {}

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the random numbers wanted for each env and step while collecting."""
        return {}

    def memo_spec(self) -> Mapping[str, TensorSpec]:
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

    def build(self, spec: ObsSpec) -> Stage:
        """Build the module; settings that do not fit the components raise here, with the fix in the message."""
        ...


class Pipeline(nn.Module):
    """Stages in a row; state, memo and aux of stage i are kept under its position and name, '1_Remember/hidden'."""

    def __init__(self, spec: ObsSpec, recipes: tuple[StageRecipe, ...]) -> None:
        """Build each stage for what the one before gives."""
        super().__init__()
        self.input_spec = spec
        self.stages = nn.ModuleDict()
        for position, recipe in enumerate(recipes):
            stage = recipe.build(spec)
            self.stages[f"{position}_{type(recipe).__name__}"] = stage
            spec = stage.output_spec
        self.output_spec = spec

    def forward(self, flow: Flow) -> Passed:
        """Run all stages."""
        obs: dict[str, Tensor] = dict(flow.obs)
        state: dict[str, Tensor] = {}
        aux: dict[str, Tensor] = {}
        for name, stage in self.stages.items():
            passed = stage(
                Flow(obs, _part(flow.state, name), _part(flow.memo, name), flow.resets, flow.valid),
            )
            obs = passed.obs
            state |= {f"{name}/{key}": value for key, value in passed.state.items()}
            aux |= {f"{name}/{key}": value for key, value in passed.aux.items()}
        return Passed(obs, state, aux)

    def state_spec(self) -> dict[str, TensorSpec]:
        """Return the memory of all stages."""
        return self._gathered(lambda stage: stage.state_spec())

    def noise(self) -> dict[str, NoiseSpec]:
        """Return the noise of all stages."""
        return self._gathered(lambda stage: stage.noise())

    def memo_spec(self) -> dict[str, TensorSpec]:
        """Return the decisions of all stages."""
        return self._gathered(lambda stage: stage.memo_spec())

    def decide(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn the noise of one step into the decisions of all stages."""
        return self._gathered_by_name(lambda name, stage: stage.decide(_part(noise, name)))

    def settled(self, like: Tensor) -> dict[str, Tensor]:
        """Return the decisions of deterministic inference."""
        return self._gathered(lambda stage: stage.settled(like))

    def _gathered(self, ask: Any) -> dict[str, Any]:
        return self._gathered_by_name(lambda _, stage: ask(stage))

    def _gathered_by_name(self, ask: Any) -> dict[str, Any]:
        return {
            f"{name}/{key}": value for name, stage in self.stages.items() for key, value in ask(name, stage).items()
        }


def _part(whole: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    prefix = f"{name}/"
    return {key.removeprefix(prefix): value for key, value in whole.items() if key.startswith(prefix)}
