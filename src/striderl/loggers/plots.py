"""`plot_runs`: learning curves of several runs as one picture.

seeds of one group are brought to common steps, drawn as a thin line each, and summed up by their mean with a 95 %
interval of the mean over the range that all of them have reached; runs of the same seed are averaged first, because a
repetition does not show how seeds differ

Reading the metrics of run folders, and putting runs that differ in nothing but their seed together.

runs/cartpole/1  config.json {"task": "cartpole", "seed": 0, "ppo": {"clip": 0.2}}   ┐ one group, "cartpole"
runs/cartpole/2  config.json {"task": "cartpole", "seed": 1, "ppo": {"clip": 0.2}}   ┘
runs/cartpole/3  config.json {"task": "cartpole", "seed": 0, "ppo": {"clip": 0.1}}     "cartpole, ppo.clip=0.1"
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from striderl.checkpoint.safe_files import decode_json, read_json, read_lines, replacing_path
from striderl.data.naming import missing_extra, suggestion
from striderl.loggers.file_loggers import parts_of, read_table
from striderl.loggers.logger import flat_settings
from striderl.ops.statistics import t_quantile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_log = logging.getLogger(__name__)

EVALUATED = "evaluate/return_mean"
"""The metric of evaluations whose interval over episodes is logged beside it."""
_TITLES = {
    EVALUATED: ("Return in evaluation", "return"),
    "collect/return_mean": ("Return in training", "return"),
    "collect/length_mean": ("Episode length", "steps"),
    "train/surrogate_loss": ("Surrogate loss", "loss"),
    "train/policy_loss": ("Policy loss", "loss"),
    "train/value_loss": ("Value loss", "loss"),
    "train/entropy": ("Entropy", "nats"),
    "train/kl": ("KL divergence per update", "nats"),
    "train/learning_rate": ("Learning rate", "step size"),
    "time/steps_per_second": ("Speed", "env steps / s"),
}
_USUAL = (
    ("evaluate/return_mean",),
    ("collect/return_mean",),
    ("collect/length_mean",),
    ("train/surrogate_loss", "train/policy_loss", "train/actor_loss"),
    ("train/value_loss", "train/critic_loss"),
    ("time/steps_per_second",),
)
# Okabe and Ito's colours: distinguishable for colour-blind readers and in grey
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MOST_POINTS = 400


@dataclass(frozen=True, kw_only=True)
class SeedCurve:
    """Mean curve of several seeds."""

    steps: Numbers
    """Env steps, from where all have begun to where the first ends. Shape: [P]."""
    mean: Numbers
    """The mean over the seeds. Shape: [P]."""
    half_width: Numbers
    """Half of the 95 % interval of the mean over seeds; for a single run that of its evaluation over episodes, and zero
    for all else. Shape: [P]."""


def plot_runs(run_dirs: Iterable[str | Path], out_png: str | Path, metrics: Sequence[str] = ()) -> list[str]:
    """Draw a panel for each metric and return the names of those that were drawn.

    Without `metrics`, the usual ones are taken as far as the runs have them: returns, episode length, losses, speed.
    """
    groups = group_runs(run_dirs)
    if not groups:
        raise ValueError("plot_runs wants at least one run folder")
    names = list(metrics) if metrics else usual_names(groups)
    available = sorted({name for group in groups for run in group.runs for name in run.columns})
    missing = [name for name in names if name not in available]
    if missing or not names:
        near = suggestion(missing[0], available) if missing else ""
        listed = ", ".join(available) or "nothing"
        raise KeyError(f"no run has {missing or 'a metric to draw'}. {near}Available: {listed}.")
    _warn_of_copies(groups)
    figure = _figure(groups, names)
    path = Path(out_png)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing_path(path) as temporary:
        figure.savefig(temporary, dpi=150)
    return names


def seed_curve(curves: Sequence[tuple[Numbers, Numbers]]) -> SeedCurve:
    """Return the mean of curves over the steps that all of them cover, with Student's 95 % interval."""
    curves = [curve for curve in curves if len(curve[0])]
    if not curves:
        return SeedCurve(steps=np.zeros(0), mean=np.zeros(0), half_width=np.zeros(0))
    first, last = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    points = np.unique(np.concatenate([steps for steps, _ in curves]))
    points = points[(points >= first) & (points <= last)]
    if len(points) > _MOST_POINTS:
        points = np.linspace(first, last, _MOST_POINTS)
    values = np.stack([np.interp(points, steps, numbers) for steps, numbers in curves])
    half_width = np.zeros(len(points))
    if len(curves) > 1:
        deviation = values.std(axis=0, ddof=1) / math.sqrt(len(curves))
        half_width = t_quantile(len(curves) - 1) * deviation
    return SeedCurve(steps=points, mean=values.mean(axis=0), half_width=half_width)


