"""rlpyt's agents around our policies: built when the sampler knows the spaces, asked step by step.

    DqnAgent(ModelCls, model_kwargs)     model(observation, prev_action, prev_reward) ─▶ q [B, n]
    PgAgent(ModelCls, model_kwargs)      … ─▶ pi [B, n], v [B]        or mu [B, …], log_std, v [B]
                                         pi are probabilities, as in rlpyt: each row is >= 0 and sums to 1
    SacAgent(ModelCls, QModelCls)        … ─▶ mu, log_std             q_model(observation, …, action) ─▶ q [B]

    sampler.initialize(agent) ─▶ agent.initialize(spaces) ─▶ ModelCls(observation_shape=…, output_size=…, **kwargs)

Without a model class the agent has layers of its own, as its config says. Observations come in one row of numbers per
env; previous actions and rewards are None: our policies do not read them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from striderl.collect.actors.policy_actor import GreedyActor, PolicyActor
from striderl.collect.samplers.agents import AgentStep
from striderl.collect.samplers.samples import flat
from striderl.compat.parts import Player, components
from striderl.compat.user_models import actor_from_model, critic_from_model, policy_from_model, q_policy_from_model
from striderl.data import tree
from striderl.data.actions import ActionSpec, BoxSpec, DiscreteSpec, action_spec_from_space
from striderl.data.checked_fields import refuse_overrides
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.networks.distributions.categorical import FORBIDDEN
from striderl.policies.actor_policy import ActorConfig, ActorPolicy
from striderl.policies.policy import Policy, PolicyConfig
from striderl.policies.value_functions import QFunction, QFunctionConfig

ModelClass = Callable[..., nn.Module]
"""A model's class, or a function that builds one."""
PROBABILITY_TOLERANCE = 1e-3
"""How far the sum of a row of probabilities may be from 1."""


class AgentInfo(NamedTuple):
    """What a policy-gradient agent stores with a step."""

    dist_info: Any
    """Parameters of the distribution, by name: `prob` [B, n] of choices, `mean` and `std` of real numbers."""
    value: Tensor
    """[B]."""
    log_prob: Tensor
    """Of the action, [B]."""


class AgentTrain(NamedTuple):
    """What a policy-gradient agent says when it is called with inputs."""

    dist_info: Any
    value: Tensor


REFUSED: Mapping[str, str] = {
    "__call__": "learning runs the model itself; give a ModelCls with another forward",
    "distribution": "the distribution is made of what the model returns; give a ModelCls with another forward",
    "parameters": "the optimiser takes all parameters of agent.policy; give a ModelCls with other parameters",
}
"""What a subclass of an agent may not define, with the reason and what to do instead."""


