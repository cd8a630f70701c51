"""Heads: features to a distribution of actions; and clipping of actions to the bounds of their spec."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic

import torch
from torch import Tensor, nn

from striderl.data.actions import ActionSpec, BoxSpec, DictActionSpec
from striderl.data.naming import unknown
from striderl.data.noise import NoiseSpec
from striderl.data.specs import TensorSpec, as_shape
from striderl.networks.distributions.base import ActionT, Distribution
from striderl.networks.mlp import last_linear

NO_OBS: Mapping[str, Tensor] = {}
"""For heads that read nothing but features."""


class Head(nn.Module, ABC, Generic[ActionT]):
    """The last part of an actor: features [..., F] in, a distribution over [...] out.

    Heads with action masks read them from the observation by name; all others ignore the observation.
    """

    mask_components: tuple[str, ...] = ()
    """The observation components that `forward` reads."""

    @abstractmethod
    def forward(self, features: Tensor, obs: Mapping[str, Tensor] = NO_OBS) -> Distribution[ActionT]:
        """Return the distribution of actions."""

    @abstractmethod
    def noise_spec(self) -> NoiseSpec | dict[str, NoiseSpec]:
        """Return the noise of a sample for one env and step."""

    def head_noise(self) -> dict[str, NoiseSpec]:
        """Return the noise components that `forward` reads from the observation; most heads read none.

        Without them the head is deterministic: in evaluation and when exported.
        """
        return {}

    @abstractmethod
    def params_spec(self) -> dict[str, TensorSpec]:
        """Return the storage columns of the distribution's parameters."""

    @abstractmethod
    def from_params(self, params: Mapping[str, Tensor]) -> Distribution[ActionT]:
        """Make the distribution from stored parameters."""


def read_mask(obs: Mapping[str, Tensor], component: str) -> Tensor | None:
    """Return the mask of this name, or None when no name is set."""
    if not component:
        return None
    if component not in obs:
        raise KeyError(unknown("action mask", component, obs, where="the observation given to the head"))
    return obs[component]


class ActionClip(nn.Module):
    """Clip actions to the bounds of their spec, part by part; choices and parts without finite bounds pass.

    For actions passed to an env, a user's own loop, an exported program. Storage and log-probabilities are of
    the action that was sampled.
    """

    def __init__(self, spec: ActionSpec) -> None:
        """Precompute the bounds of the bounded parts."""
        super().__init__()
        parts = spec.parts if isinstance(spec, DictActionSpec) else {"": spec}
        self.clipped = tuple(name for name, part in parts.items() if isinstance(part, BoxSpec) and part.is_bounded)
        """The parts that have bounds; a plain action is the part ''."""
        for number, name in enumerate(self.clipped):
            box = parts[name]
            assert isinstance(box, BoxSpec)
            for side, bound in zip(("low", "high"), box.clip_bounds()):
                self.register_buffer(f"{side}_{number}", torch.from_numpy(bound.copy()), persistent=False)

    def forward(self, actions: Tensor | Mapping[str, Tensor]) -> Any:
        """Return actions [..., *shape], or a dict of them, within their bounds; NaN stays NaN."""
        if not self.clipped:
            return actions
        if isinstance(actions, Tensor):
            return self._clip(actions, 0)
        return {
            name: self._clip(value, self.clipped.index(name)) if name in self.clipped else value
            for name, value in actions.items()
        }

    def _clip(self, action: Tensor, number: int) -> Tensor:
        low, high = self.get_buffer(f"low_{number}"), self.get_buffer(f"high_{number}")
        return torch.minimum(torch.maximum(action, low.to(action.dtype)), high.to(action.dtype))


class BoxLayer(nn.Module):
    """A linear layer from features [..., F] to values of an action's shape [..., *shape]."""

    def __init__(self, input_size: int, action_size: int | Sequence[int], num_groups: int = 1) -> None:
        super().__init__()
        self.shape = as_shape(action_size)
        self.size = math.prod(self.shape)
        if self.size < 1 or input_size < 1:
            raise ValueError(f"a head wants at least one feature and one action, found {input_size} and {self.shape}")
        self.linear = nn.Linear(input_size, num_groups * self.size)
        self.num_groups = num_groups

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        """Return `num_groups` tensors of the action's shape."""
        values = last_linear(self.linear, features)
        groups = values.chunk(self.num_groups, dim=-1)
        return tuple(group.reshape(*features.shape[:-1], *self.shape) for group in groups)


def per_entry(
    value: float | Sequence[float], shape: tuple[int, ...], what: str, device: torch.device | None = None
) -> Tensor:
    """Return a float32 tensor of an action's shape from one number, or one per entry (flattened)."""
    if isinstance(value, (int, float)):
        return torch.full(shape, float(value), device=device)
    numbers = torch.tensor([float(number) for number in value], device=device)
    if numbers.numel() != math.prod(shape):
        raise ValueError(f"{what} has {numbers.numel()} numbers for an action of {math.prod(shape)}")
    return numbers.view(shape)


def bounds(
    low: float | Sequence[float], high: float | Sequence[float], shape: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Return finite lower and upper bounds of an action's shape."""
    lower, upper = per_entry(low, shape, "low"), per_entry(high, shape, "high")
    if not bool((lower.isfinite() & upper.isfinite() & (lower < upper)).all()):
        raise ValueError(
            f"this head wants finite bounds with low < high, found low={low}, high={high}; "
            "use the 'gaussian' head for an unbounded box"
        )
    return lower, upper
