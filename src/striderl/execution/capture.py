"""`check_capture`: check that a part can be traced once and replayed.

A part that runs inside a captured region is replayed without Python: whatever it decides, draws or stores in Python
happens once, while it is traced, and never again. So before a part is used:

    1  eager, watched      no host reads, no shapes that depend on values, no draws, no writes to what it was given;
                           the same for its backward pass
    2  traced              torch.compile(fullgraph=True) finds one whole graph, and runs it on new inputs
                           without tracing again
    3  eager again         the same result as before: it depends on its inputs alone and stores nothing
    4  compared            the traced program equals eager on the fresh inputs
    5  CUDA graph          where the inputs are on a GPU: captured, replayed on fresh inputs, equal to eager

A number that a part reads from a global or a module and that never changes is a constant and fine; one that changes
shows in step 2, by name, or in step 3.

Capture a part as a CUDA graph and replay it on new inputs.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, nn

from striderl.data import tree
from striderl.execution.capture_watch import CaptureError, CaptureWatch, user_place
from striderl.ops.trajectories import static_shapes

__all__ = ["CaptureError", "CaptureReport", "check_capture"]


@dataclass(frozen=True, kw_only=True)
class CaptureReport:
    """The result of a check."""

    name: str
    """The part."""
    num_ops: int
    """How many torch operations one eager run has, its backward pass included."""
    num_nodes: int
    """How many calls the traced program has."""
    backward: bool
    """Whether gradients flow, so that the backward pass was watched too."""
    cuda_graph: bool
    """Whether a real CUDA graph was captured and replayed."""
    max_difference: float
    """The largest |traced - eager| over all outputs on fresh inputs."""


@static_shapes()
def check_capture(
    function: Callable[..., Any],
    example_inputs: Sequence[Any],
    *,
    fresh_inputs: Sequence[Any] | None = None,
    atol: float = 0.0,
    rtol: float = 0.0,
    name: str = "",
) -> CaptureReport:
    """Check that `function(*inputs)` can be captured; raise CaptureError naming the part, the op and the line if not.

    Inputs and outputs are nested tensors. `fresh_inputs` have the same structure, shapes and dtypes; without them the
    example's rows are rolled by one and its real numbers scaled by 3/4. Nothing given here is changed.
    """
    part = name or _name_of(function)
    example = _copied(tuple(example_inputs))
    fresh = _rolled(example) if fresh_inputs is None else _copied(tuple(fresh_inputs))
    _require_same_layout(part, example, fresh)
    first, num_ops, backward = _watched(part, function, example)
    graphs: list[torch.fx.GraphModule] = []
    found = _replayed(part, _traced(function, graphs), example, fresh)
    _compare(part, function(*_copied(example)), first, atol, rtol, "a second eager run", _NOT_PURE)
    wanted = function(*_copied(fresh))
    difference = _compare(part, found, wanted, atol, rtol, "the traced program on fresh inputs", _STALE)
    on_gpu = any(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in tree.leaves(example))
    if on_gpu:
        found = replay_as_cuda_graph(part, function, _copied(example), fresh)
        difference = max(
            difference, _compare(part, found, wanted, atol, rtol, "the CUDA graph on fresh inputs", _STALE)
        )
    return CaptureReport(
        name=part,
        num_ops=num_ops,
        num_nodes=sum(node.op.startswith("call") for graph in graphs for node in graph.graph.nodes),
        backward=backward,
        cuda_graph=on_gpu,
        max_difference=difference,
    )


_NOT_PURE = "it depends on something besides its inputs: a global, a counter, or something it keeps on a module"
_STALE = "something was decided in Python while it was traced and is not decided again in a replay"


# -- the eager run -----------------------------------------------------------------------------------------------------


def _watched(part: str, function: Callable[..., Any], example: tuple[Any, ...]) -> tuple[Any, int, bool]:
    """Run forward and backward under the watch; return (outputs, number of ops, whether there was a backward)."""
    inputs = _copied(example)
    modules = _modules_behind(function)
    watch = CaptureWatch(part, inputs, modules)
    before = _kept(modules)
    with watch.running():
        outputs = function(*inputs)
        differentiable = [
            leaf for leaf in tree.leaves(outputs) if isinstance(leaf, Tensor) and leaf.grad_fn is not None
        ]
        parameters = watch.parameters()
        if differentiable and parameters:
            ones = [torch.ones_like(leaf) for leaf in differentiable]
            torch.autograd.grad(differentiable, parameters, ones, allow_unused=True)
    watch.require_unchanged()
    for place, value in _kept(modules).items():
        if before.get(place) != value:
            raise CaptureError(part, f"'{place}'", "is kept on a module between calls; take it in and give it back")
    return outputs, watch.num_ops, bool(differentiable and parameters)


def _modules_behind(function: Callable[..., Any]) -> list[nn.Module]:
    """Return the modules that a function is, belongs to or closes over."""
    code = getattr(function, "__code__", None)
    held = inspect.getclosurevars(function).nonlocals if isinstance(code, types.CodeType) else {}
    holders = [function, getattr(function, "__self__", None), *held.values()]
    return [holder for holder in holders if isinstance(holder, nn.Module)]


def _kept(modules: list[nn.Module]) -> dict[str, int]:
    """Return the id of every attribute of the modules, by name."""
    found: dict[str, int] = {}
    for root in modules:
        for path, module in root.named_modules():
            own = {**vars(module), **module._parameters, **module._buffers, **module._modules}
            found |= {f"{path or type(root).__name__}.{key}": id(value) for key, value in own.items()}
    return found


# -- the traced program ------------------------------------------------------------------------------------------------


def _traced(function: Callable[..., Any], graphs: list[torch.fx.GraphModule]) -> Callable[..., Any]:
    """Return the program that runs one whole graph; what is traced is appended to `graphs`."""

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    def program(*inputs: Any) -> Any:
        return function(*inputs)

    # The compiler caches programs by code object. A fresh one starts empty, and no other cache is dropped.
    code = program.__code__.replace()
    alone = types.FunctionType(code, program.__globals__, "program", None, program.__closure__)
    compiled: Callable[..., Any] = torch.compile(alone, fullgraph=True, dynamic=False, backend=keep)
    return compiled


def _replayed(part: str, traced: Callable[..., Any], example: tuple[Any, ...], fresh: tuple[Any, ...]) -> Any:
    """Trace on the example and run on the fresh inputs; tracing a second time is an error."""
    try:
        with torch._dynamo.config.patch(error_on_recompile=True):
            traced(*_copied(example))
            return traced(*_copied(fresh))
    except torch._dynamo.exc.RecompileError as error:
        guards = [" ".join(line.partition("/0: ")[2].split()) for line in str(error).splitlines() if "/0: " in line]
        reason = "changed between two calls, so the program would be traced again; take it as an input"
        raise CaptureError(part, " and ".join(guards) or str(error), reason) from error
    except torch._dynamo.exc.TorchDynamoException as error:
        problem, _, user_code = str(error).partition("from user code:")
        frames = [line.strip() for line in user_code.partition("\n\n")[0].splitlines() if line.strip(" ^~")]
        reason = f"cannot trace it whole: {problem.strip().splitlines()[0]}"
        raise CaptureError(part, "the compiler", reason, " ".join(frames[-2:])) from error


# -- nested tensors ----------------------------------------------------------------------------------------------------


def _copied(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy every tensor, so that a part that writes changes no input."""

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    return tuple(tree.map(copy, inputs))


