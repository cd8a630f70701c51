"""The everyday stages: normalise, encode, remember, override."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from striderl.data.naming import unknown
from striderl.data.specs import ComponentSpec, ObsSpec, TensorSpec
from striderl.networks.conv import Conv2dHeadModel
from striderl.networks.memory import Memory
from striderl.networks.mlp import MlpModel
from striderl.networks.normalizers import EmpiricalNormalization
from striderl.policies.stage import Flow, Passed, Stage

# -- NormalizeObs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NormalizeObs:
    """Shift and scale components by the mean and std of what was collected so far."""

    components: tuple[str, ...] = ()
    """Which components; empty means all that are real numbers. Images and masks are left alone."""
    eps: float = 1e-2
    """Added to the std, so that a constant component does not blow up."""
    until: int = 0
    """Stop learning the statistics after this many samples; 0 means never."""

    def build(self, spec: ObsSpec) -> NormalizeStage:
        """Build the stage."""
        return NormalizeStage(self, spec)


class NormalizeStage(Stage):
    """Normalises with the statistics it has; `absorb` updates them, once per iteration, from raw data."""

    def __init__(self, recipe: NormalizeObs, spec: ObsSpec) -> None:
        super().__init__()
        wanted = recipe.components or tuple(name for name, part in spec.items() if part.dtype.startswith("float"))
        self.input_spec = spec
        self.output_spec = _floats(spec, spec.select(wanted).names)
        until = recipe.until or None
        self.normalizers = nn.ModuleDict(
            {_key(name): EmpiricalNormalization(spec[name].shape, recipe.eps, until) for name in spec.select(wanted)}
        )

    def forward(self, flow: Flow) -> Passed:
        """Return the components, normalised where this stage does so."""
        obs = {
            name: self.normalizers[_key(name)](value) if _key(name) in self.normalizers else value
            for name, value in flow.obs.items()
        }
        return Passed(obs, {}, {})

    def absorb(self, obs: Mapping[str, Tensor], valid: Tensor | None = None) -> None:
        """Learn from raw components [T, N, …]; `valid` [T, N] leaves samples out."""
        for name in self.input_spec:
            if _key(name) in self.normalizers:
                normalizer = self.normalizers[_key(name)]
                assert isinstance(normalizer, EmpiricalNormalization)
                normalizer.update(obs[name], valid)


# -- Encode ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Encode:
    """Replace components by latents, each by a network of its own; a latent stands where its component stood."""

    components: tuple[str, ...]
    """Which components are encoded."""
    model: str | tuple[str, ...] = "MlpModel"
    """The network of all, or one per component: 'MlpModel' or 'Conv2dHeadModel'."""
    settings: Mapping[str, Any] | tuple[Mapping[str, Any], ...] = field(default_factory=dict)
    """Its settings, for all or per component: hidden_sizes, nonlinearity, channels, kernel_sizes, strides, …"""
    output_size: int = 32
    """The size of every latent."""

    def build(self, spec: ObsSpec) -> EncodeStage:
        """Build the stage."""
        return EncodeStage(self, spec)


def _mlp_encoder(component: ComponentSpec, size: int, settings: dict[str, Any]) -> nn.Module:
    hidden = settings.pop("hidden_sizes", None)
    hidden = [] if hidden is None else [hidden] if isinstance(hidden, int) else list(hidden)
    return nn.Sequential(nn.Flatten(-len(component.shape)), MlpModel(component.size, [*hidden, size], **settings))


def _conv_encoder(component: ComponentSpec, size: int, settings: dict[str, Any]) -> nn.Module:
    hidden = settings.pop("hidden_sizes", None)
    hidden = [] if hidden is None else [hidden] if isinstance(hidden, int) else list(hidden)
    return Conv2dHeadModel(component.shape, hidden_sizes=[*hidden, size], **settings)


ENCODERS = {"MlpModel": _mlp_encoder, "Conv2dHeadModel": _conv_encoder}
"""Networks that may encode a component; the last layer is `output_size` wide and has its nonlinearity."""


class EncodeStage(Stage):
    """One network per component."""

    def __init__(self, recipe: Encode, spec: ObsSpec) -> None:
        super().__init__()
        names = spec.select(recipe.components).names
        models = _per_component(recipe.model, recipe.components, "model")
        settings = _per_component(recipe.settings, recipe.components, "settings")
        self.input_spec = spec
        self.encoders = nn.ModuleDict()
        for name in names:
            if models[name] not in ENCODERS:
                raise ValueError(unknown("encoder", models[name], ENCODERS, where="Encode"))
            self.encoders[_key(name)] = ENCODERS[models[name]](spec[name], recipe.output_size, dict(settings[name]))
        self.output_spec = ObsSpec(
            {
                name: replace(part, shape=(recipe.output_size,), dtype="float32") if name in names else part
                for name, part in spec.items()
            }
        )

    def forward(self, flow: Flow) -> Passed:
        """Return the components with latents in the place of what was encoded."""
        latents = {name: self.latent(name, flow.obs) for name in flow.obs if _key(name) in self.encoders}
        aux = {f"latent/{name}": value for name, value in latents.items()}
        return Passed({**flow.obs, **latents}, {}, aux)

    def latent(self, name: str, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the latent of one component."""
        if _key(name) not in self.encoders:
            encoded = [part for part in self.input_spec if _key(part) in self.encoders]
            raise KeyError(unknown("encoded component", name, encoded, where="Encode"))
        value = obs[name]
        if isinstance(self.encoders[_key(name)], nn.Sequential) and not self.input_spec[name].shape:
            value = value.unsqueeze(-1)
        latent: Tensor = self.encoders[_key(name)](value)
        return latent


