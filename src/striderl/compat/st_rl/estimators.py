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
        if self.use_actor_rnn and not _any(self).is_recurrent:
            raise ValueError("use_actor_rnn=True wants a recurrent policy, such as StateAcRecurrent")
        memory = _memory_for(self, self.estimator_obs_components)
        if memory is not None and not self.use_actor_rnn:
            self.memory_s = memory
        names = (self.estimator_obs_components, self.estimator_target_components)
        self.state_estimator = _network_for(self, *names, memory, self.estimator_kwargs)

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
        segments = _any(self).obs_segments
        if not self.use_actor_rnn:
            seen = get_subobs_by_components(observations, self.estimator_obs_components, segments)
            self.estimated_state = _predict(self.state_estimator, getattr(self, "memory_s", None), seen, own)
            names, probability = self.estimator_target_components, self.replace_state_prob
            observations = _replaced(observations, self.estimated_state, names, segments, probability, inference)
        actions = _act(super(), observations, masks, inner, inference, **kwargs)
        if self.use_actor_rnn:
            self.estimated_state = self.state_estimator(_any(self).memory_a.output)
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
        rest = _without_own(hidden_states, getattr(self, "memory_s", None))
        super().set_hidden_states(rest)  # type: ignore[misc]


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
        memory = _memory_for(self, self.adaptor_obs_components)
        if memory is not None:
            self.memory_adaptor = memory
        names = (self.adaptor_obs_components, self.adaptor_target_components)
        self.state_adaptor = _network_for(self, *names, memory, self.adaptor_kwargs)

    def act(
        self,
        observations: Tensor,
        masks: Tensor | None = None,
        hidden_states: Any = None,
        inference: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        """Adapt, replace, and act; with `inference` return the mean."""
        memory, segments = getattr(self, "memory_adaptor", None), _any(self).obs_segments
        own, inner = _split(hidden_states, memory, AdaptorActorHiddenState, "adaptor")
        seen = get_subobs_by_components(observations, self.adaptor_obs_components, segments)
        self.adapted_state = _predict(self.state_adaptor, memory, seen, own)
        names, probability = self.adaptor_target_components, self.privilege_replace_state_prob
        replaced = _replaced(observations, self.adapted_state, names, segments, probability, inference)
        return _act(super(), replaced, masks, inner, inference, **kwargs)

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
        rest = _without_own(hidden_states, getattr(self, "memory_adaptor", None))
        super().set_hidden_states(rest)  # type: ignore[misc]


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


def _memory_for(model: Any, names: Sequence[str]) -> Memory | None:
    """Return a memory of these components, of the kind and size of the actor's; None where the policy has none."""
    if not model.is_recurrent:
        return None
    rnn, size = model.memory_a.rnn, get_subobs_size(model.obs_segments, names)
    return Memory(size, "gru" if isinstance(rnn, nn.GRU) else "lstm", rnn.num_layers, rnn.hidden_size)


def _network_for(
    model: Any, names: Sequence[str], targets: Sequence[str], memory: Memory | None, settings: Mapping[str, Any]
) -> MlpModel:
    """Return the network from components, or from the output of a memory, to the targets."""
    size = get_subobs_size(model.obs_segments, names) if memory is None else memory.rnn.hidden_size
    return MlpModel(size, output_size=_target_size(model, targets), **{"hidden_sizes": [256, 128], **settings})


def _act(above: Any, observations: Tensor, masks: Any, hidden_states: Any, inference: bool, **kwargs: Any) -> Tensor:
    """Let the next class act, or return its mean."""
    actions: Tensor = (
        above.act_inference(observations)
        if inference
        else above.act(observations, masks=masks, hidden_states=hidden_states, **kwargs)
    )
    return actions


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


def _without_own(hidden_states: Any, memory: Memory | None) -> Any:
    """Give a memory its part of the actor's hidden states, and return the others."""
    if memory is None:
        return hidden_states
    memory.hidden_states, actor = hidden_states.actor
    return hidden_states._replace(actor=actor)


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
