"""Policies with a state estimator, and with a privilege adaptor before it.

Recurrent ones give the estimator a memory like the actor's, or with `use_actor_rnn` the actor's own; then nothing can
be replaced any more, because the memory has read everything already.
"""

from __future__ import annotations

from collections.abc import Sequence

from striderl.data.actions import ActionSpec
from striderl.data.specs import ObsSpec
from striderl.policies.arguments import explicit
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.presets.base import (
    HIDDEN,
    NONE,
    Settings,
    adaptor,
    check_apart,
    check_not_shared,
    compose,
    encoders,
    estimator,
)
from striderl.policies.spaces import Segments, make_spaces
from striderl.policies.stages import Remember


class StateAc(StatefulPolicy):
    """`Estimate`, then the networks."""

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
        estimator_obs_components: str | Sequence[str] = (),
        estimator_target_components: str | Sequence[str] = (),
        estimator_kwargs: Settings = NONE,
        use_actor_rnn: bool = False,
        replace_state_prob: float = 0.0,
    ) -> None:
        spaces = make_spaces(num_actor_obs, num_critic_obs, num_actions, obs_segments, critic_obs_segments)
        estimate = estimator(
            spaces,
            obs_components=estimator_obs_components,
            target_components=estimator_target_components,
            settings=estimator_kwargs,
            memory=None,
            use_actor_rnn=use_actor_rnn,
            replace_state_prob=replace_state_prob,
        )
        super().__init__(
            compose(
                spaces,
                actor=(estimate,),
                actor_hidden_dims=actor_hidden_dims,
                critic_hidden_dims=critic_hidden_dims,
                activation=activation,
                init_noise_std=init_noise_std,
                mu_activation=mu_activation,
            )
        )


class StateAcRecurrent(StatefulPolicy):
    """`Estimate` with its own memory, `Remember`; or `Remember`, `Estimate` with `use_actor_rnn`."""

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
        estimator_obs_components: str | Sequence[str] = (),
        estimator_target_components: str | Sequence[str] = (),
        estimator_kwargs: Settings = NONE,
        use_actor_rnn: bool = False,
        replace_state_prob: float = 0.0,
    ) -> None:
        spaces = make_spaces(num_actor_obs, num_critic_obs, num_actions, obs_segments, critic_obs_segments)
        memory = Remember(type=rnn_type, hidden_size=rnn_hidden_size, num_layers=rnn_num_layers)
        estimate = estimator(
            spaces,
            obs_components=estimator_obs_components,
            target_components=estimator_target_components,
            settings=estimator_kwargs,
            memory=memory,
            use_actor_rnn=use_actor_rnn,
            replace_state_prob=replace_state_prob,
        )
        super().__init__(
            compose(
                spaces,
                actor=(memory, estimate) if use_actor_rnn else (estimate, memory),
                critic=(memory,),
                actor_hidden_dims=actor_hidden_dims,
                critic_hidden_dims=critic_hidden_dims,
                activation=activation,
                init_noise_std=init_noise_std,
                mu_activation=mu_activation,
            )
        )


class EncoderStateAc(StatefulPolicy):
    """`Estimate`, `Encode`, then the networks."""

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
        estimator_obs_components: str | Sequence[str] = (),
        estimator_target_components: str | Sequence[str] = (),
        estimator_kwargs: Settings = NONE,
        use_actor_rnn: bool = False,
        replace_state_prob: float = 0.0,
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
        estimate = estimator(
            spaces,
            obs_components=estimator_obs_components,
            target_components=estimator_target_components,
            settings=estimator_kwargs,
            memory=None,
            use_actor_rnn=use_actor_rnn,
            replace_state_prob=replace_state_prob,
        )
        check_not_shared(encode, estimate)
        super().__init__(
            compose(
                spaces,
                trunk=encode.trunk,
                actor=(estimate, *encode.actor),
                critic=encode.critic,
                actor_hidden_dims=actor_hidden_dims,
                critic_hidden_dims=critic_hidden_dims,
                activation=activation,
                init_noise_std=init_noise_std,
                mu_activation=mu_activation,
            )
        )


class EncoderStateAcRecurrent(StatefulPolicy):
    """`Estimate`, `Encode`, `Remember`; with `use_actor_rnn` the estimator comes last."""

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
        estimator_obs_components: str | Sequence[str] = (),
        estimator_target_components: str | Sequence[str] = (),
        estimator_kwargs: Settings = NONE,
        use_actor_rnn: bool = False,
        replace_state_prob: float = 0.0,
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
        estimate = estimator(
            spaces,
            obs_components=estimator_obs_components,
            target_components=estimator_target_components,
            settings=estimator_kwargs,
            memory=memory,
            use_actor_rnn=use_actor_rnn,
            replace_state_prob=replace_state_prob,
        )
        check_not_shared(encode, estimate)
        super().__init__(
            compose(
                spaces,
                trunk=encode.trunk,
                actor=(*encode.actor, memory, estimate) if use_actor_rnn else (estimate, *encode.actor, memory),
                critic=(*encode.critic, memory),
                actor_hidden_dims=actor_hidden_dims,
                critic_hidden_dims=critic_hidden_dims,
                activation=activation,
                init_noise_std=init_noise_std,
                mu_activation=mu_activation,
            )
        )


class PrivilegeStateAcRecurrent(StatefulPolicy):
    """`Adapt`, `Estimate`, `Remember`; with `use_actor_rnn` the estimator comes last."""

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
        estimator_obs_components: str | Sequence[str] = (),
        estimator_target_components: str | Sequence[str] = (),
        estimator_kwargs: Settings = NONE,
        use_actor_rnn: bool = False,
        replace_state_prob: float = 0.0,
        adaptor_obs_components: str | Sequence[str] = (),
        adaptor_target_components: str | Sequence[str] = (),
        adaptor_kwargs: Settings = NONE,
        privilege_replace_state_prob: float = 1.0,
    ) -> None:
        spaces = make_spaces(num_actor_obs, num_critic_obs, num_actions, obs_segments, critic_obs_segments)
        memory = Remember(type=rnn_type, hidden_size=rnn_hidden_size, num_layers=rnn_num_layers)
        adapt = adaptor(
            spaces,
            obs_components=adaptor_obs_components,
            target_components=adaptor_target_components,
            settings=adaptor_kwargs,
            memory=memory,
            replace_state_prob=privilege_replace_state_prob,
        )
        estimate = estimator(
            spaces,
            obs_components=estimator_obs_components,
            target_components=estimator_target_components,
            settings=estimator_kwargs,
            memory=memory,
            use_actor_rnn=use_actor_rnn,
            replace_state_prob=replace_state_prob,
        )
        check_apart(adapt, estimate)
        super().__init__(
            compose(
                spaces,
                actor=(adapt, memory, estimate) if use_actor_rnn else (adapt, estimate, memory),
                critic=(memory,),
                actor_hidden_dims=actor_hidden_dims,
                critic_hidden_dims=critic_hidden_dims,
                activation=activation,
                init_noise_std=init_noise_std,
                mu_activation=mu_activation,
            )
        )
