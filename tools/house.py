"""Count the house: files, code lines, public names, imports, cycles, class names, frames, import time.

    python tools/house.py                    the table
    python tools/house.py --list cycles      what stands behind a row: tiny, single, classes, wide, …
    python tools/house.py --json             the same numbers for a program

A code line is a line with a token of a statement on it: blank lines, comments and docstrings do not count. A public
name is a name in the `__all__` of a package. An import edge goes from one module to another, wherever in the file the
import stands; imports for type checkers count, because a reader follows them too. A cycle is a set of modules, or of
folders inside one folder, that import each other.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "striderl"

TINY_LINES = 40
WIDE_FILES = 15
FOREIGN_WORDS = ("compat",)
"""Folders whose class names are those of other libraries."""


@dataclass(frozen=True, kw_only=True)
class Module:
    """One source file."""

    name: str
    path: Path
    lines: int
    code_lines: int
    import_lines: int
    classes: tuple[str, ...]
    imports: frozenset[str]
    """The modules of the package that it imports."""

    @property
    def is_package(self) -> bool:
        """Whether it is the `__init__` of a folder."""
        return self.path.name == "__init__.py"


@dataclass(frozen=True, kw_only=True)
class House:
    """The modules of a source tree by name."""

    modules: Mapping[str, Module] = field(default_factory=dict)

    def importers(self) -> dict[str, set[str]]:
        """Return by whom each module is imported; the lazy table of a package counts as no importer."""
        found: dict[str, set[str]] = {name: set() for name in self.modules}
        for module in self.modules.values():
            if module.is_package:
                continue
            for other in module.imports:
                found[other].add(module.name)
        return found


def read_house(source: Path, package: str = PACKAGE) -> House:
    """Parse every file below `source`, the folder of the package."""
    paths = {_module_name(path, source, package): path for path in sorted(source.rglob("*.py"))}
    return House(modules={name: _read_module(name, path, paths) for name, path in paths.items()})


def _module_name(path: Path, source: Path, package: str) -> str:
    parts = list(path.relative_to(source).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join([package, *parts])


def _read_module(name: str, path: Path, known: Mapping[str, Path]) -> Module:
    text = path.read_text(encoding="utf-8")
    syntax = ast.parse(text)
    code = code_lines(text, syntax)
    imports = [node for node in ast.walk(syntax) if isinstance(node, (ast.Import, ast.ImportFrom))]
    import_lines = {line for node in imports for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return Module(
        name=name,
        path=path,
        lines=text.count("\n"),
        code_lines=len(code),
        import_lines=len(code & import_lines),
        classes=tuple(node.name for node in syntax.body if isinstance(node, ast.ClassDef)),
        imports=frozenset(_targets(imports, known) - {name}),
    )


def code_lines(text: str, syntax: ast.Module) -> set[int]:
    """Return the numbers of the lines that hold code."""
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(syntax):
        # a docstring, of a module, class or function or under a field, is an expression that is a plain string
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def _targets(imports: Iterable[ast.Import | ast.ImportFrom], known: Mapping[str, Path]) -> set[str]:
    """Return the modules that are imported; `from folder import module` means the module."""
    found: set[str] = set()
    for node in imports:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name in known)
        elif node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
    return found


# -- cycles ------------------------------------------------------------------------------------------------------------


def cycles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components with more than one member (Tarjan, without recursion)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for root in sorted(edges):
        if root in number:
            continue
        work = [(root, iter(sorted(edges[root])))]
        number[root] = low[root] = len(number)
        stack.append(root)
        while work:
            here, others = work[-1]
            other = next(others, None)
            if other is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[here])
                if low[here] == number[here]:
                    place = stack.index(here)
                    component = stack[place:]
                    del stack[place:]
                    if len(component) > 1:
                        found.append(sorted(component))
            elif other not in number:
                if other in edges:
                    number[other] = low[other] = len(number)
                    stack.append(other)
                    work.append((other, iter(sorted(edges[other]))))
            elif other in stack:
                low[here] = min(low[here], number[other])
    return found


def module_cycles(house: House) -> list[list[str]]:
    """Return the sets of modules that import each other; the lazy table of a package is no import."""
    return cycles({name: module.imports for name, module in house.modules.items() if not module.is_package})


def folder_cycles(house: House) -> list[list[str]]:
    """Return, for each folder, the sets of its sub-folders and files that import each other."""
    found: list[list[str]] = []
    folders = {name.rpartition(".")[0] for name in house.modules}
    for folder in sorted(folders - {""}):
        edges: dict[str, set[str]] = defaultdict(set)
        for name, module in house.modules.items():
            own = _child(folder, name)
            if own is None or module.is_package:
                continue
            edges[own].update(other for other in (_child(folder, target) for target in module.imports) if other)
            edges[own].discard(own)
        found += [cycle for cycle in cycles(edges) if any(_is_folder(house, child) for child in cycle)]
    return found


def _child(folder: str, name: str) -> str | None:
    """Return the file or sub-folder of `folder` that a module lies in."""
    if not name.startswith(f"{folder}."):
        return None
    return f"{folder}.{name[len(folder) + 1 :].partition('.')[0]}"


def _is_folder(house: House, name: str) -> bool:
    return house.modules[name].is_package if name in house.modules else False


# -- the other counts --------------------------------------------------------------------------------------------------


def duplicate_classes(house: House, *, everywhere: bool = False) -> dict[str, list[str]]:
    """Return the public class names defined more than once, by default outside the folders with foreign words."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in house.modules.values():
        if not everywhere and module.name.split(".")[1:2] and module.name.split(".")[1] in FOREIGN_WORDS:
            continue
        for name in module.classes:
            if not name.startswith("_"):
                found[name].append(module.name)
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


