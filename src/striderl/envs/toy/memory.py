"""Tasks that cannot be solved from the present observation: a cue to remember, and symbols to repeat with a lag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from striderl.data.actions import DiscreteSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.envs.toy.base import State, ToyEnv, ToyOutcome, one_hot
from striderl.envs.vec_env import Actions, Obs


@dataclass(frozen=True, kw_only=True)
class MemoryCueConfig:
    """How hard a `MemoryCue` is."""

    num_cues: int = 3
    """How many different cues there are, and as many actions."""
    delay: int = 5
    """Steps from the cue to the question; 0 asks at once and needs no memory."""


class MemoryCue(ToyEnv):
    """A cue is shown at step 0; at step `delay` a question is asked, and naming the cue pays 1. Then the task ends.

    step      0      1    …   delay
    'cue'     one-hot 0   …   0           (with delay 0 it is still shown)
    'go'      0       0   …   1
    reward    0       0   …   1 if the action is the cue
    """

    SAVED_NAME: ClassVar[str] = "MemoryCue"

    def __init__(
        self,
        num_envs: int,
        device: str | torch.device = "cpu",
        *,
        config: MemoryCueConfig | None = None,
        first_env_index: int = 0,
    ) -> None:
        self.config = config or MemoryCueConfig()
        super().__init__(
            num_envs,
            device,
            obs_spec=ObsSpec({"cue": ComponentSpec(shape=(self.config.num_cues,)), "go": ComponentSpec(shape=(1,))}),
            action_spec=DiscreteSpec(n=self.config.num_cues),
            max_episode_length=0,
            first_env_index=first_env_index,
        )

    def optimal_return(self) -> float:
        """Return what a policy with memory earns per episode: 1."""
        return 1.0

    def memoryless_return(self) -> float:
        """Return the most that a policy without memory earns per episode on average."""
        return 1.0 if self.config.delay == 0 else 1.0 / self.config.num_cues

    def _start(self, words: Tensor) -> State:
        return {"cue": words[:, 0] % self.config.num_cues}

    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        assert isinstance(actions, Tensor)
        asked = state["length"] >= self.config.delay
        right = asked & (actions == state["cue"])
        return ToyOutcome({}, right.float(), asked, self._never(), {})

    def _observe(self, state: State) -> Obs:
        shown = (state["length"] == 0).float()[:, None]
        go = (state["length"] == self.config.delay).float()[:, None]
        return {"cue": one_hot(state["cue"], self.config.num_cues) * shown, "go": go}


@dataclass(frozen=True, kw_only=True)
class RepeatObsConfig:
    """How hard a `RepeatObs` is."""

    num_symbols: int = 4
    """How many different symbols there are, and as many actions."""
    lag: int = 1
    """Name the symbol that was shown this many steps ago; 0 is the present one and needs no memory."""
    num_steps: int = 16
    """Steps per episode, more than the lag; then the task ends."""

    def __post_init__(self) -> None:
        if not 0 <= self.lag < self.num_steps:
            raise ValueError(f"the lag is between 0 and num_steps - 1, found {self.lag} of {self.num_steps}")


class RepeatObs(ToyEnv):
    """A random symbol is shown in every step; naming the one of `lag` steps ago pays 1."""

    SAVED_NAME: ClassVar[str] = "RepeatObs"

    def __init__(
        self,
        num_envs: int,
        device: str | torch.device = "cpu",
        *,
        config: RepeatObsConfig | None = None,
        first_env_index: int = 0,
    ) -> None:
        self.config = config or RepeatObsConfig()
        super().__init__(
            num_envs,
            device,
            obs_spec=ObsSpec.from_flat(self.config.num_symbols),
            action_spec=DiscreteSpec(n=self.config.num_symbols),
            max_episode_length=0,
            first_env_index=first_env_index,
            num_words=self.config.num_steps,
        )

    def optimal_return(self) -> float:
        """Return what a policy with memory earns per episode; the first `lag` steps have nothing to name."""
        return float(self.config.num_steps - self.config.lag)

    def memoryless_return(self) -> float:
        """Return the most that a policy without memory earns per episode on average."""
        return self.optimal_return() / (self.config.num_symbols if self.config.lag else 1)

    def _start(self, words: Tensor) -> State:
        return {"symbols": words % self.config.num_symbols}

    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        assert isinstance(actions, Tensor)
        length, lag = state["length"], self.config.lag
        wanted = state["symbols"].gather(1, (length - lag).clamp(0, self.config.num_steps - 1)[:, None])[:, 0]
        right = (length >= lag) & (actions == wanted)
        return ToyOutcome({}, right.float(), length + 1 >= self.config.num_steps, self._never(), {})

    def _observe(self, state: State) -> Obs:
        # at the very end there is no next symbol: the last observation is all zeros
        length, steps = state["length"], self.config.num_steps
        shown = state["symbols"].gather(1, length.clamp(max=steps - 1)[:, None])[:, 0]
        return {"obs": one_hot(torch.where(length < steps, shown, -1), self.config.num_symbols)}
