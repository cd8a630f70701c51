"""`Encode`: components become latents, each by a network of its own.

    {"joints": [B, 12], "image": [B, 1, 48, 64]}
          │ Encode(components=("image",), model="Conv2dHeadModel", settings={"channels": (16, 32), …}, output_size=32)
    {"joints": [B, 12], "image": [B, 32]}              the latent replaces the image

In a trunk the network serves actor and critic. Where the critic has its own copy of a component, it is
encoded by the same weights: `copies=(("scan", "critic/scan"),)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from striderl.data.naming import unknown
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.networks.conv import Conv2dHeadModel
from striderl.networks.mlp import MlpModel, weight_dtype
from striderl.policies.arguments import argument_names, as_names, require_known
from striderl.policies.stage import Obs, Stage, StageInput, StageOutput, flat_features
from striderl.policies.stages import module_key


@dataclass(frozen=True, kw_only=True)
class Encode:
    """Replace components by latents; the last layer is `output_size` wide and has its nonlinearity."""

    SAVED_NAME: ClassVar[str] = "Encode"

    components: tuple[str, ...]
    """Which components are encoded."""
    model: str | tuple[str, ...] = "MlpModel"
    """The network of all, or one per component: 'MlpModel' or 'Conv2dHeadModel'."""
    settings: Mapping[str, Any] | tuple[Mapping[str, Any], ...] = field(default_factory=dict)
    """Its settings, for all or per component: hidden_sizes, nonlinearity, channels, kernel_sizes, strides, …"""
    output_size: int = 32
    """The size of every latent; 0 for images: the flattened feature maps, without a layer on top."""
    copies: tuple[tuple[str, str], ...] = ()
    """Pairs (component, copy): the copy is encoded by the component's network as well."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "components", as_names(self.components, "Encode.components"))

    def build(self, spec: ObsSpec, whole: ObsSpec) -> EncodeStage:
        """Build the stage."""
        return EncodeStage(self, spec)


class EncodeStage(Stage):
    """One network per component."""

    def __init__(self, recipe: Encode, spec: ObsSpec) -> None:
        super().__init__()
        if not recipe.components:
            raise ValueError(
                f"Encode wants the names of the components to encode, found none; the observation has {list(spec)}. "
                "A policy without encoders leaves the stage out (ActorCritic instead of EncoderActorCritic)"
            )
        twice = sorted({name for name in recipe.components if recipe.components.count(name) > 1})
        if twice:
            raise ValueError(
                f"Encode has {twice} more than once in {list(recipe.components)}; name each component once"
            )
        models = _per_component(recipe.model, recipe.components, "model")
        settings = _per_component(recipe.settings, recipe.components, "settings")
        self.input_spec = spec
        self.encoders = nn.ModuleDict()
        for name in recipe.components:
            self.encoders[module_key(name)] = _build(name, spec[name], models[name], settings[name], recipe.output_size)
        self.network_of = {name: name for name in recipe.components} | _copies(recipe, spec)
        self.output_spec = ObsSpec(
            {
                name: replace(part, shape=(self._size(name),), dtype="float32") if name in self.network_of else part
                for name, part in spec.items()
            }
        )

    def _size(self, name: str) -> int:
        network = self.encoders[module_key(self.network_of[name])]
        assert isinstance(network, (MlpModel, Conv2dHeadModel))
        return network.output_size

    def forward(self, stage_input: StageInput) -> StageOutput:
        """Return the components with latents in the place of what was encoded."""
        latents = {name: self.latent(name, stage_input.obs) for name in stage_input.obs if name in self.network_of}
        aux = {f"latent/{name}": value for name, value in latents.items()}
        return StageOutput({**stage_input.obs, **latents}, {}, aux)

    def latent(self, name: str, obs: Obs) -> Tensor:
        """Return the latent [.., output_size] of one component."""
        if name not in self.network_of:
            raise KeyError(unknown("encoded component", name, self.network_of, where="Encode"))
        network = self.encoders[module_key(self.network_of[name])]
        if isinstance(network, MlpModel):
            value = flat_features(obs, self.input_spec.select([name]), network)
        else:
            value = obs[name].to(weight_dtype(network)) if obs[name].is_floating_point() else obs[name]
        latent: Tensor = network(value)
        return latent


def _mlp(component: ComponentSpec, sizes: list[int], settings: Mapping[str, Any]) -> nn.Module:
    return MlpModel(component.size, sizes, **settings)


def _conv(component: ComponentSpec, sizes: list[int], settings: Mapping[str, Any]) -> nn.Module:
    return Conv2dHeadModel(component.shape, hidden_sizes=sizes, **settings)


class _Network(NamedTuple):
    build: Callable[[ComponentSpec, list[int], Mapping[str, Any]], nn.Module]
    settings: tuple[str, ...]


def _settable(network: type[nn.Module]) -> tuple[str, ...]:
    """Return the settings that a config may have; input and output sizes are fixed."""
    return tuple(key for key in argument_names(network) if key not in ("input_size", "image_shape", "output_size"))


ENCODERS = {
    "MlpModel": _Network(_mlp, _settable(MlpModel)),
    "Conv2dHeadModel": _Network(_conv, _settable(Conv2dHeadModel)),
}
"""Networks that may encode a component."""


def _build(name: str, component: ComponentSpec, model: str, settings: Mapping[str, Any], size: int) -> nn.Module:
    if model not in ENCODERS:
        raise ValueError(unknown("encoder", model, ENCODERS, where=f"Encode of {name!r}"))
    require_known(settings, ENCODERS[model].settings, where=f"the {model} that encodes {name!r}")
    if model == "Conv2dHeadModel" and len(component.shape) != 3:
        raise ValueError(
            f"Encode of {name!r}: a Conv2dHeadModel wants an image (channels, height, width), found shape "
            f"{component.shape}; use 'MlpModel', or give the component its image shape in obs_segments"
        )
    own = dict(settings)
    hidden = own.pop("hidden_sizes", None)
    hidden = [] if hidden is None else [hidden] if isinstance(hidden, int) else list(hidden)
    if not size and (hidden or model == "MlpModel"):
        raise ValueError(f"Encode of {name!r}: output_size=0 is for convolutions without hidden_sizes; give a size")
    try:
        return ENCODERS[model].build(component, [*hidden, size] if size else [], own)
    except TypeError as error:
        raise TypeError(f"Encode of {name!r}: {error}; set it in the encoder's settings") from None


def _copies(recipe: Encode, spec: ObsSpec) -> dict[str, str]:
    """Return copy -> component; a copy must have the shape that the network was built for."""
    for name, copy in recipe.copies:
        if name not in recipe.components:
            raise ValueError(unknown("component", name, recipe.components, where="Encode.copies"))
        if spec[copy].shape != spec[name].shape:
            raise ValueError(
                f"Encode: {copy!r} has shape {spec[copy].shape} and cannot share the network of {name!r}, "
                f"which is built for {spec[name].shape}; give it an encoder of its own"
            )
    return {copy: name for name, copy in recipe.copies}


def _per_component(setting: Any, components: tuple[str, ...], what: str) -> dict[str, Any]:
    """Return one setting per component, from one for all or a sequence in the order of the components."""
    if isinstance(setting, (tuple, list)):
        if len(setting) != len(components):
            raise ValueError(
                f"Encode.{what} has {len(setting)} entries for {len(components)} components {components}; "
                "give one for all, or one per component"
            )
        return dict(zip(components, setting))
    return dict.fromkeys(components, setting)
