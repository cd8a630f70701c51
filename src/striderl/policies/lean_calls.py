"""Running small modules without the bookkeeping around a call, which for a few envs costs more than the arithmetic.

`module(x)` looks for hooks, tracing and a compiled form each time, a few microseconds for each of twenty modules; with
eight envs a whole linear layer takes three. Where none of that is in use, `module.forward(x)` does the same, with the
same kernels and so the same bits.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.modules import module as _module

from striderl.networks.mlp import MlpModel


def lean_call(module: nn.Module, *inputs: Any) -> Any:
    """Return module(*inputs), called directly where nobody listens to the call."""
    return module(*inputs) if _watched(module) else module.forward(*inputs)


def run_body(body: MlpModel, features: Tensor) -> Tensor:
    """Return body(features), layer by layer where nobody listens."""
    layers = body.model
    fits = features.shape[-1] == body.input_size and features.is_floating_point()
    if not fits or _watched(body) or _watched(layers) or _any_global_hook():
        output: Tensor = body(features)
        return output
    for layer in layers._modules.values():
        assert layer is not None
        if _watched(layer):
            features = layer(features)
        elif type(layer) is nn.Linear and "forward" not in layer.__dict__:
            parameters = layer._parameters
            features = linear(features, parameters["weight"], parameters["bias"])  # type: ignore[arg-type]
        else:
            features = layer.forward(features)
    return features


def _any_global_hook() -> bool:
    return bool(_module._has_any_global_hook())  # type: ignore[no-untyped-call]


def _watched(module: nn.Module) -> bool:
    """Tell whether a call of the module does more than its forward."""
    found = module.__dict__  # attributes of a module are looked up in several places; these lie in the first
    return bool(
        found["_forward_hooks"]
        or found["_forward_pre_hooks"]
        or found["_backward_hooks"]
        or found["_backward_pre_hooks"]
        or module._compiled_call_impl is not None
    )
