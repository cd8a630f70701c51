"""The sections of a report about one run: videos, episodes, time, faults, settings, checkpoints, export, versions.

Each is made by itself from the files of the run: one damaged file costs its section, and the page names it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from striderl.cli.terminal import message_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from striderl.collect.trace import EnvTrace
    from striderl.loggers.plots import RunMetrics
    from striderl.training.experiment.run_config import RunConfig

MOST_ROWS = 40
"""How many rows a table has, and how many charts of further metrics there are."""
_MOST_TRACES = 8
_MOST_SIGNALS = 6


class RunFacts:
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


def about_run(run: RunFacts, *, prefix: str = "") -> list[str]:
    """Return the sections of one run; `prefix` begins the names that links inside the page use."""
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
    return [
        page.section(title, *guarded(make), name=f"{prefix}{title.split()[0].lower()}")
        for title, make in sections.items()
    ]


def guarded(make: Callable[[], list[str]]) -> list[str]:
    """Return the content of a section, or why there is none: one damaged file must not hide the rest."""
    from striderl.checkpoint.errors import CheckpointError
    from striderl.loggers import page

    try:
        return make()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, CheckpointError) as error:
        return [page.paragraph(f"not shown: {message_of(error)}", "bad")]


def seconds_of(metrics: RunMetrics) -> dict[str, float]:
    """Return what the time of a run was spent on; what no metric names is the rest of its iterations."""
    names = {
        "collecting": "time/collection_seconds",
        "learning": "time/learning_seconds",
        "evaluating": "time/evaluation_seconds",
        "videos": "time/video_seconds",
    }
    # of a thinned log every evaluation is there, and a share of all other rows
    shares = dict.fromkeys(names, metrics.share) | {"evaluating": 1.0}
    found = {label: float(metrics.curve(name)[1].sum()) / shares[label] for label, name in names.items()}
    whole = float(metrics.curve("time/iteration_seconds")[1].sum()) / metrics.share
    found["saving, logging and the rest"] = whole - sum(found.values())
    return {label: value for label, value in found.items() if value > 0.0}


# -- the sections -----------------------------------------------------------------------------------------------------


def _videos(run: RunFacts) -> list[str]:
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


def _episodes(run: RunFacts) -> list[str]:
    from striderl.collect.trace import SUFFIX, read_trace
    from striderl.loggers import page

    found = []
    newest = _newest(run.files.videos, (SUFFIX,))[-1:]
    if not newest and os.path.lexists(run.files.evaluation):
        newest = [run.files.evaluation]
    for path in newest:
        trace = read_trace(path)
        of = "the first episode of the last evaluation" if path == run.files.evaluation else path.name
        total = f", return {float(trace.reward.sum()):.4g}" if len(trace.reward) else ""
        note = f"{of.removesuffix(SUFFIX)}: {len(trace.reward)} steps{total}"
        found += [page.paragraph(note, "note"), _trace_charts(trace)]
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
        found.append(page.strips("Gait: feet on the ground", names, feet > 0.5, dt * len(feet), _gait(feet > 0.5, dt)))
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


def _gait(down: NDArray[np.bool_], dt: float) -> str:
    """Return how long feet are on the ground and how often they touch down; down: [T, feet]."""
    shares = ", ".join(f"{100.0 * share:.0f}" for share in down.mean(axis=0))
    found = f"on the ground {shares} % of the time"
    if dt:
        touchdowns = (down[1:] & ~down[:-1]).sum() / down.shape[1]
        found += f"; {touchdowns / (dt * len(down)):.2g} touchdowns per second and foot"
    return found


def _time(run: RunFacts) -> list[str]:
    from striderl.loggers import page
    from striderl.loggers.console_logger import clock

    metrics = run.metrics
    if metrics is None:
        return []
    seconds = seconds_of(metrics)
    speeds = {label: metrics.curve(f"time/{label}_steps_per_second") for label in ("collection", "learning")}
    lines = [
        page.ChartLine(label=label, x=x, y=y, colour=index) for index, (label, (x, y)) in enumerate(speeds.items())
    ]
    rows = [
        [
            label,
            clock(value) if value >= 60.0 else f"{value:.1f} s",
            f"{metrics.steps[-1] / value:,.0f}" if label in ("collecting", "learning") else "",
        ]
        for label, value in seconds.items()
    ]
    return [
        page.bar(list(seconds.items())),
        page.table(["spent on", "time", "env steps per second"], rows, numbers=(1, 2)),
        page.legend(list(speeds)),
        page.charts([page.chart("Throughput of each part", "env steps / s", lines)]),
    ]


def _faults(run: RunFacts) -> list[str]:
    from striderl.collect.trace import SUFFIX, read_trace
    from striderl.loggers import page
    from striderl.training.guard import FAULTS_FILE, read_faults

    found = read_faults(run.folder / FAULTS_FILE)
    counts = {name: run.last(f"faults/{name}") or 0.0 for name in ("bad_samples", "skipped_updates", "rollbacks")}
    parts = [page.paragraph(", ".join(f"{name.replace('_', ' ')}: {value:,.0f}" for name, value in counts.items()))]
    if not found:
        return [page.paragraph("none: every number was finite", "good")] if not any(counts.values()) else parts
    names = ("component", "env", "step", "value", "count", "env_steps")
    rows = [["–" if line.get(name) is None else line.get(name) for name in names] for line in found[:MOST_ROWS]]
    parts.append(page.table([name.replace("_", " ") for name in names], rows, numbers=(1, 2, 4, 5)))
    if len(found) > MOST_ROWS:
        parts.append(page.paragraph(f"and {len(found) - MOST_ROWS} further lines in {FAULTS_FILE}", "note"))
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


def _settings(run: RunFacts) -> list[str]:
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


def _versions(run: RunFacts) -> list[str]:
    from striderl.checkpoint.safe_files import read_json
    from striderl.loggers import page
    from striderl.training.experiment.run_folder import VERSIONS_FILE

    try:
        found = read_json(run.folder / VERSIONS_FILE)
    except FileNotFoundError:
        return []
    rows = [[name.replace("_", " "), value if value not in ("", None) else "–"] for name, value in found.items()]
    return [page.table(["of", "version"], rows)]


def _checkpoints(run: RunFacts) -> list[str]:
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


def _export(run: RunFacts) -> list[str]:
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


def _command(run: RunFacts) -> list[str]:
    from striderl.cli.train_flags import command_of
    from striderl.loggers import page

    parts = []
    if run.config is not None and run.usual is not None:
        parts.append(page.code(command_of(run.config, run.usual)))
    command = run.files.labels().command
    if command:
        parts.append(page.paragraph(f"started as: {command}", "note"))
    return parts
