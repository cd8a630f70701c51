"""Old import paths: every one leads to the same objects as the new one, with a warning that names it."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from striderl import _moved

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("move_modules", ROOT / "tools" / "move_modules.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own: importing everything changes the process that does it."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280)


def test_the_tables_are_those_of_moves_toml(tool):
    tree, table = tool.Tree(ROOT), tool.read_table(ROOT / "tools" / "moves.toml")
    assert tool.moved_table(tree, table) == _moved.MODULES
    assert tool.moved_names(table) == _moved.NAMES


def test_nothing_in_the_checkout_uses_an_old_name(tool):
    assert tool.main(["--check"]) == 0


EVERY_PATH = """
import importlib, warnings
from striderl import _moved
for old, new in _moved.MODULES.items():
    try:
        wanted = importlib.import_module(f"striderl.{new}")
    except ModuleNotFoundError as error:
        assert error.name == "triton", error  # not everywhere; then there is no module under the new path either
        continue
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        found = importlib.import_module(f"striderl.{old}")
    told = [str(one.message) for one in given if one.category is DeprecationWarning]
    assert any(text.startswith(f"striderl.{old} is now striderl.{new};") for text in told), (old, told)
    assert found is wanted and wanted.__name__ == wanted.__spec__.name == f"striderl.{new}", old
for old, new in _moved.NAMES.items():
    (package, name), (home, new_name) = old.split(":"), new.split(":")
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        found = getattr(importlib.import_module(f"striderl.{package}"), name)
    assert any(f"striderl.{package}.{name} is now" in str(one.message) for one in given), old
    assert found is getattr(importlib.import_module(f"striderl.{home}"), new_name), old
