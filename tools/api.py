"""Write docs/api.md: every public name of the packages, with its parameters and the first sentence of its docstring.

    python tools/api.py            write the page
    python tools/api.py --check    exit with 1 if the page differs from the source

A package's public names are those of its `__all__`. The facades of `striderl.compat` have the names of other libraries
and are left out: what is there is in docs/described.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
HEADING = """# Public names

Package by package, with the first sentence of each docstring; `help(name)` shows the rest, and a config's fields with a
sentence each. Written by `python tools/api.py`. The names of other libraries below `striderl.compat` are in
[described.md](described.md).
"""
MOST_PARAMETERS = 6
"""How many parameters are shown; a config has its fields instead."""


def packages() -> Iterator[tuple[str, list[str]]]:
    """Yield each package with its public names; a name that a package above it has already is left out."""
    import striderl

    found = (module.name for module in pkgutil.walk_packages(striderl.__path__, "striderl.") if module.ispkg)
    seen: set[int] = set()
    for name in ["striderl", *sorted(found)]:
        if name.startswith("striderl.compat"):
            continue
        package = importlib.import_module(name)
        new = [each for each in sorted(getattr(package, "__all__", [])) if id(getattr(package, each)) not in seen]
        seen |= {id(getattr(package, each)) for each in new}
        if new:
            yield name, new


def parameters(thing: Any) -> str:
    """Return '(first, second, …)' of a function or a constructor; '' for anything else and for configs."""
    if not callable(thing) or (dataclasses.is_dataclass(thing) and thing.__name__.endswith(("Config", "Settings"))):
        return ""
    try:
        given = [each for each in inspect.signature(thing).parameters.values() if each.kind is not each.VAR_KEYWORD]
    except (TypeError, ValueError):
        return ""
    names = [("*" if each.kind is each.VAR_POSITIONAL else "") + each.name for each in given]
    names = [name for name in names if not name.startswith("_")]
    return f"({', '.join(names[:MOST_PARAMETERS])}{', …' if len(names) > MOST_PARAMETERS else ''})"


def sentence(thing: Any) -> str:
    """Return the first sentence of a docstring of one's own; what a value inherits from its type does not count."""
    if not inspect.isclass(thing) and not inspect.isroutine(thing):
        return f"`{thing!r}`" if isinstance(thing, (str, int, float, tuple)) and len(repr(thing)) < 80 else ""
    first = (inspect.getdoc(thing) or "").strip().split("\n\n")[0].replace("\n", " ")
    end = first.find(". ")
    return (first if end < 0 else first[: end + 1]).replace("|", "\\|")


def page() -> str:
    """Return the whole page."""
    lines = [HEADING]
    for name, names in packages():
        package = importlib.import_module(name)
        about = (package.__doc__ or "").strip().splitlines()[0]
        lines += [f"## {name}", "", about, "", "| name | |", "|---|---|"]
        for each in names:
            thing = getattr(package, each)
            lines.append(f"| `{each}{parameters(thing)}` | {sentence(thing)} |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page differs")
    if parser.parse_args().check:
        return int(PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