def wide_folders(house: House) -> dict[str, int]:
    """Return the folders with more than 15 files of their own, without `__init__`, and how many they have."""
    counts: dict[str, int] = defaultdict(int)
    for module in house.modules.values():
        if not module.is_package:
            counts[module.name.rpartition(".")[0]] += 1
    return {folder: count for folder, count in sorted(counts.items()) if count > WIDE_FILES}


def own_lines(house: House) -> int:
    """Return the code lines without `compat/` and the table of old names."""
    spared = (f"{PACKAGE}.compat", f"{PACKAGE}._moved")
    return sum(each.code_lines for each in house.modules.values() if not each.name.startswith(spared))


def public_names(house: House) -> dict[str, list[str]]:
    """Return for each package the names in its `__all__`; sub-packages count on their own."""
    program = (
        "import importlib, json, sys\n"
        "print(json.dumps({name: list(getattr(importlib.import_module(name), '__all__', [])) "
        "for name in json.loads(sys.argv[1])}))"
    )
    packages = [module.name for module in house.modules.values() if module.is_package]
    found: dict[str, list[str]] = json.loads(_python(program, json.dumps(packages)))
    return {package: names for package, names in found.items() if names}


def own_names(names: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the public names without those of other libraries, which `compat/` offers; each counts once."""
    return {name for package, found in names.items() if f"{PACKAGE}.compat" not in package for name in found}


def documented(names: Iterable[str], pages: Iterable[Path]) -> set[str]:
    """Return those of the names that stand as a word in one of the pages."""
    words = {word for page in pages for word in re.findall(r"\w+", page.read_text(encoding="utf-8"))}
    return set(names) & words


def doc_pages(root: Path = ROOT) -> list[Path]:
    """Return the pages that users read; api.md is none of them, because it lists every public name."""
    pages = [page for page in sorted((root / "docs").glob("*.md")) if page.name != "api.md"]
    return [root / "README.md", root / "CONTRIBUTING.md", *pages]


FRAMES_PROGRAM = """
import json, traceback
from striderl.algorithms import PPO, PPOConfig
from striderl.collect import Collector
from striderl.envs import make
from striderl.policies import Policy, PolicyConfig
from striderl.training import OnPolicyPlan, Trainer

frames = []

class Watched(PPO):
    def compute_losses(self, *arguments):
        frames[:] = frames or [
            f"{frame.filename.partition('striderl/')[2]}:{frame.name}" for frame in traceback.extract_stack()
        ]
        return super().compute_losses(*arguments)

env = make("cartpole", num_envs=2)
policy = Policy(env.obs_spec, env.action_spec, PolicyConfig(actor_hidden_dims=(8,), critic_hidden_dims=(8,)))
algorithm = Watched(policy, PPOConfig(num_learning_epochs=1, num_mini_batches=1))
next(iter(Trainer(algorithm, Collector(env, algorithm.actor()), OnPolicyPlan(num_steps_per_env=4, total_steps=8))))
start = max(place for place, frame in enumerate(frames) if frame.endswith("ppo.py:update"))
print(json.dumps(frames[start:]))
"""


def frames_to_losses() -> list[str]:
    """Return the frames from `PPO.update` to `PPO.compute_losses`, both included, in eager mode."""
    found: list[str] = json.loads(_python(FRAMES_PROGRAM))
    return found


PUBLIC_DESPITE_UNDERSCORE = frozenset(
    {"_asdict", "_exit", "_field_defaults", "_fields", "_make", "_replace"}  # of named tuples, and `os._exit`
    | {"_discount", "_typename", "_run_collect", "_run_train"}  # of rlpyt's tuples, and of a generator's trainer
)
"""Names that Python, or a library whose interface `compat/` has, documents for everyone's use."""


def private_names(source: Path) -> set[str]:
    """Return the names with an underscore that the files below a folder define: functions, classes, attributes."""
    found: set[str] = set()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def private_touches(tests: Path, source: Path) -> list[str]:
    """Return where a test reads or writes a private attribute that `source` defines, of what is not `self`."""
    names = private_names(source) - PUBLIC_DESPITE_UNDERSCORE
    found = []
    for path in sorted(tests.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Attribute) or node.attr not in names:
                continue
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                continue
            found.append(f"{path.relative_to(tests.parent)}:{node.lineno} {ast.unparse(node)}")
    return found


def import_time(repeats: int = 5) -> float:
    """Return the median milliseconds that `import striderl` takes in a new process."""
    program = f"import time; start = time.perf_counter(); import {PACKAGE}; print(time.perf_counter() - start)"
    return median(float(_python(program)) for _ in range(repeats)) * 1e3


def _python(program: str, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    if result.returncode:
        raise RuntimeError(f"a counting program failed:\n{result.stderr}")
    return result.stdout.strip().splitlines()[-1]


# -- the table ---------------------------------------------------------------------------------------------------------


def count(house: House) -> dict[str, float]:
    """Return all counts by name, in the order in which they are printed."""
    modules = list(house.modules.values())
    importers, names = house.importers(), public_names(house)
    code = sum(module.code_lines for module in modules)
    return {
        "files": len(modules),
        "tiny_files": len(tiny(house)),
        "files_with_one_importer": len(single_importer(house, importers)),
        "wide_folders": len(wide_folders(house)),
        "files_over_500_lines": sum(module.lines > 500 for module in modules),
        "lines": sum(module.lines for module in modules),
        "code_lines": code,
        "code_lines_without_compat": own_lines(house),
        "import_share_percent": round(100 * sum(module.import_lines for module in modules) / max(code, 1), 1),
        "public_names": sum(map(len, names.values())),
        "public_names_without_compat": len(own_names(names)),
        "documented_names_without_compat": len(documented(own_names(names), doc_pages())),
        "import_edges": sum(len(module.imports) for module in modules if not module.is_package),
        "module_cycles": len(module_cycles(house)),
        "folder_cycles": len(folder_cycles(house)),
        "duplicate_class_names": len(duplicate_classes(house)),
        "duplicate_class_names_everywhere": len(duplicate_classes(house, everywhere=True)),
        "frames_update_to_losses": len(frames_to_losses()),
        "private_attributes_touched_by_tests": len(private_touches(ROOT / "tests", ROOT / "src" / PACKAGE)),
        "import_ms": round(import_time(), 1),
    }


def tiny(house: House) -> list[str]:
    """Return the files with fewer than 40 code lines."""
    return [module.name for module in house.modules.values() if module.code_lines < TINY_LINES]


def single_importer(house: House, importers: Mapping[str, set[str]]) -> list[str]:
    """Return the modules that exactly one other module imports."""
    return [
        f"{name} <- {next(iter(found))}"
        for name, found in importers.items()
        if len(found) == 1 and not house.modules[name].is_package
    ]


TITLES = {
    "files": "files",
    "tiny_files": f"files under {TINY_LINES} code lines",
    "files_with_one_importer": "files with one importer",
    "wide_folders": f"folders with more than {WIDE_FILES} files",
    "files_over_500_lines": "files over 500 lines",
    "lines": "lines",
    "code_lines": "code lines",
    "code_lines_without_compat": "code lines without compat/ and old names",
    "import_share_percent": "of them imports, %",
    "public_names": "public names",
    "public_names_without_compat": "public names without compat/",
    "documented_names_without_compat": "documented names, without compat/",
    "import_edges": "import edges",
    "module_cycles": "import cycles between modules",
    "folder_cycles": "import cycles between folders",
    "duplicate_class_names": "class names used twice, outside compat/",
    "duplicate_class_names_everywhere": "class names used twice, everywhere",
    "frames_update_to_losses": "frames from PPO.update to its losses, both included",
    "private_attributes_touched_by_tests": "private attributes touched by tests",
    "import_ms": "import striderl, ms",
}


def table(counts: Mapping[str, float]) -> str:
    """Return the counts as a markdown table."""
    rows = [f"| {TITLES[name]} | {value:,.10g} |" for name, value in counts.items()]
    return "\n".join(["| the house | now |", "|---|---|", *rows])


LISTS: dict[str, Callable[[House], Sequence[str]]] = {
    "tiny": tiny,
    "single": lambda house: single_importer(house, house.importers()),
    "cycles": lambda house: [" ".join(cycle) for cycle in [*module_cycles(house), *folder_cycles(house)]],
    "classes": lambda house: [f"{name}: {', '.join(places)}" for name, places in duplicate_classes(house).items()],
    "frames": lambda house: frames_to_losses(),
    "names": lambda house: [f"{package}: {', '.join(names)}" for package, names in public_names(house).items()],
    "undocumented": lambda house: sorted(
        own_names(names := public_names(house)) - documented(own_names(names), doc_pages())
    ),
    "wide": lambda house: [f"{folder}: {number}" for folder, number in wide_folders(house).items()],
    "private": lambda house: private_touches(ROOT / "tests", ROOT / "src" / PACKAGE),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, a list or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=sorted(LISTS), help="print what stands behind a row")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    options = parser.parse_args(arguments)
    house = read_house(ROOT / "src" / PACKAGE)
    if options.list:
        print("\n".join(LISTS[options.list](house)))
    elif options.json:
        print(json.dumps(count(house), indent=2))
    else:
        print(table(count(house)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
