"""Functions of tensors as compiled programs: traced once, compared with the function, run with no Python in between.

    nested inputs ──flattened──▶ leaves [a, b, …] + layout ──▶ traced graph ──backend──▶ program(leaves)
                                                                   │ captured tensors become inputs
                                                                   ▼
                                                    read where they lie, whenever the program runs

`torch.compile` checks at each call that no Python value it has seen was changed, which for a small network takes longer
than the work. A traced program has nothing to check but the layout of its inputs. The price is the rule of captured
steps (`graphed`): tensors may be changed in place, and every other value is what it was when the function was traced.

A function of nested tensors, without gradients, as compiled programs: acting, drawing, for small work on the CPU.

    inputs (obs, state, noise) ──flattened──▶ leaves ──program of this layout──▶ leaves ──rebuilt──▶ (actions, state, …)

Requirements on the function are as above. There is one program per layout of the inputs and per `key`, which is what
the function decides in Python. The first result, and one of every thousand after it, is compared with the function as
it is written. A function that cannot be compiled, or a program that does not agree, is logged, and from then on the
function runs as it is written.
"""

from __future__ import annotations

import copy
import logging
import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from striderl.execution.background import ProgramRequest, Switch, fall_back

_log = logging.getLogger(__name__)

Backend = Callable[[fx.GraphModule, list[Tensor]], Callable[..., Sequence[Tensor]]]
"""Compiles a graph for inputs like these."""

MOST = 8
"""How many layouts of inputs one function is compiled for."""
CHECK_EVERY = 1000
"""After how many runs a program is compared with its function again; before that, after 2, 4, 8, … of them."""
_TOLERANCE = 1e-3
PURE = "Write it as a pure function of tensors: no values of tensors in Python, nothing changed in place"
"""What mends most refusals."""


class RefusedError(RuntimeError):
    """A function that cannot become a program, with the reason."""

    level = logging.INFO
    """The log level: results are right, only slower."""


class ReadsValueError(RefusedError):
    """A function that reads the value of a tensor, as a memory over windows with resets does: it runs as written."""


class StaleError(RefusedError):
    """A program that has begun to differ from its function: earlier results may have been wrong too."""

    level = logging.WARNING


class Trace:
    """The graph of a function of the leaves of its inputs, with the tensors that it takes from elsewhere."""

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], leaves: list[Tensor]) -> None:
        """Trace a function for leaves like these, or raise `RefusedError`."""
        try:
            # each an object of its own: one tensor in two places would become one input, also when they differ later
            self.graph, used, self._captured = _traced(function, [leaf.detach() for leaf in leaves])
        except Exception as error:  # tracing raises many kinds
            raise _refused(error) from error
        self._used = used if len(used) < len(leaves) else None

    def inputs(self, leaves: list[Tensor]) -> list[Tensor]:
        """Return what the graph reads."""
        read = leaves if self._used is None else [leaves[number] for number in self._used]
        return [*read, *self._captured]

    def compiled(self, leaves: list[Tensor], backend: Backend) -> Callable[[list[Tensor]], Sequence[Tensor]]:
        """Compile the graph now, or raise `RefusedError`."""
        try:
            with torch.no_grad():
                program = backend(self.graph, self.inputs(leaves))
                program(*self.inputs(leaves))
        except Exception as error:  # compiling raises many kinds
            raise _refused(error) from error
        return lambda inputs: program(*inputs)


