"""Gaussian heads with a standard deviation that is never negative, zero, infinite or NaN.

    raw parameter ─ NaN becomes the floor ─ clamp ─▶ ─ scalar: raw | log: exp(raw) | softplus: log(1 + exp(raw)) ─▶ std

Clamping happens on every read, not after the optimiser step, so no minibatch ever uses a bad value; gradients that lead
back inside the range still pass (`projected_clamp`), so a parameter that stepped out comes back.

A clamp that cannot trap a parameter outside its range.

`torch.clamp` has gradient zero outside the range: a standard deviation that once stepped below its floor stays there
for ever. Passing every gradient through lets it drift away instead. Here only gradients that lead back inside pass:

    value      below low                inside      above high
    forward    low                      value       high
    backward   g where g < 0, else 0    g           g where g > 0, else 0        (descent moves against g)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from striderl.data.naming import unknown
from striderl.data.noise import NoiseSpec
from striderl.data.specs import TensorSpec
from striderl.networks.distributions.gaussian import DiagonalGaussian, SquashedGaussian
from striderl.networks.heads.base import NO_OBS, BoxLayer, Head, bounds, per_entry
from striderl.networks.mlp import Nonlinearity, resolve_nn_activation


class StdForm(NamedTuple):
    """The map from a raw parameter to a standard deviation, and back; both are increasing."""

    to_std: Callable[[Tensor], Tensor]
    to_raw: Callable[[Tensor], Tensor]


STD_TYPES: dict[str, StdForm] = {
    "scalar": StdForm(lambda raw: raw, lambda std: std),
    "log": StdForm(torch.exp, torch.log),
    "softplus": StdForm(functional.softplus, lambda std: std + (-(-std).expm1()).log()),
}
"""The forms a standard deviation may be learned in."""


class ConstantStart(nn.Linear):
    """A linear layer that begins as a constant: zero weights and a given bias."""

    def __init__(self, input_size: int, start: Tensor) -> None:
        self.start = start.flatten().tolist()
        super().__init__(input_size, len(self.start))

    def reset_parameters(self) -> None:
        """Set the weights to zero and the bias to the constant."""
        nn.init.zeros_(self.weight)
        with torch.no_grad():
            self.bias.copy_(torch.tensor(self.start))


class GaussianHead(Head[Tensor]):
    """Features to a diagonal Gaussian; one learned std per action, or one that depends on the features."""

    def __init__(
        self,
        input_size: int,
        action_size: int | Sequence[int],
        std_type: str = "scalar",
        init_std: float | Sequence[float] = 1.0,
        std_range: tuple[float, float] = (1e-6, 1e6),
        min_std: float | Sequence[float] = 0.0,
        state_dependent_std: bool = False,
        mu_activation: Nonlinearity | None = None,
        learn_std: bool = True,
    ) -> None:
        """Build it; `min_std` (one number or one per action) raises the lower end of `std_range`."""
        super().__init__()
        if std_type not in STD_TYPES:
            raise ValueError(unknown("std_type", std_type, STD_TYPES, where="GaussianHead"))
        if state_dependent_std and not learn_std:
            raise ValueError("learn_std=False has no effect on a state-dependent std; drop one of the two")
        self.mean_layer = BoxLayer(input_size, action_size)
        self.mu_activation = nn.Identity() if mu_activation is None else resolve_nn_activation(mu_activation)
        self.std_type, self.state_dependent_std = std_type, state_dependent_std
        shape, form = self.mean_layer.shape, STD_TYPES[std_type]
        start = per_entry(init_std, shape, "init_std")
        low, high = _std_limits(std_range, per_entry(min_std, shape, "min_std"), start)
        self.raw_low: Tensor
        self.raw_high: Tensor
        self.register_buffer("raw_low", form.to_raw(low))
        self.register_buffer("raw_high", form.to_raw(high))
        if state_dependent_std:
            self.std_layer = ConstantStart(input_size, form.to_raw(start))
        else:
            self.std_param = nn.Parameter(form.to_raw(start), requires_grad=learn_std)

    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> DiagonalGaussian:
        """Return the Gaussian for features [..., F]."""
        (mean,) = self.mean_layer(features)
        mean = self.mu_activation(mean)
        raw: Tensor = self.std_layer(features).reshape(mean.shape) if self.state_dependent_std else self.std_param
        std = STD_TYPES[self.std_type].to_std(projected_clamp(raw, self.raw_low, self.raw_high))
        return DiagonalGaussian(mean, std.expand_as(mean), len(self.mean_layer.shape))

    def noise_spec(self) -> NoiseSpec:
        """Return one standard normal number per action."""
        return NoiseSpec(shape=self.mean_layer.shape, kind="normal")

    def params_spec(self) -> dict[str, TensorSpec]:
        """Return the columns of mean and std."""
        spec = TensorSpec(shape=self.mean_layer.shape)
        return {"mean": spec, "std": spec}

    def from_params(self, params: Mapping[str, Tensor]) -> DiagonalGaussian:
        """Make the Gaussian with this mean and std."""
        return DiagonalGaussian(params["mean"], params["std"], len(self.mean_layer.shape))

    @torch.no_grad()
    def clip_std(self, min: float | Sequence[float] | None = None, max: float | Sequence[float] | None = None) -> None:
        """Clip the learned std to [min, max] (one number, or one per action) and repair a NaN parameter.

        Limits beyond those the head was built with do not widen them. A state-dependent std has no parameter to
        clip; its limits are tightened instead, and saved with the rest.
        """
        shape, form, device = self.mean_layer.shape, STD_TYPES[self.std_type], self.raw_low.device
        low, high = self.raw_low, self.raw_high
        _check_clip(min, max, shape)
        if max is not None:
            high = torch.minimum(high, form.to_raw(per_entry(max, shape, "max", device)))
        if min is not None:
            floor = per_entry(min, shape, "min", device).clamp(min=torch.finfo(torch.float32).tiny)
            low = torch.maximum(low, form.to_raw(floor))
        low = torch.minimum(low, high)
        if self.state_dependent_std:
            self.raw_low.copy_(low)
            self.raw_high.copy_(high)
        else:
            self.std_param.copy_(projected_clamp(self.std_param, low, high))


class SquashedGaussianHead(Head[Tensor]):
    """Features to a tanh-squashed Gaussian on a bounded box; the std depends on the features by default."""

    def __init__(
        self,
        input_size: int,
        action_size: int | Sequence[int],
        low: float | Sequence[float] = -1.0,
        high: float | Sequence[float] = 1.0,
        std_type: str = "log",
        init_std: float | Sequence[float] = 1.0,
        std_range: tuple[float, float] = (math.exp(-5.0), math.exp(2.0)),
        min_std: float | Sequence[float] = 0.0,
        state_dependent_std: bool = True,
        learn_std: bool = True,
    ) -> None:
        """Build it; the arguments after the bounds are those of `GaussianHead`, before the squashing."""
        super().__init__()
        self.gaussian = GaussianHead(
            input_size,
            action_size,
            std_type=std_type,
            init_std=init_std,
            std_range=std_range,
            min_std=min_std,
            state_dependent_std=state_dependent_std,
            learn_std=learn_std,
        )
        lower, upper = bounds(low, high, self.gaussian.mean_layer.shape)
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("low", lower, persistent=False)
        self.register_buffer("high", upper, persistent=False)

    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> SquashedGaussian:
        """Return the squashed Gaussian for features [..., F]."""
        inner: DiagonalGaussian = self.gaussian(features)
        return SquashedGaussian(inner.mean, inner.std, self.low, self.high, inner.event_dims)

    def noise_spec(self) -> NoiseSpec:
        """Return one standard normal number per action."""
        return self.gaussian.noise_spec()

    def params_spec(self) -> dict[str, TensorSpec]:
        """Return the columns of mean and std before the squashing."""
        return self.gaussian.params_spec()

    def from_params(self, params: Mapping[str, Tensor]) -> SquashedGaussian:
        """Make the squashed Gaussian with this mean and std."""
        return SquashedGaussian(params["mean"], params["std"], self.low, self.high, self.low.dim())

    def clip_std(self, min: float | Sequence[float] | None = None, max: float | Sequence[float] | None = None) -> None:
        """Clip the std before the squashing to [min, max], as `GaussianHead.clip_std` does."""
        self.gaussian.clip_std(min, max)


def _std_limits(std_range: tuple[float, float], minimum: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lowest and highest std per action; contradictory settings raise."""
    lowest, highest = std_range
    if not 0.0 < lowest < highest or math.isinf(highest):
        raise ValueError(f"std_range must be 0 < low < high < infinity, found {std_range}")
    low = minimum.clamp(min=lowest)
    high = torch.full_like(low, highest)
    if not bool(((low <= start) & (start <= high)).all()):
        raise ValueError(
            f"init_std {start.tolist()} is outside the std's limits: "
            f"from {low.tolist()} (std_range and min_std) to {highest}"
        )
    return low, high


