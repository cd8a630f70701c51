"""Statistics of a few numbers, such as the returns of some episodes or seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.float64]]


def mean(values: Sequence[float]) -> float:
    """Return the mean; not a number without values."""
    return math.fsum(values) / len(values) if values else math.nan


def standard_deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation, with n - 1; 0 for one value."""
    if len(values) < 2:
        return 0.0
    center = mean(values)
    return math.sqrt(math.fsum((value - center) ** 2 for value in values) / (len(values) - 1))


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean by Student's t; without bounds when there is only one value."""
    if len(values) < 2:
        return -math.inf, math.inf
    half = t_quantile(len(values) - 1) * standard_deviation(values) / math.sqrt(len(values))
    return mean(values) - half, mean(values) + half


def t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, right to 1 %.

    Closed forms for 1 and 2 degrees of freedom, else the expansion around the normal quantile z in powers of
    1 / freedom (Abramowitz and Stegun 26.7.5).
    """
    if freedom == 1:
        return math.tan(math.pi * 0.475)
    if freedom == 2:
        return 0.95 * math.sqrt(2.0 / (1.0 - 0.95**2))
    z = 1.959963984540054
    terms = (
        z,
        (z**3 + z) / 4.0,
        (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0,
        (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))


# -- scores of several seeds and tasks ---------------------------------------------------------------------------------


Scores = Mapping[str, Sequence[float]]
"""The scores of one candidate: task → the score of each seed."""

NUM_RESAMPLES = 4000
"""How many bootstrap samples an interval is made of; its ends then move by about 1 % of its width."""
_MOST_ORDERINGS, _MOST_PAIRS = 20_000, 4_000_000


def interquartile_mean(scores: Sequence[float] | Numbers) -> float:
    """Return the mean of the middle half of the scores: a quarter of them, rounded down, is cut off at each end.

    Less moved by a lucky or a broken seed than the mean, less noisy than the median (Agarwal et al. 2021).
    """
    values = np.sort(np.asarray(scores, np.float64), axis=-1)
    cut = int(0.25 * values.shape[-1])
    return float(values[cut : len(values) - cut].mean()) if len(values) else math.nan


def interquartile_mean_interval(scores: Scores, *, seed: int = 0, num_resamples: int = NUM_RESAMPLES) -> Interval:
    """Return the interquartile mean over all tasks with its 95 % interval by the stratified bootstrap.

    Seeds are drawn again with replacement within each task, so that every sample has each task as often as the data.
    """
    point = interquartile_mean([value for values in scores.values() for value in values])
    samples = np.concatenate(_resampled(scores, np.random.default_rng(seed), num_resamples), axis=1)
    samples.sort(axis=1)
    cut = int(0.25 * samples.shape[1])
    return _percentiles(point, samples[:, cut : samples.shape[1] - cut].mean(axis=1))


def probability_of_improvement(scores: Scores, others: Scores) -> float:
    """Return how likely a seed of one candidate beats a seed of another on a task, averaged over tasks.

    Of all pairs of a task, those that are won count 1 and equal ones 1/2 (the Mann-Whitney statistic over n m).
    """
    shares = [
        float(_won(np.asarray(scores[task], np.float64)[None], np.asarray(others[task], np.float64)[None])[0])
        for task in _shared(scores, others)
    ]
    return mean(shares)


def improvement_interval(
    scores: Scores, others: Scores, *, seed: int = 0, num_resamples: int = NUM_RESAMPLES
) -> Interval:
    """Return the probability of improvement with its 95 % interval by the stratified bootstrap of both candidates."""
    random = np.random.default_rng(seed)
    tasks = _shared(scores, others)
    shares = [
        _won(
            *_resampled({"": scores[task]}, random, num_resamples),
            *_resampled({"": others[task]}, random, num_resamples),
        )
        for task in tasks
    ]
    return _percentiles(probability_of_improvement(scores, others), np.mean(shares, axis=0))


def rank_test(scores: Scores, others: Scores, *, seed: int = 0) -> float:
    """Return the two-sided p-value of the probability of improvement if both candidates were the same.

    Which seed belongs to which candidate is exchanged within each task: in every way where there are at most 20,000 for
    one task alone, else in 20,000 random ways. A bootstrap of three seeds never leaves what it has seen; this does.
    """
    tasks = _shared(scores, others)
    observed = abs(probability_of_improvement(scores, others) - 0.5)
    random = np.random.default_rng(seed)
    total, exact = np.zeros(1), len(tasks) == 1
    for task in tasks:
        both = np.asarray([*scores[task], *others[task]], np.float64)
        number = len(scores[task])
        exact = exact and math.comb(len(both), number) <= _MOST_ORDERINGS
        chosen = _choices(len(both), number, exact, random)
        total = total + _won(both[chosen[:, :number]], both[chosen[:, number:]]) / len(tasks)
    as_far = int((np.abs(total - 0.5) >= observed - 1e-12).sum())
    return as_far / len(total) if exact else (as_far + 1) / (len(total) + 1)


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    point: float
    low: float
    high: float


def _choices(number: int, taken: int, exact: bool, random: np.random.Generator) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return ways to divide so many scores, [ways, number]: the first `taken` of a row are one candidate's."""
    if not exact:
        return np.argsort(random.random((_MOST_ORDERINGS, number)), axis=1)
    rows = [(*chosen, *sorted(set(range(number)) - set(chosen))) for chosen in combinations(range(number), taken)]
    return np.array(rows, np.int64)


def _shared(scores: Scores, others: Scores) -> list[str]:
    tasks = [task for task in scores if task in others]
    if not tasks or any(len(scores[task]) == 0 or len(others[task]) == 0 for task in tasks):
        raise ValueError(f"two candidates are compared on tasks of both, found {list(scores)} and {list(others)}")
    return tasks


def _resampled(scores: Scores, random: np.random.Generator, number: int) -> list[Numbers]:
    """Return bootstrap samples of each task, [number, seeds]."""
    found = []
    for values in scores.values():
        array = np.asarray(values, np.float64)
        found.append(array[random.integers(0, len(array), (number, len(array)))])
    return found


def _won(left: Numbers, right: Numbers) -> Numbers:
    """Return the share of pairs that `left` [S, n] wins against `right` [S, m], [S]; an equal pair is half won."""
    rows = max(1, _MOST_PAIRS // (left.shape[1] * right.shape[1]))  # of all at once, pairs would fill the memory
    shares = [
        np.sign(left[start : start + rows, :, None] - right[start : start + rows, None, :]).mean(axis=(1, 2))
        for start in range(0, len(left), rows)
    ]
    return np.asarray(0.5 + 0.5 * np.concatenate(shares))


def _percentiles(point: float, samples: Numbers) -> Interval:
    low, high = np.percentile(samples, [2.5, 97.5])
    return Interval(point, float(low), float(high))