def group_curve(group: RunGroup, name: str) -> SeedCurve:
    """Return the mean of a metric over the seeds of a group; of several runs of a seed, their mean counts."""
    seeds = [seed_curve([run.curve(name) for run in runs]) for runs in group.by_seed().values()]
    found = seed_curve([(seed.steps, seed.mean) for seed in seeds])
    return found if len(group.runs) > 1 or name != EVALUATED else _with_episodes(found, group.runs[0])


def _with_episodes(curve: SeedCurve, run: RunMetrics) -> SeedCurve:
    """Return the curve of a run's evaluation with the interval over the episodes, as far as it was logged."""
    (steps, low), (others, high) = run.curve("evaluate/return_low"), run.curve("evaluate/return_high")
    if not len(steps) or not np.array_equal(steps, others):
        return curve
    return replace(curve, half_width=np.interp(curve.steps, steps, (high - low) / 2.0))


def _warn_of_copies(groups: Sequence[RunGroup]) -> None:
    for group in groups:
        for seed, runs in group.by_seed().items():
            if len(runs) > 1:
                names = " and ".join(run.folder.name for run in runs)
                _log.warning("%s have the same settings and the same seed %s: they count as one seed", names, seed)


def usual_names(groups: Sequence[RunGroup]) -> list[str]:
    """Return what is drawn unless metrics are named: the first of each usual panel that some run has numbers for."""
    there = {name for group in groups for run in group.runs for name in run.columns if len(run.curve(name)[0])}
    found = (next((name for name in choices if name in there), "") for choices in _USUAL)
    return [name for name in found if name]


def title_of(name: str) -> tuple[str, str]:
    """Return the title and the unit of a metric's panel; those without words of their own keep their names."""
    return _TITLES.get(name, (name, name.rpartition("/")[2]))


