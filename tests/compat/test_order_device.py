"""All loops shuffle alike on a GPU: each draws the order of minibatches where the policy is."""

from __future__ import annotations

import ast
from pathlib import Path

import striderl

SOURCE = Path(striderl.__file__).parent


def test_every_loop_says_where_the_order_is_drawn():
    calls = [
        (path.name, len(node.args) + len(node.keywords))
        for path in sorted(SOURCE.rglob("*.py"))
        if "order_generator(" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "order_generator"
    ]
    assert len(calls) >= 5  # trainer, loops by hand, three other libraries' ways; rlpyt's shuffles by torch's seed
    assert all(given == 3 for _, given in calls), f"seed, iteration and device are given, found {calls}"
