"""Every action distribution, in closed form; each family lives in a file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.networks.distributions.base import Distribution as Distribution
    from striderl.networks.distributions.base import Hybrid as Hybrid
    from striderl.networks.distributions.beta import BetaDistribution as BetaDistribution
    from striderl.networks.distributions.categorical import Categorical as Categorical
    from striderl.networks.distributions.categorical import MultiDiscrete as MultiDiscrete
    from striderl.networks.distributions.deterministic import Deterministic as Deterministic
    from striderl.networks.distributions.deterministic import QValues as QValues
    from striderl.networks.distributions.gaussian import DiagonalGaussian as DiagonalGaussian
    from striderl.networks.distributions.gaussian import SquashedGaussian as SquashedGaussian

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "base": ["Distribution", "Hybrid"],
        "beta": ["BetaDistribution"],
        "categorical": ["Categorical", "MultiDiscrete"],
        "deterministic": ["Deterministic", "QValues"],
        "gaussian": ["DiagonalGaussian", "SquashedGaussian"],
    },
)
