"""What turns features into distributions of actions, or into values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.networks.heads.table import BetaHead as BetaHead
    from striderl.networks.heads.table import CategoricalHead as CategoricalHead
    from striderl.networks.heads.table import DeterministicHead as DeterministicHead
    from striderl.networks.heads.table import HybridHead as HybridHead
    from striderl.networks.heads.table import MultiDiscreteHead as MultiDiscreteHead
    from striderl.networks.heads.table import head_for as head_for

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {"table": ["BetaHead", "CategoricalHead", "DeterministicHead", "HybridHead", "MultiDiscreteHead", "head_for"]},
)
