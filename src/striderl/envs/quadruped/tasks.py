"""The quadruped tasks by name.

env = QUADRUPED_TASKS["quadruped_rough"](QUADRUPED_CONFIGS["quadruped_rough"](num_envs=256))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from striderl.envs.quadruped.base import QuadrupedConfig, QuadrupedEnv
from striderl.envs.quadruped.parkour import Parkour, ParkourConfig
from striderl.envs.quadruped.velocity import (
    Quadruped,
    QuadrupedBlind,
    QuadrupedBlindConfig,
    QuadrupedDepth,
    QuadrupedDepthConfig,
    QuadrupedRough,
    QuadrupedRoughConfig,
    QuadrupedVelocityConfig,
)

__all__ = [
    "QUADRUPED_CONFIGS",
    "QUADRUPED_TASKS",
    "Parkour",
    "ParkourConfig",
    "Quadruped",
    "QuadrupedBlind",
    "QuadrupedBlindConfig",
    "QuadrupedDepth",
    "QuadrupedDepthConfig",
    "QuadrupedRough",
    "QuadrupedRoughConfig",
    "QuadrupedVelocityConfig",
]

QUADRUPED_TASKS: dict[str, Callable[[Any], QuadrupedEnv]] = {
    "quadruped": Quadruped,
    "quadruped_flat": Quadruped,
    "quadruped_rough": QuadrupedRough,
    "quadruped_blind": QuadrupedBlind,
    "quadruped_depth": QuadrupedDepth,
    "parkour": Parkour,
}
"""The class of each task; 'quadruped' is another name of 'quadruped_flat'."""

QUADRUPED_CONFIGS: dict[str, type[QuadrupedConfig]] = {
    "quadruped": QuadrupedVelocityConfig,
    "quadruped_flat": QuadrupedVelocityConfig,
    "quadruped_rough": QuadrupedRoughConfig,
    "quadruped_blind": QuadrupedBlindConfig,
    "quadruped_depth": QuadrupedDepthConfig,
    "parkour": ParkourConfig,
}
"""The settings of each task."""
