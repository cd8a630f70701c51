"""Compare groups of runs by the scores of their seeds, and decide which differences the seeds support.

    runs ─▶ group_runs ─▶ a score per seed ─▶ interquartile mean with a 95 % interval, one row per group
                                          └─▶ pairs of groups of one task: probability of improvement, and a verdict

    candidate                       seeds   IQM     95 % interval
    cartpole, algorithm.clip=0.2        5   475.2   [441.0, 500.0]
    cartpole, algorithm.clip=0.1        5   470.9   [430.1, 500.0]
    … =0.2 against … =0.1: probability of improvement 0.54 [0.24, 0.84]: not distinguishable

A run given twice is one run; runs of one seed count as one seed, with the mean of their scores. A difference counts
only where the interval of the probability of improvement leaves out 0.5 and an exact exchange of the seeds between the
two would give as much in at most one of twenty cases: three seeds against three can never show that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from striderl.data.naming import suggestion
from striderl.loggers.console_logger import short_number
from striderl.loggers.plots import RunGroup, RunMetrics, group_runs
from striderl.ops.statistics import (
    Interval,
    improvement_interval,
    interquartile_mean_interval,
    mean,
    rank_test,
)

SCORES = ("evaluate/return_mean", "collect/return_mean")
"""The metric that is compared unless another is named: the first of these that every run has."""
NOT_DISTINGUISHABLE = "not distinguishable"
"""The verdict where the seeds do not separate two groups."""
_LEVEL = 0.05
_MOST_FOR_ALL_PAIRS = 4


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The scores of one group of runs."""

    label: str
    """The task, and the settings that other groups of it do not share."""
    task: str
    """The task alone."""
    scores: tuple[float, ...]
    """One per seed, in the order of the seeds."""
    seeds: tuple[str, ...]
    """The seeds."""
    steps: tuple[float, float]
    """The fewest and the most env steps at which a score was taken."""
    estimate: Interval
    """Interquartile mean with its interval; without one for a single seed."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two candidates of one task."""

    first: str
    """The label of one."""
    second: str
    """The label of the other."""
    improvement: Interval
    """How likely a seed of the first beats a seed of the second."""
    p_value: float
    """How often exchanged seeds give as much."""
    verdict: str
    """In words: better, worse, or 'not distinguishable', with the reason."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All candidates, and the pairs of each task."""

    metric: str
    """What was compared."""
    candidates: tuple[Candidate, ...]
    """One per group of runs, as given."""
    pairs: tuple[Pair, ...]
    """All pairs of a task with at most four candidates; with more, each against the first."""
    notes: tuple[str, ...]
    """What to bear in mind: other lengths, seeds that are there twice."""


def compare_runs(
    run_dirs: Iterable[str | Path], metric: str = "", *, at_step: int = 0, smaller_is_better: bool = False
) -> Comparison:
    """Group runs, score each seed by the metric's last value (the last up to `at_step`, where given) and compare."""
    return compare_groups(group_runs(run_dirs), metric, at_step=at_step, smaller_is_better=smaller_is_better)


def compare_groups(
    groups: Sequence[RunGroup], metric: str = "", *, at_step: int = 0, smaller_is_better: bool = False
) -> Comparison:
    """Compare groups that were read already."""
    name = metric or _usual_metric(groups)
    candidates = [_candidate(group, name, at_step) for group in groups]
    return Comparison(
        metric=name,
        candidates=tuple(candidates),
        pairs=tuple(_pair(one, other, smaller_is_better) for one, other in _pairs(candidates)),
        notes=tuple(_notes(groups, candidates)),
    )


def table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the candidates' table."""
    head = ["candidate", "seeds", "IQM", "95 % interval", "scores"]
    rows = [
        [
            each.label,
            str(len(each.seeds)),
            short_number(each.estimate.point),
            f"[{short_number(each.estimate.low)}, {short_number(each.estimate.high)}]" if len(each.seeds) > 1 else "–",
            " ".join(short_number(score) for score in each.scores),
        ]
        for each in comparison.candidates
    ]
    return head, rows


