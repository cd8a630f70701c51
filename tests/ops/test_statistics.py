"""Interquartile mean, stratified bootstrap, probability of improvement and exact rank test, by hand and brute force."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from striderl.ops.statistics import (
    improvement_interval,
    interquartile_mean,
    interquartile_mean_interval,
    probability_of_improvement,
    rank_test,
)

scores = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1.0, 2.0, 3.0, 100.0], 2.5),  # one of four is cut off at each end: (2 + 3) / 2
        ([7.0], 7.0),
        ([1.0, 2.0, 9.0], 4.0),  # a quarter of three is less than one: nothing is cut
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 50.0], 4.0),  # two of nine: mean of 2 … 6
    ],
)
def test_the_mean_of_the_middle_half(values, wanted):
    assert interquartile_mean(values[::-1]) == wanted


def test_nothing_has_no_mean():
    assert np.isnan(interquartile_mean([]))


def test_probability_of_improvement_by_hand():
    # pairs: 3>1, 3>2, 3=3, 1=1, 1<2, 1<3: 2 won, 2 equal, 2 lost of six
    assert probability_of_improvement({"a": [3.0, 1.0]}, {"a": [1.0, 2.0, 3.0]}) == 0.5
    # the mean over tasks: 1 on one, 0.25 on the other
    left, right = {"a": [2.0], "b": [1.0, 0.0]}, {"a": [1.0], "b": [1.0, 2.0]}
    assert probability_of_improvement(left, right) == pytest.approx((1.0 + 0.125) / 2)


@given(scores, scores)
def test_probability_of_improvement_counts_all_pairs(left, right):
    pairs = [1.0 if x > y else 0.5 if x == y else 0.0 for x, y in product(left, right)]
    assert probability_of_improvement({"": left}, {"": right}) == pytest.approx(np.mean(pairs))
    back = probability_of_improvement({"": right}, {"": left})
    assert probability_of_improvement({"": left}, {"": right}) + back == pytest.approx(1.0)


def test_the_bootstrap_of_three_seeds_is_that_of_all_27_samples():
    values = [0.0, 3.0, 9.0]
    every = sorted(np.mean(sample) for sample in product(values, repeat=3))  # of three nothing is cut
    found = interquartile_mean_interval({"a": values}, num_resamples=40_000)
    assert found.point == 4.0
    # 1 of 27 samples is all zeros (3.7 %), 1 of 27 all nines: the 2.5 % and 97.5 % points lie inside those
    assert (found.low, found.high) == (every[0], every[-1]) == (0.0, 9.0)


def test_samples_keep_the_number_of_seeds_of_each_task():
    # within a task all seeds are equal: resampling within tasks gives the same mean every time
    found = interquartile_mean_interval({"a": [1.0, 1.0], "b": [5.0, 5.0]})
    assert found == (3.0, 3.0, 3.0)
    found = improvement_interval({"a": [1.0, 1.0], "b": [5.0]}, {"a": [0.0, 0.0], "b": [7.0]})
    assert found == (0.5, 0.5, 0.5)


def test_the_interval_of_an_improvement_against_all_samples():
    left, right = [1.0, 4.0], [2.0, 3.0]
    shares = [
        probability_of_improvement({"": one}, {"": other})
        for one in product(left, repeat=2)
        for other in product(right, repeat=2)
    ]
    found = improvement_interval({"": left}, {"": right}, num_resamples=40_000)
    low, high = np.percentile(shares, [2.5, 97.5])
    assert found == (0.5, low, high) == (0.5, 0.0, 1.0)


def test_many_pairs_are_counted_in_pieces():
    random = np.random.default_rng(0)
    left, right = random.normal(size=300), random.normal(size=300)
    found = improvement_interval({"": left}, {"": right}, num_resamples=60)
    assert found.low < found.point < found.high


@given(scores, scores)
def test_the_rank_test_tries_every_exchange(left, right):
    both, number = [*left, *right], len(left)

    def distance(chosen):
        one = [both[index] for index in chosen]
        other = [both[index] for index in range(len(both)) if index not in chosen]
        return abs(probability_of_improvement({"": one}, {"": other}) - 0.5)

    every = [distance(chosen) for chosen in combinations(range(len(both)), number)]
    wanted = np.mean([each >= distance(range(number)) - 1e-12 for each in every])
    assert rank_test({"": left}, {"": right}) == pytest.approx(wanted)


def test_three_seeds_cannot_show_a_difference_and_four_can():
    # of 20 ways to divide six scores two are as extreme; of 70 ways to divide eight, two
    assert rank_test({"": [1.0, 2.0, 3.0]}, {"": [4.0, 5.0, 6.0]}) == pytest.approx(0.1)
    assert rank_test({"": range(4)}, {"": range(10, 14)}) == pytest.approx(2 / 70)


def test_equal_candidates_are_seldom_told_apart():
    random = np.random.default_rng(1)
    found = [rank_test({"": random.normal(size=5)}, {"": random.normal(size=5)}) <= 0.05 for _ in range(400)]
    assert np.mean(found) < 0.07


# rows: seeds; columns: tasks
ONE = ((12.0, 55.0, 3.0), (18.0, 40.0, 9.0), (25.0, 61.0, 7.0), (9.0, 58.0, 2.0), (31.0, 35.0, 8.0))
OTHER = ((10.0, 50.0, 5.0), (16.0, 44.0, 4.0), (11.0, 39.0, 6.0), (8.0, 52.0, 1.0), (20.0, 30.0, 10.0))


def by_task(rows, *tasks):
    return {str(task): [row[task] for row in rows] for task in tasks}


# The wanted numbers are those of rliable 1.2.0, taken once by hand (it wants an older pandas than ours):
#   get_interval_estimates({"x": scores}, lambda s: np.array([aggregate_iqm(s)]), reps=20000), random_state 0
#   get_interval_estimates({"x": (one, other)}, lambda s, t: np.array([probability_of_improvement(s, t)]), reps=1000)
@pytest.mark.parametrize(
    ("rows", "point", "low", "high"),
    [(ONE, 20.77777778, 16.99722222, 26.55555556), (OTHER, 16.66666667, 14.0, 20.22222222)],
)
def test_the_interquartile_mean_is_that_of_rliable(rows, point, low, high):
    found = interquartile_mean_interval(by_task(rows, 0, 1, 2))
    assert found.point == pytest.approx(point, rel=1e-8)
    # two bootstraps of other random numbers: the ends move by about 2 % of the width
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.03 * (high - low))


@pytest.mark.parametrize(
    ("tasks", "point", "low", "high"),
    [((0, 1, 2), 0.66666667, 0.453, 0.86666667), ((0,), 0.72, 0.36, 1.0)],
)
def test_the_probability_of_improvement_is_that_of_rliable(tasks, point, low, high):
    found = improvement_interval(by_task(ONE, *tasks), by_task(OTHER, *tasks))
    assert found.point == pytest.approx(point, rel=1e-7)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.03)
