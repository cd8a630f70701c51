"""Components of flat observations, and encoders in front of an actor-critic, as parkour and st_rl mix them in.

    class EncoderActorCritic(EncoderActorCriticMixin, ActorCritic)

    [joints | scan | velocity] ─▶ [joints | latent of scan | velocity] ─▶ ActorCritic.act

`obs_segments` names the pieces of the actor's vector, `critic_obs_segments` those of the critic's. Components are
always read in the order of the segments. Weights have the names of the older libraries: 'encoders.0.…',
'critic_encoders.0.…', 'visual_encoder.…'.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from striderl.compat.st_rl.modules import (
    ActorCritic,
    ActorCriticRecurrent,
    AmpActorCriticRecurrent,
    DeterministicPolicyMixin,
    Segments,
)
from striderl.data.naming import unknown
from striderl.networks.conv import Conv2dHeadModel
from striderl.networks.mlp import MlpModel, as_sizes

# -- pieces of a vector ------------------------------------------------------------------------------------------------


class ObsSlice(NamedTuple):
    """Where a component is in a flat observation."""

    slice: slice
    shape: tuple[int, ...]


def get_obs_slice(segments: Segments | None, name: str) -> ObsSlice:
    """Return the place and the shape of a component."""
    start = 0
    for each, size in _segments(segments).items():
        shape = (size,) if isinstance(size, int) else tuple(int(part) for part in size)
        stop = start + math.prod(shape)
        if each == name:
            return ObsSlice(slice(start, stop), shape)
        start = stop
    raise KeyError(unknown("component", name, _segments(segments), where="the segments"))


def get_subobs_by_components(observations: Tensor, component_names: Sequence[str], obs_segments: Segments) -> Tensor:
    """Return these components side by side, [.., sum of sizes], in the order of the segments."""
    places = _places(obs_segments, component_names)
    return torch.cat([observations[..., place] for place in places], dim=-1)


def get_subobs_size(obs_segments: Segments, component_names: Sequence[str]) -> int:
    """Return how many numbers these components have."""
    return sum(place.stop - place.start for place in _places(obs_segments, component_names))


def substitute_estimated_state(
    observations: Tensor, target_components: Sequence[str], estimated_state: Tensor, obs_segments: Segments
) -> Tensor:
    """Return a copy of the observation with an estimate in the place of components; no gradient flows back."""
    replaced, start = observations.clone(), 0
    for place in _places(obs_segments, target_components):
        size = place.stop - place.start
        replaced[..., place] = estimated_state[..., start : start + size].detach()
        start += size
    return replaced


def _places(segments: Segments | None, names: Sequence[str]) -> list[slice]:
    wanted = [names] if isinstance(names, str) else list(names)
    for name in wanted:
        get_obs_slice(segments, name)  # raises for a name that is not there
    return [get_obs_slice(segments, name).slice for name in _segments(segments) if name in wanted]


def _segments(segments: Segments | None) -> Segments:
    if not segments:
        raise ValueError("components have names: give obs_segments, and critic_obs_segments for the critic's")
    return segments


# -- encoders ----------------------------------------------------------------------------------------------------------


class EncoderActorCriticMixin:
    """Replace components by latents of encoders before the networks; for a class in front of an actor-critic."""

    def __init__(
        self,
        num_actor_obs: int,
        num_critic_obs: int,
        num_actions: int,
        *,
        obs_segments: Segments | None = None,
        critic_obs_segments: Segments | None = None,
        privileged_obs_segments: Segments | None = None,
        encoder_component_names: str | Sequence[str] = (),
        encoder_class_name: str | Sequence[str] = "MlpModel",
        encoder_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        encoder_output_size: int | None = None,
        critic_encoder_component_names: str | Sequence[str] | None = None,
        critic_encoder_class_name: str | Sequence[str] | None = None,
        critic_encoder_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        """Build the encoders, and the networks for observations with latents in the place of components.

        critic_encoder_component_names: None leaves the critic's observation as it is, 'shared' takes the actor's
        encoders, names build encoders of the critic's own. `encoder_output_size` is the size of every latent.
        """
        critic_segments = critic_obs_segments or privileged_obs_segments
        names = [encoder_component_names] if isinstance(encoder_component_names, str) else list(encoder_component_names)
        shared = critic_encoder_component_names == "shared"
        if isinstance(critic_encoder_component_names, str) and not shared:
            critic_encoder_component_names = [critic_encoder_component_names]
        critic_names = names if shared else list(critic_encoder_component_names or ())
        if critic_names and critic_segments is None:
            critic_segments = obs_segments
        if names and encoder_output_size is None:
            raise ValueError("give encoder_output_size, the size of each latent")
        size = encoder_output_size or 0
        outside = num_actor_obs, num_critic_obs
        super().__init__(  # type: ignore[call-arg]
            num_actor_obs + sum(size - _size(obs_segments, name) for name in names),
            num_critic_obs + sum(size - _size(critic_segments, name) for name in critic_names),
            num_actions,
            obs_segments=obs_segments,
            critic_obs_segments=critic_segments,
            **kwargs,
        )
        self.num_actor_obs, self.num_critic_obs = outside
        self.encoder_component_names, self.critic_encoder_component_names = names, critic_names
        self.encoder_output_size, self.critic_encoders_shared = size, shared
        self.encoder_obs_slices: list[ObsSlice] = []
        self.critic_encoder_obs_slices: list[ObsSlice] = []
        self.latents_order: list[int] = []
        self.critic_latents_order: list[int] = []
        self.prepare_obs_slices()
        self.encoders = self.build_encoders(
            names, encoder_class_name, self.encoder_obs_slices, encoder_kwargs or {}, size
        )
        if critic_names and not shared:
            self.critic_encoders = self.build_encoders(
                critic_names,
                critic_encoder_class_name or encoder_class_name,
                self.critic_encoder_obs_slices,
                critic_encoder_kwargs if critic_encoder_kwargs is not None else (encoder_kwargs or {}),
                size,
            )

    def prepare_obs_slices(self) -> None:
        """Set where each encoded component is, and `latents_order`: the encoders in the order of the observation."""
        self.encoder_obs_slices = [get_obs_slice(self._own(False), name) for name in self.encoder_component_names]
        self.critic_encoder_obs_slices = [
            get_obs_slice(self._own(True), name) for name in self.critic_encoder_component_names
        ]
        self.latents_order = _order(self.encoder_obs_slices)
        self.critic_latents_order = _order(self.critic_encoder_obs_slices)

    def build_encoders(
        self,
        component_names: Sequence[str],
        class_name: str | Sequence[str],
        obs_slices: Sequence[ObsSlice],
        kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        encoder_output_size: int,
    ) -> nn.ModuleList:
        """Build one encoder per component: an 'MlpModel' of the flat component, or a 'Conv2dHeadModel' of an image."""
        count = len(component_names)
        classes = [class_name] * count if isinstance(class_name, str) else list(class_name)
        settings = [kwargs] * count if isinstance(kwargs, Mapping) else list(kwargs)
        if not len(classes) == len(settings) == count:
            raise ValueError(
                f"encoders of {list(component_names)} want one class and one dict of settings each, found "
                f"{len(classes)} and {len(settings)}"
            )
        return nn.ModuleList(
            _encoder(kind, place.shape, given, encoder_output_size)
            for place, kind, given in zip(obs_slices, classes, settings)
        )

    def embed_encoders_latent(
        self,
        observations: Tensor,
        obs_slices: Sequence[ObsSlice] | None = None,
        encoders: Sequence[nn.Module] | None = None,
        latents_order: Sequence[int] | None = None,
        *,
        critic: bool = False,
    ) -> Tensor:
        """Return the vector with latents in the place of the encoded components, in the order of the observation.

        Without slices, encoders and order those of the actor are taken, or those of the critic.
        """
        parts = self._latent_parts(critic)
        places = parts[0] if obs_slices is None else obs_slices
        networks = parts[1] if encoders is None else encoders
        pieces, start = [], 0
        for index in parts[2] if latents_order is None else latents_order:
            place = places[index]
            pieces += [observations[..., start : place.slice.start], _encode(networks[index], observations, place)]
            start = place.slice.stop
        return torch.cat([*pieces, observations[..., start:]], dim=-1) if pieces else observations

    def _latent_parts(self, critic: bool) -> tuple[list[ObsSlice], list[nn.Module], list[int]]:
        """Return slices, encoders and order of the actor's or the critic's observation."""
        if critic:
            return self.critic_encoder_obs_slices, _modules(self._critic_encoders()), self.critic_latents_order
        return self.encoder_obs_slices, _modules(self.encoders), self.latents_order

    def _critic_encoders(self) -> nn.ModuleList:
        own = bool(self.critic_encoder_component_names) and not self.critic_encoders_shared
        return self.critic_encoders if own else self.encoders

    def get_encoder_latent(self, observations: Tensor, obs_component: str, critic: bool = False) -> Tensor:
        """Return the latent [.., size] of one component."""
        names = self.critic_encoder_component_names if critic else self.encoder_component_names
        if obs_component not in names:
            raise KeyError(unknown("encoder of component", obs_component, names, where=type(self).__name__))
        index = names.index(obs_component)
        places = self.critic_encoder_obs_slices if critic else self.encoder_obs_slices
        return _encode((self._critic_encoders() if critic else self.encoders)[index], observations, places[index])

    def input_size_of(self, name: str, size: int, critic: bool) -> int:
        """Return how many inputs of the network a component takes: a latent's where it is encoded."""
        names = self.critic_encoder_component_names if critic else self.encoder_component_names
        return self.encoder_output_size if name in names else size

    def act(
        self, observations: Tensor, masks: Tensor | None = None, hidden_states: Any = None, **kwargs: Any
    ) -> Tensor:
        """Embed the observation and act."""
        more = {"masks": masks, "hidden_states": hidden_states, **kwargs}
        actions: Tensor = super().act(self.embed_encoders_latent(observations, *self._latent_parts(False)), **more)  # type: ignore[misc]
        return actions

    def act_inference(self, observations: Tensor) -> Tensor:
        """Embed the observation and return the mean."""
        mean: Tensor = super().act_inference(self.embed_encoders_latent(observations, *self._latent_parts(False)))  # type: ignore[misc]
        return mean

    def evaluate(
        self, critic_observations: Tensor, masks: Tensor | None = None, hidden_states: Any = None, **kwargs: Any
    ) -> Tensor:
        """Embed the critic's observation where it has encoders, and return values."""
        embedded = self.embed_encoders_latent(critic_observations, *self._latent_parts(True))
        values: Tensor = super().evaluate(embedded, masks=masks, hidden_states=hidden_states, **kwargs)  # type: ignore[misc]
        return values

    def _own(self, critic: bool) -> Any:
        model: Any = self
        return model.critic_obs_segments if critic else model.obs_segments


