"""State estimators and privilege adaptors in front of an actor-critic, as parkour and st_rl mix them in.

    class EncoderStateAc(EstimatorMixin, EncoderActorCriticMixin, ActorCritic)

    observations ─▶ EstimatorMixin.act: estimate, replace ─▶ EncoderActorCriticMixin.act: embed ─▶ ActorCritic.act

Weights have the names of the older libraries: 'state_estimator.…', 'memory_s.rnn.…'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from striderl.compat.st_rl.encoders import (
    EncoderActorCriticMixin,
    get_subobs_by_components,
    get_subobs_size,
    substitute_estimated_state,
)
from striderl.compat.st_rl.modules import ActorCritic, ActorCriticRecurrent, Memory, Segments
from striderl.networks.mlp import MlpModel
from striderl.policies.facade.memory import AdaptorActorHiddenState, EstimatorActorHiddenState


class EstimatorMixin:
    """Predict components of the observation from others, and may replace them; in front of an actor-critic."""

    def __init__(
        self,
        *args: Any,
        estimator_obs_components: str | Sequence[str],
        estimator_target_components: str | Sequence[str],
        estimator_kwargs: Mapping[str, Any] | None = None,
        use_actor_rnn: bool = False,
        replace_state_prob: float = 0.0,
        **kwargs: Any,
    ) -> None:
        """Build the estimator: on the observation, with a memory of its own, or on the actor's memory.

        The decision to replace is drawn once per observation: the update of a rollout repeats those of its steps.
        """
        if replace_state_prob > 0.0 and use_actor_rnn:
            raise ValueError(
                "use_actor_rnn=True: the memory has read the observation before it is estimated, so nothing can be "
                "replaced; set replace_state_prob=0"
            )
        super().__init__(*args, **kwargs)
        self.estimator_obs_components = _names(estimator_obs_components)
        self.estimator_target_components = _names(estimator_target_components)
        self.estimator_kwargs = dict(estimator_kwargs or {})
        self.use_actor_rnn, self.replace_state_prob = use_actor_rnn, replace_state_prob
        self.estimated_state: Any = None
        self.build_estimator()

    def build_estimator(self) -> None:
        """Set `state_estimator`, and `memory_s` where it has a memory of its own."""
        model: Any = self
        size = get_subobs_size(model.obs_segments, self.estimator_obs_components)
        if model.is_recurrent:
            rnn = model.memory_a.rnn
            if not self.use_actor_rnn:
                self.memory_s = Memory(
                    size, "gru" if isinstance(rnn, nn.GRU) else "lstm", rnn.num_layers, rnn.hidden_size
                )
            size = rnn.hidden_size
        elif self.use_actor_rnn:
            raise ValueError("use_actor_rnn=True wants a recurrent policy, such as StateAcRecurrent")
        targets = _target_size(model, self.estimator_target_components)
        self.state_estimator = MlpModel(
            size, output_size=targets, **{"hidden_sizes": [256, 128], **self.estimator_kwargs}
        )

    def act(
        self,
        observations: Tensor,
        masks: Tensor | None = None,
        hidden_states: Any = None,
        inference: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        """Estimate, replace, and act; with `inference` return the mean."""
        own, inner = _split(hidden_states, getattr(self, "memory_s", None), EstimatorActorHiddenState, "estimator")
        if self.use_actor_rnn:
            actions = self._forward(observations, masks, inner, inference, **kwargs)
            model: Any = self
            self.estimated_state = self.state_estimator(model.memory_a.output)
            return actions
        seen = get_subobs_by_components(observations, self.estimator_obs_components, self._obs_segments())
        self.estimated_state = _predict(self.state_estimator, getattr(self, "memory_s", None), seen, own)
        replaced = _replaced(
            observations,
            self.estimated_state,
            self.estimator_target_components,
            self._obs_segments(),
            self.replace_state_prob,
            inference,
        )
        return self._forward(replaced, masks, inner, inference, **kwargs)

    def _forward(self, observations: Tensor, masks: Any, hidden_states: Any, inference: bool, **kwargs: Any) -> Tensor:
        above: Any = super()
        if inference:
            mean: Tensor = above.act_inference(observations)
            return mean
        actions: Tensor = above.act(observations, masks=masks, hidden_states=hidden_states, **kwargs)
        return actions

    def act_inference(self, observations: Tensor) -> Tensor:
        """Estimate, replace, and return the mean."""
        return EstimatorMixin.act(self, observations, inference=True)

    def get_estimated_state(self) -> Tensor:
        """Return the estimate of the last call, [.., K]; padded where a minibatch of trajectories was."""
        if self.estimated_state is None:
            raise RuntimeError("there is no estimate yet: call act first")
        estimate: Tensor = self.estimated_state
        return estimate

    def reset(self, dones: Tensor | None = None) -> None:
        """Reset the memories of finished envs."""
        super().reset(dones)  # type: ignore[misc]
        if hasattr(self, "memory_s"):
            self.memory_s.reset(dones)

    def get_hidden_states(self) -> Any:
        """Return the memories, the estimator's beside the actor's."""
        return _with_own(super().get_hidden_states(), getattr(self, "memory_s", None), EstimatorActorHiddenState)  # type: ignore[misc]

    def set_hidden_states(self, hidden_states: Any) -> None:
        """Restore what `get_hidden_states` returned."""
        above: Any = super()
        if hasattr(self, "memory_s"):
            self.memory_s.hidden_states, actor = hidden_states.actor
            hidden_states = hidden_states._replace(actor=actor)
        above.set_hidden_states(hidden_states)

    def _obs_segments(self) -> Segments:
        model: Any = self
        segments: Segments = model.obs_segments
        return segments


class PrivilegeEstimatorMixin:
    """Predict components that only the critic sees from the actor's; for a class in front of an actor-critic."""

    def __init__(
        self,
        *args: Any,
        adaptor_obs_components: str | Sequence[str],
        adaptor_target_components: str | Sequence[str],
        adaptor_kwargs: Mapping[str, Any] | None = None,
        privilege_replace_state_prob: float = 0.0,
        **kwargs: Any,
    ) -> None:
        """Build the adaptor, with a memory where the policy is recurrent."""
        super().__init__(*args, **kwargs)
        self.adaptor_obs_components = _names(adaptor_obs_components)
        self.adaptor_target_components = _names(adaptor_target_components)
        self.adaptor_kwargs = dict(adaptor_kwargs or {})
        self.privilege_replace_state_prob = privilege_replace_state_prob
        self.adapted_state: Any = None
        self.build_adaptor()

    def build_adaptor(self) -> None:
        """Set `state_adaptor`, and `memory_adaptor` where the policy is recurrent."""
        model: Any = self
        size = get_subobs_size(model.obs_segments, self.adaptor_obs_components)
        if model.is_recurrent:
            rnn = model.memory_a.rnn
            self.memory_adaptor = Memory(
                size, "gru" if isinstance(rnn, nn.GRU) else "lstm", rnn.num_layers, rnn.hidden_size
            )
            size = rnn.hidden_size
        targets = _target_size(model, self.adaptor_target_components)
        self.state_adaptor = MlpModel(size, output_size=targets, **{"hidden_sizes": [256, 128], **self.adaptor_kwargs})

    def act(
        self,
        observations: Tensor,
        masks: Tensor | None = None,
        hidden_states: Any = None,
        inference: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        """Adapt, replace, and act; with `inference` return the mean."""
        model, above = _any(self), _any(super())
        memory = getattr(self, "memory_adaptor", None)
        own, inner = _split(hidden_states, memory, AdaptorActorHiddenState, "adaptor")
        seen = get_subobs_by_components(observations, self.adaptor_obs_components, model.obs_segments)
        self.adapted_state = _predict(self.state_adaptor, memory, seen, own)
        replaced = _replaced(
            observations,
            self.adapted_state,
            self.adaptor_target_components,
            model.obs_segments,
            self.privilege_replace_state_prob,
            inference,
        )
        if inference:
            mean: Tensor = above.act_inference(replaced)
            return mean
        actions: Tensor = above.act(replaced, masks=masks, hidden_states=inner, **kwargs)
        return actions

    def act_inference(self, observations: Tensor) -> Tensor:
        """Adapt, replace, and return the mean."""
        return PrivilegeEstimatorMixin.act(self, observations, inference=True)

    def get_adapted_state(self) -> Tensor:
        """Return the adaptor's estimate of the last call."""
        if self.adapted_state is None:
            raise RuntimeError("there is no estimate yet: call act first")
        estimate: Tensor = self.adapted_state
        return estimate

    def get_estimated_state(self) -> Tensor:
        """Return the estimate of the state estimator behind, where there is one, else the adaptor's."""
        above: Any = super()
        return above.get_estimated_state() if hasattr(above, "get_estimated_state") else self.get_adapted_state()

    def reset(self, dones: Tensor | None = None) -> None:
        """Reset the memories of finished envs."""
        super().reset(dones)  # type: ignore[misc]
        if hasattr(self, "memory_adaptor"):
            self.memory_adaptor.reset(dones)

    def get_hidden_states(self) -> Any:
        """Return the memories, the adaptor's beside the actor's."""
        return _with_own(super().get_hidden_states(), getattr(self, "memory_adaptor", None), AdaptorActorHiddenState)  # type: ignore[misc]

    def set_hidden_states(self, hidden_states: Any) -> None:
        """Restore what `get_hidden_states` returned."""
        above: Any = super()
        if hasattr(self, "memory_adaptor"):
            self.memory_adaptor.hidden_states, actor = hidden_states.actor
            hidden_states = hidden_states._replace(actor=actor)
        above.set_hidden_states(hidden_states)


def _any(value: Any) -> Any:
    return value


def _names(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _target_size(model: Any, names: Sequence[str]) -> int:
    """Return the size of what is predicted: components of the actor's vector, or of the critic's."""
    segments = model.obs_segments or {}
    if any(name not in segments for name in names):
        segments = model.critic_obs_segments
    return get_subobs_size(segments, names)


def _predict(network: nn.Module, memory: Memory | None, seen: Tensor, hidden: Any) -> Tensor:
    """Return the estimate; with a memory, of padded trajectories too where hidden states are given."""
    estimate: Tensor = network(seen if memory is None else memory(seen, None, hidden))
    return estimate


def _split(hidden_states: Any, memory: Memory | None, kind: type, name: str) -> tuple[Any, Any]:
    """Return (own, the next class's) hidden states of a minibatch; the whole for a class without a memory."""
    if hidden_states is None or memory is None:
        return None, hidden_states
    if not isinstance(hidden_states, kind):
        raise TypeError(
            f"hidden_states want a {kind.__name__} with {name!r}; give minibatch.hidden_states.actor, "
            f"found {type(hidden_states).__name__}"
        )
    parts: Any = hidden_states
    return parts.get(0), parts.get(1)


def _with_own(hidden_states: Any, memory: Memory | None, kind: Any) -> Any:
    if memory is None:
        return hidden_states
    return hidden_states._replace(actor=kind(memory.hidden_states, hidden_states.actor))


def _replaced(
    observations: Tensor, estimate: Tensor, names: Sequence[str], segments: Segments, probability: float, always: bool
) -> Tensor:
    """Return observations in which components are replaced by their estimate, with a probability or always."""
    if probability <= 0.0:
        return observations
    unseen = [name for name in names if name not in segments]
    if unseen:
        raise KeyError(f"{unseen} cannot be replaced: the actor's obs_segments are {list(segments)}")
    replaced = substitute_estimated_state(observations, names, estimate, segments)
    if always:
        return replaced
    return torch.where((_uniform_of(observations) < probability).unsqueeze(-1), replaced, observations)


def _uniform_of(observations: Tensor) -> Tensor:
    """Return a number in [0, 1) per observation [.., D] that depends on its bits alone, in any order of samples."""
    bits = observations.detach().float().contiguous().view(torch.int32).long()
    place = torch.arange(1, bits.shape[-1] + 1, device=bits.device) * 2654435761 % 2**31
    mixed = (bits * place).sum(-1)
    for shift in (15, 13):
        mixed = (mixed ^ (mixed >> shift)) * 0x2C1B3C6D % 2**31
    return (mixed ^ (mixed >> 16)).double().div(2**31).float()


# -- classes -----------------------------------------------------------------------------------------------------------


class StateAc(EstimatorMixin, ActorCritic):
    """An estimator, then the networks."""


class StateAcRecurrent(EstimatorMixin, ActorCriticRecurrent):
    """An estimator, then memories and networks."""


class EncoderStateAc(EstimatorMixin, EncoderActorCriticMixin, ActorCritic):
    """An estimator, encoders, then the networks."""


class EncoderStateAcRecurrent(EstimatorMixin, EncoderActorCriticMixin, ActorCriticRecurrent):
    """An estimator, encoders, then memories and networks."""


class PrivilegeStateAcRecurrent(PrivilegeEstimatorMixin, EstimatorMixin, ActorCriticRecurrent):
    """An adaptor, an estimator, then memories and networks."""
