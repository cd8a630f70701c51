"""Every action distribution, in closed form; each family lives in a file of its own."""

from __future__ import annotations

from striderl._lazy import lazy

__getattr__ = lazy(
    __name__,
    {
        "base": ["Distribution", "Hybrid"],
        "beta": ["BetaDistribution"],
        "categorical": ["Categorical", "MultiDiscrete"],
        "deterministic": ["Deterministic", "QValues"],
        "gaussian": ["DiagonalGaussian", "SquashedGaussian"],
    },
)[0]