def sentence(pair: Pair) -> str:
    """Return a pair in words."""
    point, low, high = pair.improvement
    return (
        f"{pair.first} against {pair.second}: probability of improvement {point:.2f} [{low:.2f}, {high:.2f}], "
        f"p = {pair.p_value:.2g}: {pair.verdict}"
    )


# -- inside ------------------------------------------------------------------------------------------------------------


def _usual_metric(groups: Sequence[RunGroup]) -> str:
    runs = [run for group in groups for run in group.runs]
    if not runs:
        raise ValueError("compare wants at least one run folder")
    for name in SCORES:
        if all(len(run.curve(name)[0]) for run in runs):
            return name
    raise KeyError(f"not every run has one of {', '.join(SCORES)}; name a metric that all of them logged")


def _candidate(group: RunGroup, name: str, at_step: int) -> Candidate:
    by_seed = {seed: [_score(run, name, at_step) for run in runs] for seed, runs in group.by_seed().items()}
    scores = tuple(mean([score for score, _ in found]) for found in by_seed.values())
    steps = [step for found in by_seed.values() for _, step in found]
    return Candidate(
        label=group.label,
        task=group.task,
        scores=scores,
        seeds=tuple(by_seed),
        steps=(min(steps), max(steps)),
        estimate=interquartile_mean_interval({"": scores}),
    )


def _score(run: RunMetrics, name: str, at_step: int) -> tuple[float, float]:
    """Return the last value of a metric, and its step."""
    steps, values = run.curve(name)
    if at_step:
        steps, values = steps[steps <= at_step], values[steps <= at_step]
    if not len(steps):
        known = sorted(each for each in run.columns if len(run.curve(each)[0]))
        until = f" up to step {at_step:,}" if at_step else ""
        raise KeyError(
            f"{run.folder} has no finite {name!r}{until}. {suggestion(name, known)}Available: {', '.join(known)}"
        )
    return float(values[-1]), float(steps[-1])


def _pairs(candidates: Sequence[Candidate]) -> list[tuple[Candidate, Candidate]]:
    tasks: dict[str, list[Candidate]] = {}
    for each in candidates:
        tasks.setdefault(each.task, []).append(each)
    found: list[tuple[Candidate, Candidate]] = []
    for rivals in tasks.values():
        few = len(rivals) <= _MOST_FOR_ALL_PAIRS
        found += combinations(rivals, 2) if few else [(other, rivals[0]) for other in rivals[1:]]
    return found


def _pair(one: Candidate, other: Candidate, smaller_is_better: bool) -> Pair:
    sign = -1.0 if smaller_is_better else 1.0
    left, right = ({"": [sign * score for score in each.scores]} for each in (one, other))
    improvement, p_value = improvement_interval(left, right), rank_test(left, right)
    return Pair(
        first=one.label,
        second=other.label,
        improvement=improvement,
        p_value=p_value,
        verdict=_verdict(one, other, improvement, p_value),
    )


def _verdict(one: Candidate, other: Candidate, improvement: Interval, p_value: float) -> str:
    apart = improvement.low > 0.5 or improvement.high < 0.5
    if apart and p_value <= _LEVEL:
        better, worse = (one, other) if improvement.point > 0.5 else (other, one)
        return f"{better.label} is better than {worse.label}"
    fewest = min(len(one.seeds), len(other.seeds))
    if fewest < 4:
        return f"{NOT_DISTINGUISHABLE} ({len(one.seeds)} and {len(other.seeds)} seeds are too few; 5 each are usual)"
    return NOT_DISTINGUISHABLE


def _notes(groups: Sequence[RunGroup], candidates: Sequence[Candidate]) -> list[str]:
    notes = []
    for group in groups:
        for seed, runs in group.by_seed().items():
            if len(runs) > 1:
                names = ", ".join(run.folder.name for run in runs)
                notes.append(f"{group.label}: {names} have the same seed {seed} and count as one")
    for task in dict.fromkeys(each.task for each in candidates):
        steps = [step for each in candidates if each.task == task for step in each.steps]
        if min(steps) < 0.95 * max(steps):
            notes.append(
                f"{task}: scores were taken between {min(steps):,.0f} and {max(steps):,.0f} env steps; --at-step "
                "compares at one"
            )
    return notes
