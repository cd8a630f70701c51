"""`striderl list`: what there is to train, with what, and which combinations have settings that learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from striderl.cli.options import parse
from striderl.cli.terminal import UsageError, say
from striderl.data.naming import unknown

Kind = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="KIND")]

KINDS = ("all", "tasks", "algorithms", "terms", "recipes")


@dataclass(frozen=True)
class ListOptions:
    """What to list."""

    kind: Kind = "all"
    """tasks, algorithms, terms, recipes, or all."""


def list_names(words: list[str]) -> int:
    """Print names, one on a line."""
    options = parse(ListOptions, words, command="list", description="List tasks, algorithms, terms and recipes.")
    if options.kind not in KINDS:
        raise UsageError(unknown("kind of names", options.kind, KINDS, where="striderl list"))
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
