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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from striderl.cli.options import Runs, Trust, parse
from striderl.cli.runs import find_run
from striderl.cli.terminal import UsageError, message_of, say, showing_progress

if TYPE_CHECKING:
    from striderl.collect.trace import EnvTrace
    from striderl.loggers.comparison import Comparison
    from striderl.loggers.plots import RunGroup, RunMetrics
    from striderl.training.experiment.run_config import RunConfig
    from striderl.training.experiment.run_folder import RunFolder

_log = logging.getLogger(__name__)

_MOST_RUNS_IN_DETAIL = 12
_MOST_ROWS = 40
_MOST_LOGGED = 4000
_MOST_TRACES = 8
_MOST_SIGNALS = 6


@dataclass(frozen=True)
class ReportOptions:
    """Which runs, and where to."""

    runs: Runs
    """Folders of runs; for a folder of several (runs/cartpole) the newest of them."""
    output: str = ""
    """The page's file; report.html in the folder of the first run unless given."""
    trust: Trust = False


def report(words: list[str]) -> int:
    """Write the page and print where it is."""
    options = parse(
        ReportOptions, words, command="report", description="Write one HTML page about one or several runs."
    )
    if not options.runs:
        raise UsageError("name at least one run: striderl report RUN …")
    folders = [find_run(run) for run in options.runs]
    path = Path(options.output) if options.output else folders[0] / "report.html"
    try:
        with showing_progress(f"report of {len(folders)} runs"):
            write_report(folders, path, trust=options.trust)
        say(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"no report: {message_of(error)}") from error
    return 0


def write_report(folders: Sequence[Path], path: Path, *, trust: bool = False) -> Path:
    """Write the page of these runs to a file, and return it."""
    from striderl.checkpoint.safe_files import write_text

    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page_of(folders, trust=trust))
    return path


def report_at_end(folder: RunFolder) -> list[Path]:
    """Write the page of a run that has ended, for its loggers; without it the run is as good, so nothing is raised."""
    try:
        return [write_report([folder.path], folder.report)] if folder.path.is_dir() else []
    except Exception as error:  # noqa: BLE001  (days of training must not end in an error of a picture)
        _log.warning("no report of %s: %s: %s", folder.path, type(error).__name__, message_of(error))
        return []


def page_of(folders: Sequence[Path], *, trust: bool = False) -> str:
    """Return the page of these runs as HTML."""
    from striderl.loggers import page
    from striderl.loggers.plots import group_runs

    runs = [_RunFacts(folder, trust=trust) for folder in {each.resolve(): each for each in folders}.values()]
    groups = group_runs((run.folder for run in runs if run.has_metrics), max_rows=_MOST_LOGGED)
    read = {metrics.folder: metrics for group in groups for metrics in group.runs}
    for run in runs:
        run.metrics = read.get(run.folder)
    title = (
        runs[0].name if len(runs) == 1 else f"{len(runs)} runs: {', '.join(dict.fromkeys(run.task for run in runs))}"
    )
    parts = [f"<h1>{page.text(title)}</h1>", page.paragraph(_subtitle(runs), "note"), _tiles(runs)]
    parts.append(page.section("Learning curves", *_curves(groups)))
    if len(groups) > 1:
        parts.append(page.section("Comparison", *_guarded(lambda: _comparison(groups))))
    parts.append(page.section("Settings that differ", _differences_of_runs(runs)))
    for run in runs[:_MOST_RUNS_IN_DETAIL]:
        if len(runs) > 1:
            parts.append(f"<section><h1>{page.text(run.name)}</h1></section>")
        parts += _about_run(run)
    if len(runs) > _MOST_RUNS_IN_DETAIL:
        left = ", ".join(run.name for run in runs[_MOST_RUNS_IN_DETAIL:])
        parts.append(page.section("Further runs", page.paragraph(left)))
    return page.page(f"striderl: {title}", parts)


def _about_run(run: _RunFacts) -> list[str]:
    from striderl.loggers import page

    sections: dict[str, Callable[[], list[str]]] = {
        "Videos": lambda: _videos(run),
        "Episodes": lambda: _episodes(run),
        "Time": lambda: _time(run),
        "Faults and quarantine": lambda: _faults(run),
        "Settings": lambda: _settings(run),
        "Checkpoints": lambda: _checkpoints(run),
        "Exported policy": lambda: _export(run),
        "Versions": lambda: _versions(run),
        "Repeat it": lambda: _command(run),
    }
    return [page.section(title, *_guarded(make)) for title, make in sections.items()]


