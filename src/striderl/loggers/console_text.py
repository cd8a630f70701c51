"""What a terminal shows of a row: short numbers, times, and the line for places where nothing can move."""

from __future__ import annotations

import math
from collections.abc import Mapping

ITERATION = "progress/iteration"
"""The name of the number of finished iterations."""
TOTAL_ITERATIONS = "progress/total_iterations"
"""The name of the number of iterations in all, where there is a limit."""
ELAPSED_SECONDS = "progress/elapsed_seconds"
"""The name of the time that was spent, resumed parts included."""
REMAINING_SECONDS = "progress/remaining_seconds"
"""The name of the time that is left, where there is a limit."""
STEPS_PER_SECOND = "time/steps_per_second"
"""The name of the speed."""
_IN_THE_LINE = {
    "collect/return_mean": "return",
    "collect/length_mean": "length",
    "evaluate/return_mean": "evaluation",
    "train/kl": "kl",
}


def short_number(value: float) -> str:
    """Return four digits that matter: '12.41', '3.1e-05', '12,288', 'nan'."""
    if not math.isfinite(value):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e9:
        return f"{int(value):,}"
    size = abs(value)
    if size >= 1e6 or size < 1e-4:
        return f"{value:.2e}"
    digits = max(0, 3 - math.floor(math.log10(size)))
    return f"{value:,.{digits}f}"


def clock(seconds: float) -> str:
    """Return '0:07', '12:30' or '3:05:00'."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def progress_parts(step: int, numbers: Mapping[str, float]) -> list[str]:
    """Return iteration, steps, speed, time spent and time to go, as far as they are known."""
    parts = []
    if ITERATION in numbers:
        total = f"/{short_number(numbers[TOTAL_ITERATIONS])}" if TOTAL_ITERATIONS in numbers else ""
        parts.append(f"iteration {short_number(numbers[ITERATION])}{total}")
    parts.append(f"{step:,} steps")
    if numbers.get(STEPS_PER_SECOND):
        parts.append(f"{numbers[STEPS_PER_SECOND]:,.0f} steps/s")
    if ELAPSED_SECONDS in numbers:
        parts.append(clock(numbers[ELAPSED_SECONDS]))
    if REMAINING_SECONDS in numbers:
        parts.append(f"{clock(numbers[REMAINING_SECONDS])} to go")
    return parts


def plain_line(title: str, step: int, numbers: Mapping[str, float]) -> str:
    """Return one line with progress and the numbers that matter most."""
    shown = [f"{label} {short_number(numbers[name])}" for name, label in _IN_THE_LINE.items() if name in numbers]
    return ", ".join([*([title] if title else []), *progress_parts(step, numbers), *shown])
