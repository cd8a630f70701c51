"""The code of README and docs runs, for fewer steps than it says; CONTRIBUTING's parts train from the command line."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path

import gymnasium  # noqa: F401  (its first import sets an environment variable, which a guard would see)
import pytest

from striderl.cli.main import main
from striderl.data import registry

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks() -> list[tuple[str, str]]:
    return [
        (f"{page.name}:{number}", block)
        for page in PAGES
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
    ]


def tool(name):
    """Import one of the programs of tools/."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_the_page_of_described_items_is_that_of_the_tests():
    described = tool("described")
    assert (ROOT / "docs" / "described.md").read_text() == described.page(described.described_items())


@pytest.mark.slow
def test_the_page_of_public_names_is_that_of_the_source():
    assert (ROOT / "docs" / "api.md").read_text() == tool("api").page(), "python tools/api.py writes it"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), blocks(), ids=[name for name, _ in blocks()])
def test_every_python_block_of_the_docs_runs(name, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for each in registry.REGISTRIES.values():
        monkeypatch.setattr(each, "registered", {})  # what a page registers is gone afterwards
    code = re.sub(r"\bsteps=\d{2,3}_000\b", "steps=4_000", code)  # as it stands, but for how long it learns
    exec(compile(code, name, "exec"), {"__name__": "__docs__"})


def test_the_readme_has_code():
    assert any(name.startswith("README") for name, _ in blocks())


GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
COMMANDS = re.findall(r"^    striderl (train my_parts:.*)$", GUIDE, re.M)
SHORT = "--steps 512 --num-envs 2 --name one --logging.console off --evaluation.every 0 --evaluation.num-episodes 1"


@pytest.mark.slow
def test_the_parts_of_the_guide_train(tmp_path, monkeypatch):
    (tmp_path / "my_parts.py").write_text("\n\n".join(re.findall(r"```python\n(.*?)```", GUIDE, re.S)))
    monkeypatch.chdir(tmp_path)
    try:
        for place, command in enumerate(COMMANDS):
            assert main(shlex.split(f"{command} {SHORT} --runs runs{place}")) == 0, command
    finally:
        sys.modules.pop("my_parts", None)
    assert len(COMMANDS) == 6, "env, algorithm, term, network, logger, callback"
