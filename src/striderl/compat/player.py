"""`Player`: an algorithm as somebody who acts, exploring or greedy, call after call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.collect.actors.base import Acted, Actor
from striderl.collect.actors.policy_actor import GreedyActor, PolicyActor
from striderl.collect.group import NoiseSource
from striderl.training.off_policy import ReplayAlgorithm


class Player:
    """Chooses actions for any number of envs with an algorithm's own exploration, or without."""

    def __init__(self, algorithm: Any, seed: int = 0) -> None:
        """Take an algorithm such as DQN, SAC or PPO; `seed` decides what is drawn."""
        self.algorithm, self.seed = algorithm, seed
        self.explorer: Actor = explorer_of(algorithm)
        self.greedy = GreedyActor(algorithm.policy)
        self.env_step = 0
        """Steps for which exploring actions were chosen; schedules of the exploration follow it."""
        self._source: NoiseSource | None = None
        self._calls = 0

    @torch.no_grad()
    def act(self, obs: Mapping[str, Tensor], memory: Mapping[str, Any] | None, *, exploring: bool) -> Acted:
        """Choose for components [B, …]; memory that is None, or of the other mode, starts anew."""
        first = next(iter(obs.values()))
        count, device = len(first), first.device
        actor = self.explorer if exploring else self.greedy
        start = actor.initial_state(count, device)
        if memory is not None and start:
            start = {name: _given(memory, name, value) for name, value in start.items()}
        if not exploring:
            return actor.act(dict(obs), start, {})
        if isinstance(self.algorithm, ReplayAlgorithm):
            self.algorithm.explore(self.env_step, random=False)
        self.env_step += count
        return actor.act(dict(obs), start, self._noise(count, device))

    def _noise(self, count: int, device: torch.device) -> dict[str, Tensor]:
        if self._source is None or len(self._source.env_index) != count:
            index = torch.arange(count, device=device)
            self._source = NoiseSource(self.explorer.noise(), seed=self.seed, env_index=index)
        self._calls += 1
        return self._source.at(self._calls - 1)


def explorer_of(algorithm: Any) -> Actor:
    """Return who explores for an algorithm: its own actor, or samples of its policy."""
    replays: Any = algorithm if isinstance(algorithm, ReplayAlgorithm) else None
    own: Actor = PolicyActor(algorithm.policy) if replays is None else replays.actor()
    return own


def _given(memory: Mapping[str, Any], name: str, like: Tensor) -> Tensor:
    value = memory.get(name)
    return like if value is None else torch.as_tensor(value, device=like.device, dtype=like.dtype)
