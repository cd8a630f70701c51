"""`striderl list`: what there is to train, with what, which combinations have settings that learn, what was trained.

striderl list runs --sort return --tags first        the runs in 'runs', the best first
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from striderl.cli.options import parse
from striderl.cli.terminal import UsageError, printable, say
from striderl.data.naming import unknown

Kind = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="KIND")]

KINDS = ("all", "tasks", "algorithms", "terms", "recipes", "runs")
SORTS = ("time", "return", "steps", "name", "task")
_TAIL_BYTES = 1 << 18


@dataclass(frozen=True)
class ListOptions:
    """What to list."""

    kind: Kind = "all"
    """tasks, algorithms, terms, recipes, or all of these; runs for those that were trained."""
    folder: Annotated[str, tyro.conf.arg(aliases=("--runs",))] = "runs"
    """Where runs are looked for, as 'striderl train --runs' has it."""
    sort: str = "time"
    """How runs are sorted: time, return, steps, name or task; the newest, best or longest first."""
    tags: tuple[str, ...] = ()
    """Only runs that have all of these tags."""


def list_names(words: list[str]) -> int:
    """Print names, one on a line."""
    options = parse(ListOptions, words, command="list", description="List tasks, algorithms, terms and recipes.")
    if options.kind not in KINDS:
        raise UsageError(unknown("kind of names", options.kind, KINDS, where="striderl list"))
    if options.sort not in SORTS:
        raise UsageError(unknown("order", options.sort, SORTS, where="striderl list --sort"))
    if options.kind != "runs" and (options.tags or (options.folder, options.sort) != ("runs", "time")):
        raise UsageError("--folder, --sort and --tags are about runs: striderl list runs")
    if options.kind == "runs":
        _runs(options)
    if options.kind in ("all", "tasks"):
        _tasks()
    if options.kind in ("all", "algorithms"):
        _algorithms()
    if options.kind in ("all", "terms"):
        _terms()
    if options.kind in ("all", "recipes"):
        _recipes()
    return 0


def _tasks() -> None:
    from striderl.data.registry import ENVS
    from striderl.envs.tasks import TASKS

    say("tasks (also any id of Gymnasium, and 'module:Class' of an env of your own):")
    for name in [*TASKS, *ENVS.names()]:
        say(f"  {name}")


def _algorithms() -> None:
    from striderl.algorithms.building import facts_of
    from striderl.data.registry import ALGORITHMS

    say("algorithms (also 'module:Class' of your own):")
    width = max(len(name) for name in ALGORITHMS.names())
    for name in ALGORITHMS.names():
        say(f"  {name:<{width}}  {facts_of(name).summary}")


def _terms() -> None:
    from striderl.data.registry import TERMS

    say("terms, learned beside an algorithm with --terms NAME … (also 'module:Class' of your own):")
    width = max(len(name) for name in TERMS.names())
    for name in TERMS.names():
        say(f"  {name:<{width}}  {TERMS.get(name).summary}")


def _recipes() -> None:
    from striderl.recipes.table import algorithms_for, task_names

    say("tuned recipes (the first algorithm is what 'striderl train TASK' takes; others get their defaults):")
    width = max(len(name) for name in task_names())
    for name in task_names():
        say(f"  {name:<{width}}  {', '.join(algorithms_for(name))}")


# -- runs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """A row of the list."""

    folder: Path
    task: str
    algorithm: str
    seed: str
    steps: float
    returned: float
    """Return of the last evaluation, or in training; not a number where there is none."""
    tags: tuple[str, ...]
    changed: float
    """When its log was last written, in seconds."""


def _runs(options: ListOptions) -> None:
    from striderl.cli.runs import known_runs
    from striderl.cli.seeing.compare import say_table
    from striderl.loggers.console_logger import short_number

    found = [listed(folder) for folder in known_runs(Path(options.folder))]
    found = [run for run in found if set(options.tags) <= set(run.tags)]
    if not found:
        tagged = f" with the tags {', '.join(options.tags)}" if options.tags else ""
        say(f"there are no runs in {options.folder!r}{tagged}; striderl train TASK makes one")
        return
    rows = [
        [
            str(run.folder),
            run.task,
            run.algorithm,
            run.seed,
            f"{run.steps:,.0f}",
            "–" if math.isnan(run.returned) else short_number(run.returned),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.changed)),
            " ".join(run.tags),
        ]
        for run in sorted_runs(found, options.sort)
    ]
    head = ["run", "task", "algorithm", "seed", "steps", "return", "last written", "tags"]
    say_table(head, [[printable(cell) for cell in row] for row in rows], numbers=(3, 4, 5))


def sorted_runs(runs: list[ListedRun], by: str) -> list[ListedRun]:
    """Return runs in an order: the newest, best or longest first, names by the alphabet."""
    if by in ("name", "task"):
        return sorted(runs, key=lambda run: (run.task if by == "task" else "", str(run.folder)))
    keys: dict[str, Callable[[ListedRun], float]] = {
        "time": lambda run: run.changed,
        "steps": lambda run: run.steps,
        "return": lambda run: -math.inf if math.isnan(run.returned) else run.returned,
    }
    return sorted(runs, key=keys[by], reverse=True)


def listed(folder: Path) -> ListedRun:
    """Read the row of a run; what is damaged or missing is left blank."""
    from striderl.checkpoint.safe_files import read_json
    from striderl.training.experiment.run_folder import RunFolder

    try:
        found = read_json(folder / "config.json", constant=float)
    except (OSError, ValueError):
        found = {}
    config = found if isinstance(found, dict) else {}
    env = config.get("env")
    numbers = _last_numbers(folder)
    returned = [numbers[name] for name in ("evaluate/return_mean", "collect/return_mean") if name in numbers]
    log = folder / "metrics.jsonl"
    return ListedRun(
        folder=folder,
        task=str(env.get("task", "")) if isinstance(env, dict) else "",
        algorithm=str(config.get("algorithm_name", "")),
        seed=str(config.get("seed", "")),
        steps=numbers.get("step", 0.0),
        returned=returned[0] if returned else math.nan,
        tags=RunFolder(folder).labels().tags,
        changed=os.lstat(log if os.path.lexists(log) else folder / "config.json").st_mtime,
    )


def _last_numbers(folder: Path) -> dict[str, float]:
    """Return the last value of each metric in the last rows of the log, without reading all of a long one."""
    from striderl.checkpoint.safe_files import decode_json, open_read

    numbers: dict[str, float] = {}
    try:
        with open_read(folder / "metrics.jsonl") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).splitlines()
    except (OSError, ValueError):
        return numbers
    for line in lines:
        try:
            row = decode_json(line, folder)
            numbers |= {name: float(value) for name, value in row.items() if value is not None}
        except (ValueError, TypeError, AttributeError, OverflowError):
            continue  # the first line may be the end of one, the last may be torn
    return numbers
