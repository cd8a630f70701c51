"""`striderl compare RUN …`: scores of runs over their seeds, with intervals, and which differences the seeds support.

striderl compare runs/cartpole                   all runs of the folder, grouped by what differs in their configs
striderl compare runs/a runs/b --metric evaluate/length_mean --at-step 100000
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from striderl.cli.options import Runs, parse
from striderl.cli.runs import find_runs
from striderl.cli.terminal import UsageError, message_of, say


@dataclass(frozen=True)
class CompareOptions:
    """Which runs, and by what."""

    runs: Runs
    """Folders of runs, or of several (runs/cartpole: all of them)."""
    metric: str = ""
    """A logged number; evaluate/return_mean unless given, or collect/return_mean where a run has no evaluation."""
    at_step: int = 0
    """Take the last value up to so many env steps; 0 takes that of the end of each run."""
    smaller_is_better: bool = False
    """Small values are good, as for errors and losses."""
    json: bool = False
    """Print everything as JSON."""


def compare(words: list[str]) -> int:
    """Compare, and print a row per group and a sentence per pair."""
    options = parse(
        CompareOptions,
        words,
        command="compare",
        description="Compare runs over their distinct seeds: interquartile means and probabilities of improvement.",
    )
    if not options.runs:
        raise UsageError("name at least one run: striderl compare RUN …")
    if options.at_step < 0:
        raise UsageError(f"--at-step is not negative, found {options.at_step}")
    folders = [folder for run in options.runs for folder in find_runs(run)]

    from striderl.loggers.comparison import compare_runs, sentence, table

    try:
        found = compare_runs(
            folders, options.metric, at_step=options.at_step, smaller_is_better=options.smaller_is_better
        )
    except (ValueError, KeyError, OSError) as error:
        raise UsageError(f"no comparison: {message_of(error)}") from error
    if options.json:
        say(json.dumps(asdict(found)))
        return 0
    say(f"{found.metric}, interquartile mean over distinct seeds with a 95 % bootstrap interval:")
    say_table(*table(found), numbers=(1, 2))
    for line in (*(sentence(pair) for pair in found.pairs), *(f"note: {note}" for note in found.notes)):
        say(line)
    return 0


def say_table(head: list[str], rows: list[list[str]], *, numbers: tuple[int, ...] = ()) -> None:
    """Print a table with aligned columns, the columns `numbers` to the right."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        cells = [
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ]
        say(f"  {'  '.join(cells).rstrip()}")
