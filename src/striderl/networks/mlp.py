"""A stack of linear layers.

Nonlinearities by name, from one table.

Names are those of the robot-learning libraries ('elu', 'lrelu') and of torch's classes ('LeakyReLU'), in any case.
'crelu' raises: one library built ReLU for it, its successor CELU, and the paper's CReLU doubles the width.

Linear layers with our own kernels, where they are faster: in compiled code on a GPU, in TF32 or bfloat16.

Anywhere else (on the CPU, in whole float32 or float64, in eager code, for a nonlinearity without a kernel, where the
slope of a network is itself differentiated) torch runs the layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from striderl.data.naming import unknown
from striderl.ops.returns import has_triton


class MlpModel(nn.Module):
    """Linear layers with a nonlinearity after each hidden one, and an optional linear layer at the end.

    With `output_size` the last layer is linear; without it the output is the last hidden layer after its nonlinearity,
    as encoders need it. No hidden sizes and no output size leave the input as it is.
    Shape: [..., input_size] -> [..., output_size], any leading dimensions.
    """

    def __init__(
        self,
        input_size: int,
        hidden_sizes: int | Sequence[int] | None,
        output_size: int | None = None,
        nonlinearity: Nonlinearity = nn.ReLU,
    ) -> None:
        super().__init__()
        hidden = as_sizes(hidden_sizes)
        sizes = [input_size, *hidden, *([] if output_size is None else [output_size])]
        if min(sizes) < 1:
            raise ValueError(f"MlpModel wants layers of at least one unit, found sizes {sizes}")
        layers: list[nn.Module] = []
        for width, size in zip([input_size, *hidden], hidden):
            layers += [nn.Linear(width, size), resolve_nn_activation(nonlinearity)]
        if output_size is not None:
            layers.append(nn.Linear(sizes[-2], output_size))
        self.model = nn.Sequential(*layers)
        self.input_size = input_size
        self._output_size = sizes[-1]
        self._linear_last = output_size is not None
        self._bend = bend_of(resolve_nn_activation(nonlinearity)) if layers else ""

    def forward(self, input: Tensor) -> Tensor:
        """Return the output for [..., input_size]; integers are cast to the dtype of the weights."""
        if input.shape[-1] != self.input_size:
            raise ValueError(f"MlpModel wants inputs [..., {self.input_size}], found {tuple(input.shape)}")
        if not input.is_floating_point():
            input = input.to(weight_dtype(self))
        dtype = dtype_of_kernels(input) if self._bend else None
        if dtype is not None:
            layers = [layer for layer in self.model if isinstance(layer, nn.Linear)]
            return run_layers(layers, self._bend, input, linear_last=self._linear_last, dtype=dtype)
        output: Tensor = self.model(input)
        return output

    @property
    def output_size(self) -> int:
        """The size of the last dimension of the output."""
        return self._output_size


def weight_dtype(module: nn.Module) -> torch.dtype:
    """Return the dtype of the module's first parameter, to which integer inputs are cast."""
    first = _first_parameter(module)
    return torch.get_default_dtype() if first is None else first.dtype


def _first_parameter(module: nn.Module) -> nn.Parameter | None:
    """Return `next(module.parameters())` without its overhead; called in every step."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    for child in module._modules.values():
        found = None if child is None else _first_parameter(child)
        if found is not None:
            return found
    return None


def as_sizes(sizes: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the sizes of hidden layers from one size, several, or None for no layer."""
    if sizes is None:
        return ()
    if isinstance(sizes, int):
        return (sizes,)
    if isinstance(sizes, (str, bytes, float)):
        raise TypeError(f"hidden layers are a whole number, a sequence of them or None, found {sizes!r}")
    return tuple(int(size) for size in sizes)


# -- nonlinearities ----------------------------------------------------------------------------------------------------


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


# -- kernels -----------------------------------------------------------------------------------------------------------


if torch.cuda.is_available() and has_triton():
    from striderl.ops.kernels.mlp import mlp
else:
    mlp = None  # type: ignore[assignment]

BENDS: dict[type[nn.Module], str] = {nn.ELU: "elu", nn.ReLU: "relu", nn.Tanh: "tanh"}
"""Nonlinearities with a kernel."""


def bend_of(nonlinearity: nn.Module) -> str:
    """Return the kernels' name of a nonlinearity; empty if they do not have it."""
    if isinstance(nonlinearity, nn.ELU) and nonlinearity.alpha != 1.0:
        return ""
    return BENDS.get(type(nonlinearity), "")


def dtype_of_kernels(x: Tensor) -> torch.dtype | None:
    """Return in which dtype kernels multiply x, or None where torch does."""
    if mlp is None or not torch.compiler.is_compiling():
        return None
    if not x.is_cuda or x.dtype not in (torch.float32, torch.bfloat16):
        return None
    allowed = kernel_dtype()
    return allowed if x.dtype is torch.float32 or allowed is torch.bfloat16 else None


def kernel_dtype() -> torch.dtype | None:
    """Return the dtype in which products of float32 may be computed by kernels; None where full precision is wanted."""
    # kernels have no second derivative: `torch.func` may need it, for a gradient penalty
    if torch.compiler.is_exporting() or torch._C._functorch.peek_interpreter_stack() is not None:
        return None
    if torch.is_autocast_enabled("cuda"):
        chosen = torch.get_autocast_dtype("cuda")
        return chosen if chosen is torch.bfloat16 else None
    # the new switch: it reads both ways of setting it, and the old one raises where a client has used the new one
    return torch.float32 if torch.backends.cuda.matmul.fp32_precision == "tf32" else None


if mlp is not None:  # declares it to torch's compiler, which takes a second to import
    kernel_dtype = torch.compiler.assume_constant_result(kernel_dtype)  # type: ignore[no-untyped-call]


def run_layers(layers: list[nn.Linear], bend: str, x: Tensor, *, linear_last: bool, dtype: torch.dtype) -> Tensor:
    """Return the layers' output for x [..., IN], with a nonlinearity after each, or after each but the last."""
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    return mlp(x, weights, biases, bend, linear_last=linear_last, dtype=dtype)


def last_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return layer(x), for a layer at the end of a network."""
    dtype = dtype_of_kernels(x)
    if dtype is None:
        output: Tensor = layer(x)
        return output
    return run_layers([layer], "none", x, linear_last=True, dtype=dtype)
