"""The small stages: normalise, one-hot, remember, override."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec
from striderl.networks.memory import Memory
from striderl.networks.normalizers import EmpiricalNormalization
from striderl.ops.moments import AllReduce
from striderl.policies.arguments import as_names
from striderl.policies.stage import Obs, Stage, StageInput, StageOutput, flat_features

# -- NormalizeObs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NormalizeObs:
    """Shift and scale components by the mean and std of the data collected so far."""

    SAVED_NAME: ClassVar[str] = "NormalizeObs"

    components: tuple[str, ...] = ()
    """Which components; empty means all that are real numbers. Images and masks are left alone."""
    eps: float = 1e-2
    """Added to the std, so that a constant component does not blow up."""
    until: int = 0
    """Stop learning the statistics after this many samples; 0 means never."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "components", as_names(self.components, "NormalizeObs.components"))

    def build(self, spec: ObsSpec, whole: ObsSpec) -> NormalizeStage:
        """Build the stage."""
        return NormalizeStage(self, spec)


class NormalizeStage(Stage):
    """Normalises with the present statistics; `update_normalization` updates them once per iteration, from raw data."""

    wants_raw = True

    def __init__(self, recipe: NormalizeObs, spec: ObsSpec) -> None:
        super().__init__()
        wanted = recipe.components or tuple(name for name, part in spec.items() if part.dtype.startswith("float"))
        names = spec.select(wanted).names
        self.input_spec = spec
        self.output_spec = ObsSpec(
            {name: replace(part, dtype="float32") if name in names else part for name, part in spec.items()}
        )
        until = recipe.until or None
        self.normalizers = nn.ModuleDict(
            {module_key(name): EmpiricalNormalization(spec[name].shape, recipe.eps, until) for name in names}
        )

    def forward(self, stage_input: StageInput) -> StageOutput:
        """Return the components, normalised where this stage does so."""
        obs = {
            name: self.normalizers[module_key(name)](value) if module_key(name) in self.normalizers else value
            for name, value in stage_input.obs.items()
        }
        return StageOutput(obs, {}, {})

    def update_normalization(self, obs: Obs, valid: Tensor | None = None, all_reduce: AllReduce | None = None) -> None:
        """Update from raw components [T, N, …]; `valid` [T, N] leaves samples out."""
        for name in self.input_spec:
            if module_key(name) in self.normalizers:
                normalizer = self.normalizers[module_key(name)]
                assert isinstance(normalizer, EmpiricalNormalization)
                normalizer.update(obs[name], valid, all_reduce)


