"""Building blocks of the models."""

from striderl.compat.rsl_rl.modules.cnn import CNN as CNN
from striderl.compat.rsl_rl.modules.distribution import BetaDistribution as BetaDistribution
from striderl.compat.rsl_rl.modules.distribution import Distribution as Distribution
from striderl.compat.rsl_rl.modules.distribution import GaussianDistribution as GaussianDistribution
from striderl.compat.rsl_rl.modules.distribution import (
    HeteroscedasticGaussianDistribution as HeteroscedasticGaussianDistribution,
)
from striderl.compat.rsl_rl.modules.mlp import MLP as MLP
from striderl.compat.rsl_rl.modules.normalization import (
    EmpiricalDiscountedVariationNormalization as EmpiricalDiscountedVariationNormalization,
)
from striderl.compat.rsl_rl.modules.normalization import EmpiricalNormalization as EmpiricalNormalization
from striderl.compat.rsl_rl.modules.rnn import RNN as RNN
from striderl.compat.rsl_rl.modules.rnn import HiddenState as HiddenState
