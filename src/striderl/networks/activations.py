"""Nonlinearities by name, from one table.

Names are those of the robot-learning libraries ('elu', 'lrelu') and of torch's classes ('LeakyReLU'), in any case.
'crelu' is refused: one library built ReLU for it, its successor CELU, and the paper's CReLU doubles the width.
"""

from __future__ import annotations

from torch import nn

from striderl.data.naming import unknown

Nonlinearity = str | type[nn.Module]
"""A name of the table, or a class that is built without arguments."""

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "selu": nn.SELU,
    "celu": nn.CELU,
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "lrelu": nn.LeakyReLU,
    "leaky_relu": nn.LeakyReLU,
    "leakyrelu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "swish": nn.SiLU,
    "mish": nn.Mish,
    "softplus": nn.Softplus,
    "softsign": nn.Softsign,
    "tanh": nn.Tanh,
    "hardtanh": nn.Hardtanh,
    "sigmoid": nn.Sigmoid,
    "hardswish": nn.Hardswish,
    "identity": nn.Identity,
    "linear": nn.Identity,
}
"""Every name that settings may use."""


def get_activation_Cls(name: Nonlinearity) -> type[nn.Module]:  # noqa: N802 (the name is public API of the seeds)
    """Return the class of a nonlinearity; a class is returned as it is, an unknown name raises ValueError."""
    if not isinstance(name, str):
        return name
    key = name.lower()
    if key == "crelu":
        raise ValueError(
            "activation 'crelu' is ambiguous: older libraries built 'relu' for it, newer ones 'celu'; say which"
        )
    if key not in ACTIVATIONS:
        raise ValueError(unknown("activation", name, ACTIVATIONS, where="striderl.networks"))
    return ACTIVATIONS[key]


def resolve_nn_activation(name: Nonlinearity) -> nn.Module:
    """Build the nonlinearity of this name."""
    return get_activation_Cls(name)()
