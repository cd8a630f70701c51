"""Files are opened in one place: a gate over the source, so that no reader comes in without limits by accident."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "striderl"

NAMES = {
    "open",
    "os.open",
    "io.open",
    "json.load",
    "json.loads",
    "torch.load",
    "torch.save",
    "np.load",
    "np.fromfile",
    "np.memmap",
    "zipfile.ZipFile",
    "shutil.rmtree",
    "shutil.copytree",
    "shutil.move",
}
"""Calls by their whole name."""
METHODS = {"open", "read_text", "read_bytes", "write_text", "write_bytes"}
"""Calls of a method of this name, whatever the object is."""

ALLOWED = {
    # the openers themselves
    ("checkpoint/safe_files.py", "os.open"): "the opener",
    ("checkpoint/file_ops.py", "os.open"): "the operations of a save, which tests let fail one by one",
    ("compat/rlpyt/launching.py", ".read_text"): "/proc/cpuinfo, which is no file of a run",
    ("checkpoint/strict_json.py", "json.loads"): "the reader of JSON, with its limits",
    ("checkpoint/foreign.py", "zipfile.ZipFile"): "the reader of .pt files, given a file that is open",
    ("checkpoint/foreign.py", "torch.load"): "the reader of .pt files, after everything was checked",
    ("checkpoint/foreign.py", "torch.save"): "the writer of .pt files, given a file that is open",
    ("training/experiment/runner_checkpoints.py", "torch.save"): "a runner's checkpoint, given a file that is open",
    ("checkpoint/array_archive.py", "zipfile.ZipFile"): "the reader of .npz files, given a file that is open",
    ("checkpoint/array_archive.py", ".open"): "a member of an archive that is open",
    ("data/memory.py", "os.open"): "the mapper of files, in the lowest row: no links, plain files, sizes",
    ("data/memory.py", "np.memmap"): "the mapper of files, given a file that is open",
    # no file of a run or a dataset
    ("envs/workers/child.py", "os.open"): "/dev/null",
    ("cli/main.py", "open"): "/dev/null",
    ("cli/terminal.py", "os.open"): "/dev/null",
    ("envs/workers/parent_watchdog.py", ".read_text"): "the kernel's lists of processes",
    ("storage/replay_buffer/buffer.py", ".open"): "a place in a ring buffer",
    (
        "training/experiment/run_folder.py",
        "shutil.copytree",
    ): "a copy of a run into a new folder, in which links stay links",
    ("ops/kernels/side_by_side.py", "json.loads"): "arguments of an operation that this process has traced",
    ("execution/background.py", ".write_bytes"): "a request in the temporary folder of the process that compiles",
    ("execution/background.py", ".read_text"): "its answer, in the same folder",
    ("execution/compile_worker.py", ".open"): "a lock in the cache of programs, empty",
    ("execution/compile_worker.py", ".read_bytes"): "the request, in the temporary folder of the trainer",
    ("execution/compile_worker.py", ".write_text"): "the answer, in the same folder",
    ("training/experiment/rollout_worker.py", ".read_bytes"): "the library's own source, for a digest",
    # removals of what was made a moment before
    ("cli/train.py", "shutil.rmtree"): "the run folder that this command has just made and nothing was trained in",
    ("export/bundle.py", "shutil.rmtree"): "temporary folders with random names, and the bundle that was replaced",
}
"""(file, call) that may stay, and why."""


def offences(source: str) -> list[tuple[int, str]]:
    """Return line and name of every call that opens, reads, writes or removes files by itself."""
    tree = ast.parse(source)
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = whole_name(node.func, known)
        if name in NAMES:
            found.append((node.lineno, name))
        elif name.startswith("striderl."):
            continue  # a function of ours, such as safe_files.write_text
        elif isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            found.append((node.lineno, f".{node.func.attr}"))
    return found


def whole_name(function: ast.expr, known: dict[str, str]) -> str:
    """Return json.loads as "json.loads", whether imported as a module, under another name, or from one."""
    parts: list[str] = []
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    if not isinstance(function, ast.Name):
        return ""
    name = ".".join([known.get(function.id, function.id), *reversed(parts)])
    return name.replace("numpy.", "np.", 1) if name.startswith("numpy.") else name


@functools.cache
def all_offences(root: Path) -> list[tuple[str, int, str]]:
    return [
        (path.relative_to(root).as_posix(), line, name)
        for path in sorted(root.rglob("*.py"))
        for line, name in offences(path.read_text())
    ]


@pytest.mark.slow
def test_every_file_is_opened_by_the_safe_opener():
    bad = [f"{path}:{line} {name}" for path, line, name in all_offences(SOURCE) if (path, name) not in ALLOWED]
    assert not bad, "use striderl.checkpoint.safe_files, or give a reason above:\n" + "\n".join(bad)


@pytest.mark.slow
def test_every_exception_is_still_needed():
    assert {(path, name) for path, _, name in all_offences(SOURCE)} >= set(ALLOWED)


@pytest.mark.parametrize(
    "line",
    [
        "open('x')",
        "Path('x').open('rb')",
        "Path('x').read_text()",
        "(folder / 'x').write_bytes(b'')",
        "import json; json.loads('')",
        "import json as j; j.load(file)",
        "from json import loads; loads('')",
        "import torch; torch.load('x')",
        "import torch; torch.save({}, 'x')",
        "import numpy as np; np.load('x')",
        "import numpy; numpy.memmap('x')",
        "from zipfile import ZipFile; ZipFile('x')",
        "import os; os.open('x', 0)",
        "from shutil import rmtree; rmtree('x')",
        "def f():\n    with open('x') as file:\n        return file",
    ],
)
def test_a_planted_violation_is_found(tmp_path, line):
    (tmp_path / "planted.py").write_text(line)
    assert all_offences(tmp_path)


def test_the_safe_opener_itself_is_no_violation(tmp_path):
    (tmp_path / "good.py").write_text(
        "from striderl.checkpoint import safe_files\nfrom striderl.checkpoint.safe_files import read_text\n"
        "safe_files.write_text('x', '')\nread_text('x')\nopened('x')\n"
    )
    assert not all_offences(tmp_path)