def _guarded(make: Callable[[], list[str]]) -> list[str]:
    """Return the content of a section, or why there is none: one damaged file must not hide the rest."""
    from striderl.checkpoint.errors import CheckpointError
    from striderl.loggers import page

    try:
        return make()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, CheckpointError) as error:
        return [page.paragraph(f"not shown: {message_of(error)}", "bad")]


# -- one run -----------------------------------------------------------------------------------------------------------


class _RunFacts:
    """What the files of one run hold."""

    def __init__(self, folder: Path, *, trust: bool) -> None:
        from striderl.checkpoint.safe_files import read_json
        from striderl.loggers.file_loggers import parts_of
        from striderl.training.experiment.run_folder import RunFolder

        self.folder, self.files = folder, RunFolder(folder)
        self.name = f"{folder.absolute().parent.name}/{folder.absolute().name}"
        self.has_metrics = any(parts_of(path) for path in (self.files.json_lines, self.files.csv))
        try:
            found = read_json(folder / "config.json", constant=float)
        except (OSError, ValueError):
            found = {}
        self.settings: Mapping[str, Any] = found if isinstance(found, dict) else {}
        env = self.settings.get("env")
        task = env.get("task") if isinstance(env, dict) else None
        self.task = str(task or folder.absolute().parent.name)
        self.config, self.usual, self.problem = _typed(folder, trust)
        self.metrics: RunMetrics | None = None
        """Its log, which is read once, for the curves of all runs."""

    def last(self, name: str) -> float | None:
        """Return the last value of a metric; None where there is none."""
        if self.metrics is None:
            return None
        values = self.metrics.curve(name)[1]
        return float(values[-1]) if len(values) else None


def _typed(folder: Path, trust: bool) -> tuple[RunConfig[Any, Any] | None, RunConfig[Any, Any] | None, str]:
    """Return the config and the recipe of its task; without them, why."""
    from striderl.recipes.table import recipe
    from striderl.training.experiment.log_dir import is_log_dir
    from striderl.training.experiment.run_config import read_run_config

    try:
        config = read_run_config(folder, trust=trust)
        if is_log_dir(folder):
            return None, None, "a runner's settings have no recipe"
        return config, recipe(config.env.task, config.algorithm_name), ""
    except (OSError, ValueError, KeyError, TypeError, ImportError, AttributeError) as error:
        return None, None, message_of(error)


def _subtitle(runs: Sequence[_RunFacts]) -> str:
    found = [
        f"{run.task} with {run.settings.get('algorithm_name', '?')}, seed {run.settings.get('seed', '?')}"
        for run in runs
    ]
    tags = dict.fromkeys(tag for run in runs for tag in run.files.labels().tags)
    shown = list(dict.fromkeys(found))
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    return "; ".join(shown[:4]) + more + (f". Tags: {', '.join(tags)}" if tags else "")


def _tiles(runs: Sequence[_RunFacts]) -> str:
    from striderl.loggers import page
    from striderl.loggers.console_logger import clock, short_number

    run, metrics, found = runs[0], runs[0].metrics, list[tuple[str, str]]()
    if len(runs) > 1 or metrics is None:
        return ""
    for name, label in (
        ("evaluate/return_mean", "return in evaluation"),
        ("collect/return_mean", "return in training"),
    ):
        value = run.last(name)
        found += [] if value is None else [(label, short_number(value))]
    if len(metrics.steps):
        found.append(("env steps", f"{metrics.steps[-1]:,.0f}"))
    seconds = _seconds(metrics)
    if seconds:
        found.append(("collecting and learning", clock(sum(seconds.values()))))
        found.append(("steps per second", f"{metrics.steps[-1] / sum(seconds.values()):,.0f}"))
    bad = run.last("faults/bad_samples") or 0.0
    found.append(("bad samples", short_number(bad)))
    return page.tiles(found)


def _seconds(metrics: RunMetrics) -> dict[str, float]:
    """Return what the time of a run was spent on."""
    names = {"collecting": "time/collection_seconds", "learning": "time/learning_seconds"}
    found = {label: float(metrics.curve(name)[1].sum()) / metrics.share for label, name in names.items()}
    return {label: value for label, value in found.items() if value > 0.0}


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
    others = [name for name in others if not name.startswith(("progress/", "time/"))][:_MOST_ROWS]
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


