"""The other heads, and the one table that selects a head for an action spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec, DiscreteSpec, MultiDiscreteSpec
from striderl.data.naming import unknown
from striderl.data.noise import NoiseSpec
from striderl.data.specs import TensorSpec, as_shape
from striderl.networks.distributions.base import Hybrid, stretch
from striderl.networks.distributions.beta import BetaDistribution, beta_noise
from striderl.networks.distributions.categorical import Categorical, MultiDiscrete
from striderl.networks.distributions.deterministic import Deterministic
from striderl.networks.heads.base import NO_OBS, BoxLayer, Head, bounds, read_mask
from striderl.networks.heads.gaussian import GaussianHead, SquashedGaussianHead


class BetaHead(Head[Tensor]):
    """Features to Beta actions on a bounded box; both concentrations are min_concentration + softplus, capped."""

    def __init__(
        self,
        input_size: int,
        action_size: int | Sequence[int],
        low: float | Sequence[float] = -1.0,
        high: float | Sequence[float] = 1.0,
        min_concentration: float = 1.0,
        max_concentration: float = 1e4,
    ) -> None:
        """Build it; at least 1 keeps one peak inside the bounds, the cap keeps the std above 1/300 of the range."""
        super().__init__()
        if not 0.0 < min_concentration < max_concentration:
            raise ValueError(
                "BetaHead wants 0 < min_concentration < max_concentration, "
                f"found {min_concentration} and {max_concentration}"
            )
        self.layer = BoxLayer(input_size, action_size, num_groups=2)
        self.min_concentration, self.max_concentration = min_concentration, max_concentration
        lower, upper = bounds(low, high, self.layer.shape)
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("low", lower, persistent=False)
        self.register_buffer("high", upper, persistent=False)

    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> BetaDistribution:
        """Return the Beta distribution for features [..., F]."""
        alpha, beta = (
            (functional.softplus(raw) + self.min_concentration).clamp(max=self.max_concentration)
            for raw in self.layer(features)
        )
        return BetaDistribution(alpha, beta, self.low, self.high, self.low.dim())

    def noise_spec(self) -> NoiseSpec:
        """Return the noise: the proposals of two Gamma numbers per action."""
        return beta_noise(self.layer.shape)

    def params_spec(self) -> dict[str, TensorSpec]:
        """Return the columns of alpha and beta."""
        spec = TensorSpec(shape=self.layer.shape)
        return {"alpha": spec, "beta": spec}

    def from_params(self, params: Mapping[str, Tensor]) -> BetaDistribution:
        """Make the Beta with these concentrations."""
        return BetaDistribution(params["alpha"], params["beta"], self.low, self.high, self.low.dim())


class CategoricalHead(Head[Tensor]):
    """Features to one choice out of n; `mask` names the observation component with the allowed choices."""

    def __init__(self, input_size: int, num_actions: int, mask: str = "") -> None:
        super().__init__()
        self.layer = nn.Linear(input_size, num_actions)
        self.num_actions, self.mask = num_actions, mask
        self.mask_components = (mask,) if mask else ()

    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> Categorical:
        """Return the distribution of choices for features [..., F]."""
        return Categorical.from_logits(self.layer(features), read_mask(obs, self.mask))

    def noise_spec(self) -> NoiseSpec:
        """Return one Gumbel number per choice."""
        return NoiseSpec(shape=(self.num_actions,), kind="gumbel")

    def params_spec(self) -> dict[str, TensorSpec]:
        """Return the column of masked log-probabilities."""
        return {"log_probs": TensorSpec(shape=(self.num_actions,))}

    def from_params(self, params: Mapping[str, Tensor]) -> Categorical:
        """Make the distribution with these log-probabilities."""
        return Categorical(params["log_probs"])


class MultiDiscreteHead(Head[Tensor]):
    """Features to several choices at once; `mask` names the component with the allowed ones of all, in a row."""

    def __init__(self, input_size: int, nvec: Sequence[int], mask: str = "") -> None:
        super().__init__()
        self.nvec = as_shape(tuple(nvec))
        self.layer = nn.Linear(input_size, sum(self.nvec))
        self.mask = mask
        self.mask_components = (mask,) if mask else ()

    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> MultiDiscrete:
        """Return the distribution of the choices for features [..., F]."""
        return MultiDiscrete.from_logits(self.layer(features), self.nvec, read_mask(obs, self.mask))

    def noise_spec(self) -> NoiseSpec:
        """Return one Gumbel number per alternative."""
        return NoiseSpec(shape=(sum(self.nvec),), kind="gumbel")

    def params_spec(self) -> dict[str, TensorSpec]:
        """Return the column of masked log-probabilities, in one row."""
        return {"log_probs": TensorSpec(shape=(sum(self.nvec),))}

    def from_params(self, params: Mapping[str, Tensor]) -> MultiDiscrete:
        """Make the distribution with these log-probabilities."""
        return MultiDiscrete(params["log_probs"], self.nvec)


class DeterministicHead(Head[Tensor]):
    """Features to one action: tanh stretched to the bounds, or the plain linear output without them."""

    def __init__(
        self,
        input_size: int,
        action_size: int | Sequence[int],
        low: float | Sequence[float] | None = None,
        high: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if (low is None) != (high is None):
            raise ValueError(f"DeterministicHead wants both bounds or none, found low={low}, high={high}")
        self.layer = BoxLayer(input_size, action_size)
        self.bounded = low is not None and high is not None
        lower, upper = bounds(-1.0 if low is None else low, 1.0 if high is None else high, self.layer.shape)
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("low", lower, persistent=False)
        self.register_buffer("high", upper, persistent=False)

    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> Deterministic:
        """Return the action for features [..., F]."""
        (value,) = self.layer(features)
        if self.bounded:
            value = stretch(0.5 * (value.tanh() + 1.0), self.low, self.high)
        return Deterministic(value, self.low.dim())

    def noise_spec(self) -> NoiseSpec:
        """Return noise of size zero."""
        return NoiseSpec(shape=(0,), kind="normal")

    def params_spec(self) -> dict[str, TensorSpec]:
        """Return the column of the value."""
        return {"value": TensorSpec(shape=self.layer.shape)}

    def from_params(self, params: Mapping[str, Tensor]) -> Deterministic:
        """Make the distribution that gives this value."""
        return Deterministic(params["value"], self.low.dim())


class HybridHead(Head[dict[str, Tensor]]):
    """Features to named parts, each by a head of its own."""

    def __init__(self, parts: Mapping[str, Head[Tensor]]) -> None:
        super().__init__()
        if any("." in name for name in parts):
            raise ValueError(f"names of action parts cannot hold a dot, found {sorted(parts)}")
        self.names = tuple(parts)
        # with a prefix, because a part may be called 'type' or 'values', which `ModuleDict` reserves
        self.parts = nn.ModuleDict({_key(name): part for name, part in parts.items()})
        self.mask_components = tuple(dict.fromkeys(name for part in parts.values() for name in part.mask_components))

    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> Hybrid:
        """Return the distribution of all parts for features [..., F]."""
        return Hybrid({name: self.parts[_key(name)](features, obs) for name in self.names})

    def noise_spec(self) -> dict[str, NoiseSpec]:
        """Return the noise of each part."""
        specs: dict[str, NoiseSpec] = {}
        for name, part in self._heads().items():
            spec = part.noise_spec()
            assert isinstance(spec, NoiseSpec)  # parts are plain
            specs[name] = spec
        return specs

    def params_spec(self) -> dict[str, TensorSpec]:
        """Return the columns of all parts, named 'part/parameter'."""
        return {
            f"{name}/{key}": spec for name, part in self._heads().items() for key, spec in part.params_spec().items()
        }

    def from_params(self, params: Mapping[str, Tensor]) -> Hybrid:
        """Make all parts from stored parameters."""
        return Hybrid(
            {
                name: part.from_params({key: params[f"{name}/{key}"] for key in part.params_spec()})
                for name, part in self._heads().items()
            }
        )

    def _heads(self) -> dict[str, Head[Tensor]]:
        heads: dict[str, Head[Tensor]] = {}
        for name in self.names:
            part = self.parts[_key(name)]
            assert isinstance(part, Head)
            heads[name] = part
        return heads


def _key(name: str) -> str:
    return f"part_{name}"


BoxHead = Callable[[int, BoxSpec], Head[Tensor]]
"""Builds a head for real-valued actions from the number of features and the spec."""


def _gaussian(input_size: int, spec: BoxSpec) -> Head[Tensor]:
    return GaussianHead(input_size, spec.shape)


def _squashed(input_size: int, spec: BoxSpec) -> Head[Tensor]:
    return SquashedGaussianHead(input_size, spec.shape, spec.low, spec.high)


def _beta(input_size: int, spec: BoxSpec) -> Head[Tensor]:
    return BetaHead(input_size, spec.shape, spec.low, spec.high)


def _deterministic(input_size: int, spec: BoxSpec) -> Head[Tensor]:
    low, high = spec.bounds()
    bounded = bool(abs(low).max(initial=0.0) < float("inf")) and bool(abs(high).max(initial=0.0) < float("inf"))
    if bounded:
        return DeterministicHead(input_size, spec.shape, spec.low, spec.high)
    return DeterministicHead(input_size, spec.shape)


BOX_HEADS: dict[str, BoxHead] = {
    "gaussian": _gaussian,
    "squashed_gaussian": _squashed,
    "beta": _beta,
    "deterministic": _deterministic,
}
"""Heads for real-valued actions by name, with their default settings."""


def head_for(action_spec: ActionSpec, input_size: int, *, box: str | BoxHead = "gaussian") -> Head[Any]:
    """Build the head for an action spec.

    `box` selects the head of real-valued actions: a name of `BOX_HEADS`, or a function for your own settings, such
    as `lambda size, spec: GaussianHead(size, spec.shape, init_std=0.5)`.
    """
    if isinstance(action_spec, DictActionSpec):
        parts = {name: head_for(part, input_size, box=box) for name, part in action_spec.parts.items()}
        return HybridHead(parts)
    if isinstance(action_spec, DiscreteSpec):
        return CategoricalHead(input_size, action_spec.n, action_spec.mask)
    if isinstance(action_spec, MultiDiscreteSpec):
        return MultiDiscreteHead(input_size, action_spec.nvec, action_spec.mask)
    if isinstance(box, str):
        if box not in BOX_HEADS:
            raise ValueError(unknown("box head", box, BOX_HEADS, where="striderl.networks"))
        box = BOX_HEADS[box]
    return box(input_size, action_spec)
