"""Actor and critic with the interface of rsl_rl's models.

    actor(obs) ─▶ actions           obs: a TensorDict of groups, a dict, a flat tensor; deterministic
    actor.reset(dones)              the memory of finished envs
    actor.as_jit()                  for torch.jit.script: forward(obs), forward(obs_1d, [images]); keeps its memory
    actor.as_onnx(verbose)          for torch.onnx.export: get_dummy_inputs(), input_names, output_names
                                    obs [1, F] (and images)         ─▶ actions
                                    obs, h_in [L, 1, H] (and c_in)  ─▶ actions, h_out (and c_out)

Exported modules are plain layers with copies of the weights, in rsl_rl's order of inputs. The parameters of `actor` and
`critic` are those of the policy that learns: they have rsl_rl's names and shapes where rsl_rl has such a model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from striderl.networks.heads.gaussian import STD_TYPES, GaussianHead, projected_clamp
from striderl.policies.actor_policy import ActorPolicy
from striderl.policies.policy import Policy
from striderl.policies.transfer.rsl_rl_state import ACTOR, CRITIC, NoCounterpartError, RslRlLayout
from striderl.training.rsl_rl.exported_modules import (
    GreedyModule,
    OnnxActor,
    PlainActor,
    ScriptedImages,
    ScriptedMemory,
    ScriptedVector,
    traced,
)
from striderl.training.rsl_rl.stepping import InferencePolicy, named_components

if TYPE_CHECKING:
    from typing import Self


def layout_of(policy: Policy | ActorPolicy, orders: Mapping[str, Sequence[str]] | None = None) -> RslRlLayout | None:
    """Return how a policy is laid out in rsl_rl's models; None where rsl_rl has no such model."""
    if not isinstance(policy, Policy):
        return None
    try:
        return RslRlLayout(policy, orders)
    except NoCounterpartError:
        return None


class PolicyModel(nn.Module):
    """One network of a policy with rsl_rl's names; its parameters are the policy's own."""

    def __init__(self, policy: Policy | ActorPolicy, who: str, layout: RslRlLayout | None) -> None:
        super().__init__()
        # in a tuple: the policy is no part of this module, whose names are others
        self._held = (policy,)
        self.who, self.layout = who, layout
        self.is_recurrent = bool(policy.state_spec())

    @property
    def policy(self) -> Policy | ActorPolicy:
        """The whole policy."""
        return self._held[0]

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters with rsl_rl's names, else with the policy's."""
        if self.layout is None:
            yield from self.policy.named_parameters(*args, **kwargs)
            return
        for piece, parameters in self.layout.parameters(self.who):
            for ours, parameter in zip(piece.ours, parameters):
                yield (piece.name if len(parameters) == 1 else f"{piece.name}[{ours}]"), parameter

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return copies of the weights and statistics, as rsl_rl's model has them where it has such a model."""
        if self.layout is None:
            return {name: value.detach().clone() for name, value in self.policy.state_dict().items()}
        return dict(self.layout.state_dict(self.who))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load what `state_dict` returns, or rsl_rl's model of the same architecture."""
        if self.layout is None:
            return self.policy.load_state_dict(state_dict, strict=strict)
        self.layout.load(self.who, state_dict, strict=strict)
        return None

    def train(self, mode: bool = True) -> Self:
        """Set the whole policy's mode."""
        self.training = mode
        self.policy.train(mode)
        return self

    def forward(self, obs: Any) -> Tensor:
        """Return the output of the network for observations [N, …]."""
        raise NotImplementedError


class CriticModel(PolicyModel):
    """Values of observations, without a memory of its own."""

    def __init__(self, policy: Policy, layout: RslRlLayout | None) -> None:
        super().__init__(policy, CRITIC, layout)

    @torch.no_grad()
    def forward(self, obs: Any) -> Tensor:
        """Return the values [N, 1]; a recurrent critic starts from its initial memory."""
        policy = self.policy
        assert isinstance(policy, Policy)
        device = next(policy.parameters()).device
        named = named_components(obs, policy, device, policy.critic_inputs)
        count = len(next(iter(named.values())))
        like = torch.zeros(count, device=device)
        values, _ = policy.value(named, policy.initial_state(count, device), policy.settled(like))
        return values.unsqueeze(-1) if values.dim() == 1 else values


