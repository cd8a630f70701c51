"""Rename identifiers and words as `tools/words.toml` lists them, in code, tests, examples, benchmarks and docs.

    python tools/rename_words.py             rename what is left
    python tools/rename_words.py --check     change nothing; list what is left, and names that would collide

    [[words]]
    files = ["training/*", "tests/training/*"]         where, from src/striderl or tests; everywhere without it
    identifiers = { Consumer = "Callback" }            names in code, in f-strings, and between backticks in texts
    prose = { consumer = "callback" }                  words of comments, docstrings and docs

Text that is data stays: a name in a checkpoint or on a command line is a string, and strings are left alone, except
docstrings, the expressions of f-strings, and class names in the tables of an `__init__.py`. It can be run again.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src/striderl", "tests", "examples", "benchmarks")
OWN = ("src/striderl/_moved.py", "tests/test_moved.py")
BRACES = re.compile(r"\{(?!\{)[^{}]*\}")
BACKTICKS = re.compile(r"`[^`\n]+`")
FENCE = re.compile(r"```.*?```", re.S)


def main() -> int:
    """Rename, or list what is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    groups = tomllib.loads((ROOT / "tools" / "words.toml").read_text())["words"]
    left = 0
    for path in files():
        text = path.read_text()
        identifiers, prose = words_for(path, groups)
        if not identifiers and not prose:
            continue
        new = (
            renamed_python(text, identifiers, prose, path)
            if path.suffix == ".py"
            else in_docs(text, identifiers, prose)
        )
        if new == text:
            continue
        left += 1
        if check:
            print(path.relative_to(ROOT))
            continue
        for name in collisions(text, identifiers) if path.suffix == ".py" else ():
            print(f"{path.relative_to(ROOT)}: {name!r} was there before; look at it", file=sys.stderr)
        path.write_text(new)
    return int(check and left > 0)


def files() -> Iterator[Path]:
    """Return all files that words are renamed in."""
    for folder in FOLDERS:
        yield from (each for each in sorted((ROOT / folder).rglob("*.py")) if str(each.relative_to(ROOT)) not in OWN)
    yield from sorted((ROOT / "docs").glob("*.md"))
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md"))


def words_for(path: Path, groups: list[dict]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the words of a file: identifiers and prose."""
    name = str(path.relative_to(ROOT)).removeprefix("src/striderl/")
    identifiers: dict[str, str] = {}
    prose: dict[str, str] = {}
    for group in groups:
        wanted, spared = group.get("files", ["*"]), group.get("except", [])
        if any(fnmatch.fnmatch(name, each) for each in wanted) and not any(fnmatch.fnmatch(name, e) for e in spared):
            identifiers |= group.get("identifiers", {})
            prose |= group.get("prose", {})
    return identifiers, prose


def renamed_python(text: str, identifiers: Mapping[str, str], prose: Mapping[str, str], path: Path) -> str:
    """Return the text of a module with other words."""
    docstrings = set(docstring_starts(text))
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    edits: list[tuple[int, int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        begin = starts[token.start[0] - 1] + token.start[1]
        end = starts[token.end[0] - 1] + token.end[1]
        new = token.string
        if token.type == tokenize.NAME:
            new = identifiers.get(new, new)
        elif token.type == tokenize.COMMENT:
            new = in_text(new, identifiers, prose)
        elif token.type == tokenize.STRING:
            if token.start in docstrings:
                new = in_text(new, identifiers, prose)
            elif "f" in new[: new.index(new[-1])].lower():
                new = BRACES.sub(lambda match: whole_words(match[0], identifiers), new)
            elif path.name == "__init__.py" and new[1:-1] in identifiers and new[1:2].isupper():
                new = f'"{identifiers[new[1:-1]]}"'
        if new != token.string:
            edits.append((begin, end, new))
    for begin, end, new in reversed(edits):
        text = text[:begin] + new + text[end:]
    return text


def docstring_starts(text: str) -> Iterator[tuple[int, int]]:
    """Return where the strings begin that stand alone, below a definition or a field."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.lineno, node.value.col_offset


def in_text(text: str, identifiers: Mapping[str, str], prose: Mapping[str, str]) -> str:
    """Return a comment or docstring with other words; class names are replaced outside of backticks as well."""
    text = BACKTICKS.sub(lambda match: whole_words(match[0], identifiers), text)
    classes = {name: new for name, new in identifiers.items() if name[0].isupper() and len(name) > 4}
    return whole_words(text, {**classes, **prose})


def in_docs(text: str, identifiers: Mapping[str, str], prose: Mapping[str, str]) -> str:
    """Return a page with other words: identifiers in its code, prose around it."""
    parts, position = [], 0
    for match in FENCE.finditer(text):
        parts += [in_text(text[position : match.start()], identifiers, prose), whole_words(match[0], identifiers)]
        position = match.end()
    return "".join([*parts, in_text(text[position:], identifiers, prose)])


def whole_words(text: str, words: Mapping[str, str]) -> str:
    """Return a text with whole words replaced."""
    if not words:
        return text
    pattern = r"(?<![\w])(" + "|".join(map(re.escape, sorted(words, key=len, reverse=True))) + r")(?![\w])"
    return re.sub(pattern, lambda match: words[match[1]], text)


def collisions(text: str, identifiers: Mapping[str, str]) -> Iterator[str]:
    """Return new names that a file had before, beside the old ones."""
    names = {t.string for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.NAME}
    yield from (new for old, new in identifiers.items() if old in names and new in names)


if __name__ == "__main__":
    sys.exit(main())
