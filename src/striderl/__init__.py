"""striderl: one reinforcement-learning library for robots and beyond."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl import _moved
from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.data.batch import Batch as Batch
    from striderl.envs.tasks import make as make
    from striderl.front_door import load as load
    from striderl.front_door import register as register
    from striderl.front_door import train as train
    from striderl.training.agent import Agent as Agent

__version__ = "0.1.0.dev0"

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "data.batch": ["Batch"],
        "envs.tasks": ["make"],
        "front_door": ["load", "register", "train"],
        "training.agent": ["Agent"],
    },
)

_moved.install()
