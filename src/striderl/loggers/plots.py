"""`plot_runs`: learning curves of several runs as one picture.

seeds of one group are brought to common steps, drawn as a thin line each, and summed up by their mean with a 95 %
interval of the mean over the range that all of them have reached; runs of the same seed are averaged first, because a
repetition does not show how seeds differ
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from striderl.checkpoint.safe_files import replacing_path
from striderl.data.naming import missing_extra, suggestion
from striderl.loggers.runs import Numbers, RunGroup, group_runs
from striderl.ops.statistics import t_quantile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_log = logging.getLogger(__name__)

_TITLES = {
    "evaluate/return_mean": ("Return in evaluation", "return"),
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
# Okabe and Ito's colours: told apart by colour-blind readers and in grey
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MOST_POINTS = 400


@dataclass(frozen=True, kw_only=True)
class SeedCurve:
    """What several seeds have in common."""

    steps: Numbers
    """Env steps, from where all have begun to where the first ends. Shape: [P]."""
    mean: Numbers
    """The mean over the seeds. Shape: [P]."""
    half_width: Numbers
    """Half of the 95 % interval of the mean; zero for a single seed. Shape: [P]."""


def plot_runs(run_dirs: Iterable[str | Path], out_png: str | Path, metrics: Sequence[str] = ()) -> list[str]:
    """Draw a panel for each metric and return the names of those that were drawn.

    Without `metrics`, the usual ones are taken as far as the runs have them: returns, episode length, losses, speed.
    """
    groups = group_runs(run_dirs)
    if not groups:
        raise ValueError("plot_runs wants at least one run folder")
    names = list(metrics) if metrics else _usual_names(groups)
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
    return seed_curve([(seed.steps, seed.mean) for seed in seeds])


def _warn_of_copies(groups: Sequence[RunGroup]) -> None:
    for group in groups:
        for seed, runs in group.by_seed().items():
            if len(runs) > 1:
                names = " and ".join(run.folder.name for run in runs)
                _log.warning("%s have the same settings and the same seed %s: they count as one seed", names, seed)


def _usual_names(groups: Sequence[RunGroup]) -> list[str]:
    """Return the first metric of each usual panel that some run has numbers for."""
    there = {name for group in groups for run in group.runs for name in run.columns if len(run.curve(name)[0])}
    found = (next((name for name in choices if name in there), "") for choices in _USUAL)
    return [name for name in found if name]


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
    """Show what the runs did; a wide interval may reach out of the picture, but does not press the curves flat."""
    if not len(values) or values.min() == values.max():
        return
    room = 0.15 * (values.max() - values.min())
    low, high = panel.get_ylim()
    panel.set_ylim(max(low, values.min() - room), min(high, values.max() + room))


def _dress(panel: Axes, name: str) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    title, unit = _TITLES.get(name, (name, name.rpartition("/")[2]))
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
        return group.label
    if seeds == 1:
        return f"{group.label} (mean of {runs} runs, all of seed {group.seeds[0]}: no interval)"
    repeated = f" in {runs} runs" if runs > seeds else ""
    return f"{group.label} (mean of {seeds} seeds{repeated}, 95 % interval)"
