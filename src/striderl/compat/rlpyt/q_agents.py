"""rlpyt's agents with Q-values of choices, for DQN and its relatives.

DqnAgent       model ─▶ q [..., n]                 acts by ε-greedy, stores q
CatDqnAgent    model ─▶ p [..., n, n_atoms]        probabilities of the atoms, stores p
R2d1Agent      model ─▶ q [..., n], next state     stores q and prev_rnn_state [B, N, H]

ε        1 ┐eps_init
           └╲         linear between iterations eps_itr_min and eps_itr_max, which the algorithm sets
             ╲______  eps_final; with eps_final_min each env has its own, from eps_final_min to eps_final
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from striderl.collect.samplers.agents import AgentStep
from striderl.compat.rlpyt.agents import (
    AlternatingRecurrentAgentMixin,
    BaseAgent,
    ModelClass,
    RecurrentAgentMixin,
    copied,
    stored_state,
)
from striderl.compat.rlpyt.distributions import CategoricalEpsilonGreedy, EpsilonGreedy
from striderl.compat.rlpyt.models import AtariCatDqnModel, AtariDqnModel, AtariR2d1Model
from striderl.compat.rlpyt.pg_agents import AtariMixin
from striderl.compat.rlpyt.tensors import update_state_dict
from striderl.data.buffers import buffer_to
from striderl.data.named_tuples import ArrayTuple, namedarraytuple

DqnAgentInfo = namedarraytuple("DqnAgentInfo", ["q"])
CatDqnAgentInfo = namedarraytuple("CatDqnAgentInfo", ["p"])
R2d1AgentInfo = namedarraytuple("R2d1AgentInfo", ["q", "prev_rnn_state"])


class EpsilonGreedyAgentMixin:
    """The schedule of ε: `class Mine(EpsilonGreedyAgentMixin, MyAgent)`, whose distribution has `set_epsilon`."""

    distribution: Any

    def __init__(
        self,
        *args: Any,
        eps_init: float = 1,
        eps_final: float = 0.01,
        eps_final_min: float | None = None,
        eps_itr_min: int = 50,
        eps_itr_max: int = 1000,
        eps_eval: float = 0.001,
        **kwargs: Any,
    ) -> None:
        """Store the schedule, whose iterations the algorithm sets; other arguments are the agent's."""
        super().__init__(*args, **kwargs)
        self.eps_init: Any = eps_init
        self.eps_final: Any = eps_final
        self.eps_final_min, self.eps_eval = eps_final_min, eps_eval
        self.eps_itr_min, self.eps_itr_max = eps_itr_min, eps_itr_max
        self._eps_final_scalar = eps_final
        self.eps_sample: Any = eps_init

    def collector_initialize(self, global_B: int = 1, env_ranks: Sequence[int] | None = None) -> None:
        """Give each env its own ε, where `eps_final_min` asks for it."""
        if env_ranks is not None:
            self.make_vec_eps(global_B, env_ranks)

    def make_vec_eps(self, global_B: int, env_ranks: Sequence[int]) -> None:
        """Space the last ε of all envs evenly in the logarithm, and keep those of these envs."""
        if self.eps_final_min is not None and self.eps_final_min != self._eps_final_scalar:
            low, high = (torch.tensor(float(each)).log10() for each in (self.eps_final_min, self._eps_final_scalar))
            self.eps_final = torch.logspace(float(low), float(high), global_B)[list(env_ranks)]
        self.eps_sample = self.eps_init

    def set_epsilon_itr_min_max(self, eps_itr_min: int, eps_itr_max: int) -> None:
        """Set the iterations between which ε falls; the algorithm calls this."""
        self.eps_itr_min, self.eps_itr_max = eps_itr_min, eps_itr_max

    def set_sample_epsilon_greedy(self, epsilon: Any) -> None:
        """Act with this ε from now on."""
        self.distribution.set_epsilon(epsilon)

    def sample_mode(self, itr: int) -> None:
        """Explore with the ε of this iteration."""
        super().sample_mode(itr)  # type: ignore[misc]
        span = max(1, self.eps_itr_max - self.eps_itr_min)
        progress = min(1.0, max(0, itr - self.eps_itr_min) / span)
        self.eps_sample = progress * self.eps_final + (1 - progress) * self.eps_init
        self.set_sample_epsilon_greedy(self.eps_sample)

    def eval_mode(self, itr: int) -> None:
        """Act with `eps_eval`; with 1 in the evaluation before the first iteration, whose `itr` is 0."""
        super().eval_mode(itr)  # type: ignore[misc]
        self.set_sample_epsilon_greedy(self.eps_eval if itr > 0 else 1.0)


