"""The programs of seeds 001, 002 and 003 run from top to bottom, and learn."""

from __future__ import annotations

import ast
import contextlib
import io
import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
SHORT = {
    "tianshou_style.py": ["--epochs", "1"],
    "generator_style.py": ["--steps", "1400"],
    "rlpyt_style.py": ["--steps", "2048"],
}


def run(name: str, *arguments: str) -> float:
    """Run a program as `python examples/NAME` does, in this process: most of a short one is the imports."""
    argv, threads, said = sys.argv, torch.get_num_threads(), io.StringIO()
    sys.argv = [name, *arguments]
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    finally:
        sys.argv = argv
        torch.set_num_threads(threads)
    return float(said.getvalue().strip().splitlines()[-1].removeprefix("best greedy return "))


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