def _rolled(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Make other inputs of the same kind: rows stay whole, signs and the order of sizes stay."""

    def change(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        moved = leaf.detach().roll(1, 0) if leaf.dim() else leaf.detach().clone()
        return (moved * 0.75 if leaf.is_floating_point() else moved).requires_grad_(leaf.requires_grad)

    return tuple(tree.map(change, inputs))


def _require_same_layout(part: str, example: tuple[Any, ...], fresh: tuple[Any, ...]) -> None:
    for path, (one, other) in tree.zipped(example, fresh):
        if isinstance(one, Tensor) and (one.shape, one.dtype) != (other.shape, other.dtype):
            raise ValueError(
                f"{part}: fresh input {path!r} is {other.dtype} {list(other.shape)}, "
                f"the example is {one.dtype} {list(one.shape)}; a replay needs the same"
            )


def _compare(part: str, found: Any, wanted: Any, atol: float, rtol: float, what: str, why: str) -> float:
    """Return the largest difference; raise CaptureError for the first output that is further off than allowed."""
    largest = 0.0
    for path, (one, other) in tree.zipped(found, wanted):
        place = f"output {path!r}"
        if not isinstance(other, Tensor):
            if one != other:
                raise CaptureError(part, place, f"is {one} in {what} and {other} before: {why}")
            continue
        if one.shape != other.shape or one.dtype != other.dtype:
            shapes = f"{one.dtype} {list(one.shape)} in {what} and {other.dtype} {list(other.shape)} in eager"
            raise CaptureError(part, place, f"is {shapes}: {why}")
        first, second = one.detach(), other.detach()
        difference = _largest(first, second)
        largest = max(largest, difference)
        if not torch.allclose(first, second, rtol=rtol, atol=atol, equal_nan=True):
            raise CaptureError(part, place, f"differs by {difference:.3g} in {what} (allowed {atol:g}): {why}")
    return largest


def _largest(one: Tensor, other: Tensor) -> float:
    apart = ~((one == other) | ((one != one) & (other != other)))
    if not bool(apart.any()):
        return 0.0
    return float((one.double() - other.double())[apart].abs().max())


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", "") or type(function).__name__
    return str(name)


# -- as a CUDA graph ---------------------------------------------------------------------------------------------------


def replay_as_cuda_graph(part: str, function: Callable[..., Any], static: tuple[Any, ...], fresh: Any) -> Any:
    """Capture `function(*static)`, write the fresh inputs into the static ones, replay and return the outputs.

    A graph reads the addresses it was captured with, so `static` is written to; the outputs are copies.
    """
    current = torch.cuda.current_stream()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(2):  # libraries allocate their workspaces in the first runs, which a capture may not
            function(*static)
    current.wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = function(*static)
    except RuntimeError as error:
        reason = f"refuses: {str(error).splitlines()[0]}"
        raise CaptureError(part, "the CUDA graph", reason, user_place()) from error
    with torch.no_grad():
        for _, (place, value) in tree.zipped(static, fresh):
            if isinstance(place, Tensor):
                place.copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    return tree.map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, outputs)
