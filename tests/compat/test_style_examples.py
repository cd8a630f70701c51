"""Programs in the styles of older libraries run from top to bottom, and learn."""

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


OWN_CLASSES = {
    "generator_dqn.py": (["--seed", "0"], 195.0),
    "generator_ddpg.py": (["--seed", "0"], -300.0),
    "generator_ppo.py": (["--seed", "1"], 195.0),
}
"""Programs that write the algorithm themselves, and the return they reach with any seed that was tried."""


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


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_CLASSES)
def test_an_own_algorithm_learns(name):
    arguments, enough = OWN_CLASSES[name]
    assert run(name, *arguments) >= enough


@pytest.mark.parametrize("name", OWN_CLASSES)
def test_it_is_the_four_classes_in_one_short_file(name):
    text = (EXAMPLES / name).read_text()
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    assert [ast.unparse(base) for node in classes for base in node.bases] == [
        "nn.Module",
        "Algorithm",
        "Agent",
        "Trainer",
    ]
    assert len(text.splitlines()) <= 150


@pytest.mark.parametrize("name", QUICK)
def test_the_user_defines_nothing_but_a_model(name):
    classes = [node for node in ast.walk(ast.parse((EXAMPLES / name).read_text())) if isinstance(node, ast.ClassDef)]
    assert [ast.unparse(base) for node in classes for base in node.bases] == ["nn.Module"]
