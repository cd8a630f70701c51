"""Statistics of a few numbers, such as the returns of some episodes or seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence


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
