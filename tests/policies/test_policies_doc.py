"""docs/policies.md: its examples run, and its table names every class with the stages it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from policy_cases import CASES, build

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "policies.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_run(example):
    exec(compile(example, "docs/policies.md", "exec"), {})


@pytest.mark.parametrize("kind", list(CASES), ids=lambda kind: kind.__name__)
def test_the_table_tells_the_truth(kind):
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{kind.__name__}` |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    config = build(kind).policy.config
    for cell, recipes in zip(cells[1:4], (config.trunk, config.actor, config.critic)):
        assert re.findall(r"[A-Z]\w+", cell) == [type(recipe).__name__ for recipe in recipes]
    assert ("acts on its mean" in row) == config.deterministic
