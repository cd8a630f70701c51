"""Actor-critics as rsl_rl 1, parkour and st_rl have them: plain modules that keep the distribution of their last call.

    ActorCritic             actor, critic: Linear ─ activation ─ … ─ Linear; std: one parameter per action
    ActorCriticRecurrent    memory_a before the actor, memory_c before the critic
    DeterministicPolicyMixin, AmpMixin                    act on the mean; a discriminator beside the networks
    encoders.py, estimators.py                            encoders, estimators and adaptors in front

    act ─▶ update_distribution(input) ─▶ distribution.sample()          a subclass may override any method
    evaluate ─▶ critic(input);   get_actions_log_prob, action_mean, action_std, entropy: of `distribution`

Everything is an attribute of the module: parameters of a layer that a subclass adds are learned and saved. The names of
weights are those of the older libraries ('actor.0.weight', 'std', 'memory_a.rnn.weight_ih_l0', …), so their
checkpoints load with `load_state_dict`. The classes of `striderl.policies` are the same networks as pure functions.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from striderl.compat import original_paths
from striderl.data import tree
from striderl.data.checked_fields import refuse_overrides
from striderl.data.naming import unknown
from striderl.networks import mlp as networks
from striderl.networks.discriminator import AMPDiscriminator
from striderl.networks.mlp import Nonlinearity, as_sizes
from striderl.ops import trajectories
from striderl.policies.facade.memory import ActorCriticHiddenState, LstmHiddenState
from striderl.policies.presets.base import discriminator_from

__path__: list[str] = []  # the modules modules.… of st_rl and rsl_rl 1 are below, see compat/original_paths.py
__getattr__ = original_paths.further_names("striderl.compat.st_rl", "modules", original_paths.ST_RL_FURTHER["modules"])

HIDDEN = (256, 256, 256)
"""Hidden layers of actor and critic by default."""
SMALLEST_STD = 1e-6
"""The standard deviation of a distribution is at least this, whatever the parameter is."""

Segments = Mapping[str, Any]
"""Name → size or shape of the consecutive pieces of a flat observation."""


class ActorCritic(nn.Module):
    """Two networks: observation to Gaussian action, observation to value; see the top of this module."""

    is_recurrent = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        reason = (
            "the pieces of the critic's vector are critic_obs_segments; give critic_obs_segments to the constructor"
        )
        refuse_overrides(cls, {"privileged_obs_segments": reason})

    def __init__(
        self,
        num_actor_obs: int,
        num_critic_obs: int,
        num_actions: int | None = None,
        actor_hidden_dims: int | Sequence[int] | None = HIDDEN,
        critic_hidden_dims: int | Sequence[int] | None = HIDDEN,
        activation: str = "elu",
        init_noise_std: float = 1.0,
        mu_activation: str | None = None,
        obs_segments: Segments | None = None,
        privileged_obs_segments: Segments | None = None,
        critic_obs_segments: Segments | None = None,
        **unused: Any,
    ) -> None:
        """Build both networks; `ActorCritic(obs_dim, act_dim)` gives the critic the actor's observation.

        obs_segments names the pieces of the actor's vector, critic_obs_segments (older: privileged_obs_segments) those
        of the critic's; the mixins read them.
        """
        super().__init__()
        if unused:
            raise TypeError(
                unknown("argument", next(iter(unused)), argument_names(type(self)), where=type(self).__name__)
            )
        if num_actions is None:
            num_critic_obs, num_actions = num_actor_obs, num_critic_obs
        self.num_actor_obs, self.num_critic_obs, self.num_actions = num_actor_obs, num_critic_obs, num_actions
        self.obs_segments = obs_segments
        self.critic_obs_segments = privileged_obs_segments if critic_obs_segments is None else critic_obs_segments
        self.actor = mlp(num_actor_obs, actor_hidden_dims, num_actions, activation)
        if mu_activation:
            self.actor.append(resolve_nn_activation(mu_activation))
        self.critic = mlp(num_critic_obs, critic_hidden_dims, 1, activation)
        self.std = nn.Parameter(init_noise_std * torch.ones(num_actions))
        self.distribution: Any = None
        """The distribution of the last `act`."""

    @property
    def privileged_obs_segments(self) -> Segments | None:
        """The pieces of the critic's vector, as parkour names them."""
        return self.critic_obs_segments

    # -- acting --------------------------------------------------------------------------------------------------------

    def update_distribution(self, observations: Tensor) -> None:
        """Set `distribution` for what the actor's network reads."""
        mean = self.actor(observations)
        self.distribution = Normal(mean, self.std.clamp(min=SMALLEST_STD).expand_as(mean), validate_args=False)

    def act(self, observations: Tensor, **kwargs: Any) -> Tensor:
        """Return sampled actions; a policy without memory has no use for masks and hidden states."""
        self.update_distribution(observations)
        sampled: Tensor = self._last().sample()
        return sampled

    def act_inference(self, observations: Tensor) -> Tensor:
        """Return the mean."""
        mean: Tensor = self.actor(observations)
        return mean

    def evaluate(self, critic_observations: Tensor, **kwargs: Any) -> Tensor:
        """Return values [.., 1]."""
        values: Tensor = self.critic(critic_observations)
        return values

    def forward(self, observations: Tensor) -> tuple[Any, Tensor]:
        """Return the distribution, and the values of the same observation."""
        self.act(observations)
        return self.distribution, self.evaluate(observations)

    def evaluate_actions(
        self, observations: Tensor, actions: Tensor, critic_observations: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (log-probability [..], entropy [..], values [.., 1]) of actions that were taken."""
        self.act(observations)
        values = self.evaluate(observations if critic_observations is None else critic_observations)
        return self.get_actions_log_prob(actions), self.entropy, values

    def get_actions_log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-probability [..] of actions under the last distribution."""
        log_prob: Tensor = self._last().log_prob(actions)
        return log_prob.sum(-1)

    @property
    def action_mean(self) -> Tensor:
        """The mean of the last distribution."""
        mean: Tensor = self._last().mean
        return mean

    @property
    def action_std(self) -> Tensor:
        """The standard deviation of the last distribution."""
        std: Tensor = self._last().stddev
        return std

    @property
    def entropy(self) -> Tensor:
        """The entropy [..] of the last distribution."""
        entropy: Tensor = self._last().entropy()
        return entropy.sum(-1)

    def _last(self) -> Any:
        if self.distribution is None:
            raise RuntimeError("there is no distribution yet: call act first")
        return self.distribution

    @torch.no_grad()
    def clip_std(self, min: float | Sequence[float] | None = None, max: float | Sequence[float] | None = None) -> None:
        """Clip the parameter to [min, max], one number or one per action."""
        for bound, clip in ((min, torch.maximum), (max, torch.minimum)):
            if bound is not None:
                self.std.copy_(clip(self.std, torch.as_tensor(bound, dtype=self.std.dtype, device=self.std.device)))

    # -- weights of other observations ---------------------------------------------------------------------------------

    def input_size_of(self, name: str, size: int, critic: bool) -> int:
        """Return how many inputs of the network a component of this size takes; a subclass may encode it."""
        return size

    @torch.no_grad()
    def load_misaligned_state_dict(
        self, module: Any, obs_segments: Segments, critic_obs_segments: Segments | None = None
    ) -> list[str]:
        """Load a module, or a state dict, for observations with other segments; return the parameters that stay.

        Inputs are matched by the names of components; those of a component that the source has not are zero. All other
        parameters are taken where name and shape are the same.
        """
        source: Mapping[str, Tensor] = module if isinstance(module, Mapping) else module.state_dict()
        own = self.state_dict()
        taken = {
            name: source[name] for name, value in own.items() if name in source and source[name].shape == value.shape
        }
        critic_segments = obs_segments if critic_obs_segments is None else critic_obs_segments
        for first, theirs, ours in (
            ("actor.0.weight", obs_segments, self.obs_segments),
            ("critic.0.weight", critic_segments, self.critic_obs_segments or self.obs_segments),
        ):
            critic = first.startswith("critic")
            memory = f"memory_{'c' if critic else 'a'}.rnn.weight_ih_l0"
            name = memory if memory in own else first
            if ours is None:
                raise ValueError("components are matched by name: build the policy with obs_segments")
            before, after = self._columns(theirs, critic), self._columns(ours, critic)
            columns = torch.zeros_like(own[name])
            for component in set(before) & set(after):
                if before[component].stop - before[component].start != after[component].stop - after[component].start:
                    raise ValueError(f"component {component!r} has another size in the source; rename it, or drop it")
                columns[:, after[component]] = source[name][:, before[component]]
            taken[name] = columns
        self.load_state_dict({**own, **taken})
        return sorted(set(own) - set(taken))

    def _columns(self, segments: Segments, critic: bool) -> dict[str, slice]:
        """Return where each component is among the inputs of the first layer."""
        found, start = {}, 0
        for name, size in segments.items():
            width = self.input_size_of(name, size if isinstance(size, int) else math.prod(size), critic)
            found[name] = slice(start, start + width)
            start += width
        return found

    # -- memory --------------------------------------------------------------------------------------------------------

    def reset(self, dones: Tensor | None = None) -> None:
        """Reset the memory of finished envs; there is none here."""

    def get_hidden_states(self) -> Any:
        """Return the memory; there is none here."""
        return None

    def set_hidden_states(self, hidden_states: Any) -> None:
        """Restore what `get_hidden_states` returned."""


class ActorCriticRecurrent(ActorCritic):
    """`ActorCritic` with an LSTM or a GRU before each network."""

    is_recurrent = True

    def __init__(
        self,
        num_actor_obs: int,
        num_critic_obs: int,
        num_actions: int,
        actor_hidden_dims: int | Sequence[int] | None = HIDDEN,
        critic_hidden_dims: int | Sequence[int] | None = HIDDEN,
        activation: str = "elu",
        rnn_type: str = "lstm",
        rnn_hidden_size: int = 256,
        rnn_num_layers: int = 1,
        init_noise_std: float = 1.0,
        **kwargs: Any,
    ) -> None:
        """Build the networks on the outputs of two memories."""
        super().__init__(
            rnn_hidden_size,
            rnn_hidden_size,
            num_actions,
            actor_hidden_dims=actor_hidden_dims,
            critic_hidden_dims=critic_hidden_dims,
            activation=activation,
            init_noise_std=init_noise_std,
            **kwargs,
        )
        self.num_actor_obs, self.num_critic_obs = num_actor_obs, num_critic_obs
        self.memory_a = Memory(num_actor_obs, type=rnn_type, num_layers=rnn_num_layers, hidden_size=rnn_hidden_size)
        self.memory_c = Memory(num_critic_obs, type=rnn_type, num_layers=rnn_num_layers, hidden_size=rnn_hidden_size)

    def act(
        self, observations: Tensor, masks: Tensor | None = None, hidden_states: Any = None, **kwargs: Any
    ) -> Tensor:
        """Return sampled actions of a step, or of padded trajectories [T, n_traj, …] with masks and hidden states."""
        return super().act(self.memory_a(observations, masks, hidden_states))

    def act_inference(self, observations: Tensor) -> Tensor:
        """Return the mean of a step."""
        return super().act_inference(self.memory_a(observations))

    def evaluate(
        self, critic_observations: Tensor, masks: Tensor | None = None, hidden_states: Any = None, **kwargs: Any
    ) -> Tensor:
        """Return values of a step, or of padded trajectories with masks and hidden states."""
        return super().evaluate(self.memory_c(critic_observations, masks, hidden_states))

    def reset(self, dones: Tensor | None = None) -> None:
        """Reset the memories of finished envs, of all without `dones`."""
        self.memory_a.reset(dones)
        self.memory_c.reset(dones)

    def get_hidden_states(self) -> Any:
        """Return both memories as an `ActorCriticHiddenState`; None before the first step."""
        return ActorCriticHiddenState(self.memory_a.hidden_states, self.memory_c.hidden_states)

    def set_hidden_states(self, hidden_states: Any) -> None:
        """Restore what `get_hidden_states` returned."""
        self.memory_a.hidden_states, self.memory_c.hidden_states = hidden_states


class Memory(nn.Module):
    """An LSTM or a GRU that keeps its hidden states between steps.

    Shape: a step [N, F] -> [N, H], advancing the memory; with hidden states [L, n, H], a minibatch [T, n, F] ->
    [T, n, H], or unpadded [T, N, H] with masks.
    """

    def __init__(self, input_size: int, type: str = "lstm", num_layers: int = 1, hidden_size: int = 256) -> None:
        super().__init__()
        kinds = {"lstm": nn.LSTM, "gru": nn.GRU}
        if type.lower() not in kinds:
            raise ValueError(unknown("rnn_type", type, kinds, where="Memory"))
        self.rnn = kinds[type.lower()](input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        self.hidden_states: Any = None
        """[L, N, H], of an LSTM as a `LstmHiddenState`; None before the first step."""
        self.output: Any = None
        """The last output, padded where a minibatch was: [N, H] or [T, n, H]."""

    def forward(self, input: Tensor, masks: Tensor | None = None, hidden_states: Any = None) -> Tensor:
        """Return the outputs; see the class."""
        if hidden_states is not None:
            given = tuple(hidden_states) if isinstance(self.rnn, nn.LSTM) else hidden_states
            self.output, _ = self.rnn(input, given)
            outputs: Tensor = unpad_trajectories(self.output, masks)
            return outputs
        if input.dim() != 2:
            raise ValueError(f"a step is [N, F], found {list(input.shape)}; give hidden_states with a minibatch")
        kept = tuple(self.hidden_states) if isinstance(self.hidden_states, tuple) else self.hidden_states
        output, after = self.rnn(input.unsqueeze(0), kept)
        self.hidden_states = LstmHiddenState(*after) if isinstance(after, tuple) else after
        stepped: Tensor = output.squeeze(0)
        self.output = stepped
        return stepped

    def reset(self, dones: Tensor | None = None) -> None:
        """Zero the memory where `dones` [N] of any dtype is not zero; forget it all without."""
        if dones is None:
            self.hidden_states = None
        elif self.hidden_states is not None:
            ended = torch.as_tensor(dones).reshape(-1).bool()
            self.hidden_states = tree.map(
                lambda leaf: torch.where(ended.to(leaf.device).view(1, -1, 1), torch.zeros_like(leaf), leaf),
                self.hidden_states,
            )

    def detach_hidden_states(self, dones: Tensor | None = None) -> None:
        """Cut the memory off its autograd graph: of all envs, or of those where `dones` is not zero."""
        if self.hidden_states is None:
            return
        if dones is None:
            self.hidden_states = tree.map(lambda leaf: leaf.detach(), self.hidden_states)
            return
        ended = torch.as_tensor(dones).reshape(-1).bool()
        self.hidden_states = tree.map(
            lambda leaf: torch.where(ended.to(leaf.device).view(1, -1, 1), leaf.detach(), leaf), self.hidden_states
        )


class DeterministicPolicyMixin:
    """Act on the mean; for a class in front of an actor-critic."""

    action_mean: Tensor

    def act(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the mean of the distribution that the next class's `act` leaves."""
        super().act(*args, **kwargs)  # type: ignore[misc]
        return self.action_mean


class AmpMixin:
    """A discriminator beside the networks; for a class in front of an actor-critic."""

    discriminator: AMPDiscriminator

    def __init__(self, *args: Any, amp_discriminator: Mapping[str, Any], **kwargs: Any) -> None:
        """Build the discriminator from its settings; its parameters are not the policy's (see `APPO`)."""
        super().__init__(*args, **kwargs)
        self.discriminator = discriminator_from(amp_discriminator)


class AmpActorCritic(AmpMixin, ActorCritic):
    """`ActorCritic` with a discriminator."""


class AmpActorCriticRecurrent(AmpMixin, ActorCriticRecurrent):
    """`ActorCriticRecurrent` with a discriminator."""


# -- parts -------------------------------------------------------------------------------------------------------------


def get_activation_Cls(activation_name: Nonlinearity) -> type[nn.Module]:  # noqa: N802 (st_rl's name)
    """Return the class of an activation; 'crelu' is ReLU, as in st_rl and rsl_rl 1. An unknown name raises."""
    if isinstance(activation_name, str) and activation_name.lower() == "crelu":
        return nn.ReLU
    return networks.get_activation_Cls(activation_name)


def resolve_nn_activation(name: Nonlinearity) -> nn.Module:
    """Build the activation of this name."""
    return get_activation_Cls(name)()


def mlp(input_size: int, hidden_dims: int | Sequence[int] | None, output_size: int, activation: str) -> nn.Sequential:
    """Build Linear ─ activation ─ … ─ Linear."""
    layers: list[nn.Module] = []
    width = input_size
    for size in as_sizes(hidden_dims):
        layers += [nn.Linear(width, size), resolve_nn_activation(activation)]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, output_size))


def unpad_trajectories(padded: Any, masks: Tensor | None) -> Any:
    """Return padded trajectories [T, n_traj, …] as env columns [T, N, …]; samples without masks stay as they are."""
    return padded if masks is None else trajectories.unpad_trajectories(padded, masks)


def argument_names(kind: type) -> list[str]:
    """Return the names of all arguments that the constructors of a class and its bases take."""
    names: dict[str, None] = {}
    for base in kind.__mro__:
        if "__init__" in vars(base) and base is not object and base is not nn.Module:
            names |= dict.fromkeys(inspect.signature(vars(base)["__init__"]).parameters)
    return [name for name in names if name not in ("self", "args", "kwargs", "unused")]
