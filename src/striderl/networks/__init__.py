"""Networks: small torch modules, distributions in closed form, heads and normalisers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.networks.conv import Conv2dHeadModel as Conv2dHeadModel
    from striderl.networks.conv import Conv2dModel as Conv2dModel
    from striderl.networks.conv import conv2d_output_shape as conv2d_output_shape
    from striderl.networks.discriminator import AMPDiscriminator as AMPDiscriminator
    from striderl.networks.distributions import BetaDistribution as BetaDistribution
    from striderl.networks.distributions import Categorical as Categorical
    from striderl.networks.distributions import Deterministic as Deterministic
    from striderl.networks.distributions import DiagonalGaussian as DiagonalGaussian
    from striderl.networks.distributions import Hybrid as Hybrid
    from striderl.networks.distributions import MultiDiscrete as MultiDiscrete
    from striderl.networks.distributions import SquashedGaussian as SquashedGaussian
    from striderl.networks.ensemble import EnsembleLinear as EnsembleLinear
    from striderl.networks.ensemble import EnsembleMlp as EnsembleMlp
    from striderl.networks.heads.gaussian import GaussianHead as GaussianHead
    from striderl.networks.heads.gaussian import SquashedGaussianHead as SquashedGaussianHead
    from striderl.networks.heads.table import BetaHead as BetaHead
    from striderl.networks.heads.table import CategoricalHead as CategoricalHead
    from striderl.networks.heads.table import DeterministicHead as DeterministicHead
    from striderl.networks.heads.table import HybridHead as HybridHead
    from striderl.networks.heads.table import MultiDiscreteHead as MultiDiscreteHead
    from striderl.networks.heads.table import head_for as head_for
    from striderl.networks.heads.value import CategoricalQHead as CategoricalQHead
    from striderl.networks.heads.value import ImplicitQuantileHead as ImplicitQuantileHead
    from striderl.networks.heads.value import NoisyLinear as NoisyLinear
    from striderl.networks.heads.value import QHead as QHead
    from striderl.networks.heads.value import QuantileQHead as QuantileQHead
    from striderl.networks.heads.value import ReturnDistribution as ReturnDistribution
    from striderl.networks.heads.value import ValueHead as ValueHead
    from striderl.networks.memory import Memory as Memory
    from striderl.networks.mlp import MlpModel as MlpModel
    from striderl.networks.mlp import get_activation_Cls as get_activation_Cls
    from striderl.networks.mlp import resolve_nn_activation as resolve_nn_activation
    from striderl.networks.normalizers import EmpiricalNormalization as EmpiricalNormalization
    from striderl.networks.normalizers import Normalize as Normalize
    from striderl.networks.normalizers import Normalizer as Normalizer
    from striderl.networks.normalizers import RewardNormalizer as RewardNormalizer
    from striderl.networks.normalizers import RunningMeanStd as RunningMeanStd
    from striderl.networks.normalizers import ValueNormalizer as ValueNormalizer

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "conv": ["Conv2dHeadModel", "Conv2dModel", "conv2d_output_shape"],
        "discriminator": ["AMPDiscriminator"],
        "distributions": [
            "BetaDistribution",
            "Categorical",
            "Deterministic",
            "DiagonalGaussian",
            "Hybrid",
            "MultiDiscrete",
            "SquashedGaussian",
        ],
        "ensemble": ["EnsembleLinear", "EnsembleMlp"],
        "heads.gaussian": ["GaussianHead", "SquashedGaussianHead"],
        "heads.table": [
            "BetaHead",
            "CategoricalHead",
            "DeterministicHead",
            "HybridHead",
            "MultiDiscreteHead",
            "head_for",
        ],
        "heads.value": [
            "CategoricalQHead",
            "ImplicitQuantileHead",
            "NoisyLinear",
            "QHead",
            "QuantileQHead",
            "ReturnDistribution",
            "ValueHead",
        ],
        "memory": ["Memory"],
        "mlp": ["MlpModel", "get_activation_Cls", "resolve_nn_activation"],
        "normalizers": [
            "EmpiricalNormalization",
            "Normalize",
            "Normalizer",
            "RewardNormalizer",
            "RunningMeanStd",
            "ValueNormalizer",
        ],
    },
)
