"""Move and merge modules as `tools/moves.toml` lists them, and rewrite everything that names them.

    python tools/move_modules.py             apply what is not applied yet, then rewrite imports everywhere
    python tools/move_modules.py --check     change nothing; list what is left to do

    [[module]]                                  a file and what it is made of, in reading order
    to = "storage.replay.writer"
    of = ["storage.replay_writer", "storage.plain_add"]
    doc = '''…'''                               the docstring of the file; without it those of the parts are joined
    rename = { "storage.plain_add:_check" = "_check_plain" }    before merging, where two private names are equal
    titles = { "storage.plain_add" = "the short way" }          a line above the part in the merged file

    [[package]]                                 a new folder
    name = "storage.replay"
    doc = '''…'''
    names = { dagger = ["DaggerSaver"] }        what it offers: public names
    kept = { replay = ["Replay"] }              what a module of that name offered; public elsewhere
    replaces_module = true                      a module of that name only offered what others define, and goes
    was = "training.runners"                    the folder had that name; what no line lists goes along

    [names]                                     public names that went from one package to another
    "collect:DaggerSaver" = "recording:DaggerSaver"

    [tests]                                     test files that went along
    "tests/collect/test_dagger_saver.py" = "tests/recording/test_dagger_saver.py"

A line that is applied already is skipped, so the tool can be run again after others have changed files: whatever they
import by an old path is rewritten. Rewritten are imports, dotted names in strings (lazy tables, registries, logger
names, monkeypatching), paths such as `storage/pickers.py`, and the table of old paths in `src/striderl/_moved.py`.
A merge is refused where two parts define one name differently, or where each part needs the other while it is imported.
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "striderl"
FOLDERS = ("src", "tests", "examples", "benchmarks", "tools", "docs")
FILES = ("README.md", "CONTRIBUTING.md")
OWN = ("tools/move_modules.py", "tools/moves.toml", "src/striderl/_moved.py", "tests/test_moved.py")
"""Files that speak of old paths on purpose."""

DOTTED = re.compile(rf"(?<![\w.]){PACKAGE}(?:\.\w+)+")
SLASHED = re.compile(rf"(?<![\w/.-])((?:src/)?(?:{PACKAGE}/)?)(\w+(?:/\w+)+)\.py\b")
QUOTED = re.compile(r"(?<=`)[a-z_0-9]+(?:\.\w+)+(?=`)")
IMPORTED = re.compile(rf"from ({PACKAGE}[\w.]*) import ([^\n(]+|\([^)]*\))")

Edit = tuple[int, int, str]
"""Replace text[start:end]."""


class MoveError(Exception):
    """A line of the table cannot be applied."""


@dataclass(frozen=True, kw_only=True)
class ModuleLine:
    """One file and what it is made of; all names without the package's own."""

    to: str
    of: tuple[str, ...]
    doc: str | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PackageLine:
    """One new folder."""

    name: str
    doc: str
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    replaces_module: bool = False
    """Whether a module of that name only offered what others define, and goes."""
    was: str = ""
    """The name that the folder had."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """`moves.toml`."""

    modules: tuple[ModuleLine, ...]
    packages: tuple[PackageLine, ...]
    names: Mapping[str, str]
    tests: Mapping[str, str]

    def targets(self) -> dict[str, str]:
        """Return the new path for each old one, as full names."""
        found = {
            f"{PACKAGE}.{old}": f"{PACKAGE}.{line.to}" for line in self.modules for old in line.of if old != line.to
        }
        found |= {f"{PACKAGE}.{line.was}": f"{PACKAGE}.{line.name}" for line in self.packages if line.was}
        return {old: _last(found, new) for old, new in found.items()}


def _last(found: Mapping[str, str], name: str) -> str:
    """Follow a chain of moves to its end; a path that was left and entered again ends where it is entered."""
    seen = {name}
    while name in found and found[name] not in seen:
        name = found[name]
        seen.add(name)
    return name


def read_table(path: Path) -> Table:
    """Read `moves.toml`."""
    read = tomllib.loads(path.read_text(encoding="utf-8"))
    return Table(
        modules=tuple(
            ModuleLine(
                to=line["to"],
                of=tuple(line["of"]),
                doc=line.get("doc"),
                rename=line.get("rename", {}),
                titles=line.get("titles", {}),
            )
            for line in read.get("module", [])
        ),
        packages=tuple(PackageLine(**line) for line in read.get("package", [])),
        names=read.get("names", {}),
        tests=read.get("tests", {}),
    )


class Tree:
    """A checkout with its package below `src`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = root / "src" / PACKAGE

    def file(self, name: str) -> Path:
        """Return the file of a module, given without the package's own name."""
        return self.source.joinpath(*name.split(".")).with_suffix(".py")

    def is_package(self, full_name: str) -> bool:
        """Whether a full name is a folder with an `__init__`."""
        return (self.root / "src").joinpath(*full_name.split("."), "__init__.py").exists()

    def is_module(self, full_name: str) -> bool:
        """Whether a full name is a file or a folder."""
        return (
            self.is_package(full_name)
            or (self.root / "src").joinpath(*full_name.split(".")).with_suffix(".py").exists()
        )

    def texts(self) -> Iterator[Path]:
        """Every file in which names are rewritten."""
        for folder in FOLDERS:
            for path in sorted((self.root / folder).rglob("*")):
                if path.suffix in (".py", ".md") and path.relative_to(self.root).as_posix() not in OWN:
                    yield path
        yield from (self.root / name for name in FILES if (self.root / name).exists())


