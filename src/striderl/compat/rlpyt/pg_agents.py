"""rlpyt's agents of policy gradients, for PPO and A2C: a distribution and a value; and those for Atari and MuJoCo.

CategoricalPgAgent    model ─▶ pi [..., n], v [...]             pi are probabilities: rows >= 0 that sum to 1
GaussianPgAgent       model ─▶ mu, log_std [..., n], v [...]
Recurrent…PgAgent     … and the next state, RnnState(h, c) of [N, B, H] each; stored as prev_rnn_state [B, N, H]
PgAgent               the first or the second, as the action space is
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.collect.samplers.agents import AgentStep
from striderl.compat.rlpyt.agents import (
    AlternatingRecurrentAgentMixin,
    BaseAgent,
    RecurrentAgentMixin,
    stored_state,
)
from striderl.compat.rlpyt.distributions import Categorical, DiscreteMixin, DistInfo, DistInfoStd, Gaussian
from striderl.compat.rlpyt.models import AtariFfModel, AtariLstmModel
from striderl.compat.rlpyt.vector_models import MujocoFfModel, MujocoLstmModel
from striderl.compat.user_models import one_per_row
from striderl.data.buffers import buffer_to
from striderl.data.named_tuples import ArrayTuple, namedarraytuple

PROBABILITY_TOLERANCE = 1e-3
"""How far the sum of a row of probabilities may be from 1."""

AgentInfo = namedarraytuple("AgentInfo", ["dist_info", "value"])
AgentInfoRnn = namedarraytuple("AgentInfoRnn", ["dist_info", "value", "prev_rnn_state"])


class AgentTrain(NamedTuple):
    """The result of a policy-gradient agent that is called with inputs."""

    dist_info: Any
    value: Tensor


class PgAgent(BaseAgent):
    """An agent with a distribution and a value, for PPO and A2C; its kind follows from the action space."""

    def initialize(
        self, env_spaces: Any, share_memory: bool = False, global_B: int = 1, env_ranks: Sequence[int] | None = None
    ) -> None:
        """Build the model and the distribution."""
        super().initialize(env_spaces, share_memory, global_B, env_ranks)
        self.distribution = self._make_distribution(self.env_spaces.action)

    def _make_distribution(self, action: Any) -> Any:
        if hasattr(action, "n"):
            return Categorical(dim=action.n)
        if len(action.shape) != 1:
            raise TypeError(f"{type(self).__name__} wants actions of one dimension, found shape {list(action.shape)}")
        return Gaussian(dim=action.shape[0])

    def __call__(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> Any:
        """Return dist_info and value, with gradients."""
        outputs = self.model(*self._inputs(observation, prev_action, prev_reward))
        return AgentTrain(*self._outputs(*self._read(outputs, 0)[:2]))

    @torch.no_grad()
    def step(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> ArrayTuple:
        """Sample actions; what the update reads back is stored with them."""
        self._sampled(observation)
        outputs = self.model(*self._inputs(observation, prev_action, prev_reward))
        dist_info, value, _ = self._read(outputs, 0)
        action = self.distribution.sample(dist_info)
        return AgentStep(*self._outputs(action, AgentInfo(dist_info=dist_info, value=value)))

    @torch.no_grad()
    def value(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> Tensor:
        """Return the values, such as that of what followed a batch."""
        outputs = self.model(*self._inputs(observation, prev_action, prev_reward))
        value: Tensor = self._outputs(self._read(outputs, 0)[1])
        return value

    def _read(self, outputs: Any, num_states: int) -> tuple[Any, Tensor, Any]:
        """Return dist_info, value and the next state of what a model returned."""
        name, discrete = type(self.model).__name__, isinstance(self.distribution, DiscreteMixin)
        form = ["pi", "v"] if discrete else ["mu", "log_std", "v"]
        form += ["rnn_state"] * num_states
        if not isinstance(outputs, (tuple, list)) or len(outputs) != len(form):
            found = f"{len(outputs)} values" if isinstance(outputs, (tuple, list)) else type(outputs).__name__
            raise TypeError(f"{name}.forward must return ({', '.join(form)}), found {found}")
        first, state = outputs[0], outputs[-1] if num_states else None
        value = outputs[len(form) - num_states - 1]
        if first.shape[-1] != self.distribution.dim:
            raise ValueError(
                f"{name}.forward must return {form[0]} of size {self.distribution.dim}, found {list(first.shape)}"
            )
        value = one_per_row(value, first.shape[:-1], f"{name}.forward: v")
        if discrete:
            return DistInfo(prob=checked_probabilities(first, name)), value, state
        return DistInfoStd(mean=first, log_std=outputs[1].expand_as(first)), value, state


class CategoricalPgAgent(PgAgent):
    """Samples one of several choices."""

    def _make_distribution(self, action: Any) -> Any:
        if not hasattr(action, "n"):
            raise TypeError(f"{type(self).__name__} wants choices, found the action space {action}")
        return Categorical(dim=action.n)


class GaussianPgAgent(PgAgent):
    """Samples real numbers; an env clips what lies outside its bounds."""

    def _make_distribution(self, action: Any) -> Any:
        if hasattr(action, "n"):
            raise TypeError(f"{type(self).__name__} wants real-valued actions, found the action space {action}")
        return super()._make_distribution(action)


class RecurrentPgAgentBase(PgAgent):
    """The methods of recurrent agents; a mixin keeps their state."""

    prev_rnn_state: Any
    advance_rnn_state: Any

    def __call__(
        self, observation: Any, prev_action: Any = None, prev_reward: Any = None, init_rnn_state: Any = None
    ) -> Any:
        """Return dist_info, value and the next state, with gradients; `init_rnn_state` is [N, B, H]."""
        inputs = self._inputs(observation, prev_action, prev_reward, init_rnn_state)
        dist_info, value, state = self._read(self.model(*inputs), 1)
        return *self._outputs(dist_info, value), state

    @torch.no_grad()
    def step(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> ArrayTuple:
        """Sample actions and advance the state; the one before the step is stored with them."""
        self._sampled(observation)
        before = self.prev_rnn_state
        outputs = self.model(*self._inputs(observation, prev_action, prev_reward, before))
        dist_info, value, state = self._read(outputs, 1)
        action = self.distribution.sample(dist_info)
        info = AgentInfoRnn(dist_info=dist_info, value=value, prev_rnn_state=stored_state(before, state))
        self.advance_rnn_state(state)
        return AgentStep(*self._outputs(action, info))

    @torch.no_grad()
    def value(self, observation: Any, prev_action: Any = None, prev_reward: Any = None) -> Tensor:
        """Return the values by the state of now, which stays."""
        outputs = self.model(*self._inputs(observation, prev_action, prev_reward, self.prev_rnn_state))
        value: Tensor = self._outputs(self._read(outputs, 1)[1])
        return value


class RecurrentPgAgent(RecurrentAgentMixin, RecurrentPgAgentBase):
    """A recurrent agent whose kind follows from the action space."""


class RecurrentCategoricalPgAgentBase(RecurrentPgAgentBase, CategoricalPgAgent):
    """A recurrent model and choices."""


class RecurrentGaussianPgAgentBase(RecurrentPgAgentBase, GaussianPgAgent):
    """A recurrent model and real numbers."""


class RecurrentCategoricalPgAgent(RecurrentAgentMixin, RecurrentCategoricalPgAgentBase):
    """Samples choices with a recurrent model."""


class RecurrentGaussianPgAgent(RecurrentAgentMixin, RecurrentGaussianPgAgentBase):
    """Samples real numbers with a recurrent model."""


class AlternatingRecurrentCategoricalPgAgent(AlternatingRecurrentAgentMixin, RecurrentCategoricalPgAgentBase):
    """The same for an alternating sampler."""


class AlternatingRecurrentGaussianPgAgent(AlternatingRecurrentAgentMixin, RecurrentGaussianPgAgentBase):
    """The same for an alternating sampler."""


def checked_probabilities(pi: Tensor, name: str) -> Tensor:
    """Return pi, or raise where its rows are no probabilities: logits in their place would act otherwise."""
    with torch.no_grad():
        good = bool(((pi >= 0).all(-1) & ((pi.sum(-1) - 1.0).abs() < PROBABILITY_TOLERANCE)).all())
    if not good:
        rows = pi.detach().reshape(-1, pi.shape[-1])
        wrong = ~((rows >= 0).all(-1) & ((rows.sum(-1) - 1.0).abs() < PROBABILITY_TOLERANCE))
        row = rows[wrong][0]
        raise ValueError(
            f"{name}.forward must return pi as probabilities, rows >= 0 that sum to 1, found "
            f"a row such as {[round(each, 4) for each in row[:8].tolist()]} with sum {float(row.sum()):.4g}; for "
            "logits return torch.softmax(logits, dim=-1)"
        )
    return pi


# -- Atari and MuJoCo --------------------------------------------------------------------------------------------------


class AtariMixin:
    """Gives the model the shape of the image and the number of choices."""

    def make_env_to_model_kwargs(self, env_spaces: Any) -> dict[str, Any]:
        """Return image_shape and output_size."""
        return {"image_shape": env_spaces.observation.shape, "output_size": env_spaces.action.n}


class MujocoMixin:
    """Gives the model the shape of the observation and the size of an action, and lets it normalise observations."""

    def make_env_to_model_kwargs(self, env_spaces: Any) -> dict[str, Any]:
        """Return observation_shape and action_size."""
        return {"observation_shape": env_spaces.observation.shape, "action_size": env_spaces.action.shape[0]}

    def update_obs_rms(self, observation: Any) -> None:
        """Let the model take observations into account for their normalisation; algorithms call this."""
        model: Any = self.model  # type: ignore[attr-defined]
        device: Any = self.device  # type: ignore[attr-defined]
        if hasattr(model, "update_obs_rms"):
            model.update_obs_rms(buffer_to(observation, device))


class AtariFfAgent(AtariMixin, CategoricalPgAgent):
    """Images and choices."""

    default_model = AtariFfModel


class AtariLstmAgent(AtariMixin, RecurrentCategoricalPgAgent):
    """Images, choices and an LSTM."""

    default_model = AtariLstmModel


class AlternatingAtariLstmAgent(AtariMixin, AlternatingRecurrentCategoricalPgAgent):
    """The same for an alternating sampler."""

    default_model = AtariLstmModel


class MujocoFfAgent(MujocoMixin, GaussianPgAgent):
    """Vectors and real-valued actions."""

    default_model = MujocoFfModel


class MujocoLstmAgent(MujocoMixin, RecurrentGaussianPgAgent):
    """Vectors, real-valued actions and an LSTM."""

    default_model = MujocoLstmModel


class AlternatingMujocoLstmAgent(MujocoMixin, AlternatingRecurrentGaussianPgAgent):
    """The same for an alternating sampler."""

    default_model = MujocoLstmModel
