"""The acting interface used by actors, evaluation and off-policy algorithms: `Policy` and `ActorPolicy` both have it.

`lean_call` and `run_body` run small modules without the bookkeeping around a call, which for a few envs costs more than
the arithmetic. `module(x)` looks for hooks, tracing and a compiled form each time, a few microseconds for each of
twenty modules; with eight envs a whole linear layer takes three. Where none of that is in use, `module.forward(x)` does
the same, with the same kernels and so the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.modules import module as _module

from striderl.data.actions import ActionSpec
from striderl.data.noise import NoiseSpec
from striderl.data.specs import ObsSpec, TensorSpec
from striderl.networks.distributions.base import Distribution
from striderl.networks.heads.base import Head
from striderl.networks.mlp import MlpModel


class Acting(Protocol):
    """Turns observations into distributions of actions, with memory as input and output."""

    obs_spec: ObsSpec
    """All observations of the env."""
    action_spec: ActionSpec
    """The env's actions."""
    head: Head[Any]
    """Makes the distribution."""

    def state_spec(self) -> dict[str, TensorSpec]:
        """Return the spec of one env's memory."""
        ...

    def noise(self) -> dict[str, NoiseSpec]:
        """Return the random numbers that the stages need for each env and step."""
        ...

    def initial_state(self, num_envs: int, device: torch.device | None = None) -> dict[str, Tensor]:
        """Return the memory at the start of an episode."""
        ...

    def decide(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn the noise of one step into the stages' decisions."""
        ...

    def settled(self, like: Tensor) -> dict[str, Tensor]:
        """Return the stages' decisions in deterministic inference."""
        ...

    def act(
        self,
        obs: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        stage_draws: Mapping[str, Tensor],
        resets: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> tuple[Distribution[Any], dict[str, Tensor], dict[str, Tensor]]:
        """Return (distribution, state, aux) for one step [B, …] or a sequence [T, B, …]."""
        ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Return the parameters."""
        ...


# -- small modules -----------------------------------------------------------------------------------------------------


def lean_call(module: nn.Module, *inputs: Any) -> Any:
    """Return module(*inputs), called directly where no hooks are registered."""
    return module(*inputs) if is_watched(module) else module.forward(*inputs)


def run_body(body: MlpModel, features: Tensor) -> Tensor:
    """Return body(features), layer by layer where no hooks are registered."""
    layers = body.model
    fits = features.shape[-1] == body.input_size and features.is_floating_point()
    if not fits or is_watched(body) or is_watched(layers) or _any_global_hook():
        output: Tensor = body(features)
        return output
    for layer in layers._modules.values():
        assert layer is not None
        if is_watched(layer):
            features = layer(features)
        elif type(layer) is nn.Linear and "forward" not in layer.__dict__:
            parameters = layer._parameters
            features = linear(features, parameters["weight"], parameters["bias"])  # type: ignore[arg-type]
        else:
            features = layer.forward(features)
    return features


def _any_global_hook() -> bool:
    return bool(_module._has_any_global_hook())  # type: ignore[no-untyped-call]


def is_watched(module: nn.Module) -> bool:
    """Return whether a call of the module does more than its forward."""
    found = module.__dict__  # attributes of a module are looked up in several dicts; these are in the first
    return bool(
        found["_forward_hooks"]
        or found["_forward_pre_hooks"]
        or found["_backward_hooks"]
        or found["_backward_pre_hooks"]
        or module._compiled_call_impl is not None
    )