def _order(places: Sequence[ObsSlice]) -> list[int]:
    return sorted(range(len(places)), key=lambda index: places[index].slice.start)


def _modules(encoders: nn.ModuleList) -> list[nn.Module]:
    return list(encoders)


def _encode(encoder: nn.Module, observations: Tensor, place: ObsSlice) -> Tensor:
    """Return the latent [.., size] of a component of observations [.., D]; an image is given its shape."""
    part = observations[..., place.slice]
    if not isinstance(encoder, Conv2dHeadModel):
        flat: Tensor = encoder(part)
        return flat
    latent: Tensor = encoder(part.reshape(-1, *place.shape)).reshape(*part.shape[:-1], -1)
    return latent


def _size(segments: Segments | None, name: str) -> int:
    place = get_obs_slice(segments, name).slice
    return int(place.stop - place.start)


def _encoder(class_name: str, shape: tuple[int, ...], settings: Mapping[str, Any], output_size: int) -> nn.Module:
    """Build an encoder whose last layer, of the latent's size, has a nonlinearity too."""
    given = dict(settings)
    sizes = [*as_sizes(given.pop("hidden_sizes", None)), output_size]
    if class_name == "MlpModel":
        return MlpModel(math.prod(shape), sizes, None, **given)
    if class_name == "Conv2dHeadModel":
        return Conv2dHeadModel(shape, hidden_sizes=sizes, output_size=None, **given)
    raise ValueError(unknown("encoder_class_name", class_name, ["MlpModel", "Conv2dHeadModel"], where="encoders"))