"""


@pytest.mark.slow
def test_every_old_path_and_name_is_the_object_at_the_new_one_and_warns():
    result = run(EVERY_PATH)
    assert result.returncode == 0, result.stderr


@pytest.mark.filterwarnings("ignore:.* no longer offers")
def test_a_path_that_became_a_folder_offers_what_the_module_did(tool):
    table = tool.read_table(ROOT / "tools" / "moves.toml")
    for line in table.packages:
        package = importlib.import_module(f"striderl.{line.name}")
        for module, names in {**line.names, **line.kept}.items():
            home = importlib.import_module(f"striderl.{line.name}.{module}")
            assert all(getattr(package, name) is getattr(home, name) for name in names)


@pytest.mark.parametrize(
    "program",
    [
        "import striderl.data.overrides; striderl.data.overrides.refuse_overrides",
        "from striderl.data.overrides import refuse_overrides",
        "from striderl.data import overrides; overrides.refuse_overrides",
        "import pickle; pickle.loads(b'cstriderl.data.overrides\\nrefuse_overrides\\n.')",
    ],
)
def test_the_warning_points_at_the_importing_line(program):
    result = run(program)
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith("<string>:1: DeprecationWarning: striderl.data.overrides is now"), result.stderr


def test_other_missing_modules_are_missing_as_ever():
    with warnings.catch_warnings(), pytest.raises(ModuleNotFoundError, match=r"striderl\.data\.surely_not"):
        warnings.simplefilter("error")
        importlib.import_module("striderl.data.surely_not")


# -- the tool, on a small tree -----------------------------------------------------------------------------------------

FILES = {
    "src/striderl/__init__.py": "",
    "src/striderl/_lazy.py": "",
    "src/striderl/_moved.py": "MODULES: dict[str, str] = {}\n\nNAMES: dict[str, str] = {}\n",
    "src/striderl/low/__init__.py": (
        '"""Doc."""\n\nfrom typing import TYPE_CHECKING\n\nfrom striderl._lazy import lazy\n\n'
        "if TYPE_CHECKING:\n    from striderl.low.b import B as B\n\n"
        '__getattr__, __dir__, __all__ = lazy(__name__, {"b": ["B"]})\n'
    ),
    "src/striderl/low/a.py": (
        '"""A."""\n\nfrom __future__ import annotations\n\nimport os\n\nfrom striderl.low import c\n'
        "from striderl.low.b import B\n\nROOT = os.sep\n\n\nclass A(B):\n    x = c.VALUE\n"
    ),
    "src/striderl/low/b.py": (
        '"""B, see `low.c` and low/c.py."""\n\nfrom __future__ import annotations\n\n'
        "from typing import TYPE_CHECKING\n\n"
        "if TYPE_CHECKING:\n    from striderl.low.a import A\n\n\nclass B:\n    def late(self) -> A:\n"
        "        from striderl.low.a import A\n\n        return A()\n"
    ),
    "src/striderl/low/c.py": '"""C."""\n\nVALUE = 1\n',
    "tests/test_low.py": "from striderl.low import b, c\n"
    'from striderl.low.c import VALUE\n\nUSED = (b, c, VALUE)\nNAME = "striderl.low.c.VALUE"\n',
}
TABLE = """
[[package]]
name = "low.c"
doc = "A folder."
kept = { values = ["VALUE"] }
[[module]]
to = "low.c.values"
of = ["low.c"]
[[module]]
to = "low.a"
of = ["low.a", "low.b"]
"""


@pytest.fixture
def small(tmp_path, tool):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "moves.toml").write_text(TABLE)
    return tool.Tree(tmp_path), tool.read_table(tmp_path / "moves.toml")


def test_a_merge_puts_what_is_needed_first_and_drops_imports_between_the_parts(small, tool):
    tree, table = small
    tool.tidy(tree, tool.apply(tree, table))
    text = tree.file("low.a").read_text()
    assert text.index("class B:") < text.index("class A(B):")
    assert "import A" not in text and "low.b" not in text and "TYPE_CHECKING" not in text
    assert text.startswith('"""A.\n\nB, see `low.c` and low/c/values.py.\n"""\n')
    assert "from striderl.low.c import values as c\n" in text and "x = c.VALUE" in text
    assert not tree.file("low.b").exists() and not tree.file("low.c").exists()


def test_imports_strings_and_lazy_tables_are_rewritten(small, tool):
    tree, table = small
    tool.tidy(tree, tool.apply(tree, table))
    text = (tree.root / "tests/test_low.py").read_text()
    assert "from striderl.low import a as b\n" in text and "from striderl.low.c.values import VALUE" in text
    assert 'NAME = "striderl.low.c.values.VALUE"' in text
    offered = (tree.source / "low/__init__.py").read_text()
    assert "from striderl.low.a import B as B" in offered and '{"a": ["B"]}' in offered
    assert 'lazy(__name__, {"values": ["VALUE"]})' in (tree.source / "low/c/__init__.py").read_text()
    assert '"low.b": "low.a"' in (tree.source / "_moved.py").read_text()


def test_a_second_run_changes_nothing_and_a_late_file_is_brought_along(small, tool):
    tree, table = small
    tool.tidy(tree, tool.apply(tree, table))
    before = {path: path.read_text() for path in tree.texts()}
    tool.tidy(tree, tool.apply(tree, table))
    assert {path: path.read_text() for path in tree.texts()} == before
    late = tree.root / "tests" / "test_late.py"
    late.write_text("from striderl.low.b import B\nfrom striderl.low.c import VALUE\n")
    tool.apply(tree, table)
    assert late.read_text() == "from striderl.low.a import B\nfrom striderl.low.c.values import VALUE\n"


def test_one_name_for_two_things_is_refused(small, tool):
    tree, table = small
    path = tree.file("low.b")
    path.write_text(path.read_text() + "\n\nROOT = 2\n")
    with pytest.raises(tool.MoveError, match="'ROOT' is one thing in low"):
        tool.apply(tree, table)
    assert path.exists()


def test_parts_that_need_each_other_while_imported_are_refused(small, tool):
    tree, table = small
    path = tree.file("low.b")
    path.write_text(path.read_text() + "\n\nPLACE = ROOT\n")
    with pytest.raises(tool.MoveError, match="need each other"):
        tool.apply(tree, table)


def test_arguments_under_their_old_names():
    @_moved.renamed_arguments({"picker": "sampler"})
    def function(size: int, *, sampler: str = "uniform") -> tuple[int, str]:
        return size, sampler

    with pytest.warns(DeprecationWarning, match="the argument picker is now sampler"):
        assert function(3, picker="prioritized") == (3, "prioritized")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert function(3, sampler="prioritized") == (3, "prioritized")


RENAMED = """
[[package]]
name = "high"
was = "low"
doc = "Higher now."
[[module]]
to = "high.kept"
of = ["low.c"]
doc = "Another text."
"""


def test_a_folder_gets_another_name_with_all_that_is_in_it(small, tool):
    tree, _ = small
    (tree.root / "moves.toml").write_text(RENAMED)
    table = tool.read_table(tree.root / "moves.toml")
    tool.tidy(tree, tool.apply(tree, table))
    assert sorted(path.name for path in (tree.source / "high").glob("*.py")) == [
        "__init__.py",
        "a.py",
        "b.py",
        "kept.py",
    ]
    assert not (tree.source / "low").exists()
    offered = (tree.source / "high/__init__.py").read_text()
    assert offered.startswith('"""Higher now."""\n') and "from striderl.high.b import B as B" in offered
    assert tree.file("high.kept").read_text() == '"""Another text."""\n\nVALUE = 1\n'
    assert "from striderl.high.kept import VALUE" in (tree.root / "tests/test_low.py").read_text()
    moved = (tree.source / "_moved.py").read_text()
    assert '"low": "high"' in moved and '"low.c": "high.kept"' in moved


@pytest.mark.slow
def test_a_module_below_a_folder_with_another_name_is_not_loaded_twice():
    program = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import striderl.training.runners.build as old, striderl.training.rsl_rl.build as new\n"
        "assert old is new"
    )
    result = run(program)
    assert result.returncode == 0, result.stderr
