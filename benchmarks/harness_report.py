"""What came out of a benchmark: samples, their medians and ranges, ratios, JSON and Markdown.

    table ─┬─ row "index" ─┬─ contender "striderl Batch" ── cpu [2.1e-6, 2.0e-6, …]  wall […]     seconds per operation
           │               ├─ contender "Tianshou Batch" ── cpu [9.8e-6, 9.9e-6, …]  wall […]
           │               └─ contender "TensorDict" ────── reason "not installed"
           └─ row "stack" …

Only samples are kept; everything else is computed from them. The machine may be busy with other things, and then all
contenders are slower together: the ratio is therefore the median over rounds of (peer's time / our time) *in that
round*, not the quotient of two medians.
"""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness_clock import Sample

Clock = Literal["cpu", "wall"]
LEVEL = 0.05
"""A ratio within this of 1 is called level, neither faster nor slower."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One column of a table."""

    name: str
    """Its title."""
    needs: tuple[str, ...]
    """The distributions that it cannot do without, its own first."""
    role: Literal["subject", "peer", "information"] = "peer"
    """The subject is compared with the best peer; the rest is shown and not compared."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Named rows, and the contenders that take part in them."""

    title: str
    rows: tuple[str, ...]
    contenders: tuple[str, ...]
    """Keys of the benchmark's contenders, in the order of the columns."""
    unit: Literal["µs", "ms", "steps/s"] = "µs"
    """How a time per operation is printed."""
    clocks: tuple[Clock, ...] = ("cpu",)
    """What is printed; both are always measured."""
    memory: bool = False
    """Whether a second table shows the peak memory of every contender's process."""
    ratio_title: str = "best peer / striderl"
    """What the last column is called: the subject is this many times as fast."""


@dataclass
class Result:
    """The samples of one contender in one row, or the reason why there are none."""

    reason: str = ""
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    peak: float = 0.0
    """Highest resident memory of the contender's process in this row, bytes; 0 where it is not known."""

    def add(self, sample: Sample) -> None:
        """Add one sample to both lists."""
        self.cpu.append(sample.cpu)
        self.wall.append(sample.wall)
        self.peak = max(self.peak, sample.peak)

    def of(self, clock: Clock) -> list[float]:
        """Return the samples of one clock."""
        return self.cpu if clock == "cpu" else self.wall


@dataclass
class Report:
    """A whole benchmark with its results: results[table title][row][contender key]."""

    name: str
    date: str
    machine: dict[str, Any]
    versions: dict[str, dict[str, str]]
    """Contender key -> distribution -> version."""
    contenders: dict[str, Contender]
    tables: list[Table]
    results: dict[str, dict[str, dict[str, Result]]]

    def subject(self, table: Table) -> str:
        """Return the key of the contender that the others are compared with."""
        return next(key for key in table.contenders if self.contenders[key].role == "subject")

    def ratio(self, table: Table, row: str, clock: Clock) -> float | None:
        """Return how many times the subject is as fast as the best peer; None without one of the two."""
        results = self.results[table.title][row]
        own = results[self.subject(table)].of(clock)
        peers = [results[key].of(clock) for key in table.contenders if self.contenders[key].role == "peer"]
        ratios = [paired_ratio(peer, own) for peer in peers if peer and own]
        return min(ratios, default=None)


def paired_ratio(peer: Sequence[float], own: Sequence[float]) -> float:
    """Return the median over rounds of peer / own."""
    if len(peer) != len(own):
        raise ValueError(f"wanted one sample per round of both, found {len(peer)} and {len(own)}")
    return statistics.median(one / other for one, other in zip(peer, own))


# -- JSON --------------------------------------------------------------------------------------------------------------


def save(report: Report, path: Path) -> None:
    """Write a report; samples keep five digits, and medians and ratios are added for readers."""
    data = dataclasses.asdict(report)
    data["results"] = {
        table.title: {
            row: {
                "ratio": {clock: _rounded(report.ratio(table, row, clock)) for clock in ("cpu", "wall")},
                "contenders": {key: _result_to_json(result) for key, result in results.items()},
            }
            for row, results in report.results[table.title].items()
        }
        for table in report.tables
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[-+.e\d,\s]+\]", lambda found: " ".join(found.group().split()), text)  # samples on one line
    path.write_text(text + "\n", encoding="utf-8")


def load(path: Path) -> Report:
    """Read a report that `save` wrote."""
    data = json.loads(path.read_text(encoding="utf-8"))
    contenders = {key: Contender(**{**item, "needs": tuple(item["needs"])}) for key, item in data["contenders"].items()}
    tables = [_table_from_json(table) for table in data["tables"]]
    results = {
        title: {
            row: {
                key: Result(
                    result.get("reason", ""), result.get("cpu", []), result.get("wall", []), result.get("peak", 0.0)
                )
                for key, result in found["contenders"].items()
            }
            for row, found in rows.items()
        }
        for title, rows in data["results"].items()
    }
    return Report(data["name"], data["date"], data["machine"], data["versions"], contenders, tables, results)


def _table_from_json(data: dict[str, Any]) -> Table:
    lists = {name: tuple(data[name]) for name in ("rows", "contenders", "clocks")}
    return Table(**{**data, **lists})


def _result_to_json(result: Result) -> dict[str, Any]:
    if result.reason:
        return {"reason": result.reason}
    return {
        "median": {clock: _rounded(statistics.median(result.of(clock))) for clock in ("cpu", "wall")},
        "cpu": [_rounded(value) for value in result.cpu],
        "wall": [_rounded(value) for value in result.wall],
        **({"peak": result.peak} if result.peak else {}),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
