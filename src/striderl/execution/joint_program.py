"""Forward and backward as one compiled program, without autograd while it runs: for small networks on the CPU.

    trace once     minibatch ─▶ function ─▶ Σ weight · loss ─▶ torch.autograd.grad ─▶ graph of plain tensor operations
                                                                  │ captured tensors become inputs
    run            [leaves of the minibatch, parameters, …] ─▶ compiled graph ─▶ metrics [K], gradient block per group

`torch.compile` makes two programs with autograd between them, and checks a lot at each call: of a millisecond that a
step of a small Q-network takes, half is spent on that. Requirements: those of `traced.py`.

The first result, and one of every thousand after it, is compared with the function as it is written; a program that
does not agree is not used any more.

Where several processes learn together, means count the samples of all, so a function sums over processes on its way.
Its graph is cut there into parts; independent sums are made together, in one message:

    leaves ─▶ part 0 ─▶ [sum 6, count 3, …] ─all-reduce─▶ part 1 (the rest, backward) ─▶ metrics, own gradients

Each part is a program of its own. A process whose compiler fails runs that part as it was traced, so that all processes
sum the same numbers in the same order, whatever became of their programs. What a function does, as parts or as it is
written, is agreed upon in each step by a message of three numbers, which saves several.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from striderl.execution.background import ProgramRequest, Switch
from striderl.execution.modes import Evaluated, Function, as_written, evaluated
from striderl.execution.parameter_groups import ParameterGroup, gradients_of
from striderl.execution.traced import (
    MOST,
    Backend,
    Program,
    ProgramMaker,
    RefusedError,
    StaleError,
    Trace,
    check_agreement,
    flattened,
    is_due,
    rebuilt,
)
from striderl.ops.moments import AllReduce, pooled


class JointPrograms:
    """Runs functions of minibatches as joint programs and stores the gradients in the groups."""

    def __init__(
        self, groups: Mapping[str, ParameterGroup], backend: Backend | None = None, switch: Switch | None = None
    ) -> None:
        """Compile nothing yet; `switch` decides when programs are used."""
        self._groups = list(groups.values())
        self._parameters = [each for group in self._groups for each in group.flat.parameters]
        self._grads = [group.flat.grad for group in self._groups]
        self._maker = ProgramMaker(backend, switch)
        self._programs: dict[Any, tuple[tuple[str, ...], Program]] = {}

    def run(self, function: Function, minibatch: Any) -> Evaluated | None:
        """Put the gradients of the weighted losses in place of the last ones; return the metrics.

        None where the function runs as written, now or always. Raises `RefusedError` where it cannot be compiled; the
        gradients are what they were then.
        """
        if self._maker.idle:
            return None
        key, leaves = self.key_of(function, minibatch)
        found = self._programs.get(key)
        if found is None:
            found = self._compiled(key, function, minibatch, leaves)
            if found is None:
                return None
            self._programs[key] = found
        names, program = found
        results = program(leaves)
        if program.is_due:
            check_agreement(results, self.as_written(function, minibatch)[1], later=True)
        return self.stored(names, results)

    def key_of(self, function: Function, minibatch: Any) -> tuple[tuple[Any, ...], list[Tensor]]:
        """Return what a program depends on, the function first, and the leaves of a minibatch."""
        leaves: list[Tensor] = []
        layout: list[Any] = [function]
        layout += [each.requires_grad for each in self._parameters]
        flattened(minibatch, leaves, layout)
        return tuple(layout), leaves

    @torch.no_grad()
    def stored(self, names: tuple[str, ...], results: Sequence[Tensor]) -> Evaluated:
        """Put the gradients among the results of a program in place; return the metrics."""
        numbers, total, *grads = results
        for place, grad in zip(self._grads, grads):
            place.copy_(grad)
        return Evaluated(names, total, numbers)

    def _compiled(
        self, key: Any, function: Function, minibatch: Any, leaves: list[Tensor]
    ) -> tuple[tuple[str, ...], Program] | None:
        if as_written(function):
            raise RefusedError("it is to be run as it is written")
        if sum(each[0] == function for each in self._programs) == MOST:
            raise RefusedError(f"minibatches have come in more than {MOST} layouts")
        names: tuple[str, ...] = ()

        def wanted() -> tuple[Tensor, ...]:
            nonlocal names
            names, found = self.as_written(function, minibatch)
            return found

        def joint(*inputs: Tensor) -> tuple[Tensor, ...]:
            return self.as_written(function, rebuilt(minibatch, iter(inputs)))[1]

        program = self._maker.program(key, joint, leaves, wanted)
        return None if program is None else (names, program)

    def as_written(self, function: Function, minibatch: Any) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
        """Return the names of the metrics, and what a program returns."""
        found = evaluated(function, minibatch)
        return found.names, (found.numbers, found.total.detach(), *self._gradients(found.total))

    def _gradients(self, total: Tensor) -> list[Tensor]:
        """Return the gradient block of every group."""
        found = iter(gradients_of(total, self._parameters))
        return [
            torch.cat(
                [torch.zeros_like(each).view(-1) if grad is None else grad.reshape(-1)
                 for each, grad in zip(group.flat.parameters, found)]
            )
            for group in self._groups
        ]  # fmt: skip


# -- in several processes ----------------------------------------------------------------------------------------------


_FEWEST = 8
"""A part of fewer operations is not compiled: calling a program takes as long."""

_library = torch.library.Library("striderl", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("sum_over_processes(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
_library.impl("sum_over_processes", torch.clone, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
_SUM = torch.ops.striderl.sum_over_processes.default


def _marked_sum(x: Tensor) -> Tensor:
    """Stand for a sum over processes in a traced graph; it is never run."""
    found: Tensor = _SUM(x)
    return found


class PooledPrograms:
    """Runs functions of minibatches as programs that sum over processes in between; see the top of this module."""

    def __init__(self, groups: Mapping[str, ParameterGroup], reduce: AllReduce, switch: Switch) -> None:
        """Compile nothing yet."""
        self._joint, self._reduce, self._switch = JointPrograms(groups), reduce, switch
        self._traced: dict[Any, tuple[tuple[str, ...], Parts] | RefusedError] = {}
        self._num_runs: dict[Function, int] = {}

    def run(self, function: Function, minibatch: Any) -> Evaluated | None:
        """Put this process's part of the gradients in place of the last ones; return the metrics of all.

        None where the function runs as written, now or always. Raises `RefusedError` in all processes together.
        """
        if self._switch.idle:
            return None
        key, leaves = self._joint.key_of(function, minibatch)
        if key not in self._traced:
            self._traced[key] = self._trace(function, minibatch, leaves)
        found = self._traced[key]
        if not self._switch.on or not self._agree(found):
            return None
        assert not isinstance(found, RefusedError), "all processes have the same messages"
        names, parts = found
        results = parts(leaves, self._reduce)
        number = self._num_runs[function] = self._num_runs.get(function, 0) + 1
        if is_due(number):
            self._compare(results, function, minibatch, first=number == 1)
        return self._joint.stored(names, results)

    def _agree(self, found: tuple[tuple[str, ...], Parts] | RefusedError) -> bool:
        """Return whether all processes would send the same messages; raise `RefusedError` where none has parts to run.

        Minibatches of one process may have a mask that those of another do not need, and so other messages.
        """
        usable = not isinstance(found, RefusedError) and found[1].is_wanted
        mine = found[1].digest if usable and not isinstance(found, RefusedError) else 0
        count, total, squares = self._reduce(torch.tensor([1, mine, mine * mine])).tolist()
        if total == 0:
            raise found if isinstance(found, RefusedError) else RefusedError("it was not traced before the switch")
        return bool(count * squares == total * total)  # of Cauchy and Schwarz's inequality: all are equal

    def _trace(
        self, function: Function, minibatch: Any, leaves: list[Tensor]
    ) -> tuple[tuple[str, ...], Parts] | RefusedError:
        """Trace a function without summing anything, or return why it cannot be."""
        names: tuple[str, ...] = ()

        def joint(*inputs: Tensor) -> tuple[Tensor, ...]:
            nonlocal names
            with pooled(_marked_sum):
                names, found = self._joint.as_written(function, rebuilt(minibatch, iter(inputs)))
            return found

        try:
            if as_written(function):
                raise RefusedError("it is to be run as it is written")
            parts = Parts(Trace(joint, leaves), leaves, self._switch)
            return names, parts  # named by the trace
        except RefusedError as refusal:
            return refusal

    def _compare(self, results: Sequence[Tensor], function: Function, minibatch: Any, *, first: bool) -> None:
        """Compare results with those of the function as it is written, and raise in all processes if one differs."""
        problem: RefusedError | None = None
        try:
            check_agreement(results, self._joint.as_written(function, minibatch)[1], later=not first)
        except RefusedError as error:
            problem = error
        if not self._everywhere(problem is None):
            kind = RefusedError if first else StaleError
            raise problem or kind("the compiled step of another process does not give what it gives as written")

    def _everywhere(self, flag: bool) -> bool:
        return float(self._reduce(torch.tensor(float(not flag)))) == 0.0


class Parts:
    """A traced function as parts with sums over processes between them."""

    def __init__(self, trace: Trace, leaves: list[Tensor], switch: Switch) -> None:
        """Cut the graph, and ask for a program of each part; raises `RefusedError` where it cannot be cut."""
        self._trace = trace
        graph = trace.graph.graph
        self._given = [node for node in graph.nodes if node.op == "placeholder"]
        for node, value in zip(self._given, trace.inputs(leaves)):
            node.meta["layout"] = (tuple(value.shape), value.stride(), value.dtype)
        self._results: list[fx.Node] = list(next(node for node in graph.nodes if node.op == "output").args[0])
        self._cut = GraphCut(graph)
        self._parts = [_Part(*self._cut.part(level), switch) for level in range(self._cut.num_levels)]
        messages = [[node.meta["layout"] for node in sums] for sums in self._cut.sums]
        self.digest = 1 + int.from_bytes(hashlib.sha256(repr(messages).encode()).digest()[:2], "little")
        """A number of the messages, 1 to 65,536: processes with equal ones may run their parts together."""

    @property
    def is_wanted(self) -> bool:
        """Whether its programs were asked for before the switch, by this run or the one that it resumes."""
        return all(part.request is None or part.request.is_wanted for part in self._parts)

    @torch.no_grad()
    def __call__(self, leaves: list[Tensor], reduce: AllReduce) -> Sequence[Tensor]:
        """Run the parts one after the other, and sum over processes in between."""
        values: dict[fx.Node, Tensor] = dict(zip(self._given, self._trace.inputs(leaves)))
        for level, part in enumerate(self._parts):
            part(values)
            self._sum(self._cut.sums[level], values, reduce)
        return [values[node] for node in self._results]

    def _sum(self, sums: Sequence[fx.Node], values: dict[fx.Node, Tensor], reduce: AllReduce) -> None:
        """Sum over processes, with one message for all numbers of a dtype."""
        for dtype in dict.fromkeys(values[node.all_input_nodes[0]].dtype for node in sums):
            here = [node for node in sums if values[node.all_input_nodes[0]].dtype is dtype]
            own = [values[node.all_input_nodes[0]] for node in here]
            totals = reduce(torch.cat([each.reshape(-1) for each in own]))
            for node, value, total in zip(here, own, torch.split(totals, [each.numel() for each in own])):
                values[node] = total.view(value.shape)


class _Part:
    """One part of a graph: its program, or the part as it was traced where there is none."""

    def __init__(self, graph: fx.GraphModule, reads: list[fx.Node], gives: list[fx.Node], switch: Switch) -> None:
        self._graph, self._reads, self._gives = graph, reads, gives
        self.request: ProgramRequest | None = None
        if sum(node.op == "call_function" for node in graph.graph.nodes) >= _FEWEST:
            layouts = [node.meta["layout"] for node in reads]
            examples = [torch.empty_strided(*layout[:2], dtype=layout[2], device="meta") for layout in layouts]
            self.request = switch.request(graph, examples)

    def __call__(self, values: dict[fx.Node, Tensor]) -> None:
        """Add the results to the values."""
        program = None if self.request is None else self.request.program()
        inputs = [values[node] for node in self._reads]
        if program is None:
            found: Sequence[Tensor] = self._graph(*inputs)
        else:
            # a program is for one layout, and the part before it may have chosen another
            found = program([_laid_out(each, *node.meta["layout"][:2]) for each, node in zip(inputs, self._reads)])
        values.update(zip(self._gives, found))


def _laid_out(value: Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    if value.stride() == stride:
        return value
    return torch.empty_strided(shape, stride, dtype=value.dtype).copy_(value)


class GraphCut:
    """Divides a graph at its sums over processes: level n is what needs n sums, one after the other, before it."""

    def __init__(self, graph: fx.Graph) -> None:
        """Find the levels, or raise `RefusedError`."""
        self._levels: dict[fx.Node, int] = {}
        for node in graph.nodes:
            before = [self._levels[each] + (each.target is _SUM) for each in node.all_input_nodes]
            self._levels[node] = max(before, default=0)
        written = self._written(graph)
        self._copied = {node for node in graph.nodes if node not in written and _is_cheap(node)}
        """Views and constants, which are made again in every part that reads them."""
        self._output = next(node for node in graph.nodes if node.op == "output")
        self.num_levels = self._levels[self._output] + 1
        self.sums = [
            [node for node in graph.nodes if node.target is _SUM and self._levels[node] == level]
            for level in range(self.num_levels)
        ]
        """The sums that follow each part."""
        self._nodes = list(graph.nodes)

    def _written(self, graph: fx.Graph) -> set[fx.Node]:
        """Return the nodes that an operation changes in place, which must be in one part with it."""
        found: set[fx.Node] = set()
        for node in graph.nodes:
            schema = getattr(node.target, "_schema", None)
            for argument, value in zip(schema.arguments if schema is not None else (), node.args):
                if argument.alias_info is None or not argument.alias_info.is_write:
                    continue
                place: Any = value
                while isinstance(place, fx.Node):
                    if self._levels[place] != self._levels[node]:
                        raise RefusedError(f"{node.target} changes what was computed before a sum over processes")
                    found.add(place)
                    place = place.args[0] if _is_view(place) else None
        return found

    def part(self, level: int) -> tuple[fx.GraphModule, list[fx.Node], list[fx.Node]]:
        """Return the graph of a level, the nodes whose values it takes, and those whose values it returns."""
        graph = fx.Graph()
        made: dict[fx.Node, fx.Node] = {}
        reads: list[fx.Node] = []

        def need(node: fx.Node) -> fx.Node:
            if node not in made:
                if node in self._copied or self._is_of(node, level):
                    for each in node.all_input_nodes:
                        need(each)
                    made[node] = graph.node_copy(node, lambda each: made[each])
                else:
                    reads.append(node)
                    made[node] = graph.placeholder(f"read_{len(reads)}")
            return made[node]

        gives = [node for node in self._nodes if self._is_given(node, level)]
        for node in self._nodes:  # in the order of the graph: operations in place stay where they are
            if self._is_of(node, level) and node not in self._copied:
                need(node)
        graph.output(tuple(need(node) for node in gives))
        _placeholders_first(graph)
        return fx.GraphModule({}, graph), reads, gives

    def _is_of(self, node: fx.Node, level: int) -> bool:
        return node.op == "call_function" and node.target is not _SUM and self._levels[node] == level

    def _is_given(self, node: fx.Node, level: int) -> bool:
        """Whether a part returns a node: what later parts, sums and the function's results read."""
        if node in self._copied:
            last = level == self.num_levels - 1
            read = any(user.target is _SUM and self._levels[user] == level for user in node.users)
            return read or (last and self._output in node.users)
        return self._is_of(node, level) and self._is_read_after(node, level)

    def _is_read_after(self, node: fx.Node, level: int) -> bool:
        return any(
            user.target is _SUM
            or user is self._output
            or (self._is_read_after(user, level) if user in self._copied else self._levels[user] > level)
            for user in node.users
        )


def _is_view(node: fx.Node) -> bool:
    """Whether a node shares the memory of its first argument without changing it."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.arguments or not node.args:
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and not alias.is_write and node.meta.get("layout") is not None


def _is_cheap(node: fx.Node) -> bool:
    return (
        node.op == "call_function"
        and node.target is not operator.getitem
        and (_is_view(node) or not node.all_input_nodes)
    )


def _placeholders_first(graph: fx.Graph) -> None:
    """Move the inputs of a graph to its top, in their order."""
    root = graph._root
    for node in reversed([each for each in graph.nodes if each.op == "placeholder"]):
        root.append(node)
