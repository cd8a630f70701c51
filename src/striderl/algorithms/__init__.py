"""Algorithms: pure losses and targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.algorithms.a2c import A2C as A2C
    from striderl.algorithms.a2c import A2CConfig as A2CConfig
    from striderl.algorithms.ppo import PPO as PPO
    from striderl.algorithms.ppo import PPOConfig as PPOConfig
    from striderl.algorithms.reinforce import REINFORCE as REINFORCE
    from striderl.algorithms.reinforce import REINFORCEConfig as REINFORCEConfig

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "a2c": [
            "A2C",
            "A2CConfig",
        ],
        "ppo": [
            "PPO",
            "PPOConfig",
        ],
        "reinforce": [
            "REINFORCE",
            "REINFORCEConfig",
        ],
    },
)
