"""Run a benchmark: named rows × named contenders, side by side in one run.

    python benchmarks/data.py                                        measure, print, write results/ and README.md
    python benchmarks/data.py --python-for tianshou=PATH_TO_PYTHON   a contender that lives in another environment
    python benchmarks/data.py --print-only --rounds 3                look, and leave the files as they are

For each row, all contenders take turns: one block each per round, in an order that rotates. Every contender has a fresh
interpreter of its own (see harness_process.py) and one torch thread. It is started anew `starts` times, because two
processes of the same program can differ by a few per cent. A contender whose packages are missing is listed as 'not
installed'.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import harness_clock
from harness_markdown import splice_file, to_markdown
from harness_process import ContenderFailedError, ContenderProcess, Prepare, serve
from harness_report import Contender, Report, Result, Table, load, save

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What is measured; `prepare` runs in the contender's process, all else in the harness."""

    name: str
    """Names the result file and the markers in the README."""
    contenders: Mapping[str, Contender]
    """Key (as in --python-for) -> contender."""
    tables: Sequence[Table]
    prepare: Prepare
    also_report: tuple[str, ...] = ()
    """Distributions whose version matters besides those that contenders need."""
    rounds: int = 10
    """Samples per start; 5 or more."""
    starts: int = 2
    """How often each contender's process is started anew."""
    deadline: float = 300.0
    """Seconds that a contender may take to answer."""


def main(benchmarks: Sequence[Benchmark], script: str, arguments: Sequence[str] | None = None) -> int:
    """Serve one contender, or run the benchmarks; return the exit status."""
    options = _parse(benchmarks, arguments)
    by_name = {benchmark.name: benchmark for benchmark in benchmarks}
    if options.serve:
        name, contender = options.serve
        chosen = by_name[name]
        serve(contender, chosen.contenders[contender].needs, chosen.also_report, chosen.prepare)
        return 0
    failed = False
    for name in options.only or by_name:
        path = options.results / f"{name}.json"
        if not options.render_only:
            report, problems = measure(by_name[name], script, options.python_for, options.rounds, options.starts)
            failed = failed or bool(problems)
            if options.print_only:
                print(f"\n{to_markdown(report)}")
                continue
            save(report, path)
        text = to_markdown(load(path))  # of what was saved, so that --render-only gives the same digits
        print(f"\n{text}")
        splice_file(options.readme, name, text)
    return int(failed)


def measure(
    benchmark: Benchmark, script: str, python_for: Mapping[str, str], rounds: int | None, starts: int | None
) -> tuple[Report, list[str]]:
    """Run all rows of a benchmark; return the report and what went wrong."""
    report = Report(
        name=benchmark.name,
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        machine=harness_clock.machine(),
        versions={},
        contenders=dict(benchmark.contenders),
        tables=list(benchmark.tables),
        results={t.title: {row: {key: Result() for key in t.contenders} for row in t.rows} for t in benchmark.tables},
    )
    problems: list[str] = []
    for start in range(benchmark.starts if starts is None else starts):
        with ExitStack() as session:
            processes: dict[str, ContenderProcess] = {}
            for key in benchmark.contenders:
                python = python_for.get(key, sys.executable)
                process = ContenderProcess([python, script, "--serve", benchmark.name, key], benchmark.deadline)
                session.callback(process.close)
                processes[key] = process
                report.versions[key] = process.versions
            for table in benchmark.tables:
                for row in table.rows:
                    print(f"start {start + 1}: {table.title}: {row}", file=sys.stderr)
                    _measure_row(
                        report, table, row, processes, benchmark.rounds if rounds is None else rounds, problems
                    )
    return report, problems


def _measure_row(
    report: Report,
    table: Table,
    row: str,
    processes: Mapping[str, ContenderProcess],
    rounds: int,
    problems: list[str],
) -> None:
    """Let the contenders of one row take turns; whoever fails once is out of the row."""
    results = report.results[table.title][row]
    running = []
    for key in table.contenders:
        process = processes[key]
        try:
            results[key].reason = results[key].reason or _not_ready(process, table, row)
        except ContenderFailedError as failure:
            _fail(results[key], f"{key}: {table.title}: {row}: {failure}", problems)
        if not results[key].reason:
            running.append(key)
    for turn in range(rounds):
        shift = turn % max(1, len(running))
        for key in running[shift:] + running[:shift]:
            if results[key].reason:
                continue
            try:
                results[key].add(processes[key].sample())
            except ContenderFailedError as failure:
                _fail(results[key], f"{key}: {table.title}: {row}: {failure}", problems)


def _not_ready(process: ContenderProcess, table: Table, row: str) -> str:
    if process.missing:
        return "not installed" if len(process.missing) == 1 else f"not installed: {', '.join(process.missing)}"
    return process.prepare(table.title, row)


def _fail(result: Result, problem: str, problems: list[str]) -> None:
    """Drop what a contender gave so far: a number of a process that then failed is not to be trusted."""
    result.reason = "failed"
    result.cpu.clear()
    result.wall.clear()
    result.peak = 0.0
    problems.append(problem)
    print(f"FAILED {problem}", file=sys.stderr)


# -- command line ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Options:
    only: list[str]
    serve: list[str] | None
    python_for: dict[str, str]
    rounds: int | None
    starts: int | None
    print_only: bool
    render_only: bool
    results: Path
    readme: Path


def _parse(benchmarks: Sequence[Benchmark], arguments: Sequence[str] | None) -> _Options:
    names = [benchmark.name for benchmark in benchmarks]
    keys = sorted({key for benchmark in benchmarks for key in benchmark.contenders})
    parser = argparse.ArgumentParser(description=f"Benchmarks: {', '.join(names)}. Contenders: {', '.join(keys)}.")
    parser.add_argument("--only", action="append", choices=names, default=[], help="run one of the benchmarks")
    parser.add_argument("--python-for", action="append", default=[], metavar="CONTENDER=PYTHON", help="may be repeated")
    parser.add_argument("--rounds", type=int, help="samples per start")
    parser.add_argument("--starts", type=int, help="how often each contender is started anew")
    parser.add_argument("--print-only", action="store_true", help="write no files")
    parser.add_argument("--render-only", action="store_true", help="measure nothing; rewrite the README from results/")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the JSON files")
    parser.add_argument("--readme", type=Path, default=HERE / "README.md", help="file with the markers")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    found = parser.parse_args(arguments)
    pythons = {}
    for text in found.python_for:
        key, equals, path = text.partition("=")
        if key not in keys or not equals:
            parser.error(f"--python-for wants CONTENDER=PYTHON with a contender of {', '.join(keys)}, found {text!r}")
        pythons[key] = path
    return _Options(
        only=found.only,
        serve=found.serve,
        python_for=pythons,
        rounds=found.rounds,
        starts=found.starts,
        print_only=found.print_only,
        render_only=found.render_only,
        results=found.results,
        readme=found.readme,
    )
