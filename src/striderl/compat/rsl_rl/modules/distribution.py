"""Distributions of a model's output: what the last layer must give, samples, log-probabilities, KL.

distribution            raw output of the layers    params
Gaussian                mean [.., A]                (mean, std); the std is one parameter per action
HeteroscedasticGaussian [.., 2, A]                  (mean, std); both of the observation
Beta                    [.., 2, A]                  (alpha, beta), softplus + 1; stretched to `action_range`

update(raw) ─▶ sample(), mean, std, entropy [..], log_prob(x) [..]        of the last update
kl_divergence(old_params, new_params) [..]                                KL(old ‖ new)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Beta, Normal, kl_divergence
from torch.nn.functional import softplus

Params = tuple[Tensor, ...]
"""The parameters of a distribution, [.., A] each."""


class Distribution(nn.Module):
    """The base of all distributions; a subclass implements every method but `init_mlp_weights`."""

    def __init__(self, output_dim: int) -> None:
        """Take the size A of an output."""
        super().__init__()
        self.output_dim = output_dim

    def update(self, mlp_output: Tensor) -> None:
        """Set the distribution from the raw output of the layers."""
        raise NotImplementedError

    def sample(self) -> Tensor:
        """Return a sample [.., A]."""
        raise NotImplementedError

    def deterministic_output(self, mlp_output: Tensor) -> Tensor:
        """Return the mean [.., A] of a raw output."""
        raise NotImplementedError

    def as_deterministic_output_module(self) -> nn.Module:
        """Return `deterministic_output` as a module that can be scripted."""
        raise NotImplementedError

    @property
    def input_dim(self) -> int | list[int]:
        """The shape that the layers must give."""
        raise NotImplementedError

    @property
    def mean(self) -> Tensor:
        """The mean [.., A]."""
        raise NotImplementedError

    @property
    def std(self) -> Tensor:
        """The standard deviation [.., A]."""
        raise NotImplementedError

    @property
    def entropy(self) -> Tensor:
        """The entropy [..], summed over the outputs."""
        raise NotImplementedError

    @property
    def params(self) -> Params:
        """The parameters, which a storage keeps."""
        raise NotImplementedError

    def log_prob(self, outputs: Tensor) -> Tensor:
        """Return the log-probability [..], summed over the outputs."""
        raise NotImplementedError

    def kl_divergence(self, old_params: Params, new_params: Params) -> Tensor:
        """Return KL(old ‖ new) [..]."""
        raise NotImplementedError

    def init_mlp_weights(self, mlp: nn.Module) -> None:
        """Set weights of the last layer, where the distribution wants that."""


class GaussianDistribution(Distribution):
    """A Gaussian whose standard deviation is a parameter, or a constant."""

    def __init__(
        self,
        output_dim: int,
        init_std: float = 1.0,
        std_range: tuple[float, float] = (1e-6, 1e6),
        std_type: str = "scalar",
        learn_std: bool = True,
    ) -> None:
        """Take the first std and its bounds, as standard deviations whatever the type is.

        std_type: 'scalar' learns the std itself ('std_param'), 'log' its logarithm ('log_std_param').
        """
        super().__init__(output_dim)
        self._set_range(std_type, std_range)
        first = init_std * torch.ones(output_dim)
        if std_type == "scalar":
            self.std_param = nn.Parameter(first, requires_grad=learn_std)
        else:
            self.log_std_param = nn.Parameter(torch.log(first), requires_grad=learn_std)

    def _set_range(self, std_type: str, std_range: Sequence[float]) -> None:
        if std_type not in ("scalar", "log"):
            raise ValueError(f"Unknown standard deviation type: {std_type}. Should be 'scalar' or 'log'.")
        self.std_type = std_type
        self.std_range = [max(float(std_range[0]), 1e-6), float(std_range[1])]
        self.log_std_range = [math.log(bound) for bound in self.std_range]
        self._distribution: Normal | None = None

    def _clamped(self, raw: Tensor) -> Tensor:
        """Return the standard deviation of a raw one, within the range."""
        if self.std_type == "scalar":
            return raw.clamp(self.std_range[0], self.std_range[1])
        return raw.clamp(self.log_std_range[0], self.log_std_range[1]).exp()

    def _set(self, mean: Tensor, std: Tensor) -> None:
        self._distribution = Normal(mean, std.expand_as(mean), validate_args=False)

    def update(self, mlp_output: Tensor) -> None:
        """Set the distribution from means [.., A]."""
        self._set(mlp_output, self._clamped(self.std_param if self.std_type == "scalar" else self.log_std_param))

    def sample(self) -> Tensor:
        """Return a sample [.., A]."""
        return self._last().sample()  # type: ignore[no-any-return]

    def deterministic_output(self, mlp_output: Tensor) -> Tensor:
        """Return the means."""
        return mlp_output

    def as_deterministic_output_module(self) -> nn.Module:
        """Return the identity."""
        return nn.Identity()

    @property
    def input_dim(self) -> int | list[int]:
        """The layers give one mean per output."""
        return self.output_dim

    @property
    def mean(self) -> Tensor:
        """The mean [.., A]."""
        return self._last().mean  # type: ignore[no-any-return]

    @property
    def std(self) -> Tensor:
        """The standard deviation [.., A]."""
        return self._last().stddev  # type: ignore[no-any-return]

    @property
    def entropy(self) -> Tensor:
        """The entropy [..]."""
        return self._last().entropy().sum(dim=-1)  # type: ignore[no-any-return]

    @property
    def params(self) -> Params:
        """(mean, std), [.., A] each."""
        return self.mean, self.std

    def log_prob(self, outputs: Tensor) -> Tensor:
        """Return the log-probability [..]."""
        return self._last().log_prob(outputs).sum(dim=-1)  # type: ignore[no-any-return]

    def kl_divergence(self, old_params: Params, new_params: Params) -> Tensor:
        """Return KL(old ‖ new) [..] of two Gaussians (mean, std)."""
        old, new = (Normal(mean, std, validate_args=False) for mean, std in (old_params, new_params))
        return kl_divergence(old, new).sum(dim=-1)

    def _last(self) -> Any:
        return _set_before(self._distribution)


class HeteroscedasticGaussianDistribution(GaussianDistribution):
    """A Gaussian whose standard deviation is an output of the layers."""

    def __init__(
        self,
        output_dim: int,
        init_std: float = 1.0,
        std_range: tuple[float, float] = (1e-6, 1e6),
        std_type: str = "scalar",
    ) -> None:
        """Take the first std, which `init_mlp_weights` writes into the bias, and its bounds."""
        Distribution.__init__(self, output_dim)  # without the parameter of the class between
        self._set_range(std_type, std_range)
        self.init_std = init_std

    def update(self, mlp_output: Tensor) -> None:
        """Set the distribution from [.., 2, A]: mean, raw std."""
        mean, raw = mlp_output.unbind(dim=-2)
        self._set(mean, self._clamped(raw))

    def deterministic_output(self, mlp_output: Tensor) -> Tensor:
        """Return the means."""
        return mlp_output[..., 0, :]

    def as_deterministic_output_module(self) -> nn.Module:
        """Return a module that picks the means."""
        return _FirstRow()

    @property
    def input_dim(self) -> int | list[int]:
        """The layers give [2, A]."""
        return [2, self.output_dim]

    def init_mlp_weights(self, mlp: nn.Module) -> None:
        """Let every observation begin with the first std."""
        first = self.init_std if self.std_type == "scalar" else math.log(self.init_std + 1e-7)
        _set_second_half(mlp, self.output_dim, first)


class BetaDistribution(Distribution):
    """A Beta distribution with one peak, stretched to `action_range`."""

    def __init__(self, output_dim: int, action_range: tuple[float, float] = (-1.0, 1.0)) -> None:
        """Take the bounds (low, high) of every output."""
        super().__init__(output_dim)
        self.action_range = action_range
        self._low, self._width = float(action_range[0]), float(action_range[1]) - float(action_range[0])
        self._alpha: Tensor | None = None
        self._beta: Tensor | None = None
        self._distribution: Beta | None = None

    def update(self, mlp_output: Tensor) -> None:
        """Set the distribution from raw concentrations [.., 2, A]."""
        self._alpha, self._beta = (softplus(raw) + 1.0 for raw in mlp_output.unbind(dim=-2))
        self._distribution = Beta(self._alpha, self._beta, validate_args=False)

    def sample(self) -> Tensor:
        """Return a sample [.., A] within `action_range`."""
        return self._last().sample() * self._width + self._low  # type: ignore[no-any-return]

    def deterministic_output(self, mlp_output: Tensor) -> Tensor:
        """Return the mean [.., A] within `action_range`."""
        alpha, beta = (softplus(raw) + 1.0 for raw in mlp_output.unbind(dim=-2))
        return alpha / (alpha + beta) * self._width + self._low

    def as_deterministic_output_module(self) -> nn.Module:
        """Return `deterministic_output` as a module that can be scripted."""
        return _BetaMean(self._width, self._low)

    @property
    def input_dim(self) -> int | list[int]:
        """The layers give [2, A]."""
        return [2, self.output_dim]

    @property
    def mean(self) -> Tensor:
        """The mean [.., A] within `action_range`."""
        return self._last().mean * self._width + self._low  # type: ignore[no-any-return]

    @property
    def std(self) -> Tensor:
        """The standard deviation [.., A], in the units of `action_range`."""
        return self._last().stddev * self._width  # type: ignore[no-any-return]

    @property
    def entropy(self) -> Tensor:
        """The entropy [..] before the stretching, as in rsl_rl."""
        return self._last().entropy().sum(dim=-1)  # type: ignore[no-any-return]

    @property
    def params(self) -> Params:
        """(alpha, beta), [.., A] each."""
        last = self._last()
        return last.concentration1, last.concentration0

    def log_prob(self, outputs: Tensor) -> Tensor:
        """Return the log-density [..] of outputs within `action_range`, the stretching included."""
        shrunk = ((outputs - self._low) / self._width).clamp(1e-6, 1.0 - 1e-6)
        return (self._last().log_prob(shrunk) - math.log(self._width)).sum(dim=-1)  # type: ignore[no-any-return]

    def kl_divergence(self, old_params: Params, new_params: Params) -> Tensor:
        """Return KL(old ‖ new) [..] of two Beta distributions (alpha, beta)."""
        old, new = (Beta(alpha, beta, validate_args=False) for alpha, beta in (old_params, new_params))
        return kl_divergence(old, new).sum(dim=-1)

    def init_mlp_weights(self, mlp: nn.Module) -> None:
        """Let the second concentration begin the same for every observation."""
        _set_second_half(mlp, self.output_dim, 0.0)

    def _last(self) -> Any:
        return _set_before(self._distribution)


# -- inside ------------------------------------------------------------------------------------------------------------


def _set_before(distribution: Any) -> Any:
    if distribution is None:
        raise RuntimeError("the distribution is set by a forward pass with stochastic_output=True; there was none yet")
    return distribution


def _set_second_half(mlp: nn.Module, output_dim: int, bias: float) -> None:
    """Set weights to zero and biases to a number, of the second half of the last linear layer."""
    layer = [each for each in mlp.modules() if isinstance(each, nn.Linear)][-1]
    with torch.no_grad():
        layer.weight[output_dim:] = 0.0
        layer.bias[output_dim:] = bias


class _FirstRow(nn.Module):
    def forward(self, mlp_output: Tensor) -> Tensor:
        return mlp_output[..., 0, :]


class _BetaMean(nn.Module):
    def __init__(self, width: float, low: float) -> None:
        super().__init__()
        self.width, self.low = width, low

    def forward(self, mlp_output: Tensor) -> Tensor:
        alpha = softplus(mlp_output[..., 0, :]) + 1.0
        beta = softplus(mlp_output[..., 1, :]) + 1.0
        return alpha / (alpha + beta) * self.width + self.low