def _differences_of_runs(runs: Sequence[_RunFacts]) -> str:
    from striderl.loggers import page
    from striderl.loggers.logger import flat_settings

    flat = [flat_settings(run.settings) for run in runs]
    names = dict.fromkeys(name for each in flat for name in each)
    differing = [name for name in names if len({repr(each.get(name)) for each in flat}) > 1]
    rows = [[name, *(each.get(name, "–") for each in flat)] for name in differing[:_MOST_ROWS]]
    return page.table(["setting", *(run.name for run in runs)], rows) if len(runs) > 1 else ""


# -- sections of one run -----------------------------------------------------------------------------------------------


def _videos(run: _RunFacts) -> list[str]:
    from striderl.loggers import page

    newest = _newest(run.files.videos, (".mp4", ".gif"))[-1:]
    inner = "".join(page.media(path) for path in newest)
    return [f'<div class="media">{inner}</div>'] if inner else []


def _newest(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files of a folder with one of these endings, the newest last."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.stat(follow_symlinks=False).st_mtime, entry.name) for entry in entries]
    except OSError:
        return []
    return [folder / name for _, name in sorted(found) if name.endswith(suffixes)]


def _episodes(run: _RunFacts) -> list[str]:
    from striderl.collect.trace import SUFFIX, read_trace
    from striderl.loggers import page

    found = []
    for path in _newest(run.files.videos, (SUFFIX,))[-1:]:
        trace = read_trace(path)
        found += [page.paragraph(f"the steps of {path.name.removesuffix(SUFFIX)}", "note"), _trace_charts(trace)]
    return found


def _trace_charts(trace: EnvTrace) -> str:
    """Draw the steps of one env: its gait where it has feet, reward, actions and the observation components."""
    import numpy as np

    from striderl.loggers import page

    dt = trace.facts.get("step_dt")
    dt = float(dt) if isinstance(dt, (int, float)) and dt > 0 else 0.0
    times = np.arange(len(trace.reward), dtype=np.float64) * (dt or 1.0)
    found = []
    feet = trace.obs.get("foot_contacts")
    if feet is not None and feet.ndim == 2 and feet.shape[1] <= 8 and len(feet):
        names = (
            ("FL", "FR", "RL", "RR") if feet.shape[1] == 4 else tuple(f"foot {foot}" for foot in range(feet.shape[1]))
        )
        found.append(page.strips("Gait: feet on the ground", names, feet > 0.5, dt * len(feet)))
    signals = {"reward": trace.reward, **trace.actions, **trace.obs}
    for name, values in signals.items():
        if name == "foot_contacts":
            continue
        rows = values.reshape(len(values), -1).astype(np.float64)
        shown = range(min(rows.shape[1], _MOST_SIGNALS))
        lines = [page.ChartLine(label=str(entry), x=times, y=rows[:, entry], colour=entry) for entry in shown]
        more = f", {rows.shape[1]} numbers, the first {_MOST_SIGNALS}" if rows.shape[1] > _MOST_SIGNALS else ""
        found.append(page.chart(name, more.removeprefix(", "), lines, x_unit="seconds" if dt else "steps"))
    return page.charts(found)


def _time(run: _RunFacts) -> list[str]:
    from striderl.loggers import page
    from striderl.loggers.console_logger import clock

    metrics = run.metrics
    if metrics is None:
        return []
    seconds = _seconds(metrics)
    speeds = {label: metrics.curve(f"time/{label}_steps_per_second") for label in ("collection", "learning")}
    lines = [
        page.ChartLine(label=label, x=x, y=y, colour=index) for index, (label, (x, y)) in enumerate(speeds.items())
    ]
    rows = [[label, clock(value), f"{metrics.steps[-1] / value:,.0f}"] for label, value in seconds.items()]
    return [
        page.bar(list(seconds.items())),
        page.table(["spent on", "time", "env steps per second"], rows, numbers=(1, 2)),
        page.legend(list(speeds)),
        page.charts([page.chart("Throughput of each part", "env steps / s", lines)]),
    ]


def _faults(run: _RunFacts) -> list[str]:
    from striderl.collect.trace import SUFFIX, read_trace
    from striderl.loggers import page
    from striderl.training.guard import FAULTS_FILE, read_faults

    found = read_faults(run.folder / FAULTS_FILE)
    counts = {name: run.last(f"faults/{name}") or 0.0 for name in ("bad_samples", "skipped_updates", "rollbacks")}
    parts = [page.paragraph(", ".join(f"{name.replace('_', ' ')}: {value:,.0f}" for name, value in counts.items()))]
    if not found:
        return [page.paragraph("none: every number was finite", "good")] if not any(counts.values()) else parts
    names = ("component", "env", "step", "value", "count", "env_steps")
    rows = [["–" if line.get(name) is None else line.get(name) for name in names] for line in found[:_MOST_ROWS]]
    parts.append(page.table([name.replace("_", " ") for name in names], rows, numbers=(1, 2, 4, 5)))
    if len(found) > _MOST_ROWS:
        parts.append(page.paragraph(f"and {len(found) - _MOST_ROWS} further lines in {FAULTS_FILE}", "note"))
    for path in _newest(run.files.faults, (SUFFIX,))[-_MOST_TRACES:]:
        trace = read_trace(path)
        about = ", ".join(f"{name} {value}" for name, value in trace.facts.items() if name != "step_dt")
        parts.append(page.details(f"before the fault: {about}", _trace_charts(trace) + _trace_numbers(trace)))
    return parts


def _trace_numbers(trace: EnvTrace) -> str:
    """Return the last steps as a table: charts leave out what is not finite."""
    import numpy as np

    from striderl.loggers import page

    signals = {**trace.obs, **trace.actions, "reward": trace.reward}
    rows = []
    for step in range(max(0, len(trace.reward) - 5), len(trace.reward)):
        cells = [np.array2string(np.asarray(values[step]), precision=4, threshold=16) for values in signals.values()]
        rows.append([step - len(trace.reward), *cells])
    return page.table(["step", *signals], rows)


def _settings(run: _RunFacts) -> list[str]:
    import json

    from striderl.loggers import page
    from striderl.loggers.logger import flat_settings

    parts = []
    if run.config is None or run.usual is None:
        parts.append(page.paragraph(f"not compared with a recipe: {run.problem}", "note"))
    else:
        now, usual = (flat_settings(each.to_dict()) for each in (run.config, run.usual))
        rows = [
            [name, usual.get(name, "–"), now.get(name, "–")]
            for name in dict.fromkeys([*usual, *now])
            if repr(usual.get(name)) != repr(now.get(name))
        ]
        parts.append(
            page.table(["setting", "recipe", "this run"], rows)
            or page.paragraph(f"as the recipe of {run.config.env.task} with {run.config.algorithm_name}", "good")
        )
    shown = json.dumps(run.settings, indent=2)
    return [*parts, page.details("config.json", page.code(shown))]


def _versions(run: _RunFacts) -> list[str]:
    from striderl.checkpoint.safe_files import read_json
    from striderl.loggers import page
    from striderl.training.experiment.run_folder import VERSIONS_FILE

    try:
        found = read_json(run.folder / VERSIONS_FILE)
    except FileNotFoundError:
        return []
    rows = [[name.replace("_", " "), value if value not in ("", None) else "–"] for name, value in found.items()]
    return [page.table(["of", "version"], rows)]


def _checkpoints(run: _RunFacts) -> list[str]:
    from striderl.checkpoint.store import CheckpointStore
    from striderl.loggers import page

    store = CheckpointStore(run.files.checkpoints)
    best = store.best()
    best_name = "" if best is None else best.name
    rows = []
    for path in _newest(run.files.checkpoints, ("",)):
        if path.name.startswith("step_") and path.is_dir():
            size = sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(path))
            rows.append([path.name, f"{size / 1e6:,.2f} MB", "best" if path.name == best_name else ""])
    return [page.table(["checkpoint", "size", ""], sorted(rows), numbers=(1,))]


def _export(run: _RunFacts) -> list[str]:
    from striderl.checkpoint.safe_files import read_json
    from striderl.loggers import page

    try:
        found = read_json(run.files.export / "metadata.json")
    except FileNotFoundError:
        return []
    parity = found.get("parity", {})
    rows = [[kind, name, f"{float(value):.3g}"] for kind, values in parity.items() for name, value in values.items()]
    return [
        page.paragraph("each file was run on recorded inputs and compared with the policy"),
        page.table(["format", "output", "largest difference"], rows, numbers=(2,)),
    ]


def _command(run: _RunFacts) -> list[str]:
    from striderl.cli.train_flags import command_of
    from striderl.loggers import page

    parts = []
    if run.config is not None and run.usual is not None:
        parts.append(page.code(command_of(run.config, run.usual)))
    command = run.files.labels().command
    if command:
        parts.append(page.paragraph(f"started as: {command}", "note"))
    return parts
