"""The examples run; short versions of what they do by default."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(name: str, *arguments: str, timeout: float = 100) -> str:
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, timeout=timeout
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_cartpole_is_solved():
    text = run("train_cartpole.py", "--seed", "1")
    assert float(text.strip().splitlines()[-1].split()[-1]) >= 475


@pytest.mark.slow
def test_the_quadruped_example_runs(tmp_path):
    text = run("train_quadruped.py", "--steps", "20000", "--num-envs", "64")
    assert "tracking error" in text.splitlines()[-1]


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_every_example_explains_itself(name):
    text = run(name, "--help")
    assert "usage:" in text and "python examples/" in text
