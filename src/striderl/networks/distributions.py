"""Every action distribution in one place; each family lives in a file of its own."""

from striderl.networks.beta import BetaDistribution
from striderl.networks.categorical import Categorical, MultiDiscrete
from striderl.networks.deterministic import Deterministic, QValues
from striderl.networks.distribution import Distribution
from striderl.networks.gaussian import DiagonalGaussian, SquashedGaussian
from striderl.networks.hybrid import Hybrid

__all__ = [
    "BetaDistribution",
    "Categorical",
    "Deterministic",
    "DiagonalGaussian",
    "Distribution",
    "Hybrid",
    "MultiDiscrete",
    "QValues",
    "SquashedGaussian",
]
