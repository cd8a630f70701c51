"""Heads: features to distributions of actions, or to values."""

from __future__ import annotations

from striderl._lazy import lazy

__getattr__ = lazy(
    __name__,
    {"table": ["BetaHead", "CategoricalHead", "DeterministicHead", "HybridHead", "MultiDiscreteHead", "head_for"]},
)[0]
