"""rlpyt's agents: a model of the user's, its distribution, its device, and its recurrent state while sampling.

    sampler.initialize(agent) ─▶ agent.initialize(env_spaces) ─▶ ModelCls(**make_env_to_model_kwargs(…), **model_kwargs)

    while sampling, no gradients      agent.step(observation, prev_action, prev_reward) ─▶ AgentStep(action, agent_info)
    while learning, with gradients    agent(observation, prev_action, prev_reward[, init_rnn_state])
                                      for [T, B, …], [B, …] and single inputs

The model gets observations in their own shape and dtype, and previous choices as one-hot rows. Outputs are put where
the sampler's observations are, so they fit the samples; the recurrent state stays with the model. Required arguments
of a model among observation_shape, image_shape, output_size and action_size that nothing else gives are taken from the
spaces; rlpyt would raise for them.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from striderl.collect.samplers.agents import AgentStep as AgentStep
from striderl.collect.samplers.samples import AgentInputs as AgentInputs
from striderl.compat.rlpyt.distributions import DiscreteMixin
from striderl.compat.rlpyt.envs import agent_spaces
from striderl.compat.rlpyt.synchronize import RWLock, average_gradients
from striderl.compat.rlpyt.tensors import strip_ddp_state_dict
from striderl.data import tree
from striderl.data.buffers import buffer_func, buffer_method, buffer_to
from striderl.data.named_tuples import ArrayTuple, namedarraytuple

__path__: list[str] = []  # rlpyt's modules agents.… are below, see compat/original_paths.py

ModelClass = Callable[..., nn.Module]
"""A model's class, or a function that builds one."""
AgentInputsRnn = namedarraytuple("AgentInputsRnn", ["observation", "prev_action", "prev_reward", "init_rnn_state"])


class Sending:
    """The lock of shared weights, and how often they were sent."""

    def __init__(self) -> None:
        self.lock, self.count = RWLock(), 0


