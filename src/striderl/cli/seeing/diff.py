"""`striderl diff A B`: where two runs part: their settings, the first checkpoint, tensor and metric that differ.

    settings    seed: 0 → 1
    checkpoints equal at step 1,024; part at step 2,048: algorithm/policy/head.layer.weight [2, 64] by 0.013 at [1, 7]
    metrics     equal up to step 1,024; part at step 2,048: train/kl 0.00911 → 0.00908

Numbers are compared exactly; NaN is equal to NaN. Times are left out. Exit code 0: what both have is equal; 1: they
differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from striderl.cli.options import parse
from striderl.cli.runs import find_run
from striderl.cli.terminal import UsageError, message_of, say

First = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="A")]
Second = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="B")]

_NOT_LEARNED = ("record/", "consumers/")
"""Parts of a state that hold times and the callbacks of a run."""
_NOT_MEASURED = ("time/",)


@dataclass(frozen=True)
class DiffOptions:
    """Which two runs."""

    a: First
    """The folder of a run, or of several (runs/cartpole: the newest of them)."""
    b: Second
    """The folder of the other."""
    most: int = 5
    """How many tensors, metrics and settings are listed of each kind."""


class RunDifference(NamedTuple):
    """One place in which two things differ."""

    place: str
    """Its path or name."""
    what: str
    """How it differs, in words."""


def diff(words: list[str]) -> int:
    """Compare two runs and print where they part."""
    options = parse(DiffOptions, words, command="diff", description="Find where two runs part.")
    if options.most < 1:
        raise UsageError(f"--most is at least 1, found {options.most}")
    first, second = find_run(options.a), find_run(options.b)
    say(f"A: {first}\nB: {second}")
    _say_all("settings", config_differences(first, second), options.most)
    parted = _checkpoints(first, second, options.most)
    return int(_metrics(first, second, options.most) or parted)


def _say_all(title: str, found: list[RunDifference], most: int) -> None:
    if not found:
        say(f"{title}: equal")
    for place, what in found[:most]:
        say(f"{title}: {place} {what}")
    if len(found) > most:
        say(f"{title}: and {len(found) - most} more")


# -- settings ----------------------------------------------------------------------------------------------------------


def config_differences(first: Path, second: Path) -> list[RunDifference]:
    """Return the settings in which two runs differ."""
    from striderl.checkpoint.safe_files import read_json
    from striderl.training.experiment.seal import differences

    try:
        contents = [read_json(folder / "config.json", constant=float) for folder in (first, second)]
    except (OSError, ValueError) as error:
        raise UsageError(message_of(error)) from error
    split = (line.partition(": ") for line in differences(*contents))
    return [RunDifference(name, what) for name, _, what in split]


# -- checkpoints -------------------------------------------------------------------------------------------------------


def _checkpoints(first: Path, second: Path, most: int) -> bool:
    """Print the first checkpoint in which two runs differ; return whether there is one."""
    from striderl.checkpoint.errors import CheckpointError
    from striderl.checkpoint.store import CheckpointStore

    stores = [CheckpointStore(folder / "checkpoints") for folder in (first, second)]
    shared = sorted(set(stores[0].steps()) & set(stores[1].steps()))
    if not shared:
        say(f"checkpoints: none of a step that both have: A {stores[0].steps()}, B {stores[1].steps()}")
        return False
    equal: list[int] = []
    for step in shared:
        try:
            states = [store.load(step).state for store in stores]
        except CheckpointError as error:
            say(f"checkpoints: step {step:,} cannot be compared: {message_of(error)}")
            continue
        found = list(state_differences(*states))
        if found:
            before = f"equal at step {equal[-1]:,}; " if equal else ""
            say(f"checkpoints: {before}part at step {step:,}, in {len(found)} places")
            _say_all(f"  step {step:,}", found, most)
            return True
        equal.append(step)
    say(f"checkpoints: equal at steps {', '.join(f'{step:,}' for step in equal)}" if equal else "checkpoints: none")
    return not equal


def state_differences(one: Any, other: Any) -> Iterator[RunDifference]:
    """Yield the places of two saved states that differ in what was learned and collected."""
    from torch import Tensor

    from striderl.data import tree

    left, right = dict(tree.items(one)), dict(tree.items(other))
    for place in dict.fromkeys([*left, *right]):
        if place.startswith(_NOT_LEARNED) or place.endswith("_seconds"):
            continue
        if place not in left or place not in right:
            yield RunDifference(place, f"is in {'A' if place in left else 'B'} alone")
        elif isinstance(left[place], Tensor) and isinstance(right[place], Tensor):
            what = tensor_difference(left[place], right[place])
            if what:
                yield RunDifference(place, what)
        elif repr(left[place]) != repr(right[place]):
            yield RunDifference(place, f"{left[place]!r} → {right[place]!r}")


def tensor_difference(one: Any, other: Any) -> str:
    """Return how two tensors differ: their kind, or the largest difference and where; '' where they are equal."""
    import torch

    kinds = [f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}" for value in (one, other)]
    if kinds[0] != kinds[1]:
        return f"{kinds[0]} → {kinds[1]}"
    unequal = (one != other) & ~((one != one) & (other != other))
    if not bool(unequal.any()):
        return ""
    apart = torch.where(unequal, (one.double() - other.double()).abs(), 0.0).flatten()
    apart = torch.where(apart.isnan(), torch.inf, apart)
    largest = int(apart.argmax())
    where = [int(index) for index in torch.unravel_index(torch.tensor(largest), one.shape)] if one.ndim else []
    values = f"{one.flatten()[largest].item():.8g} → {other.flatten()[largest].item():.8g}"
    at = f" at {where}" if where else ""
    return f"{list(one.shape)}: {int(unequal.sum())} of {one.numel()} numbers, most{at}: {values}"


# -- metrics -----------------------------------------------------------------------------------------------------------


def _metrics(first: Path, second: Path, most: int) -> bool:
    """Print the first logged row in which two runs differ; return whether there is one."""
    from striderl.loggers.plots import read_metrics

    try:
        left, right = read_metrics(first), read_metrics(second)
    except (OSError, ValueError) as error:
        say(f"metrics: not compared: {message_of(error)}")
        return False
    rows = [_rows(each.steps, each.columns) for each in (left, right)]
    shared = sorted(set(rows[0]) & set(rows[1]))
    last = None
    for step in shared:
        found = _row_differences(rows[0][step], rows[1][step])
        if found:
            before = f"equal up to step {last:,}; " if last is not None else ""
            say(f"metrics: {before}part at step {step:,}")
            _say_all(f"  step {step:,}", found, most)
            return True
        last = step
    ends = [max(each, default=0) for each in rows]
    longer = "" if ends[0] == ends[1] else f"; A ends at {ends[0]:,}, B at {ends[1]:,}"
    say(f"metrics: equal in all {len(shared)} rows that both have{longer}")
    return False


def _rows(steps: Any, columns: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    names = [name for name in columns if not name.startswith(_NOT_MEASURED) and not name.endswith("_seconds")]
    return {int(step): {name: float(columns[name][row]) for name in names} for row, step in enumerate(steps)}


def _row_differences(one: Mapping[str, float], other: Mapping[str, float]) -> list[RunDifference]:
    names = dict.fromkeys([*one, *other])
    pairs = [(name, one.get(name, float("nan")), other.get(name, float("nan"))) for name in names]
    return [RunDifference(name, f"{a!r} → {b!r}") for name, a, b in pairs if a != b and not (a != a and b != b)]