# -- one module, taken apart -------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Part:
    """The pieces of one module that are put together anew."""

    name: str
    doc: str
    imports: list[str]
    typed_imports: list[str]
    body: str


def take_apart(name: str, text: str) -> Part:
    """Split a module into docstring, imports, imports for type checkers, and the rest with its comments."""
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    taken: set[int] = set()
    part = Part(name=name, doc=ast.get_docstring(tree, clean=False) or "", imports=[], typed_imports=[], body="")
    for place, node in enumerate(tree.body):
        span = range(node.lineno - 1, node.end_lineno or node.lineno)
        if place == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and part.doc:
            taken.update(span)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            taken.update(span)
            if not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                part.imports += _statements(node, "".join(lines[row] for row in span))
        elif _is_typing_block(node):
            taken.update(span)
            for inner in node.body:  # type: ignore[attr-defined]
                part.typed_imports += [] if isinstance(inner, ast.Pass) else _statements(inner, "")
    part.body = "".join(line for row, line in enumerate(lines) if row not in taken).strip("\n")
    return part


def _is_typing_block(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.If)
        and ast.unparse(node.test) == "TYPE_CHECKING"
        and not node.orelse
        and all(isinstance(inner, (ast.Import, ast.ImportFrom, ast.Pass)) for inner in node.body)
    )


def _statements(node: ast.stmt, text: str) -> list[str]:
    """Return one import statement per name; a statement with a comment stays as it is written."""
    if "#" in text:
        return [text.strip()]
    if isinstance(node, ast.Import):
        return [f"import {ast.unparse(alias)}" for alias in node.names]
    assert isinstance(node, ast.ImportFrom)
    return [f"from {node.module} import {ast.unparse(alias)}" for alias in node.names]