def _figure(groups: Sequence[RunGroup], names: Sequence[str]) -> Figure:
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise ImportError(missing_extra("matplotlib", "plot", purpose="a plot")) from error
    columns = min(3, len(names)) if len(names) != 4 else 2
    rows = -(-len(names) // columns)
    legend_inches = 0.1 + 0.2 * len(groups)
    height = 2.7 * rows + legend_inches
    below = legend_inches / height
    engine = ConstrainedLayoutEngine(rect=(0.0, below, 1.0, 1.0 - below), h_pad=0.08)
    figure = Figure(figsize=(4.2 * max(columns, 2), height), layout=engine)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    handles: list[Any] = []
    for panel, name in zip(axes, names):
        handles = _draw_panel(panel, name, groups)
    for panel in axes[len(names) :]:
        panel.set_visible(False)
    figure.legend(handles, [legend_of(group) for group in groups], loc="lower center", frameon=False, fontsize=9)
    return figure


def _draw_panel(panel: Axes, name: str, groups: Sequence[RunGroup]) -> list[Any]:
    """Draw one metric of all groups and return a line per group for the legend."""
    handles: list[Any] = []
    seen: list[Numbers] = []
    for index, group in enumerate(groups):
        colour = _COLOURS[index % len(_COLOURS)]
        curves = [run.curve(name) for run in group.runs]
        seen += [values for _, values in curves]
        if len(curves) > 1:
            for steps, values in curves:
                panel.plot(steps, values, color=colour, linewidth=0.6, alpha=0.3)
        summary = group_curve(group, name)
        low, high = summary.mean - summary.half_width, summary.mean + summary.half_width
        panel.fill_between(summary.steps, low, high, color=colour, alpha=0.18, linewidth=0)
        marker = "o" if len(summary.steps) == 1 else None
        handles += panel.plot(summary.steps, summary.mean, color=colour, linewidth=1.6, marker=marker, markersize=4)
    _limit(panel, np.concatenate(seen))
    _dress(panel, name)
    return handles


def _limit(panel: Axes, values: Numbers) -> None:
    """Set the limits by the runs' curves; a wide interval may exceed the picture, but does not flatten the curves."""
    if not len(values) or values.min() == values.max():
        return
    room = 0.15 * (values.max() - values.min())
    low, high = panel.get_ylim()
    panel.set_ylim(max(low, values.min() - room), min(high, values.max() + room))


def _dress(panel: Axes, name: str) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    title, unit = title_of(name)
    panel.set_title(title, fontsize=10, loc="left")
    panel.set_ylabel(unit, fontsize=9)
    panel.set_xlabel("env steps", fontsize=9)
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    panel.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    largest = max((abs(bound) for bound in panel.get_ylim()), default=0.0)
    if largest >= 10_000:
        panel.yaxis.set_major_formatter(EngFormatter(sep=""))
    panel.tick_params(labelsize=8)
    panel.grid(color="#e5e5e5", linewidth=0.6)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def legend_of(group: RunGroup) -> str:
    """Return the label of a group with how many runs and seeds its curve is the mean of."""
    runs, seeds = len(group.runs), len(group.by_seed())
    if runs == 1:
        alone = len(group.runs[0].curve("evaluate/return_low")[0])
        return f"{group.label} (evaluation: 95 % interval over its episodes)" if alone else group.label
    if seeds == 1:
        return f"{group.label} (mean of {runs} runs, all of seed {group.seeds[0]}: no interval)"
    repeated = f" in {runs} runs" if runs > seeds else ""
    return f"{group.label} (mean of {seeds} seeds{repeated}, 95 % interval)"


# -- runs --------------------------------------------------------------------------------------------------------------


Numbers = np.ndarray[Any, np.dtype[np.float64]]

_NOT_SETTINGS = {"seed", "folder", "run_dir", "log_dir", "run_name", "name", "time", "created"}
_NOT_LEARNING = ("logging.",)
"""Settings that change what is shown of a run, and nothing of what it learns."""
_MOST_DIFFERENCES = 3


@dataclass(frozen=True, kw_only=True)
class RunMetrics:
    """The metrics of one run, by name."""

    folder: Path
    """Where they were found."""
    steps: Numbers
    """The env steps of the rows, growing. Shape: [R]."""
    columns: Mapping[str, Numbers]
    """Each metric, not a number in rows that do not have it. Shape: [R]."""
    share: float = 1.0
    """The share of the logged rows that were read."""

    def curve(self, name: str) -> tuple[Numbers, Numbers]:
        """Return the steps and values of a metric in the rows that have it; both empty where none has."""
        values = self.columns.get(name, np.full(len(self.steps), np.nan))
        there = np.isfinite(values)
        return self.steps[there], values[there]


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """Runs of the same settings with different seeds."""

    label: str
    """Their label in a legend."""
    runs: tuple[RunMetrics, ...]
    """The runs, in the order in which they were given."""
    seeds: tuple[str, ...]
    """The seed of each run; of one whose settings have none, its folder."""
    task: str = ""
    """What they were trained on."""

    def by_seed(self) -> dict[str, list[RunMetrics]]:
        """Return the runs of each seed: several of one seed repeat each other, and do not show how seeds differ."""
        found: dict[str, list[RunMetrics]] = {}
        for seed, run in zip(self.seeds, self.runs):
            found.setdefault(seed, []).append(run)
        return found


def read_metrics(run_dir: str | Path, *, max_rows: int = 0) -> RunMetrics:
    """Read metrics.jsonl, or metrics.csv where there is none, with the parts that were set aside before it.

    A step that was written twice counts as last written. With `max_rows`, about so many rows of a longer metrics.jsonl
    are read, evenly spread, and every row with an evaluation.
    """
    folder, share = Path(run_dir), 1.0
    if parts := parts_of(folder / "metrics.jsonl"):
        lines = [(line, part) for part in parts for line in read_lines(part)]
        every = -(-len(lines) // max_rows) if max_rows else 1
        few = [each for number, each in enumerate(lines, 1) if number % every == 0 or b'"evaluate/' in each[0]]
        share = len(few) / len(lines) if lines else 1.0
        rows = _read_jsonl(few)
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
    return RunMetrics(folder=folder, steps=np.array(steps, dtype=np.float64), columns=columns, share=share)


def group_runs(run_dirs: Iterable[str | Path], *, max_rows: int = 0) -> list[RunGroup]:
    """Read runs and group those whose settings differ in nothing but the seed; `max_rows` as for `read_metrics`."""
    # a folder that is named twice, or once by a link to it, is one run
    folders = list({Path(run_dir).resolve(): Path(run_dir) for run_dir in run_dirs}.values())
    settings = [_settings(folder) for folder in folders]
    members: dict[str, list[int]] = {}
    for index, (folder, values) in enumerate(zip(folders, settings)):
        key = str(folder.absolute()) if values is None else json.dumps(values, sort_keys=True, default=str)
        members.setdefault(key, []).append(index)
    labels = _labels([(folders[group[0]], settings[group[0]]) for group in members.values()])
    return [
        RunGroup(
            label=label,
            runs=tuple(read_metrics(folders[index], max_rows=max_rows) for index in group),
            seeds=tuple(_seed(folders[index]) for index in group),
            task=_task(folders[group[0]], settings[group[0]]),
        )
        for label, group in zip(labels, members.values())
    ]


def _read_jsonl(lines: Sequence[tuple[bytes, Path]]) -> list[dict[str, float]]:
    rows, damaged = list[dict[str, float]](), dict[Path, int]()
    for line, path in lines:
        try:
            row = decode_json(line, path)
            found = {name: math.nan if value is None else float(value) for name, value in row.items()}
            rows.append({**found, "step": int(row["step"])})
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            damaged[path] = damaged.get(path, 0) + 1
    for path, count in damaged.items():
        _warn_of(count, path)
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
    return {
        name: value
        for name, value in flat.items()
        if name.rpartition(".")[2] not in _NOT_SETTINGS and not name.startswith(_NOT_LEARNING)
    }


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
    """Name each group by its task, its algorithm where there are several, and by what differs from others of both."""
    tasks = [_task(folder, values) for folder, values in groups]
    algorithms = [str((values or {}).get("algorithm_name", "")) for _, values in groups]
    labels = []
    for task, algorithm, (folder, values) in zip(tasks, algorithms, groups):
        others = {other for name, other in zip(tasks, algorithms) if name == task}
        named = f"{task}, {algorithm}" if algorithm and len(others) > 1 else task
        keys = zip(tasks, algorithms, groups)
        rivals = [other for name, rival, (_, other) in keys if (name, rival) == (task, algorithm)]
        if (len(rivals) == 1 and named != task) or tasks.count(task) == 1:
            labels.append(named)
        elif values is None:
            labels.append(f"{named}, {folder.absolute().name}")
        else:
            labels.append(", ".join([named, *_differences(values, rivals)]))
    # of many differences only some are shown, which two groups may share
    return [
        f"{label}, {folder.absolute().name}" if labels.count(label) > 1 else label
        for label, (folder, _) in zip(labels, groups)
    ]


def _task(folder: Path, values: dict[str, Any] | None) -> str:
    flat = values or {}
    return str(flat.get("task") or flat.get("env.task") or folder.absolute().parent.name)


def _differences(values: Mapping[str, Any], rivals: Sequence[Mapping[str, Any] | None]) -> list[str]:
    """Return 'name=value' for the settings in which a group differs from some rival, at most three."""
    known = [rival for rival in rivals if rival is not None]
    differing = [name for name in values if any(rival.get(name) != values[name] for rival in known)]
    shown = [f"{name}={values[name]}" for name in differing[:_MOST_DIFFERENCES]]
    return [*shown, "…"] if len(differing) > _MOST_DIFFERENCES else shown