class BaseAgent:
    """The methods that samplers, algorithms and runners call; subclasses define `__call__` and `step`."""

    recurrent: bool = False
    """Whether the model has a state; algorithms then learn from whole sequences."""
    alternating: bool = False
    """Whether the agent acts for the halves of an alternating sampler in turn."""
    default_model: ClassVar[ModelClass | None] = None
    """The model's class where none is given."""

    def __init__(
        self,
        ModelCls: ModelClass | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        initial_model_state_dict: Mapping[str, Any] | None = None,
    ) -> None:
        """Store the model's class; it is built by `initialize`."""
        self.ModelCls = self.default_model if ModelCls is None else ModelCls
        self.model_kwargs = dict(model_kwargs or {})
        self.initial_model_state_dict = initial_model_state_dict
        self.model: Any = None
        self.distribution: Any = None
        self.device = torch.device("cpu")
        """Where the model is."""
        self.samples_device = torch.device("cpu")
        """Where the sampler's observations are, and outputs are put."""
        self.shared_model: Any = None
        """The weights that an asynchronous sampler takes up, on the CPU."""
        self._mode: str | None = None
        self._recv_count = 0

    def __call__(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> Any:
        """Return the model's outputs for the algorithm, with gradients."""
        raise NotImplementedError

    # -- building ------------------------------------------------------------------------------------------------------

    def initialize(
        self, env_spaces: Any, share_memory: bool = False, global_B: int = 1, env_ranks: Sequence[int] | None = None
    ) -> None:
        """Build the model for these spaces; samplers call it before the first step."""
        self.env_spaces = agent_spaces(env_spaces)
        self.env_model_kwargs = dict(self.make_env_to_model_kwargs(self.env_spaces))
        self.model = self.build_model(self.ModelCls, self.model_kwargs)
        if share_memory:
            self.model.share_memory()
            self.shared_model = self.model
            self._sending = Sending()
        self.share_memory = share_memory
        if self.initial_model_state_dict is not None:
            self.model.load_state_dict(self.initial_model_state_dict)

    def make_env_to_model_kwargs(self, env_spaces: Any) -> dict[str, Any]:
        """Return arguments of the model that depend on the env."""
        return {}

    def build_model(self, ModelCls: ModelClass | None, model_kwargs: Mapping[str, Any]) -> nn.Module:
        """Build one model from its class, the env's arguments and the user's."""
        if ModelCls is None:
            raise TypeError(f"{type(self).__name__} wants ModelCls, the class of its network; found None")
        given = {**self.env_model_kwargs, **model_kwargs}
        parameters = inspect.signature(ModelCls).parameters.values()
        needed = {each.name for each in parameters if each.default is each.empty and each.name not in given}
        offered = {name: value for name, value in self._offered().items() if name in needed}
        return ModelCls(**given, **offered)

    def _offered(self) -> dict[str, Any]:
        space, action = self.env_spaces
        shape = getattr(space, "shape", None)
        size = int(action.n) if hasattr(action, "n") else math.prod(action.shape)
        return {"observation_shape": shape, "image_shape": shape, "output_size": size, "action_size": size}

    def to_device(self, cuda_idx: int | None = None) -> None:
        """Move the model to a GPU, a copy of it where it is shared; None leaves it where it is."""
        if cuda_idx is None:
            return
        if self.shared_model is not None:
            self.model = self._unshared_model()
        self.device = torch.device("cuda", cuda_idx)
        self.model.to(self.device)

    def _unshared_model(self) -> nn.Module:
        model = self.build_model(self.ModelCls, self.model_kwargs)
        model.load_state_dict(self.shared_model.state_dict())
        return model

    def data_parallel(self) -> int | None:
        """Let gradients be the mean over all processes of `torch.distributed`; return the number of the GPU.

        Override it where `backward` goes through further models: `average_gradients(self.my_model)`.
        """
        average_gradients(self.model)
        return self.device.index

    def async_cpu(self, share_memory: bool = True) -> None:
        """Go on with a model of one's own beside the shared one; asynchronous runners call this."""
        if self.device.type != "cpu":
            return
        if self.shared_model is None:
            raise RuntimeError("async_cpu wants a shared model: call initialize(share_memory=True) first")
        self.model = self._unshared_model()
        if share_memory:
            self.model.share_memory()

    def sync_shared_memory(self) -> None:
        """Copy the weights to the shared model; nothing where it is the model itself."""
        if self.shared_model is not None and self.shared_model is not self.model:
            self.shared_model.load_state_dict(strip_ddp_state_dict(self.model.state_dict()))

    def send_shared_memory(self) -> None:
        """Copy the weights to the shared model for the sampler; asynchronous runners call this after learning."""
        if self.shared_model is not self.model:
            with self._sending.lock.write_lock:
                self.sync_shared_memory()
                self._sending.count += 1

    def recv_shared_memory(self) -> None:
        """Take up the weights that were sent since the last time; asynchronous samplers call this before a batch."""
        if self.shared_model is self.model:
            return
        with self._sending.lock:
            if self._recv_count < self._sending.count:
                self.model.load_state_dict(self.shared_model.state_dict())
                self._recv_count = self._sending.count

    def sampling_agent(self) -> BaseAgent:
        """Return a copy of this agent for a sampler that runs beside learning; the shared model stays the same one."""
        return copy.deepcopy(self, {id(each): each for each in (self.shared_model, self._sending)})

    def collector_initialize(self, global_B: int = 1, env_ranks: Sequence[int] | None = None) -> None:
        """Take the numbers of this sampler's envs among all."""

    # -- sampling ------------------------------------------------------------------------------------------------------

    def step(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> ArrayTuple:
        """Choose actions; decorate an override with `@torch.no_grad()`."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget the state of all episodes."""

    def reset_one(self, idx: int) -> None:
        """Forget the state of the episode of one env."""

    def toggle_alt(self) -> None:
        """Turn to the other half of an alternating sampler."""

    def sample_mode(self, itr: int) -> None:
        """Explore, from iteration `itr` on."""
        self.model.eval()
        self._mode = "sample"

    def train_mode(self, itr: int) -> None:
        """Be ready to learn."""
        self.model.train()
        self._mode = "train"

    def eval_mode(self, itr: int) -> None:
        """Act as in an evaluation."""
        self.model.eval()
        self._mode = "eval"

    # -- weights -------------------------------------------------------------------------------------------------------

    def parameters(self) -> Any:
        """Return what is learned."""
        return self.model.parameters()

    def state_dict(self) -> dict[str, Any]:
        """Return the weights, as copies."""
        return copied(self.model)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with saved weights."""
        self.model.load_state_dict(state_dict)

    # -- inputs and outputs --------------------------------------------------------------------------------------------

    def _inputs(self, observation: Any, prev_action: Any, prev_reward: Any, *more: Any) -> tuple[Any, ...]:
        """Return what the model is called with, where the model is; choices as one-hot rows."""
        if prev_action is not None and isinstance(self.distribution, DiscreteMixin):
            prev_action = self.distribution.to_onehot(prev_action)
        return tuple(buffer_to(each, self.device) for each in (observation, prev_action, prev_reward, *more))

    def _sampled(self, observation: Any) -> None:
        """Remember where the sampler's observations are."""
        for leaf in tree.leaves(observation):
            self.samples_device = leaf.device

    def _outputs(self, *outputs: Any) -> Any:
        moved = tuple(buffer_to(each, self.samples_device) for each in outputs)
        return moved if len(moved) > 1 else moved[0]


def copied(model: nn.Module) -> dict[str, Any]:
    """Return copies of a model's weights."""
    state: dict[str, Any] = tree.copy(dict(model.state_dict()))
    return state


class RecurrentAgentMixin:
    """Keeps the recurrent state of B envs between steps: `class Mine(RecurrentAgentMixin, MyAgent)`.

    Between sampling and other modes the state is put aside and taken up again.
    """

    recurrent: bool = True
    _mode: str | None
    _prev_rnn_state: Any = None
    _sample_rnn_state: Any = None

    @property
    def prev_rnn_state(self) -> Any:
        """The state [N, B, H] before the next step; None at the start."""
        return self._prev_rnn_state

    def advance_rnn_state(self, new_rnn_state: Any) -> None:
        """Take the state that the model returned; an agent's `step` calls this."""
        self._prev_rnn_state = new_rnn_state

    def reset(self) -> None:
        """Forget the state of all episodes; models take None for zeros."""
        self._prev_rnn_state = None

    def reset_one(self, idx: int) -> None:
        """Set the state of one env to zeros."""
        if self._prev_rnn_state is not None:
            self._prev_rnn_state = zeroed(self._prev_rnn_state, idx)

    def train_mode(self, itr: int) -> None:
        """Put the state of sampling aside."""
        self._leave()
        super().train_mode(itr)  # type: ignore[misc]

    def eval_mode(self, itr: int) -> None:
        """Put the state of sampling aside."""
        self._leave()
        super().eval_mode(itr)  # type: ignore[misc]

    def sample_mode(self, itr: int) -> None:
        """Take the state of sampling up again."""
        if self._mode != "sample":
            self._prev_rnn_state = self._sample_rnn_state
        super().sample_mode(itr)  # type: ignore[misc]

    def _leave(self) -> None:
        if self._mode == "sample":
            self._sample_rnn_state = self._prev_rnn_state
        self._prev_rnn_state = None


class AlternatingRecurrentAgentMixin(RecurrentAgentMixin):
    """Keeps one recurrent state for each half of an alternating sampler, which calls `toggle_alt` after each step."""

    alternating: bool = True
    _other_rnn_state: Any = None
    _sample_rnn_states: tuple[Any, Any] = (None, None)
    _alt: int = 0

    def get_alt(self) -> int:
        """Return which half is acted for, 0 or 1."""
        return self._alt

    def toggle_alt(self) -> None:
        """Turn to the other half."""
        self._prev_rnn_state, self._other_rnn_state = self._other_rnn_state, self._prev_rnn_state
        self._alt ^= 1

    def reset(self) -> None:
        """Forget the state of all episodes, and begin with the first half."""
        self._prev_rnn_state = self._other_rnn_state = None
        self._alt = 0

    def reset_one(self, idx: int) -> None:
        """Set the state of one env, counted over both halves, to zeros."""
        first, second = self._halves()
        if first is None:
            return
        rows = next(iter(tree.leaves(first))).shape[1]
        if idx < rows:
            first = zeroed(first, idx)
        elif second is not None:
            second = zeroed(second, idx - rows)
        self._prev_rnn_state, self._other_rnn_state = (second, first) if self._alt else (first, second)

    def sample_mode(self, itr: int) -> None:
        """Take the states of sampling up again."""
        if self._mode != "sample":
            self._alt, (self._prev_rnn_state, self._other_rnn_state) = 0, self._sample_rnn_states
            self._sample_rnn_state = self._prev_rnn_state
        super().sample_mode(itr)

    def _leave(self) -> None:
        if self._mode == "sample":
            self._sample_rnn_states = self._halves()
        self.reset()

    def _halves(self) -> tuple[Any, Any]:
        now, other = self._prev_rnn_state, self._other_rnn_state
        return (other, now) if self._alt else (now, other)


def zeroed(rnn_state: Any, idx: int) -> Any:
    """Return a state [N, B, H] with zeros for one env; the state that was stored stays as it is."""
    state = buffer_method(rnn_state, "clone")
    for leaf in tree.leaves(state):
        leaf[:, idx] = 0
    return state


def stored_state(prev_rnn_state: Any, like: Any) -> Any:
    """Return the state before a step as it is stored, [B, N, H]; None as zeros like the state after it."""
    state = buffer_func(like, torch.zeros_like) if prev_rnn_state is None else prev_rnn_state
    return buffer_method(state, "transpose", 0, 1)
