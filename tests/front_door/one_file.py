"""Parts of a user, each a few lines, none of them known to the library: tests train with them by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from striderl.algorithms.building import BuildContext, build_actor_critic
from striderl.algorithms.on_policy.ppo import PPO, PPOConfig
from striderl.algorithms.terms.term import Read, Term
from striderl.data.actions import BoxSpec
from striderl.data.specs import ComponentSpec, ObsSpec
from striderl.envs.vec_env import Step, VecEnv
from striderl.loggers.logger import Logger
from striderl.policies.policy import Policy


@dataclass(frozen=True, kw_only=True)
class PointConfig:
    """Settings of the point."""

    size: float = 1.0
    """How far from the goal it starts, at most."""
    weights: dict[str, float] = field(default_factory=lambda: {"distance": 1.0, "effort": 0.1})
    """Weights of the reward."""


class PointRobot(VecEnv):
    """A point that is to go to the origin of a plane."""

    Config = PointConfig

    def __init__(self, config: PointConfig | None = None, num_envs: int = 1, device: str = "cpu") -> None:
        """Make the points."""
        self.config = config or PointConfig()
        self.num_envs, self.device = num_envs, torch.device(device)
        self.obs_spec = ObsSpec({"place": ComponentSpec(shape=(2,))})
        self.action_spec = BoxSpec(shape=(2,), low=-1.0, high=1.0)
        self.info_spec: Mapping[str, Any] = {}
        self.step_dt, self.max_episode_length, self.gives_final_obs = 0.1, 20, True
        self._generator = torch.Generator()
        self._place, self._time = torch.zeros(num_envs, 2), torch.zeros(num_envs, dtype=torch.long)

    def _draw(self) -> Tensor:
        return (torch.rand(self.num_envs, 2, generator=self._generator) * 2.0 - 1.0) * self.config.size

    def reset(self, seed: int | None = None) -> dict[str, Tensor]:
        """Put all points anywhere."""
        if seed is not None:
            self._generator.manual_seed(seed)
        self._place, self._time = self._draw(), torch.zeros_like(self._time)
        return {"place": self._place.clone()}

    def reset_envs(self, mask: Tensor) -> dict[str, Tensor]:
        """Put some points anywhere."""
        self._place = torch.where(mask[:, None], self._draw(), self._place)
        self._time = torch.where(mask, 0, self._time)
        return {"place": self._place.clone()}

    @property
    def episode_length_buf(self) -> Tensor:
        """How old the episodes are."""
        return self._time

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self._time = value.clone()

    def step(self, actions: Tensor) -> Step:
        """Move."""
        moved = self._place + 0.1 * actions
        weights = self.config.weights
        reward = -weights["distance"] * moved.norm(dim=-1) - weights["effort"] * actions.square().sum(-1)
        time = self._time + 1
        truncated = time >= self.max_episode_length
        self._place = torch.where(truncated[:, None], self._draw(), moved)
        self._time = torch.where(truncated, 0, time)
        return Step(
            obs={"place": self._place.clone()},
            reward=reward,
            terminated=torch.zeros_like(truncated),
            truncated=truncated,
            final_obs={"place": moved},
            info={"log": {}},
        )


class GymPoint(gymnasium.Env):
    """The same as a Gymnasium env."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, size: float = 1.0) -> None:
        """Take how far from the goal it starts."""
        self.size = size

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Put it anywhere."""
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-self.size, self.size, 2).astype(np.float32)
        self.time = 0
        return self.place, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move."""
        self.place = self.place + np.float32(0.1) * np.asarray(action, np.float32)
        self.time += 1
        return self.place, -float(np.linalg.norm(self.place)), False, self.time >= 20, {}


def make_points(num_envs: int, device: str = "cpu") -> PointRobot:
    """Make an env by a function."""
    return PointRobot(num_envs=num_envs, device=device)


@dataclass(frozen=True, kw_only=True)
class SignedConfig(PPOConfig):
    """Settings of an algorithm of one's own."""

    rounds: int = 1
    """How often it logs itself."""


class SignedPPO(PPO):
    """An algorithm of one's own: PPO that signs its numbers."""

    Config = SignedConfig
    summary = "PPO with a signature"

    @classmethod
    def build_policy(cls, config: SignedConfig, context: BuildContext) -> Policy:
        """Build the policy alone."""
        return build_actor_critic(context)

    @classmethod
    def build(cls, config: SignedConfig, context: BuildContext, terms: Sequence[Term] = ()) -> SignedPPO:
        """Build it from its config."""
        return cls(cls.build_policy(config, context), config, terms, mode=context.mode, reduce=context.reduce)

    def update(self, *arguments: Any, **named: Any) -> dict[str, Tensor]:
        """Update as PPO does, and sign."""
        return {**super().update(*arguments, **named), "signature": torch.tensor(float(self.config.rounds))}


@dataclass(frozen=True, kw_only=True)
class BonusConfig:
    """Settings of a term of one's own."""

    amount: float = 0.5
    """What each step is paid."""


class Bonus(Term):
    """A term of one's own: a bonus for every step."""

    Config = BonusConfig
    summary = "a bonus for every step"

    def __init__(self, amount: float) -> None:
        """Take the amount."""
        self.amount = amount

    @classmethod
    def build(cls, config: BonusConfig, context: BuildContext) -> Bonus:
        """Build it from its config."""
        return cls(config.amount)

    @property
    def name(self) -> str:
        """Its name."""
        return "bonus"

    def reward_names(self) -> tuple[str, ...]:
        """Name the reward."""
        return ("bonus",)

    def reward(self, read: Read) -> dict[str, Tensor]:
        """Pay it."""
        return {"bonus": torch.where(read.columns["valid"], self.amount, 0.0)}


class LineLogger(Logger):
    """A logger of one's own."""

    patience = 60.0

    def __init__(self, folder: Path) -> None:
        """Take the folder of the run."""
        self.path = Path(folder) / "lines.txt"

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write one line."""
        with self.path.open("a") as file:
            file.write(f"{step} {sorted(numbers)}\n")


class EveryRecord:
    """A callback of one's own: it logs a number."""

    def __call__(self, record: Any) -> Mapping[str, float]:
        """Double the iteration."""
        return {"mine/doubled": 2.0 * record.iteration}


class Wide(nn.Module):
    """A network of one's own."""

    def __init__(self, num_inputs: int) -> None:
        """Build one layer."""
        super().__init__()
        self.output_size = 24
        self.layer = nn.Linear(num_inputs, 24)

    def forward(self, x: Tensor) -> Tensor:
        """Return its features."""
        return torch.tanh(self.layer(x))
