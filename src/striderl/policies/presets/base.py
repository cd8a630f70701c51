"""From the arguments of st_rl's classes to recipes, and the plain classes: actor, critic, both, and with memory.

The other presets only put these parts together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor, nn

from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec
from striderl.data.specs import ObsSpec
from striderl.networks.discriminator import AMPDiscriminator
from striderl.networks.distributions.gaussian import DiagonalGaussian
from striderl.networks.heads.gaussian import GaussianHead
from striderl.networks.heads.value import ValueHead
from striderl.networks.mlp import MlpModel, as_sizes
from striderl.policies.arguments import argument_names, explicit, missing_arguments, require_known
from striderl.policies.encode import Encode
from striderl.policies.estimate import Adapt, Estimate
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.spaces import Segments, Spaces, make_spaces
from striderl.policies.stage import StageRecipe
from striderl.policies.stages import Remember

Settings = Mapping[str, Any]
Stages = tuple[StageRecipe, ...]
NONE: Settings = {}
HIDDEN = (256, 256, 256)
"""Hidden layers of actor and critic by default."""


def compose(
    spaces: Spaces,
    *,
    trunk: Stages = (),
    actor: Stages = (),
    critic: Stages = (),
    actor_hidden_dims: int | Sequence[int] | None,
    critic_hidden_dims: int | Sequence[int] | None,
    activation: str,
    init_noise_std: float,
    mu_activation: str | None,
    deterministic: bool = False,
) -> Policy:
    """Build a Gaussian policy out of lists of stages."""
    parts = spaces.action.parts.values() if isinstance(spaces.action, DictActionSpec) else [spaces.action]
    real = any(isinstance(part, BoxSpec) for part in parts)
    if not real and init_noise_std != 1.0:
        raise ValueError(f"init_noise_std={init_noise_std} has no effect: the action has no real-valued part")
    head: dict[str, Any] = {"init_std": init_noise_std} if real else {}
    if mu_activation is not None:
        head["mu_activation"] = mu_activation
    return Policy(
        spaces.obs,
        spaces.action,
        PolicyConfig(
            actor_obs=spaces.actor,
            critic_obs=spaces.critic,
            trunk=trunk,
            actor=actor,
            critic=critic,
            actor_hidden_dims=as_sizes(actor_hidden_dims),
            critic_hidden_dims=as_sizes(critic_hidden_dims),
            activation=activation,
            head_settings=head,
            deterministic=deterministic,
            flatten_images=True,  # these classes name the components they encode; weights of older libraries fit them
        ),
    )


class Encoders(NamedTuple):
    """The encoding stages of the three lists."""

    trunk: Stages
    actor: Stages
    critic: Stages


def encoders(
    spaces: Spaces,
    *,
    components: str | Sequence[str],
    class_name: str | Sequence[str],
    settings: Settings | Sequence[Settings],
    output_size: int,
    critic_components: str | Sequence[str] | None,
    critic_class_name: str | Sequence[str] | None,
    critic_settings: Settings | Sequence[Settings] | None,
) -> Encoders:
    """Encode in the actor, and in the critic: not (None), with the same weights ('shared'), or with its own (names)."""
    names = spaces.for_actor(components, "encoder_component_names")
    own = Encode(components=names, model=_each(class_name), settings=_each(settings), output_size=output_size)
    shared = critic_components == "shared"
    if (critic_components is None or shared) and (critic_class_name is not None or critic_settings is not None):
        raise ValueError(
            f"critic_encoder_class_name and critic_encoder_kwargs have no effect with "
            f"critic_encoder_component_names={critic_components!r}; name the critic's components, or leave them away"
        )
    if critic_components is None:
        return Encoders((), (own,), ())
    if shared:
        others = spaces.for_critic(components, "critic_encoder_component_names='shared'")
        copies = tuple((name, other) for name, other in zip(names, others) if name != other)
        return Encoders((replace(own, copies=copies),), (), ())
    if isinstance(critic_components, str):
        raise ValueError(
            f"critic_encoder_component_names is None, 'shared' or a list of names, found {critic_components!r}"
        )
    critic = Encode(
        components=spaces.for_critic(critic_components, "critic_encoder_component_names"),
        model=_each(class_name if critic_class_name is None else critic_class_name),
        settings=_each(settings if critic_settings is None else critic_settings),
        output_size=output_size,
    )
    return Encoders((), (own,), (critic,))


def estimator(
    spaces: Spaces,
    *,
    obs_components: str | Sequence[str],
    target_components: str | Sequence[str],
    settings: Settings,
    memory: Remember | None,
    use_actor_rnn: bool,
    replace_state_prob: float,
) -> Estimate:
    """Estimate with a memory like the actor's, with the actor's own, or without one.

    The actor's memory has read everything: then the names of components are checked, and not read again.
    """
    require_known(settings, ("hidden_sizes", "nonlinearity"), where="estimator_kwargs")
    read = spaces.for_actor(obs_components, "estimator_obs_components")
    return Estimate(
        obs_components=() if use_actor_rnn else read,
        target_components=spaces.targets(target_components, "estimator_target_components"),
        truth_components=spaces.truths(target_components, "estimator_target_components"),
        memory=None if use_actor_rnn else memory,
        use_actor_rnn=use_actor_rnn,
        replace_state_prob=replace_state_prob,
        **_network(settings),
    )


def adaptor(
    spaces: Spaces,
    *,
    obs_components: str | Sequence[str],
    target_components: str | Sequence[str],
    settings: Settings,
    memory: Remember | None,
    replace_state_prob: float,
) -> Adapt:
    """Adapt with a memory like the actor's, or without one."""
    require_known(settings, ("hidden_sizes", "nonlinearity"), where="adaptor_kwargs")
    return Adapt(
        obs_components=spaces.for_actor(obs_components, "adaptor_obs_components"),
        target_components=spaces.targets(target_components, "adaptor_target_components"),
        truth_components=spaces.truths(target_components, "adaptor_target_components"),
        memory=memory,
        replace_state_prob=replace_state_prob,
        **_network(settings),
    )