def _refused(error: Exception) -> RefusedError:
    kind = ReadsValueError if isinstance(error, ReadsValueError) else RefusedError
    return kind(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")


class Program:
    """A compiled function of the leaves of its inputs."""

    def __init__(self, trace: Trace, compiled: Callable[[list[Tensor]], Sequence[Tensor]]) -> None:
        """Take a trace and what it was compiled to."""
        self.num_runs = 0
        self._inputs, self._compiled = trace.inputs, compiled

    def __call__(self, leaves: list[Tensor]) -> Sequence[Tensor]:
        """Run it without autograd."""
        self.num_runs += 1
        if not torch.is_grad_enabled():
            return self._compiled(self._inputs(leaves))
        with torch.no_grad():
            return self._compiled(self._inputs(leaves))

    @property
    def is_due(self) -> bool:
        """Whether the last result is to be compared with that of the function: more often at the beginning."""
        return is_due(self.num_runs)


def is_due(number: int) -> bool:
    """Return whether the result of the run of this number is compared."""
    return number % CHECK_EVERY == 0 or (number < CHECK_EVERY and number & (number - 1) == 0)


# -- inputs ------------------------------------------------------------------------------------------------------------


def flattened(value: Any, leaves: list[Tensor], layout: list[Any]) -> None:
    """Collect the tensors, and what a program for them depends on besides their values; the latter is hashable."""
    if isinstance(value, Tensor):
        leaves.append(value)
        layout += (value.dtype, value.shape, value.stride())
    elif type(value) is dict or isinstance(value, Mapping):
        layout += (dict, len(value))
        for name, inner in value.items():
            layout.append(name)
            flattened(inner, leaves, layout)
    elif isinstance(value, (tuple, list)):
        layout += (tuple, len(value))
        for inner in value:
            flattened(inner, leaves, layout)
    else:
        layout.append(value)


def rebuilt(value: Any, leaves: Iterator[Tensor]) -> Any:
    """Put tensors in the place of those that `flattened` collected."""
    if isinstance(value, Tensor):
        return next(leaves)
    if type(value) is dict or isinstance(value, Mapping):
        return {name: rebuilt(inner, leaves) for name, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(rebuilt(inner, leaves) for inner in value))
    if isinstance(value, (tuple, list)):
        return type(value)(rebuilt(inner, leaves) for inner in value)
    return value


# -- tracing -----------------------------------------------------------------------------------------------------------


class _NoValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises for `item` and `float(tensor)`: the tracer would freeze the value of a tensor from outside."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise ReadsValueError("it asks for the value of a tensor")
        return func(*args, **(kwargs or {}))


def _traced(
    function: Callable[..., tuple[Tensor, ...]], leaves: list[Tensor]
) -> tuple[fx.GraphModule, list[int], list[Tensor]]:
    """Return the graph, the numbers of the leaves that it reads, and the other tensors that it takes as inputs."""
    from torch.fx.experimental.proxy_tensor import make_fx  # half a second to import

    def guarded(*inputs: Tensor) -> tuple[Tensor, ...]:
        with _NoValues():  # type: ignore[no-untyped-call]
            return function(*inputs)

    traced: Any = make_fx(guarded, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)
    graph: fx.Graph = traced.graph
    given = [node for node in graph.nodes if node.op == "placeholder"]
    captured = _captured(traced, given)
    graph.eliminate_dead_code()
    used = [number for number, node in enumerate(given) if node.users]
    for node in given:
        if not node.users:
            graph.erase_node(node)
    for node in graph.nodes:
        layout = _layout_of(node.meta.get("val"))
        node.meta.clear()  # belongs to the tracer, and would conflict with the compiler's own
        node.meta["layout"] = layout
    _check_pure(graph)
    traced.recompile()
    return traced, used, captured


def _layout_of(value: Any) -> Any:
    return (tuple(value.shape), value.stride(), value.dtype) if isinstance(value, Tensor) else None


def _captured(traced: Any, given: list[fx.Node]) -> list[Tensor]:
    """Make inputs of the tensors that the function has found somewhere else, and return them."""
    graph: fx.Graph = traced.graph
    captured: list[Tensor] = []
    inputs: dict[str, fx.Node] = {}
    last = given[-1]
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
    for place in (traced._parameters, traced._buffers):
        place.clear()  # the compiler would pass them at each call, although they are not read any more
    return [tensor.detach() for tensor in captured]


def _attribute(module: nn.Module, name: str) -> Tensor:
    """Return a tensor of a traced module, which keeps parameters, buffers and others in different places."""
    for place in (module._parameters, module._buffers, module.__dict__):
        if isinstance(found := place.get(name), Tensor):
            return found
    raise RefusedError(f"{name} is no tensor")


def _check_pure(graph: fx.Graph) -> None:
    """Raise for a graph that writes to its inputs, or to views of them: a function of tensors changes nothing."""
    given = {node for node in graph.nodes if node.op == "placeholder"}
    for node in graph.nodes:
        if node.target is operator.getitem and node.args[0] in given:
            given.add(node)  # one of several views
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            continue
        shared = [
            argument.alias_info for argument, value in zip(schema.arguments, node.args)
            if argument.alias_info is not None and isinstance(value, fx.Node) and value in given
        ]  # fmt: skip
        if any(alias.is_write for alias in shared):
            raise RefusedError(f"{node.target} changes one of its inputs")
        if shared:
            given.add(node)


# -- compiling and checking --------------------------------------------------------------------------------------------


def inductor(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """Compile with torch's compiler; what calls its kernels is compiled as well, where that works."""
    import torch._inductor  # a second to import, and only here
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # sizes were checked when the inputs were flattened
    unchecked = {"size_asserts": False, "alignment_asserts": False}
    # the instructions that the CPU reports are used without a test program for each: nine seconds of a first start
    fast = {**unchecked, "cpp_wrapper": True, "cpp.vec_isa_ok": True}

    def compiled_with(given: fx.GraphModule, options: dict[str, Any]) -> Callable[..., Sequence[Tensor]]:
        # without an environment of symbolic shapes torch's cache on disk is passed by
        with tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))):
            found: Callable[..., Sequence[Tensor]] = torch._inductor.compile(given, [*inputs], options=options)
        return found

    try:
        # of a small network's time a fifth is Python between two kernels; a copy, in case that it must be done again
        compiled = compiled_with(copy.deepcopy(graph), fast)
        compiled(*inputs)
    except Exception as error:  # noqa: BLE001  not every operation can be called so, and the reasons are of many kinds
        _log.debug("kernels are called by Python: %s", str(error).partition("\n")[0])
        compiled = compiled_with(graph, unchecked)
    return compiled


