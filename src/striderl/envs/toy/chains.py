"""Tasks whose values are geometric series: a chain to walk, a clock that truncates, and one that terminates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from striderl.data.actions import DiscreteSpec
from striderl.data.specs import ObsSpec
from striderl.envs.toy.base import State, ToyEnv, ToyOutcome, one_hot
from striderl.envs.vec_env import Actions, Obs


@dataclass(frozen=True, kw_only=True)
class ChainConfig:
    """Length and ending of a `Chain`."""

    num_states: int = 5
    """Places in a row; walks start at the first, and the last one pays."""
    terminates: bool = True
    """End the episode on arrival at the last place; otherwise it may be stayed at, and pays in every step."""
    max_episode_length: int = 0
    """Steps after which an episode is truncated; 0 for never, which needs `terminates`."""

    def __post_init__(self) -> None:
        if self.num_states < 2:
            raise ValueError(f"a chain has at least 2 states, found {self.num_states}")
        if not self.terminates and self.max_episode_length <= 0:
            raise ValueError("a chain that does not terminate needs a max_episode_length, or its episodes never end")


class Chain(ToyEnv):
    """Walk left (0) or right (1) along a row of states; each step that ends in the last state pays 1.

    0 ── 1 ── 2 ── 3 ── [4]         observation: the state as one-hot; left of state 0 is state 0
    """

    SAVED_NAME: ClassVar[str] = "Chain"

    def __init__(
        self,
        num_envs: int,
        device: str | torch.device = "cpu",
        *,
        config: ChainConfig | None = None,
        first_env_index: int = 0,
    ) -> None:
        self.config = config or ChainConfig()
        super().__init__(
            num_envs,
            device,
            obs_spec=ObsSpec.from_flat(self.config.num_states),
            action_spec=DiscreteSpec(n=2),
            max_episode_length=self.config.max_episode_length,
            first_env_index=first_env_index,
        )

    def value(self, gamma: float) -> Tensor:
        """Return the value of every state [num_states] for 'always right', which is the best policy.

        From state s the last state is reached with the k-th step, k = num_states - 1 - s. If that ends the episode,
        V = gamma^(k - 1), and the last state itself has no future. If it does not, 1 is paid in every step from then
        on: V = gamma^(k - 1) / (1 - gamma), and 1 / (1 - gamma) in the last state; truncation does not change that.
        """
        steps = torch.arange(self.config.num_states - 1, -1, -1, dtype=torch.float64)
        arrival = gamma ** (steps - 1.0)
        if self.config.terminates:
            return torch.where(steps > 0, arrival, 0.0)
        return torch.where(steps > 0, arrival, 1.0) / (1.0 - gamma)

    def optimal_return(self) -> float:
        """Return the undiscounted sum of rewards of an episode of 'always right'."""
        to_the_end, limit = self.config.num_states - 1, self.config.max_episode_length
        if self.config.terminates:
            return 1.0 if limit == 0 or limit >= to_the_end else 0.0
        return float(max(0, limit - to_the_end + 1))

    def _start(self, words: Tensor) -> State:
        return {"place": torch.zeros_like(words[:, 0])}

    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        assert isinstance(actions, Tensor)
        last = self.config.num_states - 1
        place = (state["place"] + 2 * actions - 1).clamp(0, last)
        there = place == last
        return ToyOutcome({"place": place}, there.float(), there & self.config.terminates, self._never(), {})

    def _observe(self, state: State) -> Obs:
        return {"obs": one_hot(state["place"], self.config.num_states)}


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """Length of a `TimeLimit` or `Terminator` episode."""

    num_steps: int = 10
    """Steps per episode."""

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise ValueError(f"an episode has at least one step, found num_steps={self.num_steps}")


class TimeLimit(ToyEnv):
    """Reward 1 in every step, and only the clock ends an episode: the true value is 1 / (1 - gamma) everywhere.

    The observation is a constant 1, so it does not show how near the end is. A learner that treats the time-out as a
    termination finds lower values, one that bootstraps from the wrong observation does not converge.
    """

    SAVED_NAME: ClassVar[str] = "TimeLimit"

    def __init__(
        self,
        num_envs: int,
        device: str | torch.device = "cpu",
        *,
        config: ProbeConfig | None = None,
        first_env_index: int = 0,
    ) -> None:
        self.config = config or ProbeConfig()
        super().__init__(
            num_envs,
            device,
            obs_spec=ObsSpec.from_flat(1),
            action_spec=DiscreteSpec(n=2),
            max_episode_length=self.config.num_steps,
            first_env_index=first_env_index,
        )

    def value(self, gamma: float) -> float:
        """Return the value under any policy, 1 / (1 - gamma)."""
        return 1.0 / (1.0 - gamma)

    def optimal_return(self) -> float:
        """Return the sum of rewards of one truncated episode."""
        return float(self.config.num_steps)

    def _start(self, words: Tensor) -> State:
        return {}

    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        return ToyOutcome({}, torch.ones(self.num_envs, device=self.device), self._never(), self._never(), {})

    def _observe(self, state: State) -> Obs:
        return {"obs": torch.ones(self.num_envs, 1, device=self.device)}


class Terminator(ToyEnv):
    """Reward 1 in every step, and the task ends after k steps; observation: the step as one-hot [k].

    With j steps left the value is (1 - gamma^j) / (1 - gamma).
    """

    SAVED_NAME: ClassVar[str] = "Terminator"

    def __init__(
        self,
        num_envs: int,
        device: str | torch.device = "cpu",
        *,
        config: ProbeConfig | None = None,
        first_env_index: int = 0,
    ) -> None:
        self.config = config or ProbeConfig()
        super().__init__(
            num_envs,
            device,
            obs_spec=ObsSpec.from_flat(self.config.num_steps),
            action_spec=DiscreteSpec(n=2),
            max_episode_length=0,
            first_env_index=first_env_index,
        )

    def value(self, gamma: float) -> Tensor:
        """Return the value of every step [k] under any policy; the first is that of a whole episode."""
        left = torch.arange(self.config.num_steps, 0, -1, dtype=torch.float64)
        return (1.0 - gamma**left) / (1.0 - gamma)

    def optimal_return(self) -> float:
        """Return the sum of rewards of one episode."""
        return float(self.config.num_steps)

    def _start(self, words: Tensor) -> State:
        return {}

    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        ended = state["length"] + 1 >= self.config.num_steps
        return ToyOutcome({}, torch.ones(self.num_envs, device=self.device), ended, self._never(), {})

    def _observe(self, state: State) -> Obs:
        return {"obs": one_hot(state["length"], self.config.num_steps)}
