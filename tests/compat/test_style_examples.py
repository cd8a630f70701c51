"""The programs of seeds 001, 002 and 003 run from top to bottom, and learn."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
QUICK = {
    "tianshou_style.py": ["--seed", "6"],
    "generator_style.py": ["--seed", "8"],
    "rlpyt_style.py": ["--run-id", "5", "--steps", "8192"],
}
"""What reaches the same return in fewer steps than the defaults, which are taken under the deep profile."""


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
    return float(said.getvalue().strip().splitlines()[-1].split()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_it_reaches_what_it_says(name):
    arguments = [] if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else QUICK[name]
    assert run(name, *arguments) >= 195


@pytest.mark.parametrize("name", QUICK)
def test_the_user_defines_nothing_but_a_model(name):
    classes = [node for node in ast.walk(ast.parse((EXAMPLES / name).read_text())) if isinstance(node, ast.ClassDef)]
    assert [ast.unparse(base) for node in classes for base in node.bases] == ["nn.Module"]