def discriminator_from(settings: Settings) -> AMPDiscriminator:
    """Build the discriminator that `amp_discriminator` describes."""
    require_known(settings, argument_names(AMPDiscriminator), where="amp_discriminator")
    missing = missing_arguments(AMPDiscriminator, settings)
    if missing:
        raise TypeError(f"amp_discriminator wants the settings {missing} as well; found {sorted(settings)}")
    return AMPDiscriminator(**settings)


def check_not_shared(found: Encoders, estimate: Estimate) -> None:
    """Raise when the estimator would get latents of shared encoders where it gets components of unshared ones."""
    encoded = {name for recipe in found.trunk if isinstance(recipe, Encode) for name in recipe.components}
    touched = sorted(encoded & {*estimate.obs_components, *estimate.target_components})
    if touched:
        raise ValueError(
            f"the estimator reads or predicts {touched}, which shared encoders replace before the actor's stages; "
            "give the critic encoders of its own (critic_encoder_component_names as a list)"
        )


def check_apart(adapt: Adapt, estimate: Estimate) -> None:
    """Raise when both stages predict the same component."""
    both = sorted(set(adapt.target_components) & set(estimate.target_components))
    if both:
        raise ValueError(f"adaptor and estimator both predict {both}; take it out of one of the two")


def _network(settings: Settings) -> dict[str, Any]:
    """Return hidden layers as a tuple, from a number, a sequence or None; what is not set is left to the recipe."""
    found = dict(settings)
    if "hidden_sizes" in found:
        sizes = found["hidden_sizes"]
        found["hidden_sizes"] = as_sizes(sizes)
    return found


def _each(setting: Any) -> Any:
    """Return a list, which means one per component, as the tuple that recipes hold."""
    return tuple(setting) if isinstance(setting, (list, tuple)) else setting


# -- actor, critic and both, with and without memory -------------------------------------------------------------------


class GaussianActor(nn.Module):
    """A small Gaussian policy: two hidden layers with tanh, one learned standard deviation per action.

    Shape: [..., obs_dim] -> a distribution over [..., act_dim].
    """

    @explicit
    def __init__(
        self,
        obs_dim: int,
        act_dim: int,
        *,
        hidden_dims: int | Sequence[int] | None = (64, 64),
        activation: str = "tanh",
        init_noise_std: float = 1.0,
    ) -> None:
        super().__init__()
        self.body = MlpModel(obs_dim, hidden_dims, None, activation)
        self.head = GaussianHead(self.body.output_size, act_dim, std_type="log", init_std=init_noise_std)

    def forward(self, obs: Tensor) -> DiagonalGaussian:
        """Return the distribution of actions."""
        distribution: DiagonalGaussian = self.head(self.body(obs))
        return distribution


Actor = GaussianActor
"""Its short name, beside `Critic`; the `Actor` of `striderl.collect` is what every actor of a collector has."""


class Critic(nn.Module):
    """A small value network: two hidden layers with tanh.

    Shape: [..., obs_dim] -> [..., 1].
    """

    @explicit
    def __init__(
        self, obs_dim: int, *, hidden_dims: int | Sequence[int] | None = (64, 64), activation: str = "tanh"
    ) -> None:
        super().__init__()
        self.body = MlpModel(obs_dim, hidden_dims, None, activation)
        self.head = ValueHead(self.body.output_size)

    def forward(self, obs: Tensor) -> Tensor:
        """Return the values."""
        values: Tensor = self.head(self.body(obs))
        return values.unsqueeze(-1)


class ActorCritic(StatefulPolicy):
    """Two networks without stages: observation to action distribution, observation to value."""

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
    ) -> None:
        super().__init__(
            compose(
                make_spaces(num_actor_obs, num_critic_obs, num_actions, obs_segments, critic_obs_segments),
                actor_hidden_dims=actor_hidden_dims,
                critic_hidden_dims=critic_hidden_dims,
                activation=activation,
                init_noise_std=init_noise_std,
                mu_activation=mu_activation,
            )
        )


class DeterministicPolicy(StatefulPolicy):
    """`ActorCritic` that acts on its mean; standard deviation, log-probability and entropy stay defined."""

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
    ) -> None:
        super().__init__(
            compose(
                make_spaces(num_actor_obs, num_critic_obs, num_actions, obs_segments, critic_obs_segments),
                actor_hidden_dims=actor_hidden_dims,
                critic_hidden_dims=critic_hidden_dims,
                activation=activation,
                init_noise_std=init_noise_std,
                mu_activation=mu_activation,
                deterministic=True,
            )
        )


class ActorCriticRecurrent(StatefulPolicy):
    """Actor and critic, each with a memory before its network."""

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
    ) -> None:
        memory = Remember(type=rnn_type, hidden_size=rnn_hidden_size, num_layers=rnn_num_layers)
        super().__init__(
            compose(
                make_spaces(num_actor_obs, num_critic_obs, num_actions, obs_segments, critic_obs_segments),
                actor=(memory,),
                critic=(memory,),
                actor_hidden_dims=actor_hidden_dims,
                critic_hidden_dims=critic_hidden_dims,
                activation=activation,
                init_noise_std=init_noise_std,
                mu_activation=mu_activation,
            )
        )