# -- OneHot ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OneHot:
    """Replace discrete components by vectors of zeros with a one in the place of the value, entry after entry."""

    components: tuple[str, ...]
    """Which components; their specs have `num_choices`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "components", as_names(self.components, "OneHot.components"))

    def build(self, spec: ObsSpec, whole: ObsSpec) -> OneHotStage:
        """Build the stage."""
        return OneHotStage(self, spec)


class OneHotStage(Stage):
    """A MultiDiscrete([3, 2]) value (2, 0) becomes [0, 0, 1, 1, 0]; an unknown value becomes zeros."""

    def __init__(self, recipe: OneHot, spec: ObsSpec) -> None:
        super().__init__()
        self.input_spec = spec
        self.components = spec.select(recipe.components).names
        without = [name for name in self.components if not spec[name].num_choices]
        if without:
            raise ValueError(f"OneHot wants components with num_choices; {without} have none in their ComponentSpec")
        self.output_spec = ObsSpec({name: self._output(name, part) for name, part in spec.items()})
        for number, name in enumerate(self.components):
            part = spec[name]
            starts = part.first_choice or (0,) * len(part.num_choices)
            ranges = [torch.arange(count) + start for start, count in zip(starts, part.num_choices)]
            entries = [torch.full((count,), entry) for entry, count in enumerate(part.num_choices)]
            self.register_buffer(f"value_{number}", torch.cat(ranges), persistent=False)
            self.register_buffer(f"entry_{number}", torch.cat(entries), persistent=False)

    def _output(self, name: str, part: ComponentSpec) -> ComponentSpec:
        if name not in self.components:
            return part
        return replace(part, shape=(sum(part.num_choices),), dtype="float32", num_choices=(), first_choice=())

    def forward(self, stage_input: StageInput) -> StageOutput:
        """Return the components with one-hot vectors in the place of values."""
        obs = dict(stage_input.obs)
        for number, name in enumerate(self.components):
            if name in obs:  # a trunk is also run for the actor alone, without the critic's components
                value, lead = obs[name], obs[name].dim() - len(self.input_spec[name].shape)
                flat = value.reshape(*value.shape[:lead], -1)
                entries = flat[..., self.get_buffer(f"entry_{number}")]
                obs[name] = (entries == self.get_buffer(f"value_{number}")).to(torch.float32)
        return StageOutput(obs, {}, {})


# -- Remember ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Remember:
    """Replace all components by the output of a recurrent memory that has read them."""

    SAVED_NAME: ClassVar[str] = "Remember"

    type: str = "lstm"
    """'lstm' or 'gru'."""
    hidden_size: int = 256
    """The width of the memory."""
    num_layers: int = 1
    """How many recurrent layers."""

    def build(self, spec: ObsSpec, whole: ObsSpec) -> RememberStage:
        """Build the stage."""
        return RememberStage(self, spec)


class RememberStage(Stage):
    """A memory over the flattened components; its output is the one component 'memory'."""

    def __init__(self, recipe: Remember, spec: ObsSpec) -> None:
        super().__init__()
        self.input_spec = spec
        self.memory = Memory(spec.size, recipe.type, recipe.num_layers, recipe.hidden_size)
        self.output_spec = ObsSpec({"memory": ComponentSpec(shape=(recipe.hidden_size,), group="trunk")})

    def forward(self, stage_input: StageInput) -> StageOutput:
        """Return the memory's output."""
        x = flat_features(stage_input.obs, self.input_spec, self.memory)
        output, state = self.memory(x, stage_input.state, stage_input.resets, stage_input.valid)
        return StageOutput({"memory": output}, state, {})

    def state_spec(self) -> dict[str, TensorSpec]:
        """Return the memory of one env."""
        return self.memory.zero_state_spec()


# -- Override ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Override:
    """Replace a component, or some of its entries, by fixed numbers: a velocity command, say."""

    SAVED_NAME: ClassVar[str] = "Override"

    component: str
    """Which component."""
    values: tuple[float, ...]
    """The fixed numbers, one per entry."""
    entries: tuple[int, ...] = ()
    """Which entries of the flattened component; empty means all."""

    def build(self, spec: ObsSpec, whole: ObsSpec) -> OverrideStage:
        """Build the stage."""
        return OverrideStage(self, spec)


class OverrideStage(Stage):
    """Writes fixed numbers into a copy of a component."""

    def __init__(self, recipe: Override, spec: ObsSpec) -> None:
        super().__init__()
        self.input_spec = self.output_spec = spec
        component = spec[recipe.component]
        entries = recipe.entries or tuple(range(component.size))
        inside = all(0 <= entry < component.size for entry in entries)
        if len(entries) != len(recipe.values) or len(set(entries)) != len(entries) or not inside:
            raise ValueError(
                f"Override of {recipe.component!r}, which has {component.size} entries, found {len(recipe.values)} "
                f"values for entries {entries}; give one value per entry, and entries from 0 to {component.size - 1}"
            )
        self.component = recipe.component
        self.mask: Tensor
        self.values: Tensor
        mask, values = torch.zeros(component.size, dtype=torch.bool), torch.zeros(component.size)
        mask[list(entries)] = True
        values[list(entries)] = torch.tensor(recipe.values, dtype=torch.float32)
        self.register_buffer("mask", mask.view(component.shape), persistent=False)
        self.register_buffer("values", values.view(component.shape), persistent=False)

    def forward(self, stage_input: StageInput) -> StageOutput:
        """Return the components with the numbers in place; the one that was given is not changed."""
        if (
            self.component not in stage_input.obs
        ):  # a trunk is also run for the actor alone, without the critic's components
            return StageOutput(dict(stage_input.obs), {}, {})
        old = stage_input.obs[self.component]
        new = torch.where(self.mask, self.values.to(old.dtype), old)
        return StageOutput({**stage_input.obs, self.component: new}, {}, {})


def module_key(name: str) -> str:
    """Return a component's name as a module name: without dots, and never one that `ModuleDict` reserves."""
    return "of_" + name.replace(".", "__")
