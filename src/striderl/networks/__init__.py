"""Networks: small torch modules, distributions in closed form, heads and normalisers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from striderl._lazy import lazy

if TYPE_CHECKING:
    from striderl.networks.activations import get_activation_Cls as get_activation_Cls
    from striderl.networks.activations import resolve_nn_activation as resolve_nn_activation
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
    from striderl.networks.gaussian_head import GaussianHead as GaussianHead
    from striderl.networks.gaussian_head import SquashedGaussianHead as SquashedGaussianHead
    from striderl.networks.heads import BetaHead as BetaHead
    from striderl.networks.heads import CategoricalHead as CategoricalHead
    from striderl.networks.heads import DeterministicHead as DeterministicHead
    from striderl.networks.heads import HybridHead as HybridHead
    from striderl.networks.heads import MultiDiscreteHead as MultiDiscreteHead
    from striderl.networks.heads import head_for as head_for
    from striderl.networks.initialization import default_init as default_init
    from striderl.networks.initialization import orthogonal_init as orthogonal_init
    from striderl.networks.memory import Memory as Memory
    from striderl.networks.mlp import MlpModel as MlpModel
    from striderl.networks.noisy import NoisyLinear as NoisyLinear
    from striderl.networks.normalizers import EmpiricalNormalization as EmpiricalNormalization
    from striderl.networks.normalizers import Normalize as Normalize
    from striderl.networks.normalizers import Normalizer as Normalizer
    from striderl.networks.q_distributions import CategoricalQHead as CategoricalQHead
    from striderl.networks.q_distributions import ImplicitQuantileHead as ImplicitQuantileHead
    from striderl.networks.q_distributions import QuantileQHead as QuantileQHead
    from striderl.networks.q_distributions import ReturnDistribution as ReturnDistribution
    from striderl.networks.return_normalizers import RewardNormalizer as RewardNormalizer
    from striderl.networks.return_normalizers import ValueNormalizer as ValueNormalizer
    from striderl.networks.running_mean_std import RunningMeanStd as RunningMeanStd
    from striderl.networks.value_heads import QHead as QHead
    from striderl.networks.value_heads import ValueHead as ValueHead

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "activations": [
            "get_activation_Cls",
            "resolve_nn_activation",
        ],
        "conv": [
            "Conv2dHeadModel",
            "Conv2dModel",
            "conv2d_output_shape",
        ],
        "discriminator": [
            "AMPDiscriminator",
        ],
        "distributions": [
            "BetaDistribution",
            "Categorical",
            "Deterministic",
            "DiagonalGaussian",
            "Hybrid",
            "MultiDiscrete",
            "SquashedGaussian",
        ],
        "ensemble": [
            "EnsembleLinear",
            "EnsembleMlp",
        ],
        "gaussian_head": [
            "GaussianHead",
            "SquashedGaussianHead",
        ],
        "heads": [
            "BetaHead",
            "CategoricalHead",
            "DeterministicHead",
            "HybridHead",
            "MultiDiscreteHead",
            "head_for",
        ],
        "initialization": [
            "default_init",
            "orthogonal_init",
        ],
        "memory": [
            "Memory",
        ],
        "mlp": [
            "MlpModel",
        ],
        "noisy": [
            "NoisyLinear",
        ],
        "normalizers": [
            "EmpiricalNormalization",
            "Normalize",
            "Normalizer",
        ],
        "q_distributions": [
            "CategoricalQHead",
            "ImplicitQuantileHead",
            "QuantileQHead",
            "ReturnDistribution",
        ],
        "return_normalizers": [
            "RewardNormalizer",
            "ValueNormalizer",
        ],
        "running_mean_std": [
            "RunningMeanStd",
        ],
        "value_heads": [
            "QHead",
            "ValueHead",
        ],
    },
)
