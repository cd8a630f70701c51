"""Algorithms: pure losses and targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.algorithms.ppo import PPO as PPO
    from striderl.algorithms.ppo import PPOConfig as PPOConfig

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "ppo": [
            "PPO",
            "PPOConfig",
        ],
    },
)