def _offset(text: str) -> list[int]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _place(text: str, starts: Sequence[int], line: int, column: int) -> int:
    """Turn a position of `ast`, counted in UTF-8 bytes, into one of the text."""
    start = starts[line - 1]
    row = text[start : starts[line]] if line < len(starts) else text[start:]
    return start + len(row.encode()[:column].decode())


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Apply edits that do not overlap."""
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _span(text: str, starts: Sequence[int], node: Any) -> tuple[int, int]:
    return (
        _place(text, starts, node.lineno, node.col_offset),
        _place(text, starts, node.end_lineno, node.end_col_offset),
    )


def without_siblings(text: str, siblings: set[str]) -> str:
    """Drop imports of modules that become the same file, wherever they stand; `module.name` becomes `name`."""
    tree = ast.parse(text)
    starts = _offset(text)
    edits: list[Edit] = []
    as_module: set[str] = set()
    renamed: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        kept = []
        for alias in node.names:
            if node.module in siblings:
                if alias.asname and alias.asname != alias.name:
                    renamed[alias.asname] = alias.name
            elif f"{node.module}.{alias.name}" in siblings:
                as_module.add(alias.asname or alias.name)
            else:
                kept.append(alias)
        if len(kept) == len(node.names):
            continue
        start, end = _span(text, starts, node)
        if kept:
            edits.append((start, end, f"from {node.module} import {', '.join(ast.unparse(alias) for alias in kept)}"))
        else:
            alone = _is_alone(tree, node)
            edits.append((start, end, "pass") if alone else (starts[node.lineno - 1], starts[node.end_lineno or 0], ""))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in as_module:
            start, end = _span(text, starts, node)
            edits.append((start, end, node.attr))
    text = edited(text, edits)
    for alias_name, name in renamed.items():
        text = re.sub(rf"(?<![\w.]){alias_name}\b", name, text)
    return text


def _is_alone(tree: ast.Module, node: ast.stmt) -> bool:
    """Whether an import is all there is in a block for type checkers; in any other block that is refused."""
    for parent in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            if getattr(parent, block, None) == [node] and parent is not tree:
                if isinstance(parent, ast.stmt) and _is_typing_block(parent):
                    return True
                raise MoveError(f"line {node.lineno}: the import {ast.unparse(node)!r} stands alone in a block")
    return False


# -- several parts, put together ---------------------------------------------------------------------------------------


def defined_names(part: Part) -> dict[str, str]:
    """Return what each top-level name of a part stands for."""
    found: dict[str, str] = {}
    for statement in [*part.imports, *part.typed_imports]:
        node = ast.parse(statement).body[0]
        assert isinstance(node, (ast.Import, ast.ImportFrom))
        module = getattr(node, "module", "")
        for alias in node.names:
            bound = alias.asname or (alias.name.split(".")[0] if isinstance(node, ast.Import) else alias.name)
            found[bound] = f"import {module} {alias.name}" if alias.asname or module else f"import {bound}"
    for node in ast.parse(part.body).body:
        for name in _bound_by(node):
            found[name] = ast.dump(node) if name not in found else f"{found[name]} {ast.dump(node)}"
    return found


def _bound_by(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    if isinstance(node, (ast.If, ast.Try, ast.With, ast.For)):
        return [
            name
            for inner in ast.walk(node)
            if isinstance(inner, ast.stmt) and inner is not node
            for name in _simple(inner)
        ]
    return []


def _simple(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.split(".")[0] for alias in node.names]
    return _bound_by(node) if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)) else []


def used_on_import(body: str) -> set[str]:
    """Return the names that a module body reads while it is imported."""
    found: set[str] = set()

    def read(node: ast.AST | None) -> None:
        if node is None or isinstance(node, ast.Lambda):
            return
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for inner in [*node.decorator_list, *node.args.defaults, *node.args.kw_defaults]:
                read(inner)
        elif isinstance(node, ast.AnnAssign):
            read(node.value)
        else:
            for child in ast.iter_child_nodes(node):
                read(child)

    for node in ast.parse(body).body:
        read(node)
    return found


def in_order(parts: Sequence[Part]) -> list[Part]:
    """Return the parts as given, but each behind those that it needs while it is imported."""
    defines = {part.name: {name for node in ast.parse(part.body).body for name in _bound_by(node)} for part in parts}
    needs = {
        part.name: {
            other.name for other in parts if other is not part and used_on_import(part.body) & defines[other.name]
        }
        for part in parts
    }
    left, done = list(parts), []
    while left:
        free = next((part for part in left if not needs[part.name] - {other.name for other in done}), None)
        if free is None:
            raise MoveError(f"these parts need each other while they are imported: {[part.name for part in left]}")
        left.remove(free)
        done.append(free)
    return done


def merged(parts: Sequence[Part], doc: str | None, titles: Mapping[str, str]) -> str:
    """Return the text of one module made of several."""
    known: dict[str, tuple[str, str]] = {}
    for part in parts:
        repeated = []
        for name, meaning in defined_names(part).items():
            if name not in known:
                known[name] = (part.name, meaning)
            elif known[name][1] != meaning:
                raise MoveError(f"{name!r} is one thing in {known[name][0]} and another in {part.name}")
            elif not meaning.startswith("import"):
                repeated.append(name)
        part.body = _without_definitions(part.body, repeated)
    runtime = list(dict.fromkeys(line for part in parts for line in part.imports))
    typed = [
        line for line in dict.fromkeys(line for part in parts for line in part.typed_imports) if line not in runtime
    ]
    if typed and "from typing import TYPE_CHECKING" not in runtime:
        runtime.insert(0, "from typing import TYPE_CHECKING")
    text = doc.strip("\n") if doc is not None else "\n\n".join(part.doc.strip() for part in parts if part.doc)
    closing = "\n" if "\n" in text else ""
    pieces = [f'"""{text}{closing}"""', "from __future__ import annotations", "\n".join(runtime)]
    if typed:
        pieces.append("if TYPE_CHECKING:\n" + "\n".join(f"    {line}" for line in typed))
    for part in in_order(parts):
        title = titles.get(part.name)
        rule = f"# -- {title} ".ljust(120, "-") + "\n\n\n" if title else ""
        pieces.append(f"\n{rule}{part.body}")
    return "\n\n".join(piece for piece in pieces if piece.strip()) + "\n"


def _without_definitions(body: str, names: Sequence[str]) -> str:
    """Drop definitions that another part has word for word, with the comments right above and strings right below."""
    if not names:
        return body
    lines = body.splitlines(keepends=True)
    nodes = ast.parse(body).body
    drop: set[int] = set()
    for place, node in enumerate(nodes):
        bound = _bound_by(node)
        if not bound or not set(bound) <= set(names):
            continue
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        drop.update(range(first - 1, node.end_lineno or node.lineno))
        following = nodes[place + 1] if place + 1 < len(nodes) else None
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            drop.update(range(following.lineno - 1, following.end_lineno or following.lineno))
    return "".join(line for row, line in enumerate(lines) if row not in drop).strip("\n")


def with_doc(text: str, doc: str) -> str:
    """Return a module with another docstring."""
    first = ast.parse(text).body[0]
    lines = text.splitlines(keepends=True)
    words = doc.strip("\n")
    closing = "\n" if "\n" in words else ""
    return f'"""{words}{closing}"""\n' + "".join(lines[first.end_lineno :])


# -- the lines of the table --------------------------------------------------------------------------------------------


def pending(tree: Tree, line: ModuleLine) -> list[str]:
    """Return the old modules of a line that are still there."""
    return [old for old in line.of if old != line.to and tree.file(old).exists()]


def apply_module(tree: Tree, line: ModuleLine) -> None:
    """Move or merge what one line lists."""
    target = tree.file(line.to)
    names = [old for old in line.of if tree.file(old).exists() and (old == line.to or old in pending(tree, line))]
    if target.exists() and line.to not in names:
        names.insert(0, line.to)
    target.parent.mkdir(parents=True, exist_ok=True)
    if len(names) == 1:
        tree.file(names[0]).rename(target)
        if line.doc is not None:
            target.write_text(with_doc(target.read_text(encoding="utf-8"), line.doc), encoding="utf-8")
        return
    siblings = {f"{PACKAGE}.{name}" for name in (*line.of, line.to)}
    parts = []
    for name in names:
        text = tree.file(name).read_text(encoding="utf-8")
        for place, new in line.rename.items():
            module, _, old = place.partition(":")
            if module == name:
                text = re.sub(rf"(?<!\w){old}\b", new, text)
            else:  # the others import it by its old name
                text = re.sub(rf"(from {PACKAGE}\.{re.escape(module)} import [^\n]*?)\b{old}\b", rf"\1{new}", text)
        try:
            parts.append(take_apart(name, without_siblings(text, siblings)))
        except MoveError as error:
            raise MoveError(f"{line.to}: {name}: {error}") from None
    try:
        text = merged(parts, line.doc, line.titles)
    except MoveError as error:
        raise MoveError(f"{line.to}: {error}. Add a `rename`, or leave one of them where it is.") from None
    target.write_text(text, encoding="utf-8")
    for name in names:
        if tree.file(name) != target:
            tree.file(name).unlink()


def apply_package(tree: Tree, line: PackageLine) -> Path | None:
    """Write the `__init__` of a new folder, if it is not there."""
    path = tree.source.joinpath(*line.name.split("."), "__init__.py")
    if line.replaces_module:
        tree.file(line.name).unlink(missing_ok=True)
    if path.exists():
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    was = tree.source.joinpath(*line.was.split("."), "__init__.py")
    if line.was and was.exists():
        path.write_text(with_doc(was.read_text(encoding="utf-8"), line.doc), encoding="utf-8")
        was.unlink()
        return path
    text = line.doc.strip("\n")
    closing = "\n" if "\n" in text else ""
    path.write_text(f'"""{text}{closing}"""\n', encoding="utf-8")
    if line.names:
        path.write_text(f'"""{text}{closing}"""\n' + lazy_text(f"{PACKAGE}.{line.name}", line.names), encoding="utf-8")
    elif line.kept:
        path.write_text(f'"""{text}{closing}"""\n' + kept_text(line.kept), encoding="utf-8")
    return path


def move_the_rest(tree: Tree, line: PackageLine) -> list[Path]:
    """Bring what no line lists from the old folder of a package to its new one."""
    old, new = (tree.source.joinpath(*name.split(".")) for name in (line.was, line.name))
    found = sorted(old.glob("*.py")) if line.was else []
    for path in found:
        path.rename(new / path.name)
    if line.was and old.is_dir() and all(path.name == "__pycache__" for path in old.iterdir()):
        shutil.rmtree(old)
    return [new / path.name for path in found]


def lazy_text(package: str, table: Mapping[str, Sequence[str]]) -> str:
    """Return the imports for type checkers and the table of a lazy package."""
    ordered = {module: sorted(table[module]) for module in sorted(table)}
    typed = "".join(
        f"    from {package}.{module} import {name} as {name}\n" for module, names in ordered.items() for name in names
    )
    return (
        "\nfrom __future__ import annotations\n\nfrom typing import TYPE_CHECKING\n\n"
        f"from {PACKAGE}._lazy import lazy\n\nif TYPE_CHECKING:\n{typed}\n"
        f"__getattr__, __dir__, __all__ = lazy(__name__, {ordered!r})\n"
    )


def kept_text(table: Mapping[str, Sequence[str]]) -> str:
    """Return the table of a folder that finds the names of a module that had its path, and offers none as its own."""
    ordered = {module: sorted(table[module]) for module in sorted(table)}
    return (
        f"\nfrom __future__ import annotations\n\nfrom {PACKAGE}._lazy import lazy\n\n"
        f"__getattr__ = lazy(__name__, {ordered!r})[0]\n"
    )


# -- names, wherever they are written ----------------------------------------------------------------------------------


class Rewriter:
    """Old names to new ones in the text of any file."""

    def __init__(self, tree: Tree, table: Table) -> None:
        self.tree = tree
        self.targets = table.targets()
        self.names = {
            f"{PACKAGE}.{old.replace(':', '.')}": f"{PACKAGE}.{new.replace(':', '.')}"
            for old, new in table.names.items()
        }
        self.folders = {old for old in self.targets if tree.is_package(old)}
        """Old modules whose path is a folder now."""
        self.known = {**self.targets, **self.names}
        self.paths = {old[len(PACKAGE) + 1 :].replace(".", "/"): old for old in self.targets}
        self.tests = {**table.tests}
        self.moved_tests = re.compile(rf"(?<![\w/.-])({'|'.join(map(re.escape, self.tests)) or '(?!)'})\b")

    def rewrite(self, path: Path, text: str) -> str:
        """Return the text with new names."""
        if path.suffix == ".py":
            text = self._imports(text)
            if path.name == "__init__.py" and "lazy(" in text:
                text = self._lazy_table(path, text)
        else:
            text = re.sub(rf"(?m)^from {PACKAGE}[\w.]* import \w+(, \w+)*$", lambda found: self._line(found[0]), text)
        text = DOTTED.sub(self._dotted, text)
        text = SLASHED.sub(self._file, text)
        text = self.moved_tests.sub(lambda found: self.tests[found[1]], text)
        return QUOTED.sub(self._short, text)

    def _file(self, found: re.Match[str]) -> str:
        old = self.paths.get(found[2])
        return found[0] if old is None else found[1] + self.targets[old][len(PACKAGE) + 1 :].replace(".", "/") + ".py"

    def _short(self, found: re.Match[str]) -> str:
        """Rewrite `storage.pickers`, in backquotes, also with a name behind it."""
        return self._dotted(re.fullmatch(r"(.*)", f"{PACKAGE}.{found[0]}"))[len(PACKAGE) + 1 :]  # type: ignore[arg-type]

    def _dotted(self, found: re.Match[str]) -> str:
        """Rewrite the longest beginning of a dotted name that is an old one."""
        words = found[0].split(".")
        for count in range(len(words), 1, -1):
            old = ".".join(words[:count])
            if old not in self.known:
                continue
            if old in self.folders and (count == len(words) or self.tree.is_module(".".join(words[: count + 1]))):
                return found[0]
            return ".".join([self.known[old], *words[count:]])
        return found[0]

    def _imports(self, text: str) -> str:
        """Rewrite `from a.b import c` where c is a module that moved, or a.b is a folder now, or c moved by name."""
        if not any(self._concerned(found) for found in IMPORTED.finditer(text)):
            return text
        try:
            syntax = ast.parse(text)
        except SyntaxError:
            return text
        starts = _offset(text)
        edits: list[Edit] = []
        for node in ast.walk(syntax):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(PACKAGE):
                continue
            module = node.module or ""
            found = [self._import(module, alias) for alias in node.names]
            if all(
                new == f"from {module} import {ast.unparse(alias)}"
                for new, alias in zip(found, node.names, strict=True)
            ):
                continue
            start, end = _span(text, starts, node)
            indent = " " * node.col_offset
            edits.append((start, end, f"\n{indent}".join(found)))
        return edited(text, edits)

    def _concerned(self, found: re.Match[str]) -> bool:
        """Whether an import may need other words than its module's new path."""
        module = found[1]
        return module in self.folders or any(f"{module}.{name}" in self.known for name in re.findall(r"\w+", found[2]))

    def _line(self, line: str) -> str:
        """Rewrite one import of an example in a page."""
        lines: dict[str, list[str]] = {}
        for statement in self._imports(line).splitlines():
            home, _, name = statement.partition(" import ")
            lines.setdefault(home, []).append(name)
        return "\n".join(f"{home} import {', '.join(names)}" for home, names in lines.items())

    def _import(self, module: str, alias: ast.alias) -> str:
        whole, bound = f"{module}.{alias.name}", alias.asname or alias.name
        if whole in self.names:
            home, _, name = self.names[whole].rpartition(".")
            return f"from {home} import {name}" + (f" as {bound}" if alias.asname else "")
        if whole in self.targets:
            home, _, name = self.targets[whole].rpartition(".")
            return f"from {home} import {name}" + (f" as {bound}" if alias.asname or bound != name else "")
        if module in self.folders and not self.tree.is_module(whole):
            return f"from {self.targets[module]} import {ast.unparse(alias)}"
        return f"from {module} import {ast.unparse(alias)}"

    def _lazy_table(self, path: Path, text: str) -> str:
        """Write the table of a lazy package anew if a module in it moved; its imports for type checkers too."""
        package = ".".join(path.parent.relative_to(self.tree.root / "src").parts)
        syntax = ast.parse(text)
        call = next(
            (node for node in ast.walk(syntax) if isinstance(node, ast.Call) and ast.unparse(node.func) == "lazy"), None
        )
        if call is None or not isinstance(call.args[-1], ast.Dict):
            return text
        try:
            old = ast.literal_eval(call.args[-1])
        except ValueError:
            return text
        new: dict[str, list[str]] = {}
        for module, names in old.items():
            for name in names:
                if f"{package}.{name}" in self.names:
                    continue
                whole = f"{package}.{module}"
                if whole in self.targets and (whole not in self.folders or self.targets[whole] != whole):
                    whole = self.targets[whole]
                if not whole.startswith(f"{package}."):
                    raise MoveError(f"{package} offers {name!r}, which is in {whole} now; add it to [names]")
                new.setdefault(whole[len(package) + 1 :], []).append(name)
        if new == {module: list(names) for module, names in old.items()}:
            return text
        statement = next(node for node in syntax.body if call in ast.walk(node))
        starts = _offset(text)
        block = next((node for node in syntax.body if _is_typing_block(node)), None)
        if block is None:
            fresh = kept_text(new)
            return edited(text, [(*_span(text, starts, statement), fresh[fresh.index("__getattr__") :].rstrip())])
        fresh = lazy_text(package, new)
        typed = fresh[fresh.index("if TYPE_CHECKING:") : fresh.index("\n__getattr__")].rstrip()
        return edited(
            text,
            [
                (*_span(text, starts, block), typed),
                (*_span(text, starts, statement), fresh[fresh.index("__getattr__") :].rstrip()),
            ],
        )


