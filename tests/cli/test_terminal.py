"""What a waiting user sees: progress with the time left, and an answer to Ctrl-C at once."""

from __future__ import annotations

import io
import os
import signal
import sys

import pytest
import torch

from striderl.cli.main import main
from striderl.cli.terminal import CommandProgress, be_patient, progress_text, showing_progress, with_bar
from striderl.collect.actors.base import RandomActor
from striderl.envs.tasks import make
from striderl.recipes.offline import record_steps
from striderl.training.evaluation import evaluate
from striderl.training.signals import StopSignals


class Stream(io.StringIO):
    def __init__(self, tty):
        super().__init__()
        self.tty = tty

    def isatty(self):
        return self.tty


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    ("share", "seconds", "text"),
    [
        (0.4, 6.0, "evaluate: 40 %, 0:06, 0:09 to go"),
        (1.0, 75.0, "evaluate: 100 %, 1:15, 0:00 to go"),
        (0.0, 5.0, "evaluate: 0:05"),
    ],
)
def test_the_line(share, seconds, text):
    assert progress_text("evaluate", share, seconds) == text


def test_on_a_terminal_a_line_is_redrawn_after_two_seconds_and_taken_away(monkeypatch):
    stream, clock = Stream(tty=True), Clock()
    monkeypatch.setattr(sys, "stderr", stream)
    progress = CommandProgress("work", clock=clock)
    for now, share in ((101.0, 0.1), (101.9, 0.2), (102.5, 0.25), (102.6, 0.26), (104.0, 0.5)):
        clock.now = now
        progress(share)
    progress.close()
    drawn = stream.getvalue().split("\r\x1b[K")
    quarter, half = "#" * 6 + "-" * 18, "#" * 12 + "-" * 12  # a stream without an encoding gets plain characters
    assert drawn == ["", f"{quarter} work: 25 %, 0:02, 0:08 to go", f"{half} work: 50 %, 0:04, 0:04 to go", ""]


@pytest.mark.parametrize("columns", [10, 36, 40, 80, 200])
def test_the_bar_fits_the_terminal_and_gives_way_to_the_words(columns):
    text = progress_text("evaluate", 0.5, 6.0)  # 32 characters
    line = with_bar(text, 0.5, columns)
    assert len(line) <= columns and line.endswith(text if columns >= 32 else text[:columns])
    assert len(line) == {10: 10, 36: 32, 40: 32}.get(columns, 57)
    assert with_bar("evaluate: 0:05", 0.0, 80) == "evaluate: 0:05"


def test_in_a_log_there_is_a_line_now_and_then(monkeypatch):
    stream, clock = Stream(tty=False), Clock()
    monkeypatch.setattr(sys, "stderr", stream)
    progress = CommandProgress("work", clock=clock)
    for second in range(1, 41):
        clock.now = 100.0 + second
        progress(second / 40)
    progress.close()
    assert stream.getvalue().splitlines() == ["work: 38 %, 0:15, 0:25 to go", "work: 75 %, 0:30, 0:10 to go"]


def test_a_quick_command_shows_nothing(capsys):
    with showing_progress("work") as progress:
        progress(0.5)
    assert capsys.readouterr() == ("", "")


def test_a_closed_terminal_does_not_end_the_command(monkeypatch):
    class Closed(Stream):
        def write(self, text):
            raise OSError(5, "Input/output error")

    clock = Clock()
    monkeypatch.setattr(sys, "stderr", Closed(tty=True))
    progress = CommandProgress("work", clock=clock)
    clock.now = 110.0
    progress(0.5)
    progress.close()


def test_evaluations_and_recordings_report_their_share_and_do_the_same():
    shares: list[float] = []
    with make("cartpole", num_envs=3) as env:
        actor = RandomActor(env.action_spec)
        plain, watched = evaluate(env, actor, 7, 1), evaluate(env, actor, 7, 1, progress=shares.append)
        assert plain == watched
        assert shares == sorted(shares) and shares[-1] == 1.0
        shares.clear()
        left = record_steps(env, [actor, actor], 50, seed=2)
        right = record_steps(env, [actor, actor], 50, seed=2, progress=shares.append)
        assert shares == sorted(shares) and shares[-1] == 1.0
        one, other = left.state_dict(), right.state_dict()
        assert str(one) == str(other)


@pytest.fixture
def interruptible():
    """Ctrl-C as on a terminal, also where the parent ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_signal_is_acknowledged_at_once(interruptible):
    heard: list[str] = []
    with StopSignals(heard.append) as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert heard == ["SIGINT"] and signals.received == signal.SIGINT


INTERRUPTING = """
import os, signal
class CtrlC:
    def __call__(self, record):
        if record.iteration == 1:
            os.kill(os.getpid(), signal.SIGINT)
"""


def test_ctrl_c_is_answered_and_then_the_run_is_saved(tmp_path, monkeypatch, capfd, interruptible):
    (tmp_path / "ctrl_c_callback.py").write_text(INTERRUPTING)
    monkeypatch.syspath_prepend(str(tmp_path))
    threads = torch.get_num_threads()
    words = ["train", "cartpole", "--env.num-envs", "4", "--plan.num-steps-per-env", "8", "--plan.total-steps", "640"]
    code = main([*words, "--callbacks", "ctrl_c_callback:CtrlC", "--runs", str(tmp_path), "--logging.console", "off"])
    torch.set_num_threads(threads)
    assert code == 130
    output, errors = capfd.readouterr()
    (folder,) = (tmp_path / "cartpole").iterdir()
    assert output.splitlines()[-1] == f"report: {folder / 'report.html'}" and (folder / "report.html").is_file()
    answer = "striderl: SIGINT: finishing this phase, saving; again to stop now"
    assert errors.index(answer) < errors.index("SIGINT: saved; 'striderl resume")


def test_idle_threads_sleep_soon_unless_the_user_decides(monkeypatch):
    for given, wanted in (({}, ("PASSIVE", "1000")), ({"OMP_WAIT_POLICY": "ACTIVE"}, ("ACTIVE", None))):
        environment = dict(given)
        monkeypatch.setattr("os.environ", environment)
        be_patient()
        assert (environment["OMP_WAIT_POLICY"], environment.get("GOMP_SPINCOUNT")) == wanted
        monkeypatch.undo()
