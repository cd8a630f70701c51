"""Policies for adversarial motion priors: `discriminator` is a separate module, never a part of the policy.

It is no part of the policy's parameters, state dict or export: it has its own optimiser and its own section of a
checkpoint, and a policy that was trained with one loads where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence

from striderl.data.actions import ActionSpec
from striderl.data.specs import ObsSpec
from striderl.policies.arguments import explicit
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.presets.base import HIDDEN, NONE, Settings, compose, discriminator_from, encoders
from striderl.policies.spaces import Segments, make_spaces
from striderl.policies.stages import Remember


class AmpActorCritic(StatefulPolicy):
    """`ActorCritic` with a separate discriminator."""

    @explicit
    def __init__(
        self,
        num_actor_obs: int | ObsSpec,
        num_critic_obs: int | ObsSpec | None,
        num_actions: int | ActionSpec,
        *,
        obs_segments: Segments | None = None,
        critic_obs_segments: Segments | None = None,
        amp_discriminator: Settings,
        actor_hidden_dims: int | Sequence[int] | None = HIDDEN,
        critic_hidden_dims: int | Sequence[int] | None = HIDDEN,
        activation: str = "elu",
        init_noise_std: float = 1.0,
        mu_activation: str | None = None,
    ) -> None:
        spaces = make_spaces(num_actor_obs, num_critic_obs, num_actions, obs_segments, critic_obs_segments)
        discriminator = discriminator_from(amp_discriminator)
        super().__init__(
            compose(
                spaces,
                actor_hidden_dims=actor_hidden_dims,
                critic_hidden_dims=critic_hidden_dims,
                activation=activation,
                init_noise_std=init_noise_std,
                mu_activation=mu_activation,
            ),
            companions=(discriminator,),
        )
        self.discriminator = discriminator


class AmpActorCriticRecurrent(StatefulPolicy):
    """`ActorCriticRecurrent` with a separate discriminator."""

    @explicit
    def __init__(
        self,
        num_actor_obs: int | ObsSpec,
        num_critic_obs: int | ObsSpec | None,
        num_actions: int | ActionSpec,
        *,
        obs_segments: Segments | None = None,
        critic_obs_segments: Segments | None = None,
        amp_discriminator: Settings,
        actor_hidden_dims: int | Sequence[int] | None = HIDDEN,
        critic_hidden_dims: int | Sequence[int] | None = HIDDEN,
        activation: str = "elu",
        rnn_type: str = "lstm",
        rnn_hidden_size: int = 256,
        rnn_num_layers: int = 1,
        init_noise_std: float = 1.0,
        mu_activation: str | None = None,
    ) -> None:
        spaces = make_spaces(num_actor_obs, num_critic_obs, num_actions, obs_segments, critic_obs_segments)
        discriminator = discriminator_from(amp_discriminator)
        memory = Remember(type=rnn_type, hidden_size=rnn_hidden_size, num_layers=rnn_num_layers)
        super().__init__(
            compose(
                spaces,
                actor=(memory,),
                critic=(memory,),
                actor_hidden_dims=actor_hidden_dims,
                critic_hidden_dims=critic_hidden_dims,
                activation=activation,
                init_noise_std=init_noise_std,
                mu_activation=mu_activation,
            ),
            companions=(discriminator,),
        )
        self.discriminator = discriminator


class EncoderAmpActorCriticRecurrent(StatefulPolicy):
    """`EncoderActorCriticRecurrent` with a separate discriminator."""

    @explicit
    def __init__(
        self,
        num_actor_obs: int | ObsSpec,
        num_critic_obs: int | ObsSpec | None,
        num_actions: int | ActionSpec,
        *,
        obs_segments: Segments | None = None,
        critic_obs_segments: Segments | None = None,
        amp_discriminator: Settings,
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
        discriminator = discriminator_from(amp_discriminator)
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
            ),
            companions=(discriminator,),
        )
        self.discriminator = discriminator
