"""Reading the metrics of run folders, and putting runs that differ in nothing but their seed together.

runs/cartpole/1  config.json {"task": "cartpole", "seed": 0, "ppo": {"clip": 0.2}}   ┐ one group, "cartpole"
runs/cartpole/2  config.json {"task": "cartpole", "seed": 1, "ppo": {"clip": 0.2}}   ┘
runs/cartpole/3  config.json {"task": "cartpole", "seed": 0, "ppo": {"clip": 0.1}}     "cartpole, ppo.clip=0.1"
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from striderl.checkpoint.safe_files import decode_json, read_json, read_lines
from striderl.loggers.csv_logger import read_table
from striderl.loggers.line_file import parts_of
from striderl.loggers.logger import flat_settings

_log = logging.getLogger(__name__)

Numbers = np.ndarray[Any, np.dtype[np.float64]]

_NOT_SETTINGS = {"seed", "folder", "run_dir", "log_dir", "run_name", "name", "time", "created"}
_MOST_DIFFERENCES = 3


@dataclass(frozen=True, kw_only=True)
class RunMetrics:
    """The numbers of one run, by name."""

    folder: Path
    """Where they were found."""
    steps: Numbers
    """The env steps of the rows, growing. Shape: [R]."""
    columns: Mapping[str, Numbers]
    """Each metric, not a number in rows that do not have it. Shape: [R]."""

    def curve(self, name: str) -> tuple[Numbers, Numbers]:
        """Return the steps and values of a metric in the rows that have it; both empty where none has."""
        values = self.columns.get(name, np.full(len(self.steps), np.nan))
        there = np.isfinite(values)
        return self.steps[there], values[there]


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """Runs of the same settings with different seeds."""

    label: str
    """What a legend calls them."""
    runs: tuple[RunMetrics, ...]
    """The runs, in the order in which they were given."""
    seeds: tuple[str, ...]
    """The seed of each run; of one whose settings have none, its folder."""

    def by_seed(self) -> dict[str, list[RunMetrics]]:
        """Return the runs of each seed: several of one seed repeat each other, and do not show how seeds differ."""
        found: dict[str, list[RunMetrics]] = {}
        for seed, run in zip(self.seeds, self.runs):
            found.setdefault(seed, []).append(run)
        return found


def read_metrics(run_dir: str | Path) -> RunMetrics:
    """Read metrics.jsonl, or metrics.csv where there is none, with the parts that were set aside before it.

    A step that was written twice counts as last written.
    """
    folder = Path(run_dir)
    if parts := parts_of(folder / "metrics.jsonl"):
        rows = [row for part in parts for row in _read_jsonl(part)]
    elif parts := parts_of(folder / "metrics.csv"):
        rows = [row for part in parts for row in _read_csv(part)]
    else:
        raise FileNotFoundError(
            f"{folder} has no metrics.jsonl and no metrics.csv; wanted a run folder such as runs/<task>/<time>"
        )
    by_step = {int(row["step"]): row for row in rows}
    steps = sorted(by_step)
    names = dict.fromkeys(name for step in steps for name in by_step[step] if name != "step")
    columns = {name: np.array([by_step[step].get(name, math.nan) for step in steps]) for name in names}
    return RunMetrics(folder=folder, steps=np.array(steps, dtype=np.float64), columns=columns)


def group_runs(run_dirs: Iterable[str | Path]) -> list[RunGroup]:
    """Read runs and group those whose settings differ in nothing but the seed."""
    folders = [Path(run_dir) for run_dir in run_dirs]
    settings = [_settings(folder) for folder in folders]
    members: dict[str, list[int]] = {}
    for index, (folder, values) in enumerate(zip(folders, settings)):
        key = str(folder.absolute()) if values is None else json.dumps(values, sort_keys=True, default=str)
        members.setdefault(key, []).append(index)
    labels = _labels([(folders[group[0]], settings[group[0]]) for group in members.values()])
    return [
        RunGroup(
            label=label,
            runs=tuple(read_metrics(folders[index]) for index in group),
            seeds=tuple(_seed(folders[index]) for index in group),
        )
        for label, group in zip(labels, members.values())
    ]


def _read_jsonl(path: Path) -> list[dict[str, float]]:
    rows, damaged = [], 0
    for line in read_lines(path):
        try:
            row = decode_json(line, path)
            found = {name: math.nan if value is None else float(value) for name, value in row.items()}
            rows.append({**found, "step": int(row["step"])})
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            damaged += 1
    _warn_of(damaged, path)
    return rows


def _read_csv(path: Path) -> list[dict[str, float]]:
    table = read_table(path)
    header = next(table, [])
    rows, damaged = [], 0
    for cells in table:
        try:
            # a torn last row has fewer cells than the header
            row = {name: float(cell) for name, cell in zip(header, cells, strict=True) if cell}
            rows.append({**row, "step": int(row["step"])})
        except (ValueError, KeyError, OverflowError):
            damaged += 1
    _warn_of(damaged, path)
    return rows


def _warn_of(damaged: int, path: Path) -> None:
    if damaged > 1:
        # one torn line at the end is what a killed run leaves behind
        _log.warning("%s: %d lines could not be read and are left out", path, damaged)


def _settings(folder: Path) -> dict[str, Any] | None:
    """Return the settings without the seed and what names the run; None when there are none to compare."""
    flat = _all_settings(folder)
    if flat is None:
        return None
    return {name: value for name, value in flat.items() if name.rpartition(".")[2] not in _NOT_SETTINGS}


def _seed(folder: Path) -> str:
    """Return the seed of a run: 'seed' of its settings, or all that are called so deeper in them; else its folder."""
    flat = _all_settings(folder) or {}
    seeds = [value for name, value in flat.items() if name.rpartition(".")[2] == "seed"]
    found = [flat["seed"]] if "seed" in flat else seeds
    return ", ".join(map(str, found)) if found else str(folder.absolute())


def _all_settings(folder: Path) -> dict[str, Any] | None:
    try:
        found = read_json(folder / "config.json")
    except (OSError, ValueError):
        return None
    return dict(flat_settings(found)) if isinstance(found, dict) else None


def _labels(groups: Sequence[tuple[Path, dict[str, Any] | None]]) -> list[str]:
    """Name each group by its task, and by the settings that tell it from others of the same task."""
    tasks = [_task(folder, values) for folder, values in groups]
    labels = []
    for task, (folder, values) in zip(tasks, groups):
        rivals = [other for name, (_, other) in zip(tasks, groups) if name == task]
        if len(rivals) == 1:
            labels.append(task)
        elif values is None:
            labels.append(f"{task}, {folder.absolute().name}")
        else:
            labels.append(", ".join([task, *_differences(values, rivals)]))
    return labels


def _task(folder: Path, values: dict[str, Any] | None) -> str:
    return str((values or {}).get("task") or folder.absolute().parent.name)


def _differences(values: Mapping[str, Any], rivals: Sequence[Mapping[str, Any] | None]) -> list[str]:
    """Return 'name=value' for the settings in which a group differs from some rival, at most three."""
    known = [rival for rival in rivals if rival is not None]
    differing = [name for name in values if any(rival.get(name) != values[name] for rival in known)]
    shown = [f"{name}={values[name]}" for name in differing[:_MOST_DIFFERENCES]]
    return [*shown, "…"] if len(differing) > _MOST_DIFFERENCES else shown
