"""A network that a user wrote as the policy, the Q-function or the values of our algorithms.

    class Model(nn.Module):
        def value(self, x, a=None)     DQN: Q [B, n].   SAC: the values [B] of (x, a), one per critic.   PPO: V [B]
        def action(self, x)            PPO, discrete: logits [B, n].   real-valued: (mean, log_std) [B, …] each

    algorithm = dqn_from_model(model, obs_spec, action_spec, DQNConfig())        sac_from_model, ppo_from_model

`x` is the observation as one row of numbers [B, F]. Which parameters belong to `value` and which to `action` is found
out by differentiating both once: SAC steps them apart, so there they may not be shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from striderl.algorithms.actor_critic.sac import SAC, SACConfig
from striderl.algorithms.on_policy.ppo import PPO
from striderl.algorithms.on_policy.ppo_config import PPOConfig
from striderl.algorithms.value_based.dqn import DQN, DQNConfig
from striderl.data.actions import ActionSpec, BoxSpec, DiscreteSpec
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.networks.distributions.base import Distribution
from striderl.networks.distributions.categorical import Categorical
from striderl.networks.distributions.deterministic import QValues
from striderl.networks.distributions.gaussian import DiagonalGaussian, SquashedGaussian
from striderl.networks.heads.base import NO_OBS, Head, read_mask
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.value_functions import QFunction, QFunctionConfig

Call = Callable[..., Any]
"""Called with the model first: what of it is run."""


class UserModel(Protocol):
    """What is asked of a user's network; the algorithm decides which of the two are called."""

    def value(self, x: Tensor, a: Tensor | None = None) -> Any:
        """Return the outputs of one or several critics."""
        ...

    def action(self, x: Tensor) -> Any:
        """Return what describes the distribution of actions."""
        ...


class ModelPart(nn.Module):
    """Those parameters of a user's model that one of its methods uses; copies are whole and apart."""

    def __init__(self, model: nn.Module, call: Call, *example: Tensor) -> None:
        """Find the parameters by differentiating one call."""
        super().__init__()
        self._held = (model,)  # in a tuple, so that parameters of other methods do not count as ours
        self._call = call
        for name, parameter in _used(model, call(model, *example)).items():
            self.register_parameter(name.replace(".", "/"), parameter)

    def forward(self, *inputs: Tensor) -> Any:
        """Call the method."""
        return self._call(self._held[0], *inputs)


def _used(model: nn.Module, outputs: Any) -> dict[str, nn.Parameter]:
    named = {name: each for name, each in model.named_parameters() if each.requires_grad}
    leaves = [each for each in (outputs if isinstance(outputs, (tuple, list)) else [outputs]) if each.requires_grad]
    if not named or not leaves:
        return {}
    total = torch.stack([each.sum() for each in leaves]).sum()
    gradients = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return {name: named[name] for name, gradient in zip(named, gradients) if gradient is not None}


# -- heads -------------------------------------------------------------------------------------------------------------


class ModelHead(Head[Tensor]):
    """Features to a distribution by a user's model."""

    def __init__(self, part: ModelPart, action_spec: ActionSpec, kind: str) -> None:
        """Read the model's output as 'q', 'logits', 'gaussian' or 'squashed'."""
        super().__init__()
        self.part, self.kind, self.action_spec = part, kind, action_spec
        self.mask = action_spec.mask if isinstance(action_spec, DiscreteSpec) else ""
        self.mask_components = (self.mask,) if self.mask else ()
        if isinstance(action_spec, BoxSpec):
            low, high = (torch.as_tensor(bound).clone() for bound in action_spec.bounds())
            self.low: Tensor
            self.high: Tensor
            self.register_buffer("low", low, persistent=False)
            self.register_buffer("high", high, persistent=False)

    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> Distribution[Tensor]:
        """Return the distribution."""
        raw = self.part(features)
        if self.kind == "q":
            return QValues.from_values(raw, read_mask(obs, self.mask))
        if self.kind == "logits":
            return Categorical.from_logits(raw, read_mask(obs, self.mask))
        mean, log_std = raw
        return self.from_params({"mean": mean, "std": log_std.clamp(-5.0, 2.0).exp().expand_as(mean)})

    def noise_spec(self) -> NoiseSpec:
        """Return what a sample wants."""
        if self.kind == "logits":
            return NoiseSpec(shape=(self._choices(),), kind="gumbel")
        shape = (0,) if self.kind == "q" else self.action_spec.tensor.shape  # type: ignore[union-attr]
        return NoiseSpec(shape=shape, kind="normal")

    def params_spec(self) -> dict[str, TensorSpec]:
        """Return what is stored of the distribution."""
        if self.kind in ("q", "logits"):
            name = "values" if self.kind == "q" else "log_probs"
            return {name: TensorSpec(shape=(self._choices(),))}
        spec = TensorSpec(shape=tuple(self.low.shape))
        return {"mean": spec, "std": spec}

    def from_params(self, params: Mapping[str, Tensor]) -> Distribution[Tensor]:
        """Make the distribution that was stored."""
        if self.kind == "q":
            return QValues(params["values"])
        if self.kind == "logits":
            return Categorical(params["log_probs"])
        mean, std, dims = params["mean"], params["std"], self.low.dim()
        if self.kind == "gaussian":
            return DiagonalGaussian(mean, std, dims)
        return SquashedGaussian(mean, std, self.low, self.high, dims)

    def _choices(self) -> int:
        assert isinstance(self.action_spec, DiscreteSpec)
        return self.action_spec.n


