"""The programs of seeds 001, 002 and 003 run from top to bottom, and learn."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
SHORT = {
    "tianshou_style.py": ["--epochs", "1"],
    "generator_style.py": ["--steps", "1400"],
    "rlpyt_style.py": ["--steps", "2048"],
}


def run(name: str, *arguments: str) -> float:
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, timeout=280
    )
    assert result.returncode == 0, result.stderr
    return float(result.stdout.strip().splitlines()[-1].removeprefix("best greedy return "))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_a_short_run(name):
    assert run(name, *SHORT[name]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_it_reaches_what_it_says(name):
    assert run(name) >= 195


@pytest.mark.parametrize("name", SHORT)
def test_the_user_defines_nothing_but_a_model(name):
    classes = [node for node in ast.walk(ast.parse((EXAMPLES / name).read_text())) if isinstance(node, ast.ClassDef)]
    assert [ast.unparse(base) for node in classes for base in node.bases] == ["nn.Module"]
