"""Networks: small torch modules, distributions in closed form, heads and normalisers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.networks.conv import Conv2dHeadModel as Conv2dHeadModel
    from striderl.networks.conv import Conv2dModel as Conv2dModel
    from striderl.networks.conv import conv2d_output_shape as conv2d_output_shape
    from striderl.networks.discriminator import AMPDiscriminator as AMPDiscriminator
    from striderl.networks.distributions import Categorical as Categorical
    from striderl.networks.distributions import MultiDiscrete as MultiDiscrete
    from striderl.networks.memory import Memory as Memory
    from striderl.networks.mlp import MlpModel as MlpModel
    from striderl.networks.mlp import get_activation_Cls as get_activation_Cls
    from striderl.networks.mlp import resolve_nn_activation as resolve_nn_activation
    from striderl.networks.normalizers import EmpiricalNormalization as EmpiricalNormalization
    from striderl.networks.normalizers import Normalize as Normalize
    from striderl.networks.normalizers import Normalizer as Normalizer
    from striderl.networks.normalizers import RunningMeanStd as RunningMeanStd

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "conv": ["Conv2dHeadModel", "Conv2dModel", "conv2d_output_shape"],
        "discriminator": ["AMPDiscriminator"],
        "distributions": ["Categorical", "MultiDiscrete"],
        "memory": ["Memory"],
        "mlp": ["MlpModel", "get_activation_Cls", "resolve_nn_activation"],
        "normalizers": ["EmpiricalNormalization", "Normalize", "Normalizer", "RunningMeanStd"],
    },
    unlisted={
        "distributions": ["BetaDistribution", "Deterministic", "DiagonalGaussian", "Hybrid", "SquashedGaussian"],
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
        "normalizers": ["RewardNormalizer", "ValueNormalizer"],
    },
)
