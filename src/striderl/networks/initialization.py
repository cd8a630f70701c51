"""Initialisation of weights: torch's default, or orthogonal with a gain per layer.

Orthogonal layers keep the length of what passes through them; the usual choice is sqrt(2) for hidden layers, 0.01 for
the layer that gives actions (so that the first policy hardly moves) and 1 for the one that gives values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from striderl.networks.memory import RecurrentWeights

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def orthogonal_init(module: nn.Module, gain: float | Sequence[float] = math.sqrt(2.0)) -> None:
    """Make the weights of linear and convolution layers orthogonal and their biases zero, in place.

    `gain` is one number for all layers, or one per layer in the order of `module.modules()`. Recurrent weights become
    orthogonal gate by gate with gain 1. Layers of a derived type, such as the one that gives a state-dependent
    standard deviation, have their own initialisation and are skipped.
    """
    layers = [layer for layer in module.modules() if type(layer) in _LAYERS]
    gains = [float(gain)] * len(layers) if isinstance(gain, (int, float)) else [float(one) for one in gain]
    if len(gains) != len(layers):
        raise ValueError(f"{len(gains)} gains for {len(layers)} layers; give one number, or one per layer")
    for layer, one in zip(layers, gains):
        assert isinstance(layer, _LAYERS)
        nn.init.orthogonal_(layer.weight, gain=one)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    for part in module.modules():
        if isinstance(part, RecurrentWeights):
            part.make_orthogonal()


def default_init(module: nn.Module) -> None:
    """Reinitialise every layer as its class does at construction, in place."""
    for layer in module.modules():
        reset = getattr(layer, "reset_parameters", None)
        if reset is not None:
            reset()
