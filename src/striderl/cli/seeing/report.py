"""`striderl report RUN …`: everything about one or several runs on one HTML page that needs nothing but itself.

    curves with intervals over seeds │ comparison │ videos and episodes │ time │ faults │ config │ versions │
    checkpoints │ export │ the command line that repeats it

What lies in the folder is read as data, by the readers of `checkpoint/safe_files.py`; a part that is damaged or refused
is named on the page, and the rest is there. Modules that a config names are not imported without --trust: the page then
shows the config without its recipe.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from striderl.checkpoint.errors import FileRefused
from striderl.checkpoint.safe_files import replacing
from striderl.cli.options import Overwrite, Runs, Trust, parse
from striderl.cli.runs import find_started
from striderl.cli.seeing.report_run import MOST_ROWS, RunFacts, about_run, guarded, seconds_of
from striderl.cli.terminal import UsageError, message_of, say, showing_progress

if TYPE_CHECKING:
    from striderl.loggers.comparison import Comparison
    from striderl.loggers.plots import RunGroup
    from striderl.training.experiment.run_folder import RunFolder

_log = logging.getLogger(__name__)

_MOST_RUNS_IN_DETAIL = 12
_MOST_LOGGED = 4000


@dataclass(frozen=True)
class ReportOptions:
    """Which runs, and where to."""

    runs: Runs
    """Folders of runs; for a folder of several (runs/cartpole) the newest of them, with the seeds started beside it."""
    output: str = ""
    """The page's file; unless given report.html in the run's folder, or in the one that all of several runs are in.
    An earlier page is replaced; any other file only with --overwrite."""
    overwrite: Overwrite = False
    trust: Trust = False


def report(words: list[str]) -> int:
    """Write the page and print where it is."""
    options = parse(
        ReportOptions, words, command="report", description="Write one HTML page about one or several runs."
    )
    if not options.runs:
        raise UsageError("name at least one run: striderl report RUN …")
    folders = [folder for run in options.runs for folder in find_started(run)]
    path = Path(options.output) if options.output else Path(os.path.commonpath(folders)) / "report.html"
    try:
        with showing_progress("report" if len(folders) == 1 else f"report of {len(folders)} runs") as progress:
            write_report(folders, path, trust=options.trust, overwrite=options.overwrite, progress=progress)
        say(str(path))
    except FileRefused as error:
        raise UsageError(f"no report: {message_of(error)} with --output, or --overwrite a file") from error
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"no report: {message_of(error)}") from error
    return 0


def write_report(
    folders: Sequence[Path],
    path: Path,
    *,
    trust: bool = False,
    overwrite: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Path:
    """Write the page of these runs to a file, and return it; `progress` gets the share that is made.

    A page of this library is replaced; any other file raises FileRefused, unless `overwrite`.
    """
    from striderl.loggers.page import BEGINNING

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, beginning=b"" if overwrite else BEGINNING.encode()) as file:
        file.write(page_of(folders, trust=trust, progress=progress).encode())
    return path


def report_at_end(folder: RunFolder) -> list[Path]:
    """Write the page of a run that has ended, for its loggers; without it the run is as good, so nothing is raised."""
    try:
        return [write_report([folder.path], folder.report)] if folder.path.is_dir() else []
    except Exception as error:  # noqa: BLE001  (days of training must not end in an error of a picture)
        _log.warning("no report of %s: %s: %s", folder.path, type(error).__name__, message_of(error))
        return []


def refresh_report(folder: RunFolder) -> None:
    """Write the page of a run again after a command has added to the folder, and print where it is."""
    for path in report_at_end(folder):
        say(f"report: {path}")


def page_of(folders: Sequence[Path], *, trust: bool = False, progress: Callable[[float], None] | None = None) -> str:
    """Return the page of these runs as HTML; `progress` gets the share that is made."""
    from striderl.loggers import page
    from striderl.loggers.plots import group_runs

    runs = [RunFacts(folder, trust=trust) for folder in {each.resolve(): each for each in folders}.values()]
    groups = group_runs((run.folder for run in runs if run.has_metrics), max_rows=_MOST_LOGGED)
    read = {metrics.folder: metrics for group in groups for metrics in group.runs}
    for run in runs:
        run.metrics = read.get(run.folder)
    title = (
        runs[0].name if len(runs) == 1 else f"{len(runs)} runs: {', '.join(dict.fromkeys(run.task for run in runs))}"
    )
    shared = [page.section("Learning curves", *_curves(groups), name="curves")]
    if len(groups) > 1:
        shared.append(page.section("Comparison", *guarded(lambda: _comparison(groups)), name="comparison"))
    shared.append(page.section("Settings that differ", _differences_of_runs(runs), name="differences"))
    parts, places = [part for part in shared if part], dict[str, str]()
    shown = runs[:_MOST_RUNS_IN_DETAIL]
    for number, run in enumerate(shown):
        if progress is not None:
            progress((number + 1) / (len(shown) + 1))
        if len(runs) > 1:
            places[f"run{number}"] = run.name
            parts.append(f'<section id="run{number}"><h1>{page.text(run.name)}</h1></section>')
            parts.append(_tiles(run))
        parts += about_run(run, prefix=f"run{number}-" if len(runs) > 1 else "")
    parts = [
        f"<h1>{page.text(title)}</h1>",
        page.paragraph(_subtitle(runs), "note"),
        _tiles(runs[0]) if len(runs) == 1 else "",
        page.contents(parts, places),
        *parts,
    ]
    if len(runs) > _MOST_RUNS_IN_DETAIL:
        left = ", ".join(run.name for run in runs[_MOST_RUNS_IN_DETAIL:])
        parts.append(page.section("Further runs", page.paragraph(left)))
    return page.page(f"striderl: {title}", parts)


def _subtitle(runs: Sequence[RunFacts]) -> str:
    found = [
        f"{run.task} with {run.settings.get('algorithm_name', '?')}, seed {run.settings.get('seed', '?')}"
        for run in runs
    ]
    tags = dict.fromkeys(tag for run in runs for tag in run.files.labels().tags)
    shown = list(dict.fromkeys(found))
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    return "; ".join(shown[:4]) + more + (f". Tags: {', '.join(tags)}" if tags else "")


def _tiles(run: RunFacts) -> str:
    """Return the key numbers of one run."""
    from striderl.loggers import page
    from striderl.loggers.console_logger import clock, short_number

    metrics, found = run.metrics, list[tuple[str, str]]()
    if metrics is None:
        return ""
    for name, label in (
        ("evaluate/return_mean", "return in evaluation"),
        ("collect/return_mean", "return in training"),
    ):
        value = run.last(name)
        found += [] if value is None else [(label, short_number(value))]
    if len(metrics.steps):
        found.append(("env steps", f"{metrics.steps[-1]:,.0f}"))
    seconds = seconds_of(metrics)
    if seconds:
        found.append(("in all", clock(sum(seconds.values()))))
        trained = sum(seconds.get(name, 0.0) for name in ("collecting", "learning"))
        found.append(("env steps per second of training", f"{metrics.steps[-1] / max(trained, 1e-9):,.0f}"))
    bad = run.last("faults/bad_samples") or 0.0
    found.append(("bad samples", short_number(bad)))
    return page.tiles(found)


# -- sections of all runs ----------------------------------------------------------------------------------------------


def _curves(groups: Sequence[RunGroup]) -> list[str]:
    from striderl.loggers import page
    from striderl.loggers.plots import group_curve, legend_of, title_of, usual_names

    if not groups:
        return [page.paragraph("no metrics were logged yet", "note")]
    usual = usual_names(groups)
    found = [page.legend([legend_of(group) for group in groups])]

    def panel(name: str) -> str:
        lines = []
        for index, group in enumerate(groups):
            mean = group_curve(group, name)
            behind = tuple(run.curve(name) for run in group.runs) if len(group.runs) > 1 else ()
            lines.append(
                page.ChartLine(
                    label=group.label,
                    x=mean.steps,
                    y=mean.mean,
                    half_width=mean.half_width,
                    behind=behind,
                    colour=index,
                )
            )
        return page.chart(*title_of(name), lines)

    found.append(page.charts(panel(name) for name in usual))
    others = sorted({name for group in groups for run in group.runs for name in run.columns} - {*usual})
    others = [name for name in others if not name.startswith(("progress/", "time/"))][:MOST_ROWS]
    if others:
        found.append(page.details(f"{len(others)} further metrics", page.charts(panel(name) for name in others)))
    return found


def _comparison(groups: Sequence[RunGroup]) -> list[str]:
    from striderl.loggers import page
    from striderl.loggers.comparison import compare_groups, sentence, table

    found: Comparison = compare_groups(groups)
    head, rows = table(found)
    return [
        page.paragraph(
            f"{found.metric}, the last of each run; interquartile mean over seeds, stratified bootstrap", "note"
        ),
        page.table(head, rows, numbers=(1, 2)),
        *(page.paragraph(sentence(pair)) for pair in found.pairs),
        *(page.paragraph(note, "note") for note in found.notes),
    ]


def _differences_of_runs(runs: Sequence[RunFacts]) -> str:
    from striderl.loggers import page
    from striderl.loggers.logger import flat_settings

    flat = [flat_settings(run.settings) for run in runs]
    names = dict.fromkeys(name for each in flat for name in each)
    differing = [name for name in names if len({repr(each.get(name)) for each in flat}) > 1]
    rows = [[name, *(each.get(name, "–") for each in flat)] for name in differing[:MOST_ROWS]]
    return page.table(["setting", *(run.name for run in runs)], rows) if len(runs) > 1 else ""
