"""`ConsoleLogger`: a live table with a progress bar on a terminal, one line per row anywhere else.

cartpole ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╸━━━━━━━━━━━━━━━━━━━━ 64 %
iteration 64/100   12,288 steps   9,120 steps/s   0:07   0:04 to go

collect                   train
return_mean    182.4      kl            0.0091
length_mean    182.4      value_loss     12.41

Also here: short numbers, times, and the line for terminals without a live table.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from striderl.loggers.logger import Logger

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table


class ConsoleLogger(Logger):
    """Show the newest metrics; see the top of this module. The table is redrawn a few times a second, by rich."""

    def __init__(self, *, title: str = "", stream: TextIO | None = None, live: bool | None = None) -> None:
        """Write to a stream, the standard output unless given; `live` forces the table on or off."""
        self.title = title
        self._stream = stream
        self._live_wanted = live
        self._live: Live | None = None
        self._shown: dict[str, float] = {}

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Show the metrics."""
        stream = self._stream or sys.stdout
        if stream.isatty() if self._live_wanted is None else self._live_wanted:
            # rare metrics, such as evaluations, keep their place: a table that jumps cannot be read
            self._shown.update(numbers)
            self._open(stream).update(dashboard(self.title, step, self._shown))
        else:
            stream.write(f"{plain_line(self.title, step, numbers)}\n")
            stream.flush()

    def text(self, name: str, value: str) -> None:
        """Show a text on a line of its own, above the table."""
        if self._live is not None:
            self._live.console.print(f"{name}: {value}", markup=False, highlight=False)
        else:
            stream = self._stream or sys.stdout
            stream.write(f"{name}: {value}\n")
            stream.flush()

    def video(self, step: int, name: str, path: Path) -> None:
        """Print the path of the video."""
        self.text(f"{name} at step {step:,}", str(path))

    def close(self) -> None:
        """Stop the live table, leaving its last state on the terminal."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _open(self, stream: TextIO) -> Live:
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            # what others write to the standard streams is printed above the table instead of through it
            console = Console(file=stream, force_terminal=True if self._live_wanted else None)
            self._live = Live(console=console, refresh_per_second=5, vertical_overflow="crop")
            self._live.start()
        return self._live


def dashboard(title: str, step: int, numbers: Mapping[str, float]) -> RenderableType:
    """Return the progress bar, the line below it, and one table per group of names."""
    from rich.columns import Columns
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    groups: dict[str, dict[str, float]] = {}
    for name, value in numbers.items():
        group, _, rest = name.rpartition("/")
        groups.setdefault(group, {})[rest] = value
    groups.pop("progress", None)
    tables = [_table(group, values) for group, values in groups.items()]
    return Group(
        _bar(title, numbers),
        Text("   ".join(progress_parts(step, numbers))),
        Padding(Columns(tables, padding=(0, 3)), (1, 0, 0, 0)),
    )


def _bar(title: str, numbers: Mapping[str, float]) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    total, done = numbers.get(TOTAL_ITERATIONS, 0.0), numbers.get(ITERATION, 0.0)
    if not total:
        return Text(title, style="bold")
    line = Table.grid(padding=(0, 1))
    line.add_row(
        Text(title, style="bold"), ProgressBar(total=total, completed=done, width=60), f"{100.0 * done / total:.0f} %"
    )
    return line


def _table(group: str, values: Mapping[str, float]) -> Table:
    from rich.table import Table

    table = Table(title=group or None, title_justify="left", title_style="bold", box=None, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in values.items():
        table.add_row(name, short_number(value))
    return table


# -- text --------------------------------------------------------------------------------------------------------------


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
    """Return one line with progress and the main metrics."""
    shown = [f"{label} {short_number(numbers[name])}" for name, label in _IN_THE_LINE.items() if name in numbers]
    return ", ".join([*([title] if title else []), *progress_parts(step, numbers), *shown])
