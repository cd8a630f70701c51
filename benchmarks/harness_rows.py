"""What benchmarks have in common whose rows are whole runs in processes of their own: options, starting a row, showing.

table_parser ─▶ started, answer: {"round_ms": 3.1, …} or {"failed": "took more than 120 s"} ─▶ results/NAME.json
                                                         └▶ show: README.md
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness_markdown import splice_file

HERE = Path(__file__).resolve().parent


def table_parser(description: str, name: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all of them have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--render-only", action="store_true", help="run nothing; print and write the table")
    parser.add_argument("--print-only", action="store_true", help="leave README.md as it is")
    parser.add_argument("--results", type=Path, default=HERE / "results" / f"{name}.json", help="file of the results")
    parser.add_argument("--readme", type=Path, default=HERE / "README.md", help="file with the markers")
    return parser


def today() -> str:
    """Return the date, as in 2026-11-15."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def started(script: str, words: Sequence[str]) -> subprocess.Popen[str]:
    """Start a benchmark's own file in a new interpreter, to run one row."""
    return subprocess.Popen(
        [sys.executable, str(Path(script).resolve()), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def answer(process: subprocess.Popen[str], limit: float) -> dict[str, Any]:
    """Return what a row's process printed last, or why there is nothing."""
    try:
        out, error = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"failed": f"took more than {limit:g} s"}
    if process.returncode:
        return {"failed": (error.strip().splitlines() or [f"exit code {process.returncode}"])[-1]}
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def write_rows(path: Path, name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows to a results file, one per line; done after each of them, so that none is lost."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    path.write_text(f'{{"name": "{name}", "rows": [\n{lines}\n]}}\n', encoding="utf-8")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a results file, none if there is no file."""
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    return found


def show(text: str, name: str, options: argparse.Namespace) -> None:
    """Print the table and put it between the markers of README.md."""
    print(f"\n{text}")
    if not options.print_only:
        splice_file(options.readme, name, text)
