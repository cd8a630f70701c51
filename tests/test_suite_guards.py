"""The suite's own guards: leaks are named, numbers do not depend on the order, the conditions of robust runs hold."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow

PLANTED = """
import logging, os, random, signal, sys
import gymnasium, numpy, pytest, torch
import striderl.data.registry

LEAKS = {
    "gradient mode": lambda: torch.set_grad_enabled(False),
    "number of threads": lambda: torch.set_num_threads(2),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "deterministic mode": lambda: torch.use_deterministic_algorithms(True),
    "os.environ": lambda: os.environ.update(PLANTED="1"),
    "the working folder": lambda: os.chdir("/"),
    "signal handlers": lambda: signal.signal(signal.SIGTERM, lambda *_: None),
    "logging.disable": lambda: logging.disable(logging.ERROR),
    "sys.path": lambda: sys.path.insert(0, "/planted"),
    "gymnasium's registry": lambda: gymnasium.register("Planted-v0", entry_point=object),
    "striderl's registries": lambda: striderl.data.registry.ENVS.register("planted", object),
}

@pytest.mark.parametrize("name", LEAKS)
def test_leak(name):
    LEAKS[name]()

@pytest.mark.parametrize("name", ["monkeypatch", "nothing"])
def test_clean(name, monkeypatch):
    if name == "monkeypatch":
        monkeypatch.setenv("PLANTED", "1")
        monkeypatch.chdir("/")

@pytest.fixture(scope="module")
def shared():
    return torch.rand(()).item()

@pytest.mark.parametrize("number", range(3))
def test_numbers(number, shared, record_property):
    drawn = (shared, torch.rand(()).item(), numpy.random.rand(), random.random())
    with open(os.environ["DRAWN"], "a") as file:
        print(drawn, file=file)
"""

WRITING = """
from pathlib import Path

def test_writes():
    Path(__file__).parent.parent.joinpath("src", "planted.txt").write_text("x")
"""

SURROUNDINGS = """
import signal, subprocess, sys

STATE = "from signal import *; print([getsignal(number) is SIG_IGN for number in (SIGINT, SIGHUP)])"

def test_children_start_with_the_usual_signals():
    done = subprocess.run([sys.executable, "-c", STATE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[False, False]"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


def repository(path: Path, tests: str) -> Path:
    """A repository with our settings, one file of tests, and a source folder."""
    for name in ("tests", "src"):
        (path / name).mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "conftest.py", path / "tests")
    shutil.copy(ROOT / "pyproject.toml", path)
    (path / "tests" / "test_planted.py").write_text(tests)
    return path


def run(path: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=short", *words]
    return subprocess.run(
        command, cwd=path, env={**environment, **variables}, capture_output=True, text=True, timeout=280, check=False
    )


def test_leaks_and_written_files_are_named_and_numbers_do_not_depend_on_the_order(tmp_path):
    path, drawn = repository(tmp_path / "repository", PLANTED), tmp_path / "drawn"
    (path / "tests" / "test_writing.py").write_text(WRITING)
    done = run(path, "-p", "randomly", "--randomly-seed=5", "-k", "not writes", DRAWN=str(drawn), CI="1")
    for name in (
        "gradient mode",
        "number of threads",
        "default dtype",
        "deterministic mode",
        "os.environ",
        "the working folder",
        "signal handlers",
        "logging.disable",
        "sys.path",
        "gymnasium's registry",
        "striderl's registries",
    ):
        assert f"ERROR tests/test_planted.py::test_leak[{name}]" in done.stdout, done.stdout
    # each leak fails one test: what leaked was put back, for the others and for the shared fixtures
    assert "16 passed, 1 deselected, 11 errors" in done.stdout and done.stdout.count("left the process changed") >= 11
    assert "PLANTED: None became '1'" in done.stdout
    assert "order of the tests: --randomly-seed=5" in done.stdout
    assert "is new" not in done.stdout and "was written" not in done.stdout
    again = run(path, "-p", "randomly", "--randomly-seed=6", "-k", "numbers or writes", DRAWN=str(drawn), CI="1")
    lines = drawn.read_text().splitlines()
    assert len(lines) == 6 and len(set(lines)) == 1
    # a written file is named, and in CI it is all that fails
    assert "4 passed" in again.stdout and "src/planted.txt is new" in again.stdout, again.stdout
    assert again.returncode == 1


OUTCOMES = ("passed", "failed")


def robust(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "robust_suite.py"), "--tree", str(path), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def outcomes(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {line[:14].strip(): line[15:21] for line in done.stdout.splitlines() if line[15:21] in OUTCOMES}


def test_children_start_with_the_usual_signals_whatever_the_parent_ignores(tmp_path):
    path = repository(tmp_path / "repository", SURROUNDINGS)
    done = robust(path, "--conditions", "interrupts", "nohup", "--", "-q")
    assert outcomes(done) == {"interrupts": "passed", "nohup": "passed"}, done.stdout
    assert done.returncode == 0


def test_without_the_guard_they_do_not_and_a_read_only_tree_cannot_be_written(tmp_path):
    path = repository(tmp_path / "repository", SURROUNDINGS + WRITING)
    conftest = path / "tests" / "conftest.py"
    # the planted bug: what is inherited is handed on
    conftest.write_text(conftest.read_text().replace("    catch_ignored_signals()\n", ""))
    done = robust(path, "--conditions", "interrupts", "read-only", "--", "-q")
    assert outcomes(done) == {"interrupts": "failed", "read-only": "failed"}, done.stdout
    assert done.returncode == 1
    one, other = done.stdout.split("read-only      failed")
    assert "FAILED tests/test_planted.py::test_children" in one and "::test_writes" not in one.split("FAILED")[-1]
    assert "FAILED tests/test_planted.py::test_writes" in other
    assert "Read-only file system" in other or "Permission denied" in other