# -- old paths ---------------------------------------------------------------------------------------------------------


def moved_table(tree: Tree, table: Table) -> dict[str, str]:
    """Return the old paths that nothing lies at any more, without the package's own name, and where each one went."""
    cut = len(PACKAGE) + 1
    return {
        old[cut:]: new[cut:]
        for old, new in sorted(table.targets().items())
        if not tree.is_module(old) and tree.is_module(new)
    }


def moved_names(table: Table) -> dict[str, str]:
    """Return the public names that went to another package, 'collect:DaggerSaver' to 'recording:DaggerSaver'."""
    return dict(sorted(table.names.items()))


def write_moved(tree: Tree, table: Table) -> Path | None:
    """Write both tables into `_moved.py`."""
    path = tree.source / "_moved.py"
    if not path.exists():
        return None
    text = path.read_text(encoding="utf-8")
    for title, rows in (("MODULES", moved_table(tree, table)), ("NAMES", moved_names(table))):
        lines = "".join(f'    "{old}": "{new}",\n' for old, new in rows.items())
        text = re.sub(
            rf"(?m)^{title}: (.*?) = \{{[^}}]*\}}$", lambda m, t=title, x=lines: f"{t}: {m[1]} = {{\n{x}}}", text
        )
    if text != path.read_text(encoding="utf-8"):
        path.write_text(text, encoding="utf-8")
    return path