class DqnAgent(EpsilonGreedyAgentMixin, BaseAgent):
    """An agent with one Q-value per choice, and a target model."""

    target_model: Any = None
    _half = 0

    def initialize(
        self, env_spaces: Any, share_memory: bool = False, global_B: int = 1, env_ranks: Sequence[int] | None = None
    ) -> None:
        """Build the model, its target and the distribution."""
        initial, self.initial_model_state_dict = self.initial_model_state_dict, None
        super().initialize(env_spaces, share_memory, global_B, env_ranks)
        self.initial_model_state_dict = initial
        action = self.env_spaces.action
        if not hasattr(action, "n"):
            raise TypeError(f"{type(self).__name__} wants choices, found the action space {action}")
        self.target_model = self.build_model(self.ModelCls, self.model_kwargs)
        self.target_model.load_state_dict(self.model.state_dict())
        if initial is not None:
            self.load_state_dict(initial)
        self.distribution = EpsilonGreedy(dim=action.n)
        if env_ranks is not None:
            self.make_vec_eps(global_B, env_ranks)

    def to_device(self, cuda_idx: int | None = None) -> None:
        """Move both models."""
        super().to_device(cuda_idx)
        self.target_model.to(self.device)

    def __call__(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> Any:
        """Return the Q-values [..., n], with gradients."""
        q = self.model(*self._inputs(observation, prev_action, prev_reward))
        return self._outputs(self._checked(q))

    def target(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> Any:
        """Return the Q-values of the target model."""
        q = self.target_model(*self._inputs(observation, prev_action, prev_reward))
        return self._outputs(self._checked(q))

    @torch.no_grad()
    def step(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> ArrayTuple:
        """Choose actions by ε-greedy."""
        self._sampled(observation)
        q = self._outputs(self._checked(self.model(*self._inputs(observation, prev_action, prev_reward))))
        return AgentStep(self._choose(q), DqnAgentInfo(q=q))

    def _choose(self, q: Tensor) -> Tensor:
        """Sample from the distribution; where it has an ε per env of both halves, with those of this half."""
        epsilon, rows = self.distribution.epsilon, q.shape[0] if q.dim() > 1 else 1
        if not isinstance(epsilon, Tensor) or epsilon.dim() == 0 or len(epsilon) in (1, rows):
            chosen: Tensor = self.distribution.sample(q)
            return chosen
        self.distribution.set_epsilon(epsilon[self._half * rows :][:rows])
        chosen = self.distribution.sample(q)
        self.distribution.set_epsilon(epsilon)
        return chosen

    def _checked(self, q: Any) -> Any:
        n = self.env_spaces.action.n
        if not isinstance(q, Tensor) or q.shape[-1] != n:
            found = list(q.shape) if isinstance(q, Tensor) else type(q).__name__
            raise ValueError(f"{type(self.model).__name__}.forward must return q [..., {n}], found {found}")
        return q

    def toggle_alt(self) -> None:
        """Turn to the other half of an alternating sampler, whose envs may have other ε."""
        super().toggle_alt()
        self._half ^= 1

    def update_target(self, tau: float = 1) -> None:
        """Move the target model to the model: tau · model + (1 - tau) · target."""
        update_state_dict(self.target_model, self.model.state_dict(), tau)

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of both models, as copies."""
        return {"model": copied(self.model), "target": copied(self.target_model)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with saved weights; without a target, it becomes the model."""
        self.model.load_state_dict(state_dict["model"])
        self.target_model.load_state_dict(state_dict.get("target", state_dict["model"]))


class CatDqnAgent(DqnAgent):
    """An agent with a distribution over atoms for each choice."""

    def __init__(self, n_atoms: int = 51, *args: Any, **kwargs: Any) -> None:
        """Store the number of atoms, which the model gets as `n_atoms`; other arguments are those of `DqnAgent`."""
        super().__init__(*args, **kwargs)
        self.n_atoms = self.model_kwargs["n_atoms"] = n_atoms

    def initialize(
        self, env_spaces: Any, share_memory: bool = False, global_B: int = 1, env_ranks: Sequence[int] | None = None
    ) -> None:
        """Build both models; the values of the atoms come from the algorithm."""
        super().initialize(env_spaces, share_memory, global_B, env_ranks)
        z = torch.linspace(-1, 1, self.n_atoms)
        self.distribution = CategoricalEpsilonGreedy(dim=self.env_spaces.action.n, z=z)

    def give_V_min_max(self, V_min: float, V_max: float) -> None:  # noqa: N802
        """Set the values of the first and the last atom; the algorithm calls this."""
        self.V_min, self.V_max = V_min, V_max
        self.distribution.set_z(torch.linspace(V_min, V_max, self.n_atoms))

    @torch.no_grad()
    def step(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> ArrayTuple:
        """Choose actions by ε-greedy over the expected values."""
        self._sampled(observation)
        p = self._outputs(self._checked(self.model(*self._inputs(observation, prev_action, prev_reward))))
        return AgentStep(self._choose(p), CatDqnAgentInfo(p=p))

    def _checked(self, q: Any) -> Any:
        wanted = (self.env_spaces.action.n, self.n_atoms)
        if not isinstance(q, Tensor) or tuple(q.shape[-2:]) != wanted:
            found = list(q.shape) if isinstance(q, Tensor) else type(q).__name__
            name = type(self.model).__name__
            raise ValueError(f"{name}.forward must return p [..., {wanted[0]}, {wanted[1]}], found {found}")
        return q


class R2d1AgentBase(DqnAgent):
    """The methods of recurrent Q-agents; a mixin keeps their state."""

    prev_rnn_state: Any
    advance_rnn_state: Any

    def __call__(
        self, observation: Any, prev_action: Any = None, prev_reward: Any = None, init_rnn_state: Any = None
    ) -> Any:
        """Return the Q-values, with gradients, and the next state; `init_rnn_state` is [N, B, H]."""
        q, state = self.model(*self._inputs(observation, prev_action, prev_reward, init_rnn_state))
        return self._outputs(self._checked(q)), state

    def target(
        self, observation: Any, prev_action: Any = None, prev_reward: Any = None, init_rnn_state: Any = None
    ) -> Any:
        """Return the Q-values of the target model, and the next state."""
        q, state = self.target_model(*self._inputs(observation, prev_action, prev_reward, init_rnn_state))
        return self._outputs(self._checked(q)), state

    @torch.no_grad()
    def step(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> ArrayTuple:
        """Choose actions by ε-greedy and advance the state; the one before the step is stored with them."""
        self._sampled(observation)
        before = self.prev_rnn_state
        q, state = self.model(*self._inputs(observation, prev_action, prev_reward, before))
        q = self._outputs(self._checked(q))
        info = R2d1AgentInfo(q=q, prev_rnn_state=buffer_to(stored_state(before, state), self.samples_device))
        self.advance_rnn_state(state)
        return AgentStep(self._choose(q), info)


class R2d1Agent(RecurrentAgentMixin, R2d1AgentBase):
    """A recurrent Q-agent."""


class R2d1AlternatingAgent(AlternatingRecurrentAgentMixin, R2d1AgentBase):
    """The same for an alternating sampler."""

    def toggle_alt(self) -> None:
        """Turn to the other half."""
        super().toggle_alt()
        self._half = self._alt


# -- Atari -------------------------------------------------------------------------------------------------------------


class AtariDqnAgent(AtariMixin, DqnAgent):
    """Images and Q-values."""

    default_model = AtariDqnModel


class AtariCatDqnAgent(AtariMixin, CatDqnAgent):
    """Images and distributions of Q-values."""

    def __init__(self, ModelCls: ModelClass = AtariCatDqnModel, **kwargs: Any) -> None:
        """Store the model's class; other arguments are those of `CatDqnAgent`."""
        super().__init__(ModelCls=ModelCls, **kwargs)


class AtariR2d1Agent(AtariMixin, R2d1Agent):
    """Images, Q-values and an LSTM."""

    default_model = AtariR2d1Model


class AtariR2d1AlternatingAgent(AtariMixin, R2d1AlternatingAgent):
    """The same for an alternating sampler."""

    default_model = AtariR2d1Model