class ActorModel(PolicyModel):
    """The deterministic policy, with its memory."""

    def __init__(self, policy: Policy | ActorPolicy, layout: RslRlLayout | None, order: Sequence[str] = ()) -> None:
        super().__init__(policy, ACTOR, layout)
        inputs = policy.actor_inputs
        self._order = tuple(order) or tuple(inputs)
        self._player = InferencePolicy(policy)
        self._last_std: Tensor | None = None

    def forward(
        self, obs: Any, masks: Tensor | None = None, hidden_state: Any = None, stochastic_output: bool = False
    ) -> Any:
        """Return the most likely actions, and advance the memory."""
        if masks is not None or hidden_state is not None or stochastic_output:
            raise ValueError("this model acts deterministically, one step at a time; alg.act(obs) samples actions")
        return self._player(obs)

    def reset(self, dones: Any = None, hidden_state: Any = None) -> None:
        """Reset the memory where `dones` is not zero; all of it without them."""
        self._player.reset(dones)

    def to(self, device: Any = None) -> Self:  # type: ignore[override]
        """Return the model on a device: itself where it is there already, else a copy.

        A copy, because moving parameters would detach them from their optimiser.
        """
        if device is None or torch.device(device) == self._player.device:
            return self
        moved = type(self)(copy.deepcopy(self.policy).to(device), None, self._order)
        moved.layout = None if self.layout is None else layout_of(moved.policy, {ACTOR: self._order})
        return moved

    # -- the distribution ----------------------------------------------------------------------------------------------

    def keep_std(self, std: Tensor | None) -> None:
        """Keep the standard deviations of the last sampled actions, where they depend on the observation."""
        self._last_std = std

    @property
    def output_std(self) -> Tensor:
        """The standard deviation of the actions; of the last ones where it depends on the observation."""
        head = self.policy.head
        if isinstance(head, GaussianHead) and not head.state_dependent_std:
            with torch.no_grad():
                return STD_TYPES[head.std_type].to_std(projected_clamp(head.std_param, head.raw_low, head.raw_high))
        if self._last_std is not None:
            return self._last_std
        return torch.zeros(1, device=self._player.device)

    # -- exporting -----------------------------------------------------------------------------------------------------

    def as_jit(self) -> nn.Module:
        """Return a module for `torch.jit.script`, on the CPU."""
        plain = self._plain()
        if plain is None:
            return traced(self.policy)
        if plain.rnn is not None:
            return ScriptedMemory(plain)
        return ScriptedImages(plain) if plain.image_shapes else ScriptedVector(plain)

    def as_onnx(self, verbose: bool = False) -> nn.Module:
        """Return a module for `torch.onnx.export`, on the CPU."""
        plain = self._plain()
        return GreedyModule(self.policy) if plain is None else OnnxActor(plain)

    def _plain(self) -> PlainActor | None:
        if self.layout is None:
            return None
        return PlainActor(self.layout, self._order)


# -- rsl_rl 1 to 3 -----------------------------------------------------------------------------------------------------


class ActorCriticModel:
    """Actor and critic in one object, as rsl_rl 1 to 3 has them: `alg.actor_critic`."""

    def __init__(self, actor: ActorModel, critic: CriticModel | None) -> None:
        self._actor, self._critic = actor, critic

    @property
    def is_recurrent(self) -> bool:
        """Whether there is a memory."""
        return self._actor.is_recurrent

    @property
    def actor(self) -> nn.Module:
        """The actor's layers, normaliser included, as a copy that `torch.jit.script` takes."""
        return self._actor.as_jit()

    @property
    def critic(self) -> CriticModel | None:
        """The critic."""
        return self._critic

    @property
    def std(self) -> Tensor:
        """The standard deviation of the actions."""
        return self._actor.output_std

    def act_inference(self, observations: Any) -> Any:
        """Return the most likely actions."""
        return self._actor(observations)

    def evaluate(self, critic_observations: Any) -> Tensor:
        """Return the values [N, 1]."""
        if self._critic is None:
            raise TypeError("this policy has no critic of observations alone")
        return self._critic(critic_observations)  # type: ignore[no-any-return]

    def reset(self, dones: Any = None) -> None:
        """Reset the memory where `dones` is not zero."""
        self._actor.reset(dones)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of both."""
        yield from self._actor.policy.parameters()

    def state_dict(self) -> dict[str, Any]:
        """Return the policy's state dict."""
        return dict(self._actor.policy.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load what `state_dict` returns."""
        return self._actor.policy.load_state_dict(state_dict, strict=strict)

    def train(self, mode: bool = True) -> Self:
        """Set the policy's mode."""
        self._actor.policy.train(mode)
        return self

    def eval(self) -> Self:
        """Set eval mode."""
        return self.train(False)

    def to(self, device: Any) -> Self:
        """Return it on a device; a copy where it is on another."""
        return type(self)(self._actor.to(device), self._critic)
