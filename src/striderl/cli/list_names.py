"""`striderl list`: what there is to train, with what, and which combinations have settings that learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from striderl.cli.options import parse
from striderl.cli.terminal import UsageError, say
from striderl.data.naming import unknown

Kind = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="KIND")]

KINDS = ("all", "tasks", "algorithms", "recipes")


@dataclass(frozen=True)
class ListOptions:
    """What to list."""

    kind: Kind = "all"
    """tasks, algorithms, recipes, or all."""


def list_names(words: list[str]) -> int:
    """Print names, one on a line."""
    options = parse(ListOptions, words, command="list", description="List tasks, algorithms and recipes.")
    if options.kind not in KINDS:
        raise UsageError(unknown("kind of names", options.kind, KINDS, where="striderl list"))
    if options.kind in ("all", "tasks"):
        _tasks()
    if options.kind in ("all", "algorithms"):
        _algorithms()
    if options.kind in ("all", "recipes"):
        _recipes()
    return 0


def _tasks() -> None:
    from striderl.envs.tasks import TASKS

    say("tasks (also 'gymnasium:' and any id of Gymnasium):")
    for name in TASKS:
        say(f"  {name}")


def _algorithms() -> None:
    from striderl.training.algorithm_table import ALGORITHMS

    say("algorithms:")
    width = max(len(name) for name in ALGORITHMS)
    for name, entry in ALGORITHMS.items():
        say(f"  {name:<{width}}  {entry.summary}")


def _recipes() -> None:
    from striderl.recipes.table import algorithms_for, task_names

    say("recipes (the first algorithm is what 'striderl train TASK' takes):")
    width = max(len(name) for name in task_names())
    for name in task_names():
        say(f"  {name:<{width}}  {', '.join(algorithms_for(name))}")
