"""Policies that encode components: height scans, images, anything with a network of its own.

The critic's components stay as they are (`critic_encoder_component_names=None`), are encoded by the actor's weights
('shared'), or by networks of its own (a list of names). Encoders end in `encoder_output_size` units with nonlinearity.

For visual students (`VisualDeterministicAC`) an image becomes a latent, the actor returns its mean; the critic reads
its own components as they are. `embed_visual_latent` and `act_with_embedded_latent` split the step where the image has
been encoded.
"""

from __future__ import annotations

from collections.abc import Sequence

from striderl.data.actions import ActionSpec
from striderl.data.specs import ObsSpec
from striderl.policies.arguments import explicit
from striderl.policies.encode import Encode
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.presets.base import HIDDEN, NONE, Settings, compose, encoders
from striderl.policies.spaces import Segments, Spaces, make_spaces
from striderl.policies.stages import Remember


class EncoderActorCritic(StatefulPolicy):
    """`Encode`, then the networks."""

    @explicit
    def __init__(
        self,
        num_actor_obs: int | ObsSpec,
        num_critic_obs: int | ObsSpec | None,
        num_actions: int | ActionSpec,
        *,
        obs_segments: Segments | None = None,
        critic_obs_segments: Segments | None = None,
        actor_hidden_dims: int | Sequence[int] | None = HIDDEN,
        critic_hidden_dims: int | Sequence[int] | None = HIDDEN,
        activation: str = "elu",
        init_noise_std: float = 1.0,
        mu_activation: str | None = None,
        encoder_component_names: str | Sequence[str] = (),
        encoder_class_name: str | Sequence[str] = "MlpModel",
        encoder_kwargs: Settings | Sequence[Settings] = NONE,
        encoder_output_size: int = 32,
        critic_encoder_component_names: str | Sequence[str] | None = None,
        critic_encoder_class_name: str | Sequence[str] | None = None,
        critic_encoder_kwargs: Settings | Sequence[Settings] | None = None,
    ) -> None:
        spaces = make_spaces(num_actor_obs, num_critic_obs, num_actions, obs_segments, critic_obs_segments)
        encode = encoders(
            spaces,
            components=encoder_component_names,
            class_name=encoder_class_name,
            settings=encoder_kwargs,
            output_size=encoder_output_size,
            critic_components=critic_encoder_component_names,
            critic_class_name=critic_encoder_class_name,
            critic_settings=critic_encoder_kwargs,
        )
        super().__init__(
            compose(
                spaces,
                trunk=encode.trunk,
                actor=encode.actor,
                critic=encode.critic,
                actor_hidden_dims=actor_hidden_dims,
                critic_hidden_dims=critic_hidden_dims,
                activation=activation,
                init_noise_std=init_noise_std,
                mu_activation=mu_activation,
            )
        )


class EncoderActorCriticRecurrent(StatefulPolicy):
    """`Encode`, `Remember`, then the networks."""

    @explicit
    def __init__(
        self,
        num_actor_obs: int | ObsSpec,
        num_critic_obs: int | ObsSpec | None,
        num_actions: int | ActionSpec,
        *,
        obs_segments: Segments | None = None,
        critic_obs_segments: Segments | None = None,
        actor_hidden_dims: int | Sequence[int] | None = HIDDEN,
        critic_hidden_dims: int | Sequence[int] | None = HIDDEN,
        activation: str = "elu",
        rnn_type: str = "lstm",
        rnn_hidden_size: int = 256,
        rnn_num_layers: int = 1,
        init_noise_std: float = 1.0,
        mu_activation: str | None = None,
        encoder_component_names: str | Sequence[str] = (),
        encoder_class_name: str | Sequence[str] = "MlpModel",
        encoder_kwargs: Settings | Sequence[Settings] = NONE,
        encoder_output_size: int = 32,
        critic_encoder_component_names: str | Sequence[str] | None = None,
        critic_encoder_class_name: str | Sequence[str] | None = None,
        critic_encoder_kwargs: Settings | Sequence[Settings] | None = None,
    ) -> None:
        spaces = make_spaces(num_actor_obs, num_critic_obs, num_actions, obs_segments, critic_obs_segments)
        memory = Remember(type=rnn_type, hidden_size=rnn_hidden_size, num_layers=rnn_num_layers)
        encode = encoders(
            spaces,
            components=encoder_component_names,
            class_name=encoder_class_name,
            settings=encoder_kwargs,
            output_size=encoder_output_size,
            critic_components=critic_encoder_component_names,
            critic_class_name=critic_encoder_class_name,
            critic_settings=critic_encoder_kwargs,
        )
        super().__init__(
            compose(
                spaces,
                trunk=encode.trunk,
                actor=(*encode.actor, memory),
                critic=(*encode.critic, memory),
                actor_hidden_dims=actor_hidden_dims,
                critic_hidden_dims=critic_hidden_dims,
                activation=activation,
                init_noise_std=init_noise_std,
                mu_activation=mu_activation,
            )
        )


