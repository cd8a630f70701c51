"""A guarded logger: order, copies, one warning, bounded waiting."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time

import pytest

from striderl.loggers.guarded import GuardConfig, Guarded, guard_all
from striderl.loggers.logger import Logger


class Slow(Logger):
    """Waits for a gate before each row."""

    def __init__(self, gate: threading.Event, patience: float = 0.0):
        self.gate, self.rows, self.patience, self.closed = gate, [], patience, False

    def log(self, step, numbers):
        self.gate.wait(100)
        self.rows.append((step, dict(numbers)))

    def close(self):
        self.closed = True


class Raising(Logger):
    def __init__(self, error: BaseException):
        self.error, self.tried = error, 0

    def log(self, step, numbers):
        self.tried += 1
        raise self.error


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_everything_is_passed_on_in_order_and_as_it_was():
    calls = []

    class Noting(Logger):
        def log(self, step, numbers):
            calls.append(("log", step, dict(numbers)))

        def text(self, name, value):
            calls.append(("text", name, value))

        def config(self, values):
            calls.append(("config", values))

        def video(self, step, name, path):
            calls.append(("video", step, name, path))

        def file(self, path):
            calls.append(("file", path))

        def resume_at(self, step):
            calls.append(("resume_at", step))

        def close(self):
            calls.append(("close",))

    guarded = Guarded(Noting())
    numbers = {"a": 1.0}
    guarded.config({"seed": 1})
    guarded.resume_at(0)
    for step in range(50):
        guarded.log(step, numbers)
        numbers["a"] += 1.0  # the caller may change its dict: the logger has a copy
    guarded.text("end", "enough")
    guarded.video(50, "film", "a.mp4")
    guarded.file("b.onnx")
    guarded.close()
    guarded.close()
    rows = [("log", step, {"a": step + 1.0}) for step in range(50)]
    ends = [("text", "end", "enough"), ("video", 50, "film", "a.mp4"), ("file", "b.onnx"), ("close",)]
    assert calls == [("config", {"seed": 1}), ("resume_at", 0), *rows, *ends]
    assert guarded.dropped == guarded.failed == 0 and guarded.name == "Noting"


@pytest.mark.parametrize("error", [OSError(28, "No space left"), SystemExit(3), MemoryError(), KeyError("x")])
def test_whatever_is_raised_is_one_warning_and_the_logger_is_tried_again(caplog, error):
    logger = Raising(error)
    guarded = Guarded(logger)
    with caplog.at_level(logging.INFO):
        for step in range(20):
            guarded.log(step, {})
        guarded.close()
    (warning,) = warnings_in(caplog)
    assert warning.startswith(f"logger Raising failed with {type(error).__name__}: ") and "Training goes on" in warning
    assert logger.tried == guarded.failed == 20
    assert "20 calls failed, 0 were dropped" in caplog.text


def test_a_full_queue_drops_the_newest_counts_them_and_says_so_once(caplog):
    gate = threading.Event()
    logger = Slow(gate)
    guarded = Guarded(logger, GuardConfig(capacity=5))
    started = time.perf_counter()
    guarded.log(0, {})
    while not guarded.busy_since:  # the first row is taken out of the queue and hangs
        time.sleep(0.001)
    for step in range(1, 100):
        guarded.log(step, {})
    assert time.perf_counter() - started < 50.0  # the trainer did not wait for the gate
    gate.set()
    guarded.close()
    assert [step for step, _ in logger.rows] == [0, 1, 2, 3, 4, 5] and logger.closed
    assert guarded.dropped == 94
    (warning,) = warnings_in(caplog)
    assert "is too slow: 5 calls wait" in warning


def test_a_call_beyond_the_deadline_is_told_and_closing_gives_up(caplog):
    gate = threading.Event()
    guarded = Guarded(Slow(gate), GuardConfig(deadline=0.05, close_seconds=0.2))
    guarded.log(0, {})
    end = time.perf_counter() + 50.0
    while not guarded.busy_since and time.perf_counter() < end:  # the thread has the first row
        time.sleep(0.001)
    time.sleep(0.1)
    guarded.log(1, {})
    started = time.perf_counter()
    guarded.close()
    assert 0.15 < time.perf_counter() - started < 50.0
    (warning,) = warnings_in(caplog)
    assert "has not come back from one call for more than 0.05 s" in warning
    gate.set()


def test_training_waits_for_local_files_until_they_are_slow_once(caplog):
    gate = threading.Event()
    gate.set()
    logger = Slow(gate, patience=60.0)
    patient = Guarded(logger)
    for step in range(20):
        patient.log(step, {})
        assert len(logger.rows) == step + 1, "the row is there when the call returns"
    patient.close()
    gate.clear()
    logger.patience = 1.0
    guarded = Guarded(logger, GuardConfig(close_seconds=60.0))
    started = time.perf_counter()
    for step in range(20, 40):
        guarded.log(step, {})
    assert 0.9 < time.perf_counter() - started < 19.0, "waited once, not twenty times"
    gate.set()
    guarded.close()
    assert [step for step, _ in logger.rows] == list(range(40)), "late, and complete"
    (warning,) = warnings_in(caplog)
    assert "took longer than 1 s for one call; training no longer waits for it" in warning


def test_the_thread_ends_with_the_logger_and_never_begins_without_work():
    idle = Guarded(Slow(threading.Event()))
    idle.close()
    assert idle.thread is None
    gate = threading.Event()
    gate.set()
    guarded = Guarded(Slow(gate))
    guarded.log(0, {})
    thread = guarded.thread
    assert thread.daemon
    guarded.close()
    thread.join(60)
    assert not thread.is_alive()
    guarded.log(1, {})
    assert guarded.dropped == 1 and len(guarded.logger.rows) == 1


NEVER_CLOSED = """
import sys, time
from pathlib import Path
from striderl.loggers.guarded import Guarded
from striderl.loggers.logger import Logger

class Late(Logger):
    def log(self, step, numbers):
        time.sleep(0.3)  # as long as the thread needs to import a tracker
        with open(sys.argv[1], "a") as file:
            file.write(f"{step} ")

guarded = Guarded(Late())
guarded.log(1, {})
guarded.log(2, {})
"""


def test_a_script_that_forgets_to_close_loses_no_row(tmp_path):
    # as training scripts of older libraries do: they end after runner.learn()
    subprocess.run([sys.executable, "-c", NEVER_CLOSED, str(tmp_path / "rows")], check=True, timeout=280)
    assert (tmp_path / "rows").read_text() == "1 2 "


def test_a_guarded_logger_is_not_guarded_twice():
    one = Guarded(Raising(OSError()))
    two = Raising(OSError())
    first, second = guard_all([one, two])
    assert first is one and isinstance(second, Guarded) and second.logger is two


def test_bad_settings_are_refused():
    for wrong in ({"capacity": 0}, {"deadline": float("nan")}, {"close_seconds": float("nan")}):
        with pytest.raises(ValueError, match="capacity >= 1"):
            GuardConfig(**wrong)
