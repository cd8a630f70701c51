"""One-step tasks: bandits with choices, with a number, and with both at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from striderl.data.actions import BoxSpec, DictActionSpec, DiscreteSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.envs.toy.base import State, ToyEnv, ToyOutcome, one_hot
from striderl.envs.vec_env import Actions, Obs


@dataclass(frozen=True, kw_only=True)
class BanditConfig:
    """Which arm of a `Bandit` is right."""

    num_arms: int = 3
    """How many choices there are."""
    best_arm: int = 0
    """The arm that pays, when it is always the same."""
    contextual: bool = False
    """Redraw the arm that pays in every episode and put it in the observation."""

    def __post_init__(self) -> None:
        if not 0 <= self.best_arm < self.num_arms:
            raise ValueError(f"best_arm {self.best_arm} is not one of the arms 0 to {self.num_arms - 1}")


class Bandit(ToyEnv):
    """One arm pays 1 and the others 0; every episode is one step. Observation: the right arm as one-hot, or a 1."""

    SAVED_NAME: ClassVar[str] = "Bandit"

    def __init__(
        self,
        num_envs: int,
        device: str | torch.device = "cpu",
        *,
        config: BanditConfig | None = None,
        first_env_index: int = 0,
    ) -> None:
        self.config = config or BanditConfig()
        super().__init__(
            num_envs,
            device,
            obs_spec=ObsSpec.from_flat(self.config.num_arms if self.config.contextual else 1),
            action_spec=DiscreteSpec(n=self.config.num_arms),
            max_episode_length=0,
            first_env_index=first_env_index,
        )

    def optimal_return(self) -> float:
        """Return what the best policy earns per episode: 1."""
        return 1.0

    def random_return(self) -> float:
        """Return what uniformly random choices earn per episode on average: 1 / arms."""
        return 1.0 / self.config.num_arms

    def _start(self, words: Tensor) -> State:
        if self.config.contextual:
            return {"target": words[:, 0] % self.config.num_arms}
        return {"target": torch.full_like(words[:, 0], self.config.best_arm)}

    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        assert isinstance(actions, Tensor)
        return ToyOutcome({}, (actions == state["target"]).float(), ~self._never(), self._never(), {})

    def _observe(self, state: State) -> Obs:
        if self.config.contextual:
            return {"obs": one_hot(state["target"], self.config.num_arms)}
        return {"obs": torch.ones(self.num_envs, 1, device=self.device)}


@dataclass(frozen=True, kw_only=True)
class ContinuousBanditConfig:
    """The target of a `ContinuousBandit`."""

    target: float = 0.5
    """The number that pays most, when it is always the same; within [-1, 1]."""
    contextual: bool = False
    """Redraw the target in every episode, uniformly in [-1, 1), and put it in the observation."""


class ContinuousBandit(ToyEnv):
    """Reward 1 - (action - target)²; every episode is one step. Observation: the target, or a 1."""

    SAVED_NAME: ClassVar[str] = "ContinuousBandit"

    def __init__(
        self,
        num_envs: int,
        device: str | torch.device = "cpu",
        *,
        config: ContinuousBanditConfig | None = None,
        first_env_index: int = 0,
    ) -> None:
        self.config = config or ContinuousBanditConfig()
        super().__init__(
            num_envs,
            device,
            obs_spec=ObsSpec.from_flat(1),
            action_spec=BoxSpec(shape=(1,), low=-2.0, high=2.0),
            max_episode_length=0,
            first_env_index=first_env_index,
        )

    def optimal_return(self) -> float:
        """Return what the best policy earns per episode: 1."""
        return 1.0

    def _start(self, words: Tensor) -> State:
        drawn = unit_interval(words[:, 0])
        return {"target": drawn if self.config.contextual else torch.full_like(drawn, self.config.target)}

    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        assert isinstance(actions, Tensor)
        reward = 1.0 - (actions[:, 0].float() - state["target"]).square()
        return ToyOutcome({}, reward, ~self._never(), self._never(), {})

    def _observe(self, state: State) -> Obs:
        target = state["target"][:, None]
        return {"obs": target.clone() if self.config.contextual else torch.ones_like(target)}


@dataclass(frozen=True, kw_only=True)
class HybridActionsConfig:
    """The shape of `HybridActions`."""

    num_choices: int = 3
    """How many choices the discrete part has."""
    num_amounts: int = 2
    """How many numbers the continuous part has."""
    masked: bool = False
    """Forbid about half of the wrong choices by an observation component 'choice_mask'."""
    max_episode_length: int = 8
    """Steps per episode, all with the same targets; episodes only truncate."""


class HybridActions(ToyEnv):
    """A dict of actions: name the choice that is shown, and give the amounts that are shown.

    Reward: 1 if the choice is right, less the squared distance of the amounts. So the best return is 1 per step.
    """

    SAVED_NAME: ClassVar[str] = "HybridActions"

    def __init__(
        self,
        num_envs: int,
        device: str | torch.device = "cpu",
        *,
        config: HybridActionsConfig | None = None,
        first_env_index: int = 0,
    ) -> None:
        self.config = config or HybridActionsConfig()
        choices, amounts = self.config.num_choices, self.config.num_amounts
        components = {"choice": ComponentSpec(shape=(choices,)), "amount": ComponentSpec(shape=(amounts,))}
        if self.config.masked:
            components["choice_mask"] = ComponentSpec(shape=(choices,), dtype="bool", group="action_mask")
        mask = "choice_mask" if self.config.masked else ""
        super().__init__(
            num_envs,
            device,
            obs_spec=ObsSpec(components),
            action_spec=DictActionSpec(
                {"choice": DiscreteSpec(n=choices, mask=mask), "amount": BoxSpec(shape=(amounts,), low=-1.0, high=1.0)}
            ),
            max_episode_length=self.config.max_episode_length,
            first_env_index=first_env_index,
            num_words=1 + amounts + choices,
        )

    def optimal_return(self) -> float:
        """Return what the best policy earns per episode: 1 per step."""
        return float(self.config.max_episode_length)

    def _start(self, words: Tensor) -> State:
        choices, amounts = self.config.num_choices, self.config.num_amounts
        choice = words[:, 0] % choices
        allowed = (words[:, 1 + amounts :] % 2 == 0) | (one_hot(choice, choices) > 0)
        return {"choice": choice, "amount": unit_interval(words[:, 1 : 1 + amounts]), "allowed": allowed}

    def _advance(self, state: State, actions: Actions) -> ToyOutcome:
        assert isinstance(actions, dict)
        right = (actions["choice"] == state["choice"]).float()
        reward = right - (actions["amount"].float() - state["amount"]).square().sum(1)
        return ToyOutcome({}, reward, self._never(), self._never(), {})

    def _observe(self, state: State) -> Obs:
        obs = {"choice": one_hot(state["choice"], self.config.num_choices), "amount": state["amount"].clone()}
        if self.config.masked:
            obs["choice_mask"] = state["allowed"].clone()
        return obs


def unit_interval(words: Tensor) -> Tensor:
    """Turn 32 random bits into float32 numbers in [-1, 1)."""
    return (words >> 8).float() * 2.0**-23 - 1.0
