"""A policy and a behaviour as an actor, for learners that replay: no values, no log-probabilities.

obs ──policy.act──▶ distribution ──behaviour──▶ action        the policy's memory before the step is stored when
                                                              sequences are to be replayed with it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.collect.actors import Acted, Noise, Obs, RandomActor
from striderl.collect.behaviours import Behaviour
from striderl.data.arena import Columns
from striderl.data.noise import NoiseSpec
from striderl.policies.acting import Acting

_POLICY, _BEHAVIOUR = "policy/", "behaviour/"


class BehaviourActor:
    """Acts with a policy under a behaviour; wholly at random while `random` is true."""

    def __init__(self, policy: Acting, behaviour: Behaviour, *, store_state: bool = False) -> None:
        """With `store_state`, the policy's memory before each step is stored, for replay of sequences."""
        self.policy, self.behaviour, self.store_state = policy, behaviour, store_state
        self.random = False
        """Set by the trainer before learning starts."""
        self._random_actor = RandomActor(policy.action_spec)

    def columns(self) -> Columns:
        """Return the policy's memory, if it is wanted."""
        return {"state": dict(self.policy.state_spec())} if self.store_state else {}

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the noise of the stages, of noisy layers, of the behaviour, and of a random start."""
        random = {f"random/{name}": spec for name, spec in self._random_actor.noise().items()}
        mine = self.behaviour.noise(self.policy.head)
        return {**self.policy.noise(), **self.policy.head.head_noise(), **mine, **random}

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return the memory of both at the start of an episode."""
        mine = self.behaviour.initial_state(num_envs, device)
        return {
            **{_POLICY + name: value for name, value in self.policy.initial_state(num_envs, device).items()},
            **{_BEHAVIOUR + name: value for name, value in mine.items()},
        }

    def act(self, obs: Obs, state: Any, noise: Noise) -> Acted:
        """Run the policy, then the behaviour; or choose at random, the memory going on all the same."""
        before = _inner(state, _POLICY)
        seen = {**obs, **{name: noise[name] for name in self.policy.head.head_noise()}}
        distribution, after, _ = self.policy.act(seen, before, self.policy.decide(noise))
        actions, mine = self.behaviour(obs, _inner(state, _BEHAVIOUR), distribution, noise)
        if self.random:
            actions = self._random_actor.act(obs, (), _inner(noise, "random/")).actions
        new = {**{_POLICY + k: v for k, v in after.items()}, **{_BEHAVIOUR + k: v for k, v in mine.items()}}
        return Acted(actions, new, {"state": before} if self.store_state else {})


def _inner(values: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
