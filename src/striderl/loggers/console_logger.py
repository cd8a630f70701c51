"""`ConsoleLogger`: a live table with a progress bar on a terminal, one line per row anywhere else.

cartpole ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╸━━━━━━━━━━━━━━━━━━━━ 64 %
iteration 64/100   12,288 steps   9,120 steps/s   0:07   0:04 to go
return 182.4   length 182.4   evaluation 195.5   kl 0.009100

evaluate                               train
return_mean    195.5                   kl            0.0091
collect                                value_loss     12.41
return_mean    182.4

It fits the terminal: what does not, after evaluations, episodes and losses, is counted in its last line.

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
            live = self._open(stream)
            size = live.console.size
            live.update(dashboard(self.title, step, self._shown, width=size.width, height=size.height))
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


def dashboard(
    title: str, step: int, numbers: Mapping[str, float], *, width: int = 80, height: int = 24
) -> RenderableType:
    """Return the progress bar, the main metrics, and the groups of names in as many columns and rows as there are."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = [f"{label} {short_number(numbers[name])}" for name, label in _IN_THE_LINE.items() if name in numbers]
    parts: list[RenderableType] = [
        _bar(title, numbers, width),
        Text("   ".join(progress_parts(step, numbers)), overflow="ellipsis", no_wrap=True),
        Text("   ".join(shown), style="bold", overflow="ellipsis", no_wrap=True),
        Text(""),
    ]
    room = max(3, height - len(parts) - 2)  # a line for the cursor, one for what is left out
    number = max(1, (width + _GAP) // (_CELL + _GAP))
    lines = table_lines(numbers)
    cells, left_out = lines[: room * number], sum(1 for line in lines[room * number :] if line[1])
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    columns = [cells[start : start + room] for start in range(0, len(cells), room)]
    grid.add_row(*(Group(*(Text(text, style="" if value else "bold") for text, value in each)) for each in columns))
    parts.append(grid)
    if left_out:
        parts.append(Text(f"and {left_out} more in metrics.csv", style="dim"))
    return Group(*parts)


def table_lines(numbers: Mapping[str, float]) -> list[tuple[str, bool]]:
    """Return the lines of the table, (text, whether it is a metric): a heading per group, evaluations first."""
    groups: dict[str, dict[str, float]] = {name: {} for name in _GROUPS}
    for name, value in numbers.items():
        group, _, rest = name.rpartition("/")
        groups.setdefault(group, {})[rest] = value
    groups.pop("progress", None)
    lines: list[tuple[str, bool]] = []
    for group, values in groups.items():
        lines += [(group[:_CELL], False)] if group and values else []
        for name, value in values.items():
            text = short_number(value)
            left = _CELL - len(text) - 1
            lines.append((f"{name if len(name) <= left else name[: left - 1] + '…':<{left}} {text}", True))
    return lines


def _bar(title: str, numbers: Mapping[str, float], width: int) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    total, done = numbers.get(TOTAL_ITERATIONS, 0.0), numbers.get(ITERATION, 0.0)
    if not total:
        return Text(title, style="bold", overflow="ellipsis", no_wrap=True)
    line = Table.grid(padding=(0, 1))
    short = title if len(title) <= width // 3 else title[: width // 3 - 1] + "…"
    room = max(5, min(60, width - len(short) - 9))
    line.add_row(
        Text(short, style="bold"), ProgressBar(total=total, completed=done, width=room), f"{100.0 * done / total:.0f} %"
    )
    return line


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
_GROUPS = ("evaluate", "collect", "train")
_CELL, _GAP = 36, 4
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