class BaseAgent(ABC):
    """What all agents share: modes, where the policy is, and saving."""

    policy: Any
    """Our policy, after `initialize`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_overrides(cls, REFUSED)

    def __init__(self, ModelCls: ModelClass | None = None, model_kwargs: Mapping[str, Any] | None = None) -> None:
        """Take what the model is made of; it is built by `initialize`."""
        self.ModelCls, self.model_kwargs = ModelCls, dict(model_kwargs or {})
        self.model: nn.Module | None = None
        self.mode = "sample"
        self.seed = 0
        """Decides what is drawn; set by the runner before the sampler is initialized."""
        self._player: Player | None = None

    def initialize(
        self, spaces: Any, share_memory: bool = False, global_B: int = 1, env_ranks: Sequence[int] | None = None
    ) -> None:
        """Build the policy for these spaces, once: a second call with the agent already built changes nothing."""
        if hasattr(self, "policy"):
            return
        self.obs_spec, self.action_spec = specs_of(spaces)
        self.build()

    @abstractmethod
    def build(self) -> None:
        """Build `policy` for `obs_spec` and `action_spec`."""

    def attach(self, core: Any) -> None:
        """Explore from now on as an algorithm does; its `initialize` calls this."""
        self._player = Player(core, self.seed)

    @property
    def device(self) -> torch.device:
        """Where the policy is."""
        parameter: Tensor = next(self.policy.parameters())
        return parameter.device

    def to_device(self, cuda_idx: int | None = None) -> None:
        """Move the policy to a GPU, before the algorithm is initialized."""
        if cuda_idx is not None:
            self.policy.to(f"cuda:{cuda_idx}")

    @torch.no_grad()
    def step(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> AgentStep:
        """Choose actions [B, …]: exploring while sampling, greedy in evaluation."""
        obs = self._obs(observation)
        if self._player is not None:
            acted = self._player.act(obs, None, exploring=self.mode == "sample")
        else:
            acted = GreedyActor(self.policy).act(obs, {}, {})
        return AgentStep(acted.actions, None)

    def _obs(self, observation: Any) -> dict[str, Tensor]:
        return components(observation, self.obs_spec, self.device)

    def _make(self, kind: ModelClass, output_size: int, **more: Any) -> nn.Module:
        shape = next(iter(self.obs_spec.values())).shape if len(self.obs_spec) == 1 else (self.obs_spec.size,)
        return kind(observation_shape=shape, output_size=output_size, **more, **self.model_kwargs)

    def parameters(self) -> Any:
        """Return what is learned."""
        return self.policy.parameters()

    def state_dict(self) -> dict[str, Any]:
        """Return the policy's weights, as copies."""
        copied: dict[str, Any] = tree.copy(dict(self.policy.state_dict()))
        return copied

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with saved weights."""
        self.policy.load_state_dict(state)

    def sample_mode(self, itr: int) -> None:
        """Explore."""
        self._set_mode("sample", training=False)

    def train_mode(self, itr: int) -> None:
        """Be ready to learn."""
        self._set_mode("train", training=True)

    def eval_mode(self, itr: int) -> None:
        """Play greedily."""
        self._set_mode("eval", training=False)

    def _set_mode(self, mode: str, *, training: bool) -> None:
        self.mode = mode
        self.policy.train(training)


class DqnAgent(BaseAgent):
    """An agent with one Q-value per choice."""

    def __init__(
        self,
        ModelCls: ModelClass | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        *,
        config: ActorConfig | None = None,
    ) -> None:
        """Take the model's class, or the layers of our own network."""
        super().__init__(ModelCls, model_kwargs)
        self.config = config

    def build(self) -> None:
        """Build the Q-network."""
        from striderl.algorithms.value_based.dqn import q_policy

        spec = self.action_spec
        if self.ModelCls is None:
            self.policy = q_policy(self.obs_spec, spec, self.config)
            return
        choices = spec.n if isinstance(spec, DiscreteSpec) else 0
        self.model = self._make(self.ModelCls, choices)
        self.policy = q_policy_from_model(_RlpytModel(self.model, spec), self.obs_spec, spec)

    @torch.no_grad()
    def __call__(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> Tensor:
        """Return the Q-values [B, n]."""
        values: Tensor = self.policy.act(self._obs(observation), {}, {})[0].params()["values"]
        return values


class SacAgent(BaseAgent):
    """An agent with a squashed Gaussian and several Q-functions."""

    def __init__(
        self,
        ModelCls: ModelClass | None = None,
        QModelCls: ModelClass | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        *,
        num_critics: int = 2,
        config: ActorConfig | None = None,
        critic_config: QFunctionConfig | None = None,
    ) -> None:
        """Take the classes of both models, or the layers of our own networks."""
        super().__init__(ModelCls, model_kwargs)
        if (ModelCls is None) != (QModelCls is None):
            raise ValueError("SacAgent wants both ModelCls and QModelCls, or neither")
        self.QModelCls, self.num_critics = QModelCls, num_critics
        self.config, self.critic_config = config, critic_config

    def build(self) -> None:
        """Build actor and critics."""
        spec = self.action_spec
        self.critic: Any
        if self.ModelCls is None or self.QModelCls is None:
            config = self.config or ActorConfig(head="squashed_gaussian")
            self.policy = ActorPolicy(self.obs_spec, spec, config)
            self.critic = QFunction(self.obs_spec, spec, self.critic_config)
            return
        if not isinstance(spec, BoxSpec):
            raise TypeError(f"SacAgent wants real-valued actions, found {type(spec).__name__}")
        size = spec.tensor.size
        self.model = self._make(self.ModelCls, size)
        critics = [self._make(self.QModelCls, 1, action_size=size) for _ in range(self.num_critics)]
        self.policy = actor_from_model(_RlpytModel(self.model, spec), self.obs_spec, spec)
        self.critic = critic_from_model(_RlpytCritics(critics), self.obs_spec, spec)


class PgAgent(BaseAgent):
    """An agent with a distribution and a value: for PPO and A2C."""

    def __init__(
        self,
        ModelCls: ModelClass | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        *,
        config: PolicyConfig | None = None,
    ) -> None:
        """Take the model's class, or the layers of our own policy."""
        super().__init__(ModelCls, model_kwargs)
        self.config = config

    def build(self) -> None:
        """Build the policy; before an algorithm is there, it samples all the same."""
        spec = self.action_spec
        if self.ModelCls is None:
            self.policy = Policy(self.obs_spec, spec, self.config)
        else:
            if not isinstance(spec, (DiscreteSpec, BoxSpec)):
                raise TypeError(f"PgAgent wants choices or real-valued actions, found {type(spec).__name__}")
            size = spec.n if isinstance(spec, DiscreteSpec) else spec.tensor.size
            self.model = self._make(self.ModelCls, size)
            self.policy = policy_from_model(_RlpytModel(self.model, spec), self.obs_spec, spec)
        self._player = Player(_OnlyPolicy(self.policy), self.seed)

    def attach(self, core: Any) -> None:
        """Go on sampling: PPO and A2C explore with the policy alone."""

    @torch.no_grad()
    def step(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> AgentStep:
        """Choose actions [B, …] and return them with what the update reads back."""
        assert self._player is not None, "initialize comes first"
        obs = self._obs(observation)
        acted = self._player.act(obs, None, exploring=self.mode == "sample")
        if self.mode == "sample":
            columns = acted.columns
        else:
            output = self.policy(obs, {}, self.policy.settled(torch.zeros(len(acted.actions), device=self.device)))
            log_prob = output.distribution.log_prob(acted.actions)
            columns = {"dist": output.distribution.params(), "value": output.value, "log_prob": log_prob}
        return AgentStep(acted.actions, AgentInfo(_dist_info(columns["dist"]), columns["value"], columns["log_prob"]))

    @torch.no_grad()
    def value(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> Tensor:
        """Return the values [B]."""
        return self(observation).value

    @torch.no_grad()
    def __call__(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> AgentTrain:
        """Return the distribution's parameters and the values."""
        obs = self._obs(observation)
        like = next(iter(obs.values()))
        output = self.policy(obs, {}, self.policy.settled(like.new_zeros(len(like))))
        return AgentTrain(_dist_info(output.distribution.params()), output.value)


class _OnlyPolicy:
    """A policy where an algorithm is expected."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.actor = PolicyActor(policy)


class _RlpytModel(nn.Module):
    """A model with rlpyt's `forward` as one with `value` and `action`."""

    def __init__(self, model: nn.Module, action_spec: ActionSpec) -> None:
        super().__init__()
        self.model = model
        self._gaussian = isinstance(action_spec, BoxSpec)

    def value(self, x: Tensor, a: Tensor | None = None) -> Tensor:
        """Return the last output: q, or v."""
        outputs = self.model(x, None, None)
        value: Tensor = outputs[-1] if isinstance(outputs, (tuple, list)) else outputs
        return value

    def action(self, x: Tensor) -> Any:
        """Return the logarithm of pi, whose softmax is pi; or mu and log_std."""
        outputs = self.model(x, None, None)
        wanted = 2 if self._gaussian else 1
        if not isinstance(outputs, (tuple, list)) or len(outputs) < wanted:
            form = "(mu, log_std, v), or (mu, log_std) for SAC" if self._gaussian else "(pi, v)"
            raise TypeError(f"{type(self.model).__name__}.forward must return {form}, found {type(outputs).__name__}")
        return (outputs[0], outputs[1]) if self._gaussian else self._log(outputs[0])

    def _log(self, pi: Tensor) -> Tensor:
        """Return log pi; pi that is no row of probabilities raises, except inside a compiled or captured step."""
        busy = torch.compiler.is_compiling() or (pi.is_cuda and torch.cuda.is_current_stream_capturing())
        if not busy and not bool(((pi >= 0).all(-1) & ((pi.sum(-1) - 1.0).abs() < PROBABILITY_TOLERANCE)).all()):
            row = pi.detach().reshape(-1, pi.shape[-1])[0]
            raise ValueError(
                f"{type(self.model).__name__}.forward must return pi as probabilities, rows >= 0 that sum to 1, found "
                f"a row such as {[round(each, 4) for each in row[:8].tolist()]} with sum {float(row.sum()):.4g}; for "
                "logits return torch.softmax(logits, dim=-1)"
            )
        return pi.clamp_min(torch.finfo(pi.dtype).tiny).log()


class _RlpytCritics(nn.Module):
    """Several Q-models as one with `value(x, a)`."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def value(self, x: Tensor, a: Tensor) -> tuple[Tensor, ...]:
        """Return the value of each model."""
        return tuple(model(x, None, None, a) for model in self.models)


def _dist_info(params: Mapping[str, Tensor]) -> Any:
    """Return parameters as rlpyt names them: the probabilities of one choice, other parameters as they are."""
    if list(params) == ["log_probs"]:
        params = {"prob": params["log_probs"].exp()}
    return namedtuple("DistInfo", list(params))(**params)


def distribution_params(dist_info: Any) -> dict[str, Tensor]:
    """Return the parameters of our distributions from what `_dist_info` made of them."""
    params = dict(zip(dist_info._fields, dist_info))
    if list(params) == ["prob"]:
        prob: Tensor = params["prob"]
        return {"log_probs": torch.where(prob > 0.0, prob.log(), FORBIDDEN)}
    return params


def specs_of(spaces: Any) -> tuple[ObsSpec, ActionSpec]:
    """Return our specs for what a sampler tells an agent: Gymnasium's spaces, or specs already."""
    observation, action = spaces.observation, spaces.action
    if hasattr(action, "tensor"):  # one of our own specs
        return ObsSpec(flat(observation)), action
    found = ObsSpec.from_space(observation)
    narrow = {
        name: ComponentSpec(shape=part.shape, dtype="float32" if part.dtype == "float64" else part.dtype)
        for name, part in found.items()
    }
    return ObsSpec(narrow), action_spec_from_space(action)
