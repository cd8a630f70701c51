"""Model, Algorithm, Agent and Trainer: training as a generator of log data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.compat.generator.agent import Agent as Agent
    from striderl.compat.generator.algorithm import Algorithm as Algorithm
    from striderl.compat.generator.algorithm import Model as Model
    from striderl.compat.generator.algorithm import Rollout as Rollout
    from striderl.compat.generator.decorators import logger as logger
    from striderl.compat.generator.samples import BufferSamples as BufferSamples
    from striderl.compat.generator.trainer import Trainer as Trainer
    from striderl.compat.generator.trainer import TrainerConfig as TrainerConfig

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "agent": ["Agent"],
        "algorithm": ["Algorithm", "Model", "Rollout"],
        "decorators": ["logger"],
        "samples": ["BufferSamples"],
        "trainer": ["Trainer", "TrainerConfig"],
    },
)