# -- Remember ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Remember:
    """Replace all components by the output of a recurrent memory that has read them."""

    type: str = "lstm"
    """'lstm' or 'gru'."""
    hidden_size: int = 256
    """The width of the memory."""
    num_layers: int = 1
    """How many recurrent layers."""

    def build(self, spec: ObsSpec) -> RememberStage:
        """Build the stage."""
        return RememberStage(self, spec)


class RememberStage(Stage):
    """A memory over the flattened components; its output is the one component 'memory'."""

    def __init__(self, recipe: Remember, spec: ObsSpec) -> None:
        super().__init__()
        self.input_spec = spec
        self.memory = Memory(spec.size, recipe.type, recipe.num_layers, recipe.hidden_size)
        self.output_spec = ObsSpec({"memory": ComponentSpec(shape=(recipe.hidden_size,), group="trunk")})

    def forward(self, flow: Flow) -> Passed:
        """Return the memory's output."""
        x = self.input_spec.flatten(flow.obs).to(next(self.parameters()).dtype)
        output, state = self.memory(x, flow.state, flow.resets, flow.valid)
        return Passed({"memory": output}, state, {})

    def state_spec(self) -> dict[str, TensorSpec]:
        """Return the memory of one env."""
        return self.memory.zero_state_spec()


# -- Override ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Override:
    """Replace a component, or some of its entries, by fixed numbers: a velocity command, say."""

    component: str
    """Which component."""
    values: tuple[float, ...]
    """What to put there, one number per entry."""
    entries: tuple[int, ...] = ()
    """Which entries of the flattened component; empty means all."""

    def build(self, spec: ObsSpec) -> OverrideStage:
        """Build the stage."""
        return OverrideStage(self, spec)


class OverrideStage(Stage):
    """Writes fixed numbers into a copy of a component."""

    def __init__(self, recipe: Override, spec: ObsSpec) -> None:
        super().__init__()
        self.input_spec = self.output_spec = spec
        component = spec[recipe.component]
        entries = recipe.entries or tuple(range(component.size))
        if len(entries) != len(recipe.values) or max(entries) >= component.size:
            raise ValueError(
                f"Override of {recipe.component!r} ({component.size} entries): found {len(recipe.values)} values "
                f"for entries {entries}"
            )
        self.component = recipe.component
        self.mask: Tensor
        self.values: Tensor
        mask, values = torch.zeros(component.size, dtype=torch.bool), torch.zeros(component.size)
        mask[list(entries)] = True
        values[list(entries)] = torch.tensor(recipe.values, dtype=torch.float32)
        self.register_buffer("mask", mask.view(component.shape), persistent=False)
        self.register_buffer("values", values.view(component.shape), persistent=False)

    def forward(self, flow: Flow) -> Passed:
        """Return the components with the numbers in place; the one that was given is not changed."""
        old = flow.obs[self.component]
        new = torch.where(self.mask, self.values.to(old.dtype), old)
        return Passed({**flow.obs, self.component: new}, {}, {})


def _key(name: str) -> str:
    """Return a component's name as a module name, which may hold no dots."""
    return name.replace(".", "__")


def _floats(spec: ObsSpec, names: tuple[str, ...]) -> ObsSpec:
    return ObsSpec({name: replace(part, dtype="float32") if name in names else part for name, part in spec.items()})


def _per_component(setting: Any, components: tuple[str, ...], what: str) -> dict[str, Any]:
    """Return one setting per component, from one for all or a sequence in the order of the components."""
    if isinstance(setting, (tuple, list)):
        if len(setting) != len(components):
            raise ValueError(f"Encode.{what} has {len(setting)} entries for {len(components)} components {components}")
        return dict(zip(components, setting))
    return dict.fromkeys(components, setting)
