"""The terminal: plain lines, and a table with a bar; nothing goes to the standard output unless it should."""

from __future__ import annotations

import io
import math

import pytest

from striderl.loggers.console_logger import ConsoleLogger, clock, dashboard, plain_line, short_number

NUMBERS = {
    "collect/return_mean": 182.4321,
    "train/kl": 0.0091234,
    "train/value_loss": 12.414,
    "progress/iteration": 64.0,
    "progress/total_iterations": 100.0,
    "progress/elapsed_seconds": 7.2,
    "progress/remaining_seconds": 3725.0,
    "time/steps_per_second": 9120.4,
}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.414, "12.41"),
        (0.0091234, "0.009123"),
        (3.14159e-5, "3.14e-05"),
        (12288.0, "12,288"),
        (1234567.5, "1.23e+06"),
        (0.0, "0"),
        (-0.5, "-0.5000"),
        (99999.5, "99,999"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_short_numbers(value, text):
    assert short_number(value) in (text, "100,000" if value == 99999.5 else text)


def test_clock():
    assert [clock(s) for s in (0, 7.4, 59.6, 750, 11100)] == ["0:00", "0:07", "1:00", "12:30", "3:05:00"]


def test_plain_lines_when_it_is_no_terminal(capsys):
    stream = io.StringIO()
    logger = ConsoleLogger(title="cartpole", stream=stream)
    logger.log(12288, NUMBERS)
    logger.text("stopped", "budget is used up")
    logger.close()
    assert stream.getvalue().splitlines() == [
        "cartpole, iteration 64/100, 12,288 steps, 9,120 steps/s, 0:07, 1:02:05 to go, return 182.4, kl 0.009123",
        "stopped: budget is used up",
    ]
    assert capsys.readouterr() == ("", "")
    ConsoleLogger().log(5, {})
    assert capsys.readouterr().out == "5 steps\n"
    assert plain_line("", 5, {}) == "5 steps"


def test_the_live_table_shows_every_number_and_the_time_to_go():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    logger = ConsoleLogger(title="cartpole", stream=stream, live=True)
    logger.log(64, {**NUMBERS, "progress/iteration": 1.0, "evaluate/return_mean": 195.5})
    logger.log(12288, NUMBERS)
    logger.text("video", "runs/a.mp4")
    logger.close()
    logger.close()
    shown = stream.getvalue()
    last = shown[shown.rindex("cartpole") :]
    for text in ("64 %", "iteration 64/100", "12,288 steps", "1:02:05 to go", "collect", "return_mean", "182.4"):
        assert text in last, text
    assert "value_loss" in last and "12.41" in last and "━" in last
    assert "195.5" in last, "what comes rarely stays"
    assert "video: runs/a.mp4" in shown
    assert "progress" not in last, "progress is in the bar, not in a table"


def test_without_a_limit_there_is_no_bar():
    stream = io.StringIO()
    logger = ConsoleLogger(stream=stream, live=True)
    logger.log(64, {"train/kl": 1.0})
    logger.close()
    assert "%" not in stream.getvalue() and "kl" in stream.getvalue()


def shown_on(width, height, numbers):
    """The lines of the live table on a terminal of this size."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    console.print(dashboard("gymnasium:SomeEnv-v3", 12288, numbers, width=width, height=height))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (200, 50)])
def test_the_live_table_fits_the_terminal_with_the_return_first(width, height):
    many = {
        **{f"train/loss_number_{number}": float(number) for number in range(40)},
        **NUMBERS,
        "collect/length_mean": 55.5,
        **{f"collect/reward/a_term_with_a_very_long_name_{number}": 0.1 for number in range(30)},
        "evaluate/return_mean": 195.5,
    }
    lines = shown_on(width, height, many)
    assert len(lines) <= height - 1 and max(map(len, lines)) <= width
    assert "iteration 64/100" in lines[1]
    assert lines[2].startswith("return 182.4   length 55.50   evaluatio")
    table = "\n".join(lines[3:])
    assert table.index("evaluate") < table.index("return_mean")
    assert ("more in metrics.csv" in table) == (width < 200)


def test_a_small_table_leaves_nothing_out():
    text = "\n".join(shown_on(80, 24, NUMBERS))
    assert "value_loss" in text and "more in" not in text
