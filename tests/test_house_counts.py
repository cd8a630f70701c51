"""The counters of the house, on a small tree whose numbers a reader can redo."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parent.parent / "tools" / "house.py"

FILES = {
    "__init__.py": "",
    "low/__init__.py": "",
    "low/a.py": '"""Doc."""\n\nimport os\n\nfrom pack.low.b import B\n\n\nclass A(B):\n    """Doc."""\n    x = 1\n',
    "low/b.py": "# a comment\n\nclass B:\n    def late(self):\n        from pack.low.a import A\n        return A\n",
    "low/alone.py": "VALUE = (\n    1,\n    2,\n)\n",
    "high/__init__.py": "",
    "high/a.py": "from pack.low import alone\n\n\nclass A:\n    pass\n\n\nclass _Hidden:\n    pass\n",
    "high/b.py": "class _Hidden:\n    pass\n",
    "compat/__init__.py": "",
    "compat/a.py": "class A:\n    pass\n",
}


@pytest.fixture(scope="module")
def counters():
    spec = importlib.util.spec_from_file_location("house_counters", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def small(tmp_path, counters):
    for name, text in FILES.items():
        path = tmp_path / "pack" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return counters.read_house(tmp_path / "pack", "pack")


def test_code_lines_are_lines_of_statements(small):
    # a.py: import os, from …, class A, x = 1; alone.py: the four lines of one tuple
    assert small.modules["pack.low.a"].code_lines == 4
    assert small.modules["pack.low.a"].import_lines == 2
    assert small.modules["pack.low.alone"].code_lines == 4


def test_an_import_inside_a_function_closes_a_cycle(small, counters):
    assert counters.module_cycles(small) == [["pack.low.a", "pack.low.b"]]


def test_folders_that_import_each_other_are_a_cycle(tmp_path, small, counters):
    assert counters.folder_cycles(small) == []
    (tmp_path / "pack" / "low" / "alone.py").write_text("from pack.high.b import _Hidden\n")
    cycles = counters.folder_cycles(counters.read_house(tmp_path / "pack", "pack"))
    assert cycles == [["pack.high", "pack.low"]]


def test_a_module_from_a_folder_counts_as_the_module(small, counters):
    assert counters.single_importer(small, small.importers()) == [
        "pack.low.a <- pack.low.b",
        "pack.low.alone <- pack.high.a",
        "pack.low.b <- pack.low.a",
    ]


def test_class_names_used_twice(small, counters):
    assert counters.duplicate_classes(small) == {"A": ["pack.high.a", "pack.low.a"]}
    assert counters.duplicate_classes(small, everywhere=True) == {"A": ["pack.compat.a", "pack.high.a", "pack.low.a"]}


def test_a_folder_is_wide_with_more_than_15_files(tmp_path, small, counters):
    assert counters.wide_folders(small) == {}
    for number in range(13):  # beside a, b and alone; `__init__` does not count
        (tmp_path / "pack" / "low" / f"file_{number}.py").write_text("")
    assert counters.wide_folders(counters.read_house(tmp_path / "pack", "pack")) == {"pack.low": 16}


def test_a_cycle_of_three_and_its_tail(counters):
    edges = {"a": ["b"], "b": ["c"], "c": ["a"], "tail": ["a"], "x": ["y"], "y": ["x"], "outside": ["unknown"]}
    assert counters.cycles(edges) == [["a", "b", "c"], ["x", "y"]]


@pytest.mark.slow
def test_frames_begin_with_update_and_end_with_the_losses(counters):
    frames = counters.frames_to_losses()
    assert frames[0].endswith("ppo.py:update") and frames[-1].endswith("compute_losses")


def test_private_attributes_of_others_are_found(tmp_path, counters):
    for folder in ("tests", "source"):
        (tmp_path / folder).mkdir()
    (tmp_path / "source" / "env.py").write_text("class Env:\n    def __init__(self):\n        self._state = 0\n")
    # `_own` is the test's, `_other` is nobody's in the source, and what begins with two underscores is Python's
    reads = "env._state, self._state, self._own, env._other, env.__class__, env.open, env._replace"
    (tmp_path / "tests" / "test_x.py").write_text(f"def test(env, self):\n    {reads}\n")
    found = counters.private_touches(tmp_path / "tests", tmp_path / "source")
    assert found == ["tests/test_x.py:2 env._state"]


def test_names_of_compat_do_not_count_and_each_counts_once(tmp_path, counters):
    own = counters.own_names({"striderl": ["make"], "striderl.envs": ["make", "Env"], "striderl.compat.x": ["Old"]})
    assert own == {"make", "Env"}
    page = tmp_path / "page.md"
    page.write_text("`make(...)` builds Environments.")  # `Env` is only a part of a word
    assert counters.documented(own, [page]) == {"make"}