# -- visual students --------------------------------------------------------------------------------------------------


VISUAL = {"channels": (64, 64), "kernel_sizes": (3, 3), "strides": (1, 1), "hidden_sizes": (256,)}
"""The visual encoder unless `visual_kwargs` is set."""


def _encode(spaces: Spaces, component: str, settings: Settings, size: int) -> Encode:
    names = spaces.for_actor([component], "visual_component_name")
    return Encode(components=names, model="Conv2dHeadModel", settings={**VISUAL, **settings}, output_size=size)


class VisualDeterministicAC(StatefulPolicy):
    """`Encode` of one image, then the networks; acts on its mean."""

    @explicit
    def __init__(
        self,
        num_actor_obs: int | ObsSpec,
        num_critic_obs: int | ObsSpec | None,
        num_actions: int | ActionSpec,
        *,
        obs_segments: Segments | None = None,
        critic_obs_segments: Segments | None = None,
        actor_hidden_dims: int | Sequence[int] | None = HIDDEN,
        critic_hidden_dims: int | Sequence[int] | None = HIDDEN,
        activation: str = "elu",
        init_noise_std: float = 1.0,
        mu_activation: str | None = None,
        visual_component_name: str = "forward_depth",
        visual_kwargs: Settings = NONE,
        visual_latent_size: int = 256,
    ) -> None:
        spaces = make_spaces(num_actor_obs, num_critic_obs, num_actions, obs_segments, critic_obs_segments)
        encode = _encode(spaces, visual_component_name, visual_kwargs, visual_latent_size)
        super().__init__(
            compose(
                spaces,
                actor=(encode,),
                actor_hidden_dims=actor_hidden_dims,
                critic_hidden_dims=critic_hidden_dims,
                activation=activation,
                init_noise_std=init_noise_std,
                mu_activation=mu_activation,
                deterministic=True,
            )
        )


class VisualDeterministicRecurrent(StatefulPolicy):
    """`Encode` of one image, `Remember`, then the networks; acts on its mean."""

    @explicit
    def __init__(
        self,
        num_actor_obs: int | ObsSpec,
        num_critic_obs: int | ObsSpec | None,
        num_actions: int | ActionSpec,
        *,
        obs_segments: Segments | None = None,
        critic_obs_segments: Segments | None = None,
        actor_hidden_dims: int | Sequence[int] | None = HIDDEN,
        critic_hidden_dims: int | Sequence[int] | None = HIDDEN,
        activation: str = "elu",
        rnn_type: str = "lstm",
        rnn_hidden_size: int = 256,
        rnn_num_layers: int = 1,
        init_noise_std: float = 1.0,
        mu_activation: str | None = None,
        visual_component_name: str = "forward_depth",
        visual_kwargs: Settings = NONE,
        visual_latent_size: int = 256,
    ) -> None:
        spaces = make_spaces(num_actor_obs, num_critic_obs, num_actions, obs_segments, critic_obs_segments)
        memory = Remember(type=rnn_type, hidden_size=rnn_hidden_size, num_layers=rnn_num_layers)
        encode = _encode(spaces, visual_component_name, visual_kwargs, visual_latent_size)
        super().__init__(
            compose(
                spaces,
                actor=(encode, memory),
                critic=(memory,),
                actor_hidden_dims=actor_hidden_dims,
                critic_hidden_dims=critic_hidden_dims,
                activation=activation,
                init_noise_std=init_noise_std,
                mu_activation=mu_activation,
                deterministic=True,
            )
        )
