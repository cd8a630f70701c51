"""Gymnasium's MuJoCo locomotion tasks in batched form, by name.

    env = TASKS["half_cheetah"](HalfCheetahConfig(num_envs=64))

Each has the settings, the models and the rules of Gymnasium's v5 and gives the same numbers for the same state and
actions; only the random numbers of resets are striderl's own, from the same distributions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from striderl.envs.mujoco.locomotion_base import Locomotion
from striderl.envs.mujoco.locomotion_planar import (
    HalfCheetah,
    HalfCheetahConfig,
    Hopper,
    HopperConfig,
    Walker2d,
    Walker2dConfig,
)
from striderl.envs.mujoco.locomotion_spatial import Ant, AntConfig, Humanoid, HumanoidConfig

__all__ = [
    "CONFIGS",
    "TASKS",
    "Ant",
    "AntConfig",
    "HalfCheetah",
    "HalfCheetahConfig",
    "Hopper",
    "HopperConfig",
    "Humanoid",
    "HumanoidConfig",
    "Walker2d",
    "Walker2dConfig",
]

TASKS: dict[str, Callable[[Any], Locomotion]] = {
    "half_cheetah": HalfCheetah,
    "hopper": Hopper,
    "walker2d": Walker2d,
    "ant": Ant,
    "humanoid": Humanoid,
}
"""The class of each task."""

CONFIGS = {
    "half_cheetah": HalfCheetahConfig,
    "hopper": HopperConfig,
    "walker2d": Walker2dConfig,
    "ant": AntConfig,
    "humanoid": HumanoidConfig,
}
"""The settings of each task."""
