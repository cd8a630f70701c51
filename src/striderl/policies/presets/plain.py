"""Actor, critic and both together, with and without memory."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from striderl.data.actions import ActionSpec
from striderl.data.specs import ObsSpec
from striderl.networks.distributions.gaussian import DiagonalGaussian
from striderl.networks.heads.gaussian import GaussianHead
from striderl.networks.heads.value import ValueHead
from striderl.networks.mlp import MlpModel
from striderl.policies.arguments import explicit
from striderl.policies.facade.stateful import StatefulPolicy
from striderl.policies.presets.parts import HIDDEN, compose
from striderl.policies.spaces import Segments, make_spaces
from striderl.policies.stages import Remember


class Actor(nn.Module):
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
