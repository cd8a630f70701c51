"""The memory of `StatefulPolicy` between calls, and hidden states as nested tuples for older loops.

`FacadeMemory` is the memory of its envs, and the source of its random numbers. A policy keeps its memory in one flat
dict with the env first; older libraries nest tuples and put the layers first:

    {"actor/0_Adapt/hidden": [N, L, H],           ActorCriticHiddenState(
     "actor/1_Estimate/hidden": [N, L, H],            actor=AdaptorActorHiddenState(
     "actor/2_Remember/hidden": [N, L, H],                adaptor=[L, N, H],
     "actor/2_Remember/cell": [N, L, H],                  actor=EstimatorActorHiddenState(
     "critic/0_Remember/hidden": [N, L, H]}                   estimator=[L, N, H],
                                                              actor=LstmHiddenState(hidden=[L, N, H], cell=[L, N, H]))),
                                                      critic=[L, N, H])

A level that a policy does not have is left out: without adaptor and estimator `actor` is the LSTM's or the GRU's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from striderl.data.named_tuples import namedarraytuple
from striderl.data.noise import NoiseSpec, draw_all
from striderl.policies.facade.inputs import as_dones
from striderl.policies.policy import Policy
from striderl.policies.stage import Pipeline


class FacadeMemory:
    """The memory of N envs between steps; it begins with the first step, whatever N is then."""

    def __init__(self, policy: Policy, seed: int) -> None:
        self.policy = policy
        self.state: dict[str, Tensor] = {}
        self._seed, self._draws = seed, 0

    def at(
        self, part: str, hidden_states: Any, masks: Tensor | None, resets: Tensor | None, lead: tuple[int, ...]
    ) -> dict[str, Tensor]:
        """Return the state that a call begins with: the given one for a minibatch, else the kept one."""
        if not self.policy.state_spec():
            return {}
        if hidden_states is not None:
            unpack = actor_state if part == "actor" else critic_state
            return unpack(self.policy, hidden_states)
        if masks is not None or resets is not None or len(lead) != 1:
            raise ValueError(
                f"a recurrent policy takes a step [N, …] at a time, found leading shape {lead}; "
                "give hidden_states with a minibatch [T, B, …]"
            )
        if not self.state:
            self.state = self.policy.initial_state(lead[0])
        num_envs = len(next(iter(self.state.values())))
        if num_envs != lead[0]:
            raise ValueError(
                f"the memory holds {num_envs} envs and the observations {lead[0]}; call reset() in between"
            )
        return self.state

    def reset(self, dones: Any) -> None:
        """Reset the envs where `dones` [N], of any dtype, is not zero; all without it."""
        if dones is None:
            self.state = {}
            return
        finished = as_dones(dones)
        for name, value in self.state.items():
            if len(finished) != len(value):
                raise ValueError(f"dones has {len(finished)} entries for a memory of {len(value)} envs")
            mask = finished.to(value.device).view(-1, *[1] * (value.dim() - 1))
            self.state[name] = torch.where(mask, torch.zeros_like(value), value)

    def draw(self, specs: Mapping[str, NoiseSpec], lead: tuple[int, ...], device: torch.device) -> dict[str, Tensor]:
        """Draw fresh numbers for any leading shape; the same seed and the same calls give the same numbers."""
        self._draws += 1
        rows = torch.arange(math.prod(lead), device=device)
        found = draw_all(specs, seed=self._seed, iteration=self._draws, env_index=rows, num_steps=1)
        return {name: value[0].reshape(*lead, *value.shape[2:]) for name, value in found.items()}


# -- hidden states as tuples -------------------------------------------------------------------------------------------


LstmHiddenState = namedarraytuple("LstmHiddenState", ["hidden", "cell"])
ActorCriticHiddenState = namedarraytuple("ActorCriticHiddenState", ["actor", "critic"])
EstimatorActorHiddenState = namedarraytuple("EstimatorActorHiddenState", ["estimator", "actor"])
AdaptorActorHiddenState = namedarraytuple("AdaptorActorHiddenState", ["adaptor", "actor"])


class _Owners(NamedTuple):
    """The stages of one list that have a memory, '' where there is none."""

    adaptor: str
    estimator: str
    own: str


def to_hidden_states(policy: Policy, state: Mapping[str, Tensor]) -> Any:
    """Return the state of a policy, [N, L, H] each, as an `ActorCriticHiddenState` of [L, N, H]."""
    return ActorCriticHiddenState(_pack(policy.actor, "actor", state), _pack(policy.critic, "critic", state))


def actor_hidden_states(policy: Policy, state: Mapping[str, Tensor]) -> Any:
    """Return the actor's part alone, of a state that need not have the critic's."""
    return _pack(policy.actor, "actor", state)


def from_hidden_states(policy: Policy, hidden_states: Any) -> dict[str, Tensor]:
    """Return the flat state of an `ActorCriticHiddenState`."""
    return {**actor_state(policy, hidden_states.actor), **critic_state(policy, hidden_states.critic)}


def actor_state(policy: Policy, hidden: Any) -> dict[str, Tensor]:
    """Return the flat state of the actor's hidden states; of an `ActorCriticHiddenState`, its actor's."""
    return _unpack(policy.actor, "actor", hidden.actor if isinstance(hidden, ActorCriticHiddenState) else hidden)


def critic_state(policy: Policy, hidden: Any) -> dict[str, Tensor]:
    """Return the flat state of the critic's hidden states; of an `ActorCriticHiddenState`, its critic's."""
    return _unpack(policy.critic, "critic", hidden.critic if isinstance(hidden, ActorCriticHiddenState) else hidden)


def _owners(pipeline: Pipeline) -> _Owners:
    """Find the memories of a list; the tuples have room for one of each kind."""
    found = {"Adapt": "", "Estimate": "", "Remember": ""}
    for name, stage in pipeline.named_stages():
        if not stage.state_spec():
            continue
        kind = name.partition("_")[2]
        if kind not in found or found[kind]:
            raise ValueError(
                f"the memories of this policy, among them that of stage {name!r}, do not fit hidden-state tuples; "
                "use the policy's own state, a dict of tensors"
            )
        found[kind] = name
    return _Owners(found["Adapt"], found["Estimate"], found["Remember"])


def _pack(pipeline: Pipeline, part: str, state: Mapping[str, Tensor]) -> Any:
    owners = _owners(pipeline)
    packed = _pack_one(f"{part}/{owners.own}", state) if owners.own else None
    if owners.estimator:
        packed = EstimatorActorHiddenState(_pack_one(f"{part}/{owners.estimator}", state), packed)
    if owners.adaptor:
        packed = AdaptorActorHiddenState(_pack_one(f"{part}/{owners.adaptor}", state), packed)
    return packed


def _pack_one(prefix: str, state: Mapping[str, Tensor]) -> Any:
    hidden = state[f"{prefix}/hidden"].transpose(-3, -2)
    if f"{prefix}/cell" not in state:
        return hidden
    return LstmHiddenState(hidden, state[f"{prefix}/cell"].transpose(-3, -2))


def _unpack(pipeline: Pipeline, part: str, hidden: Any) -> dict[str, Tensor]:
    owners = _owners(pipeline)
    state: dict[str, Tensor] = {}
    if owners.adaptor:
        state |= _unpack_one(f"{part}/{owners.adaptor}", hidden.adaptor)
        hidden = hidden.actor
    if owners.estimator:
        state |= _unpack_one(f"{part}/{owners.estimator}", hidden.estimator)
        hidden = hidden.actor
    if owners.own:
        state |= _unpack_one(f"{part}/{owners.own}", hidden)
    return state


def _unpack_one(prefix: str, hidden: Any) -> dict[str, Tensor]:
    if isinstance(hidden, Tensor):
        return {f"{prefix}/hidden": hidden.transpose(-3, -2)}
    first, second = hidden  # an LstmHiddenState, or torch's own pair
    return {f"{prefix}/hidden": first.transpose(-3, -2), f"{prefix}/cell": second.transpose(-3, -2)}
