"""Reading the metrics of run folders, and putting runs that differ in nothing but their seed together.

runs/cartpole/1  config.json {"task": "cartpole", "seed": 0, "ppo": {"clip": 0.2}}   ┐ one group, "cartpole"
runs/cartpole/2  config.json {"task": "cartpole", "seed": 1, "ppo": {"clip": 0.2}}   ┘
runs/cartpole/3  config.json {"task": "cartpole", "seed": 0, "ppo": {"clip": 0.1}}     "cartpole, ppo.clip=0.1"
"""

from __future__ import annotations

import csv
import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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
    """Read metrics.jsonl, or metrics.csv where there is none; a step that was written twice counts as last written."""
    folder = Path(run_dir)
    if (folder / "metrics.jsonl").exists():
        rows = _read_jsonl(folder / "metrics.jsonl")
    elif (folder / "metrics.csv").exists():
        rows = _read_csv(folder / "metrics.csv")
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
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
                rows.append({name: math.nan if value is None else float(value) for name, value in row.items()})
                rows[-1]["step"] = int(row["step"])
            except (ValueError, TypeError, KeyError, AttributeError):
                damaged += 1
    if damaged > 1:
        # one torn line at the end is what a killed run leaves behind
        _log.warning("%s: %d lines could not be read and are left out", path, damaged)
    return [row for row in rows if "step" in row]


def _read_csv(path: Path) -> list[dict[str, float]]:
    with path.open(encoding="utf-8", newline="") as file:
        table = csv.DictReader(file)
        return [
            {name: float(cell) for name, cell in row.items() if cell}
            for row in table
            # a torn last row has fewer cells than the header
            if row.get("step") and None not in row.values()
        ]


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
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
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
