"""Write docs/described.md: what the source documents describe, and the test that shows each item.

    tests/seeds/test_*.py                                              docs/described.md
      @pytest.mark.described("rlpyt", 27, "process_returns ...")  ──►   | line | item | shown by |
      def test_x(): ...                                                 per document, sorted by line

A mark names the document, the line, and the item in one plain sentence; `difference=` gives the reason where our
behaviour differs on purpose. The marks are read from the syntax tree: nothing is imported, nothing runs.

    python tools/described.py            write the page
    python tools/described.py --check    exit with 1 if the page differs from the tests
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "seeds"
PAGE = ROOT / "docs" / "described.md"

DOCUMENTS = {
    "rsl_rl": "rsl_rl and parkour: the classes of the training loop",
    "rlpyt": "rlpyt: algorithms, agents, samplers, runners",
    "generator": "Model, Algorithm, Agent, Trainer",
    "tianshou": "Tianshou 0.3: batch, buffer, policy, collector, trainer",
    "st_rl": "st_rl: algorithms, modules, storage, runners",
}
"""Key of a mark → heading of its table; the order of the page."""


class DescribedItem(NamedTuple):
    """One sentence of a document and the test that shows it."""

    library: str
    line: int
    text: str
    difference: str
    test: str


def marks_of(function: ast.FunctionDef, test: str) -> Iterator[DescribedItem]:
    """Yield the items that the marks of a test function name."""
    for mark in function.decorator_list:
        if not (isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.described"):
            continue
        library, line, text = (ast.literal_eval(argument) for argument in mark.args)
        named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in mark.keywords}
        if library not in DOCUMENTS:
            raise SystemExit(f"{test}: unknown document {library!r}; one of {', '.join(DOCUMENTS)} is expected")
        yield DescribedItem(library, int(line), text, named.get("difference", ""), test)


def described_items() -> list[DescribedItem]:
    """Return all items of tests/seeds, ordered by document and line."""
    items: list[DescribedItem] = []
    for path in sorted(TESTS.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                items += marks_of(node, f"{path.name}::{node.name}")
    return sorted(items, key=lambda item: (list(DOCUMENTS).index(item.library), item.line, item.test))


def page(items: list[DescribedItem]) -> str:
    """Return the text of docs/described.md."""
    differing = sum(bool(item.difference) for item in items)
    lines = [
        "# What the five systems describe, and the test that shows it",
        "",
        "striderl unites five systems. Each row is one sentence of a document that describes one of them, with the line"
        " it stands on and the test in `tests/seeds/` that shows it. This page is written by"
        " `python tools/described.py`.",
        "",
        f"{len(items)} items: {len(items) - differing} as described, {differing} with a deliberate difference.",
    ]
    for library, heading in DOCUMENTS.items():
        rows = [item for item in items if item.library == library]
        if not rows:
            continue
        lines += ["", f"## {heading}", "", "| line | item | as described | shown by |", "|---:|---|---|---|"]
        for item in rows:
            answer = f"differs: {item.difference}" if item.difference else "yes"
            lines.append(f"| {item.line} | {cell(item.text)} | {cell(answer)} | `{item.test}` |")
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Return a text that fits into one cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")


def main() -> None:
    """Write or compare the page."""
    parser = argparse.ArgumentParser(description="Write docs/described.md from the marks of tests/seeds.")
    parser.add_argument("--check", action="store_true", help="compare only; exit with 1 if the page is out of date")
    wanted = page(described_items())
    if not parser.parse_args().check:
        PAGE.write_text(wanted)
    elif not PAGE.exists() or PAGE.read_text() != wanted:
        sys.exit("docs/described.md differs from the marks in tests/seeds; run `python tools/described.py`")


if __name__ == "__main__":
    main()