class ModelValue(nn.Module):
    """Features to one value by a user's model; stands where a policy has its `ValueHead`."""

    num_values = 1

    def __init__(self, part: ModelPart) -> None:
        super().__init__()
        self.part = part

    def forward(self, features: Tensor) -> Tensor:
        """Return the values [...]."""
        return one_per_row(_single(self.part(features)), features.shape[:-1])


class ModelCritic(nn.Module):
    """Values of actions by a user's model; stands where SAC has its `QFunction`."""

    def __init__(self, part: ModelPart, obs_spec: ObsSpec, num_members: int) -> None:
        super().__init__()
        self.part, self.obs_spec = part, obs_spec
        self.config = QFunctionConfig(num_members=num_members)

    def forward(self, obs: Mapping[str, Tensor], action: Tensor) -> Tensor:
        """Return [K, B]."""
        x = flat_observation(obs, self.obs_spec)
        return torch.stack([one_per_row(each, x.shape[:-1]) for each in as_tuple(self.part(x, action))])

    def absorb(self, obs: Mapping[str, Tensor], valid: Tensor | None = None) -> None:
        """Learn nothing: there are no normalisers."""


# -- policies and algorithms -------------------------------------------------------------------------------------------


def dqn_from_model(
    model: nn.Module, obs_spec: ObsSpec, action_spec: ActionSpec, config: DQNConfig | None = None
) -> DQN:
    """Build DQN whose Q-values are `model.value(x)` [B, n]."""
    return DQN(q_policy_from_model(model, obs_spec, action_spec), config)


def q_policy_from_model(model: nn.Module, obs_spec: ObsSpec, action_spec: ActionSpec) -> ActorPolicy:
    """Build the greedy policy over `model.value(x)` [B, n]."""
    if not isinstance(action_spec, DiscreteSpec):
        raise TypeError(f"DQN wants one discrete action, found {type(action_spec).__name__}")
    _require(model, "value")
    x = torch.zeros(2, obs_spec.size)
    _check_shape(model, "value(x)", _single(_value(model, x)), (2, action_spec.n))
    return _actor(obs_spec, action_spec, ModelHead(ModelPart(model, _single_value, x), action_spec, "q"))


def sac_from_model(
    model: nn.Module, obs_spec: ObsSpec, action_spec: ActionSpec, config: SACConfig | None = None
) -> SAC:
    """Build SAC with `model.action(x)` → (mean, log_std) and `model.value(x, a)` → the values of each critic."""
    policy, critic = actor_from_model(model, obs_spec, action_spec), critic_from_model(model, obs_spec, action_spec)
    both = {id(each) for each in policy.parameters()} & {id(each) for each in critic.parameters()}
    if both:
        shared = [name for name, each in model.named_parameters() if id(each) in both]
        raise ValueError(
            f"SAC steps actor and critics apart, but {type(model).__name__}.value and .action share {shared}"
        )
    return SAC(policy, critic, config)


def actor_from_model(model: nn.Module, obs_spec: ObsSpec, action_spec: ActionSpec) -> ActorPolicy:
    """Build the policy of SAC from `model.action(x)` → (mean, log_std), before the squashing."""
    if not isinstance(action_spec, BoxSpec):
        raise TypeError(f"SAC wants real-valued actions, found {type(action_spec).__name__}")
    _require(model, "action")
    x = torch.zeros(2, obs_spec.size)
    _check_gaussian(model, _action(model, x), (2, *action_spec.shape))
    return _actor(obs_spec, action_spec, ModelHead(ModelPart(model, _action, x), action_spec, "squashed"))


