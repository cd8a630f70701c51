"""What the recipes have to reach: a row of the learning table each, see learning.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a recipe has to reach, and within how many steps."""

    title: str
    """What the row is called."""
    recipe: tuple[str, str]
    """Task and algorithm."""
    steps: int
    """Env steps of training, whatever the recipe's own budget is."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the envs that differ from the recipe's; none of them changes what is learned."""
    target: float
    gymnasium: str = ""
    """The id of the same task in Gymnasium, where the greedy policy is tried as well; empty if there is none."""
    seeds: tuple[int, ...] = (0, 1, 2)
    metric: str = "return_mean"
    """What is compared with the target, by its name in an evaluation."""
    unit: str = ""
    lower_is_better: bool = False
    digits: int = 0
    """How many of them are printed behind the point."""

    def reached(self, value: float) -> bool:
        """Tell whether a value is as good as the target."""
        return value <= self.target if self.lower_is_better else value >= self.target

    def text(self, value: float) -> str:
        """Return a value as it is printed."""
        return f"{value:,.{self.digits}f}".replace("-", "−")


ONE_THREAD = {"num_threads": 1}
"""For simulated robots, so that several runs do not fight for cores; results do not depend on it."""

GOALS: Mapping[str, Goal] = {
    "cartpole": Goal(
        title="CartPole-v1, PPO",
        recipe=("cartpole", "ppo"),
        gymnasium="CartPole-v1",
        steps=100_000,
        target=475.0,
        seeds=(0, 1, 2, 3, 4),
    ),
    "pendulum": Goal(
        title="Pendulum-v1, PPO",
        recipe=("pendulum", "ppo"),
        gymnasium="Pendulum-v1",
        steps=200_000,
        target=-200.0,
        seeds=(0, 1, 2, 3, 4),
    ),
    "half_cheetah": Goal(
        title="HalfCheetah-v5, PPO",
        recipe=("half_cheetah", "ppo"),
        settings=ONE_THREAD,
        gymnasium="HalfCheetah-v5",
        steps=1_000_000,
        target=1500.0,
    ),
    "quadruped": Goal(
        title="Quadruped on flat ground, PPO, tracking error",
        recipe=("quadruped", "ppo"),
        steps=1_000_000,
        target=0.15,
        metric="tracking_error",
        unit=" m/s",
        lower_is_better=True,
        digits=3,
    ),
    "cartpole_dqn": Goal(
        title="CartPole-v1, DQN",
        recipe=("cartpole", "dqn"),
        gymnasium="CartPole-v1",
        steps=50_000,
        target=475.0,
        seeds=(0, 1, 2, 3, 4),
    ),
    "pendulum_sac": Goal(
        title="Pendulum-v1, SAC",
        recipe=("pendulum", "sac"),
        gymnasium="Pendulum-v1",
        steps=10_000,
        target=-200.0,
        seeds=(0, 1, 2, 3, 4),
    ),
    "pendulum_td3": Goal(
        title="Pendulum-v1, TD3",
        recipe=("pendulum", "td3"),
        gymnasium="Pendulum-v1",
        steps=15_000,
        target=-200.0,
        seeds=(0, 1, 2, 3, 4),
    ),
    "half_cheetah_sac": Goal(
        title="HalfCheetah-v5, SAC",
        recipe=("half_cheetah", "sac"),
        settings=ONE_THREAD,
        gymnasium="HalfCheetah-v5",
        steps=100_000,
        target=3000.0,
        seeds=(1, 2),
    ),
    "half_cheetah_sac_long": Goal(
        title="HalfCheetah-v5, SAC, long",
        recipe=("half_cheetah", "sac"),
        settings=ONE_THREAD,
        gymnasium="HalfCheetah-v5",
        steps=300_000,
        target=5000.0,
        seeds=(0,),
    ),
    "hopper": Goal(
        title="Hopper-v5, PPO",
        recipe=("hopper", "ppo"),
        settings=ONE_THREAD,
        gymnasium="Hopper-v5",
        steps=1_000_000,
        target=1500.0,
    ),
    "walker2d": Goal(
        title="Walker2d-v5, PPO",
        recipe=("walker2d", "ppo"),
        settings=ONE_THREAD,
        gymnasium="Walker2d-v5",
        steps=1_000_000,
        target=1500.0,
    ),
    "ant": Goal(
        title="Ant-v5, PPO",
        recipe=("ant", "ppo"),
        settings=ONE_THREAD,
        gymnasium="Ant-v5",
        steps=1_000_000,
        target=1000.0,
    ),
    "cartpole_a2c": Goal(
        title="CartPole-v1, A2C", recipe=("cartpole", "a2c"), gymnasium="CartPole-v1", steps=500_000, target=475.0
    ),
    "cartpole_reinforce": Goal(
        title="CartPole-v1, REINFORCE",
        recipe=("cartpole", "reinforce"),
        gymnasium="CartPole-v1",
        steps=500_000,
        target=475.0,
    ),
}
"""The rows, in the order of the table."""
USUAL = ("cartpole", "pendulum", "half_cheetah", "quadruped")
"""The rows that are trained unless others are asked for."""
