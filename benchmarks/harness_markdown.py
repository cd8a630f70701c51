"""A report as Markdown: tables, a sentence for each, and their place in benchmarks/README.md."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from harness_report import LEVEL, Clock, Report, Result, Table

_CLOCK_NAMES = {"cpu": "CPU time", "wall": "wall clock"}


def to_markdown(report: Report) -> str:
    """Return the whole report: conditions, then every table with its sentence."""
    parts = [_conditions(report)]
    for table in report.tables:
        for clock in table.clocks:
            parts += [_heading(table, clock), _table(report, table, clock), sentence(report, table, clock)]
        if table.memory:
            parts += [f"**{table.title}** (MiB, peak resident memory of the process)", _memory(report, table)]
    return "\n\n".join(parts) + "\n"


def splice(text: str, name: str, block: str) -> str:
    """Return the text with what stands between a benchmark's two markers replaced by the block."""
    start, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if text.count(start) != 1 or text.count(end) != 1 or text.index(end) < text.index(start):
        raise ValueError(f"wanted one pair of markers {start!r} and {end!r}, in this order; found none or several")
    before, _, rest = text.partition(start)
    return f"{before}{start}\n{block}{end}{rest.partition(end)[2]}"


def splice_file(path: Path, name: str, block: str) -> None:
    """Replace a benchmark's block in a file."""
    path.write_text(splice(path.read_text(encoding="utf-8"), name, block), encoding="utf-8")


# -- parts -------------------------------------------------------------------------------------------------------------


def _conditions(report: Report) -> str:
    machine = report.machine
    rounds = max((len(r.cpu) for t in report.results.values() for row in t.values() for r in row.values()), default=0)
    return (
        f"{report.date}; {machine['cpu']}, {machine['cores']} cores, {machine['system']}, Python {machine['python']}, "
        f"load before the run {machine['load_before']}; {rounds} rounds; {_versions(report)}."
    )


def _versions(report: Report) -> str:
    """Return every distribution with its version, or its versions where contenders live in several environments."""
    found: dict[str, list[str]] = {}
    for versions in report.versions.values():
        for name, version in versions.items():
            if version not in found.setdefault(name, []):
                found[name].append(version)
    return ", ".join(f"{name} {' / '.join(versions)}" for name, versions in sorted(found.items()))


def _heading(table: Table, clock: Clock) -> str:
    return f"**{table.title}** ({table.unit}, {_CLOCK_NAMES[clock]}: median, lowest–highest)"


def _table(report: Report, table: Table, clock: Clock) -> str:
    names = [report.contenders[key].name for key in table.contenders]
    lines = [["", *names, table.ratio_title]]
    for row in table.rows:
        results = report.results[table.title][row]
        cells = [_cell(results[key], table, clock) for key in table.contenders]
        ratio = report.ratio(table, row, clock)
        lines.append([row, *cells, "–" if ratio is None else f"**{ratio:.2f}**"])
    rule = ["---"] + ["---:"] * (len(names) + 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [lines[0], rule, *lines[1:]])


def _memory(report: Report, table: Table) -> str:
    """Return the peak memory of every row and contender."""
    names = [report.contenders[key].name for key in table.contenders]
    lines = [["", *names], ["---"] + ["---:"] * len(names)]
    for row in table.rows:
        results = [report.results[table.title][row][key] for key in table.contenders]
        lines.append([row, *(number(each.peak / 2**20) if each.peak else each.reason or "–" for each in results)])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _cell(result: Result, table: Table, clock: Clock) -> str:
    if result.reason:
        return result.reason
    scale = {"µs": 1e6, "ms": 1e3, "steps/s": 1.0}[table.unit]
    shown = [scale / value if table.unit == "steps/s" else scale * value for value in result.of(clock)]
    return f"{number(statistics.median(shown))} ({number(min(shown))}–{number(max(shown))})"


def number(value: float) -> str:
    """Return a number with about three digits."""
    if value >= 100.0:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.1f}" if value >= 10.0 else f"{value:.2f}"


def sentence(report: Report, table: Table, clock: Clock) -> str:
    """Say by how much the subject is faster than the best peer, and in which rows it is not."""
    subject = report.contenders[report.subject(table)].name
    names = [report.contenders[key].name for key in table.contenders if report.contenders[key].role == "peer"]
    peers = names[0] if len(names) == 1 else f"the best of {_listed(names)}"
    ratios = {row: report.ratio(table, row, clock) for row in table.rows}
    found = {row: ratio for row, ratio in ratios.items() if ratio is not None}
    if not found:
        return f"There is nothing to compare: {_listed([subject, *names])} did not both give numbers."
    faster = [ratio for ratio in found.values() if ratio > 1.0 + LEVEL]
    level = [f"'{row}' ({ratio:.2f})" for row, ratio in found.items() if abs(ratio - 1.0) <= LEVEL]
    slower = [f"'{row}' ({ratio:.2f})" for row, ratio in found.items() if ratio < 1.0 - LEVEL]
    text = f"{subject} is faster than {peers} in {len(faster)} of {len(found)} rows"
    if len(faster) > 1:
        text += f", {min(faster):.1f} to {max(faster):.1f} times (median {statistics.median(faster):.1f})"
    elif faster:
        text += f", {faster[0]:.1f} times"
    if level:
        text += f"; level in {_listed(level)}"
    if slower:
        text += f"; slower in {_listed(slower)}"
    return text + "."


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
