"""Forward and backward as one compiled program, without autograd while it runs: for small networks on the CPU.

    trace once     minibatch ─▶ function ─▶ Σ weight · loss ─▶ torch.autograd.grad ─▶ graph of plain tensor operations
                                                                  │ captured tensors become inputs
    run            [leaves of the minibatch, parameters, …] ─▶ compiled graph ─▶ numbers [K], gradient block per group

`torch.compile` makes two programs with autograd between them, and checks at each call that no Python value it has seen
was changed: of a millisecond that a step of a small Q-network takes, half is spent on that. A joint program has nothing
to check but the layout of the minibatch. The price is the rule of recorded steps (`graphed`): tensors are read where
they lie, so changing them in place works, and every other value is what it was when the step was traced.

The first result, and one of every thousand after it, is compared with the function as it is written; a program that
does not agree is not used any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from striderl.execution.modes import Evaluated, Function, as_written, evaluated
from striderl.execution.parameter_groups import ParameterGroup

Backend = Callable[[fx.GraphModule, list[Tensor]], Callable[..., Sequence[Tensor]]]
"""Compiles a graph for inputs like these."""

MOST = 8
"""How many layouts of minibatches one function is compiled for; with more of them, it is left to `torch.compile`."""
CHECK_EVERY = 1000
"""After how many runs a program is compared with its function again."""
_TOLERANCE = 1e-3


class RefusedError(RuntimeError):
    """A function that cannot become a joint program, with the reason."""


class _Program:
    """A compiled function; returns the numbers, the total, and the gradient block of every group."""

    def __init__(
        self, names: tuple[str, ...], compiled: Callable[..., Sequence[Tensor]], captured: list[Tensor]
    ) -> None:
        self.names = names
        self.num_runs = 0
        self._compiled, self._captured = compiled, captured

    def __call__(self, leaves: list[Tensor]) -> Sequence[Tensor]:
        """Run it without autograd."""
        self.num_runs += 1
        with torch.no_grad():
            return self._compiled(*leaves, *self._captured)


class JointPrograms:
    """Runs functions of minibatches as joint programs and leaves the gradients with the groups."""

    def __init__(self, groups: Mapping[str, ParameterGroup], backend: Backend | None = None) -> None:
        """Compile nothing yet."""
        self._groups = list(groups.values())
        self._backend = backend or _inductor
        self._programs: dict[Any, _Program] = {}
        self._layouts: dict[Function, int] = {}

    def run(self, function: Function, minibatch: Any) -> Evaluated:
        """Put the gradients of the weighted losses in place of the last ones; return the numbers.

        Raises `RefusedError` where the function cannot be compiled so; the gradients are what they were then.
        """
        leaves: list[Tensor] = []
        key = (function, _flattened(minibatch, leaves))
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self._compiled(function, minibatch, leaves)
        results = program(leaves)
        if program.num_runs % CHECK_EVERY == 0:
            _check_agreement(results, self._as_written(function, minibatch)[1])
        numbers, total, *grads = results
        with torch.no_grad():
            for group, grad in zip(self._groups, grads):
                group.flat.grad.copy_(grad)
        return Evaluated(program.names, total, numbers)

    def _compiled(self, function: Function, minibatch: Any, leaves: list[Tensor]) -> _Program:
        count = self._layouts[function] = self._layouts.get(function, 0) + 1
        if as_written(function):
            raise RefusedError("it is to be run as it is written")
        if count > MOST:
            raise RefusedError(f"minibatches have come in more than {MOST} layouts")
        names, wanted = self._as_written(function, minibatch)

        def joint(*inputs: Tensor) -> tuple[Tensor, ...]:
            with _NoValues():  # type: ignore[no-untyped-call]
                return self._as_written(function, _rebuilt(minibatch, iter(inputs)))[1]

        try:
            # each an object of its own: one tensor in two places would become one input, also when they differ later
            graph, captured = _traced(joint, [leaf.detach() for leaf in leaves])
            with torch.no_grad():
                program = _Program(names, self._backend(graph, [*leaves, *captured]), captured)
            found = program(leaves)
        except Exception as error:  # tracing and compiling raise many kinds
            raise RefusedError(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
        _check_agreement(found, wanted)
        return program

    def _as_written(self, function: Function, minibatch: Any) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
        """Return the names of the numbers, and what a program returns."""
        found = evaluated(function, minibatch)
        return found.names, (found.numbers, found.total.detach(), *self._gradients(found.total))

    def _gradients(self, total: Tensor) -> list[Tensor]:
        """Return the gradient block of every group."""
        parameters = [each for group in self._groups for each in group.flat.parameters]
        found = iter(torch.autograd.grad(total, parameters, allow_unused=True))
        return [
            torch.cat(
                [torch.zeros_like(each).view(-1) if grad is None else grad.reshape(-1)
                 for each, grad in zip(group.flat.parameters, found)]
            )
            for group in self._groups
        ]  # fmt: skip


class _NoValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses `item` and `float(tensor)`: the tracer would keep the value of a tensor that is not its own for good."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RefusedError("it asks for the value of a tensor")
        return func(*args, **(kwargs or {}))


def _traced(joint: Callable[..., tuple[Tensor, ...]], leaves: list[Tensor]) -> tuple[fx.GraphModule, list[Tensor]]:
    """Return the graph of the operations, and the tensors besides the leaves that it takes as inputs."""
    from torch.fx.experimental.proxy_tensor import make_fx  # half a second to import

    traced: Any = make_fx(joint, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)
    graph: fx.Graph = traced.graph
    captured: list[Tensor] = []
    inputs: dict[str, fx.Node] = {}
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        name = str(node.target)
        if name not in inputs:
            with graph.inserting_after(last):
                last = inputs[name] = graph.placeholder(f"captured_{len(captured)}")
            captured.append(_attribute(traced, name))
        node.replace_all_uses_with(inputs[name])
        graph.erase_node(node)
    graph.eliminate_dead_code()
    for node in graph.nodes:
        node.meta.clear()  # belongs to the tracer, and would meet the compiler's own
    _check_pure(graph)
    traced.recompile()
    return traced, [tensor.detach() for tensor in captured]


def _attribute(module: nn.Module, name: str) -> Tensor:
    """Return a tensor of a traced module, which keeps parameters, buffers and others in different places."""
    for place in (module._parameters, module._buffers, module.__dict__):
        if isinstance(found := place.get(name), Tensor):
            return found
    raise RefusedError(f"{name} is no tensor")


def _check_pure(graph: fx.Graph) -> None:
    """Refuse a graph that writes to its inputs: a function of a minibatch changes nothing."""
    given = {node for node in graph.nodes if node.op == "placeholder"}
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        written = [
            value for argument, value in zip(schema.arguments, node.args)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]  # fmt: skip
        if any(value in given for value in written if isinstance(value, fx.Node)):
            raise RefusedError(f"{node.target} changes one of its inputs")


def _check_agreement(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    for one, other in zip(found, wanted):
        # of the finite numbers: beside a NaN, the others must agree all the same
        largest = float(other.detach().nan_to_num(0.0, 0.0, 0.0).abs().max())
        if one.shape != other.shape or not torch.allclose(
            one, other, rtol=_TOLERANCE, atol=_TOLERANCE * largest + 1e-6, equal_nan=True
        ):
            raise RefusedError(
                "the compiled step does not give what the step as it is written gives; has a value that is no tensor "
                "changed since it was compiled?"
            )


def _inductor(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
    import torch._inductor  # a second to import, and only here

    compiled: Callable[..., Sequence[Tensor]] = torch._inductor.compile(graph, [*inputs])
    return compiled


def _flattened(value: Any, leaves: list[Tensor]) -> Any:
    """Collect the tensors; return what a program for them depends on besides their values, to be hashed."""
    if isinstance(value, Tensor):
        leaves.append(value)
        return value.dtype, value.shape, value.stride()
    if isinstance(value, Mapping):
        return tuple((name, _flattened(inner, leaves)) for name, inner in value.items())
    if isinstance(value, (tuple, list)):
        return tuple(_flattened(inner, leaves) for inner in value)
    return value


def _rebuilt(value: Any, leaves: Iterator[Tensor]) -> Any:
    """Put tensors in the place of those that `_flattened` collected."""
    if isinstance(value, Tensor):
        return next(leaves)
    if isinstance(value, Mapping):
        return {name: _rebuilt(inner, leaves) for name, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_rebuilt(inner, leaves) for inner in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_rebuilt(inner, leaves) for inner in value)
    return value