class VisualActorCriticMixin:
    """Encode one image component of the actor's observation; for a class in front of an actor-critic."""

    def __init__(
        self,
        num_actor_obs: int,
        num_critic_obs: int,
        num_actions: int,
        *,
        obs_segments: Segments | None = None,
        visual_component_name: str = "forward_depth",
        visual_kwargs: Mapping[str, Any] | None = None,
        visual_latent_size: int = 256,
        **kwargs: Any,
    ) -> None:
        """Build the convolutions of a component [C, H, W], and the networks for the vector with its latent."""
        usual = {"channels": [64, 64], "kernel_sizes": [3, 3], "strides": [1, 1], "hidden_sizes": [256]}
        place = get_obs_slice(obs_segments, visual_component_name)
        inside = num_actor_obs - _size(obs_segments, visual_component_name) + visual_latent_size
        super().__init__(inside, num_critic_obs, num_actions, obs_segments=obs_segments, **kwargs)  # type: ignore[call-arg]
        self.num_actor_obs = num_actor_obs
        self.visual_component_name, self.visual_latent_size = visual_component_name, visual_latent_size
        self.visual_obs_slice = place
        self.visual_encoder = Conv2dHeadModel(
            place.shape, output_size=visual_latent_size, **{**usual, **(visual_kwargs or {})}
        )

    def embed_visual_latent(self, observations: Tensor) -> Tensor:
        """Return the vector with the latent in the place of the image."""
        where = self.visual_obs_slice.slice
        image = observations[..., where].reshape(-1, *self.visual_obs_slice.shape)
        latent = self.visual_encoder(image).reshape(*observations.shape[:-1], -1)
        return torch.cat([observations[..., : where.start], latent, observations[..., where.stop :]], dim=-1)

    def act(self, observations: Tensor, **kwargs: Any) -> Tensor:
        """Embed the image and act."""
        return self.act_with_embedded_latent(self.embed_visual_latent(observations), **kwargs)

    def act_inference(self, observations: Tensor) -> Tensor:
        """Embed the image and return the mean."""
        mean: Tensor = super().act_inference(self.embed_visual_latent(observations))  # type: ignore[misc]
        return mean

    def act_with_embedded_latent(self, observations: Tensor, **kwargs: Any) -> Tensor:
        """Act on what `embed_visual_latent` returned."""
        actions: Tensor = super().act(observations, **kwargs)  # type: ignore[misc]
        return actions


class EncoderActorCritic(EncoderActorCriticMixin, ActorCritic):
    """Encoders, then the networks."""


class EncoderActorCriticRecurrent(EncoderActorCriticMixin, ActorCriticRecurrent):
    """Encoders, then memories and networks."""


class EncoderAmpActorCriticRecurrent(EncoderActorCriticMixin, AmpActorCriticRecurrent):
    """Encoders, memories and networks, with a discriminator."""


class VisualDeterministicAC(DeterministicPolicyMixin, VisualActorCriticMixin, ActorCritic):
    """An image encoder and networks that act on the mean."""


class VisualDeterministicRecurrent(DeterministicPolicyMixin, VisualActorCriticMixin, ActorCriticRecurrent):
    """An image encoder, memories and networks that act on the mean."""
