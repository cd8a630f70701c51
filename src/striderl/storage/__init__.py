"""Experience in memory: time-major rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.storage.rollout import FinalPool as FinalPool
    from striderl.storage.rollout import RolloutStorage as RolloutStorage

__getattr__, __dir__, __all__ = lazy(__name__, {"rollout": ["FinalPool", "RolloutStorage"]})
