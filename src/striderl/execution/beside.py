"""A pass of torch's compiler: operations that do not need each other become one, which runs them side by side.

    as traced                               after the pass

    actor forward ─▶ actor head ─▶ loss     side_by_side(actor forward, critic forward)   level 0
    critic forward ─▶ critic head ─▶ loss   side_by_side(actor head, critic head)         level 1

Operations are grouped by level: how many of them lie on the longest way from the inputs. Two of one level do not need
each other. See `ops.kernels.side_by_side` for what it gains.
"""

from __future__ import annotations

import json
import operator
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.pattern_matcher import stable_topological_sort

from striderl.ops.kernels.side_by_side import MOST, MOST_ROWS, OPERATIONS


class SideBySide(CustomGraphPass):
    """Makes one operation of those of one level."""

    def __call__(self, graph: fx.Graph) -> None:
        """Change a graph in place."""
        groups: dict[int, list[fx.Node]] = {}
        level: dict[fx.Node, int] = {}
        for node in graph.nodes:
            here = max((level[each] for each in node.all_input_nodes), default=0)
            ours = node.op == "call_function" and _fits(node)
            if ours:
                groups.setdefault(here, []).append(node)
            level[node] = here + ours
        changed = False
        for nodes in groups.values():
            for start in range(0, len(nodes), MOST):
                if len(nodes[start : start + MOST]) > 1:
                    _joined_nodes(graph, nodes[start : start + MOST])
                    changed = True
        if changed:
            stable_topological_sort(graph)
            graph.lint()

    def uuid(self) -> Any:
        """Return a digest of what decides here: compiled programs are kept on disk by it."""
        return MOST, MOST_ROWS, get_hash_for_files((__file__,))


def _fits(node: fx.Node) -> bool:
    """Return whether a node is one of the operations, with rows few enough, whose outputs are all taken by index."""
    name = _name(node)
    if name not in OPERATIONS or node.kwargs or not all(user.target is operator.getitem for user in node.users):
        return False
    first = node.args[0]
    value = first.meta.get("val") if isinstance(first, fx.Node) else None
    if not isinstance(value, Tensor) or not value.is_cuda:
        return False
    rows = value.shape[OPERATIONS[name][1]]
    return isinstance(rows, int) and rows <= MOST_ROWS


def _joined_nodes(graph: fx.Graph, nodes: list[fx.Node]) -> None:
    """Put one node in the place of several; its outputs are theirs, one after the other."""
    tensors: list[fx.Node] = []

    def plain(value: Any) -> Any:
        if isinstance(value, fx.Node):
            tensors.append(value)
            return {"tensor": len(tensors) - 1}
        return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value

    calls = json.dumps([[_name(node), plain(node.args)] for node in nodes])
    with graph.inserting_after(nodes[-1]):
        whole = graph.call_function(torch.ops.striderl.side_by_side.default, (tensors, calls))
    values = [list(node.meta["val"]) for node in nodes]
    whole.meta["val"] = [each for outputs in values for each in outputs]
    start = 0
    for node, outputs in zip(nodes, values):
        for user in list(node.users):
            user.args = (whole, start + cast(int, user.args[1]))
        start += len(outputs)
        graph.erase_node(node)


def _name(node: fx.Node) -> str:
    """Return what the operation of a node is called; empty where it is a plain function."""
    return str(node.target.name()) if isinstance(node.target, torch._ops.OpOverload) else ""  # type: ignore[no-untyped-call]