# -- all of it ---------------------------------------------------------------------------------------------------------


def apply(tree: Tree, table: Table, changed: list[Path] | None = None) -> list[Path]:
    """Apply the table and return the files that changed, also in the list that is given, up to a refusal."""
    changed = [] if changed is None else changed
    for line in table.packages:
        written = apply_package(tree, line)
        changed += [written] if written else []
    for line in table.modules:
        if pending(tree, line):
            apply_module(tree, line)
            changed.append(tree.file(line.to))
    for line in table.packages:
        changed += move_the_rest(tree, line)
    for old, new in table.tests.items():
        if (tree.root / old).exists():
            (tree.root / new).parent.mkdir(parents=True, exist_ok=True)
            (tree.root / old).rename(tree.root / new)
    rewriter = Rewriter(tree, table)
    for path in tree.texts():
        text = path.read_text(encoding="utf-8")
        new_text = rewriter.rewrite(path, text)
        if new_text != text:
            path.write_text(new_text, encoding="utf-8")
            changed.append(path)
    written = write_moved(tree, table)
    changed += [written] if written else []
    return changed


def tidy(tree: Tree, changed: Sequence[Path]) -> None:
    """Sort and merge imports, drop those that nothing uses, and format what changed."""
    files = [str(path) for path in changed if path.suffix == ".py" and path.exists()]
    if files:
        for command in (["check", "--fix", "--quiet", "--select", "I,F401,F811"], ["format", "--quiet"]):
            subprocess.run([sys.executable, "-m", "ruff", *command, *files], check=False, cwd=tree.root)


def main(arguments: Sequence[str] | None = None) -> int:
    """Apply the table, or list what is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="list what is left to do and change nothing")
    options = parser.parse_args(arguments)
    tree, table = Tree(ROOT), read_table(ROOT / "tools" / "moves.toml")
    if options.check:
        rewriter = Rewriter(tree, table)
        left = [f"{old} -> {line.to}" for line in table.modules for old in pending(tree, line)]
        left += [
            f"old names in {path.relative_to(ROOT)}"
            for path in tree.texts()
            if (text := path.read_text(encoding="utf-8")) != rewriter.rewrite(path, text)
        ]
        print("\n".join(left) or "nothing is left")
        return bool(left)
    changed: list[Path] = []
    try:
        apply(tree, table, changed)
    except MoveError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        tidy(tree, changed)
    print(f"{len(set(changed))} files changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
