"""A policy and a behaviour as an actor, for learners that replay: no values, no log-probabilities.

obs ──policy.act──▶ distribution ──behaviour──▶ action        the policy's memory before the step is stored when
                                                              sequences are to be replayed with it
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from striderl.collect.actors import Acted, Noise, Obs, RandomActor
from striderl.collect.behaviours import Behaviour
from striderl.data.arena import Columns
from striderl.data.noise import NoiseSpec
from striderl.policies.acting import Acting

_POLICY, _BEHAVIOUR = "policy/", "behaviour/"


class ExploringActor(Protocol):
    """An actor whose exploration is led by how far the run is; `BehaviourActor` and `ParameterNoiseActor` are such."""

    random: bool
    """Whether to act wholly at random."""

    def columns(self) -> Columns:
        """Return what is stored with each step."""
        ...

    def noise(self) -> Mapping[str, NoiseSpec]:
        """Return the random numbers wanted for each env and step."""
        ...

    def initial_state(self, num_envs: int, device: torch.device) -> Any:
        """Return the memory at the start of an episode."""
        ...

    def act(self, obs: Obs, state: Any, noise: Noise) -> Acted:
        """Choose actions."""
        ...

    def at(self, env_steps: int) -> None:
        """Set schedules for this point of the run."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what the exploration has learned, beside what belongs to envs."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with it."""
        ...


class BehaviourActor:
    """Acts with a policy under a behaviour; wholly at random while `random` is true."""

    def __init__(self, policy: Acting, behaviour: Behaviour, *, store_state: bool = False) -> None:
        """With `store_state`, the policy's memory before each step is stored, for replay of sequences."""
        self.policy, self.behaviour, self.store_state = policy, behaviour, store_state
        self.random = False
        """Set by the trainer before learning starts."""
        self._random_actor = RandomActor(policy.action_spec)

    def at(self, env_steps: int) -> None:
        """Set the behaviour's schedules for this point of the run."""
        self.behaviour.at(env_steps)

    def memory_columns(self) -> Columns:
        """Return the policy's memory by the names that it has in this actor's state: for `Replay(state=…)`."""
        return {_POLICY + name: spec for name, spec in self.policy.state_spec().items()}

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: schedules follow from how far the run is."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take nothing."""

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

    def recording(self) -> Hashable:
        """Return what a recording of `act` is good for: steps at random, or all others."""
        return self.random

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


def policy_memory(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return memory that was stored under the names of `BehaviourActor.memory_columns` as the policy takes it."""
    return _inner(stored, _POLICY)


def _inner(values: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
