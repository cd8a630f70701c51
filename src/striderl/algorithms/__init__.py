"""Algorithms: pure losses and targets, and the terms that are handed to them."""

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
    from striderl.algorithms.terms.estimation import Estimation as Estimation
    from striderl.algorithms.terms.rnd import RandomNetworkDistillation as RandomNetworkDistillation
    from striderl.algorithms.terms.rnd import RNDConfig as RNDConfig
    from striderl.algorithms.terms.symmetry import MirrorTable as MirrorTable
    from striderl.algorithms.terms.symmetry import Symmetry as Symmetry
    from striderl.algorithms.terms.term import Term as Term

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
        "terms.estimation": [
            "Estimation",
        ],
        "terms.rnd": [
            "RNDConfig",
            "RandomNetworkDistillation",
        ],
        "terms.symmetry": [
            "MirrorTable",
            "Symmetry",
        ],
        "terms.term": [
            "Term",
        ],
    },
)