def _check_clip(
    lowest: float | Sequence[float] | None, highest: float | Sequence[float] | None, shape: tuple[int, ...]
) -> None:
    """Raise for limits of `clip_std` that no standard deviation can meet."""
    low = torch.zeros(shape) if lowest is None else per_entry(lowest, shape, "min")
    high = torch.full(shape, torch.inf) if highest is None else per_entry(highest, shape, "max")
    if not bool(((low >= 0.0) & (low < torch.inf) & (high > 0.0) & (low <= high)).all()):
        raise ValueError(f"clip_std wants 0 <= min <= max and max > 0, without NaN, found min={lowest}, max={highest}")


# -- the clamp ---------------------------------------------------------------------------------------------------------


class _ProjectedClamp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(value, low), high)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        value, low, high = ctx.saved_tensors
        grad = grads[0]
        outward = ((value < low) & (grad > 0)) | ((value > high) & (grad < 0))
        return torch.where(outward, torch.zeros_like(grad), grad), None, None


def projected_clamp(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Clamp into [low, high], which broadcast to value; NaN becomes low and passes no gradient."""
    safe = torch.where(value.isnan(), low, value)
    if not (safe.requires_grad and torch.is_grad_enabled()):
        return torch.minimum(torch.maximum(safe, low), high)  # what `forward` does, without the autograd overhead
    result: Tensor = _ProjectedClamp.apply(safe, low, high)  # type: ignore[no-untyped-call]
    return result