def critic_from_model(model: nn.Module, obs_spec: ObsSpec, action_spec: ActionSpec) -> QFunction:
    """Build what SAC learns from `model.value(x, a)`: one output, or one per critic, [B] each."""
    if not isinstance(action_spec, BoxSpec):
        raise TypeError(f"SAC wants real-valued actions, found {type(action_spec).__name__}")
    _require(model, "value")
    x, a = torch.zeros(2, obs_spec.size), torch.zeros(2, *action_spec.shape)
    critics = as_tuple(_value(model, x, a))
    for each in critics:
        one_per_row(each, x.shape[:-1], f"{type(model).__name__}.value(x, a)")
    return cast(QFunction, ModelCritic(ModelPart(model, _value, x, a), obs_spec, len(critics)))


def _actor(obs_spec: ObsSpec, action_spec: ActionSpec, head: ModelHead) -> ActorPolicy:
    config = ActorConfig(obs=tuple(obs_spec), hidden_dims=(), flatten_images=True, one_hot=False)
    return ActorPolicy(obs_spec, action_spec, config, make_head=lambda size: head)


def ppo_from_model(
    model: nn.Module, obs_spec: ObsSpec, action_spec: ActionSpec, config: PPOConfig | None = None
) -> PPO:
    """Build PPO with `model.action(x)` (logits, or mean and log_std) and `model.value(x)` [B]."""
    return PPO(policy_from_model(model, obs_spec, action_spec), config)


def policy_from_model(model: nn.Module, obs_spec: ObsSpec, action_spec: ActionSpec) -> Policy:
    """Build the policy of PPO and A2C from `model.action` and `model.value`."""
    _require(model, "value", "action")
    x = torch.zeros(2, obs_spec.size)
    raw = _action(model, x)
    if isinstance(action_spec, DiscreteSpec):
        _check_shape(model, "action(x)", raw, (2, action_spec.n))
    elif isinstance(action_spec, BoxSpec):
        _check_gaussian(model, raw, (2, *action_spec.shape))
    else:
        raise TypeError(f"a model acts by choices or real numbers, found {type(action_spec).__name__}")
    one_per_row(_single(_value(model, x)), x.shape[:-1], f"{type(model).__name__}.value(x)")
    names = tuple(obs_spec)
    config = PolicyConfig(
        actor_obs=names,
        critic_obs=names,
        actor_hidden_dims=(),
        critic_hidden_dims=(),
        flatten_images=True,
        one_hot=False,
    )
    policy = Policy(obs_spec, action_spec, config)
    kind = "logits" if isinstance(action_spec, DiscreteSpec) else "gaussian"
    policy.head = ModelHead(ModelPart(model, _action, x), action_spec, kind)
    policy.value_head = ModelValue(ModelPart(model, _single_value, x))  # type: ignore[assignment]
    return policy


# -- shapes ------------------------------------------------------------------------------------------------------------


def flat_observation(obs: Mapping[str, Tensor], spec: ObsSpec) -> Tensor:
    """Return all components in one row, [B, F], as numbers."""
    parts = [
        obs[name].flatten(1).float() if part.shape else obs[name].unsqueeze(1).float() for name, part in spec.items()
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def as_tuple(value: Any) -> tuple[Tensor, ...]:
    """Return one output or several as a tuple."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def one_per_row(value: Tensor, leading: Sequence[int], who: str = "value") -> Tensor:
    """Return values [...] of outputs [...] or [..., 1]."""
    if tuple(value.shape) == (*leading, 1):
        return value.squeeze(-1)
    if tuple(value.shape) != tuple(leading):
        raise ValueError(f"{who} wants one number per row {list(leading)}, found {list(value.shape)}")
    return value


def _single(value: Any) -> Tensor:
    return as_tuple(value)[0]


def _value(model: Any, x: Tensor, a: Tensor | None = None) -> Any:
    return model.value(x) if a is None else model.value(x, a)


def _single_value(model: Any, x: Tensor) -> Tensor:
    return _single(model.value(x))


def _action(model: Any, x: Tensor) -> Any:
    return model.action(x)


def _require(model: object, *methods: str) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"wanted a model that is an nn.Module, found {type(model).__name__}")
    found = {"value": hasattr(model, "value"), "action": hasattr(model, "action")}
    missing = [name for name in methods if not found[name]]
    if missing:
        raise TypeError(f"{type(model).__name__} lacks the method {' and '.join(missing)}")


def _check_shape(model: object, call: str, value: object, wanted: tuple[int, ...]) -> None:
    found = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
    if found != list(wanted):
        raise ValueError(f"{type(model).__name__}.{call} wants {list(wanted)} for {wanted[0]} rows, found {found}")


def _check_gaussian(model: object, raw: object, shape: Sequence[int]) -> None:
    if not isinstance(raw, (tuple, list)) or len(raw) != 2:
        raise TypeError(f"{type(model).__name__}.action(x) wants (mean, log_std), found {type(raw).__name__}")
    _check_shape(model, "action(x)", raw[0], tuple(shape))