def check_agreement(found: Sequence[Tensor], wanted: Sequence[Tensor], *, later: bool = False) -> None:
    """Raise `RefusedError`, or `StaleError` of a `later` check, unless a program agrees with its function.

    Rounding does not count.
    """
    for one, other in zip(found, wanted):
        if one.shape != other.shape or one.dtype is not other.dtype or not _close(one.detach(), other.detach()):
            raise (StaleError if later else RefusedError)(
                "the compiled step does not give what the step as it is written gives; has a value that is no tensor "
                "changed since it was compiled?"
            )


def _close(one: Tensor, other: Tensor) -> bool:
    if not other.is_floating_point():
        return torch.equal(one, other)
    if not other.numel():
        return True
    # of the finite numbers: next to a NaN, the others must agree all the same
    largest = float(other.nan_to_num(0.0, 0.0, 0.0).abs().max())
    return torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * largest + 1e-6, equal_nan=True)


class ProgramMaker:
    """Makes the programs of traced functions: at once, or compiled beside training until a switch."""

    def __init__(self, backend: Backend | None, switch: Switch | None) -> None:
        """Compile with `backend` at once, or with a switch in a process of its own."""
        self.switch = switch
        self._backend = backend or inductor
        self._waiting: dict[Any, tuple[Trace, ProgramRequest]] = {}

    @property
    def idle(self) -> bool:
        """Whether functions run as written, whatever their inputs."""
        return self.switch is not None and self.switch.idle

    def program(
        self,
        key: Any,
        function: Callable[..., tuple[Tensor, ...]],
        leaves: list[Tensor],
        wanted: Callable[[], Sequence[Tensor]],
    ) -> Program | None:
        """Return the program of a function for leaves like these, which agrees with the results that are wanted.

        None where it is not compiled, or not yet; raises `RefusedError` where it cannot be.
        """
        if self.switch is None:
            trace = Trace(function, leaves)
            compiled = trace.compiled(leaves, self._backend)
        else:
            if key not in self._waiting:
                trace = Trace(function, leaves)
                self._waiting[key] = trace, self.switch.request(trace.graph, trace.inputs(leaves))
            trace, request = self._waiting[key]
            found = request.program()
            if found is None:
                return None
            compiled = found
        program = Program(trace, compiled)
        check_agreement(program(leaves), wanted())
        return program


# -- without gradients -------------------------------------------------------------------------------------------------


class PureFunction:
    """Runs a pure function as compiled programs, or as it is written where that does not work."""

    def __init__(
        self,
        what: str,
        function: Callable[..., Any],
        backend: Backend | None = None,
        switch: Switch | None = None,
        *,
        strict: bool = False,
    ) -> None:
        """Compile nothing yet; `what` names the work in the log, `switch` decides when programs are used.

        strict: raise where the function cannot be compiled, instead of one warning.
        """
        self.what, self.function, self.strict = what, function, strict
        self.refusal = ""
        """Why the function runs as it is written; empty while it does not."""
        self._maker = ProgramMaker(backend, switch)
        self._programs: dict[Any, tuple[Program, Any]] = {}

    def __call__(self, key: Hashable, *inputs: Any) -> Any:
        """Return function(*inputs)."""
        if self.refusal or self._maker.idle:
            return self._as_written(*inputs)
        try:
            return self._run(key, inputs)
        except RefusedError as refusal:
            self.refusal = str(refusal)
            self._programs.clear()
            fall_back(
                f"{self.what} is not compiled, so it runs as it is written, slower",
                refusal,
                f"{PURE}, or choose mode='eager'",
                strict=self.strict,
            )
            return self._as_written(*inputs)

    @torch.no_grad()
    def _as_written(self, *inputs: Any) -> Any:
        return self.function(*inputs)

    def _run(self, key: Hashable, inputs: tuple[Any, ...]) -> Any:
        leaves: list[Tensor] = []
        layout: list[Any] = [key]
        for each in inputs:
            flattened(each, leaves, layout)
        place = tuple(layout)
        found = self._programs.get(place)
        if found is None:
            form = self._as_written(*inputs)
            program = self._compiled(place, inputs, leaves, form)
            if program is None:
                return form
            found = self._programs[place] = program, form
        program, form = found
        results = program(leaves)
        if program.is_due:
            check_agreement(results, _leaves(self._as_written(*inputs)), later=True)
        return rebuilt(form, iter(results))

    def _compiled(self, place: Any, inputs: tuple[Any, ...], leaves: list[Tensor], form: Any) -> Program | None:
        """Return the program for inputs like these, where there is one; `form` is what the function returns."""
        if len(self._programs) == MOST:
            raise RefusedError(f"inputs have come in more than {MOST} layouts")

        def function(*given: Tensor) -> tuple[Tensor, ...]:
            return _leaves(self._as_written(*rebuilt(inputs, iter(given))))

        return self._maker.program(place, function, leaves, lambda: _leaves(form))


def _leaves(value: Any) -> tuple[Tensor, ...]:
    leaves: list[Tensor] = []
    flattened(value, leaves, [])
    return tuple(leaves)
