"""Runs that are killed, told to stop, or lose their disk (promises 1, 2, 14); `tools/run_faults.py` does more of it."""

from __future__ import annotations

import fcntl
import logging
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import killed_runs
import lost_disks
import pytest
from killed_runs import BUGS, Reference, config_of, kill_runs, signal_runs, state_digest
from run_cases import folder_at, take_signals

from striderl.checkpoint.store import CheckpointStore
from striderl.training.distributed import Ranks
from striderl.training.experiment.run import Run
from striderl.training.experiment.run_folder import RunFolder

SEED = 3
LIMIT = 60.0
"""Seconds from a signal to the end of a run: ten are promised, more are given on a machine that has other work."""
PPO_PHASES = ["start-up", "warmup", "collect", "prepare", "update", "absorb", "consume", "evaluate", "save"]


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)  # every resumed run says where it goes on
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """The undisturbed runs, each made when it is first asked for."""
    made: dict[str, Reference] = {}

    def get(kind: str) -> Reference:
        if kind not in made:
            made[kind] = Reference(kind, tmp_path_factory.mktemp(kind), 6)
        return made[kind]

    return get


# -- kill -9 -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("cartpole", 4), ("pendulum_lstm", 3), ("dqn", 3)])
def test_killed_runs_end_with_the_same_bits(kind, count, references):
    kills, wrong, hit = kill_runs(references(kind), count, SEED, kills_per_run=count, aimed_share=0.5)
    print(f"{kind}: {kills} kills, hit {hit}")
    assert kills == count > 0 and not wrong


@pytest.mark.slow
@pytest.mark.parametrize("bug", [*BUGS, ""])
def test_planted_bugs_are_noticed(bug, references):
    wrong, saves = [], 0
    with BUGS[bug]() if bug else nullcontext():
        for seed in range(
            SEED, SEED + 10
        ):  # on a busy machine a kill often comes when the save it was meant for is over
            kills, found, hit = kill_runs(references("cartpole"), 3, seed, kills_per_run=3, aimed_share=1.0)
            assert kills >= 1  # a bug may end the campaign early
            wrong, saves = wrong + found, saves + hit.get("save", 0)
            if saves and bool(wrong) == bool(bug):
                break
    assert saves >= 1 and bool(wrong) == bool(bug), wrong


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_signal_from_outside_in_every_phase(references):
    sent, wrong, hit = signal_runs(references("cartpole"), PPO_PHASES, SEED, limit=LIMIT)
    print(f"{sent} signals, hit {hit}")
    assert sent >= len(PPO_PHASES) - 1 and not wrong  # one may come after the end of a run


@pytest.mark.slow
def test_a_signal_while_learning_from_replay(references):
    sent, wrong, _ = signal_runs(references("dqn"), ["warmup", "interact", "save"], SEED, limit=LIMIT)
    assert sent >= 2 and not wrong


@pytest.mark.slow
def test_two_signals(references):
    sent, wrong, _ = signal_runs(references("cartpole"), ["collect", "save", "update"], SEED, double=True, limit=LIMIT)
    assert sent >= 2 and not wrong


def stopped_at(path, iteration: int, phase: str):
    """Stop a run in a phase of an iteration, and return what it saved."""
    config = config_of("cartpole", 6)
    run = Run(config, folder_at(path, config))
    advance = run.trainer.advance

    def striking() -> str:
        if (run.trainer.iteration, run.trainer.phase) == (iteration, phase):
            run.signals.received = int(signal.SIGTERM)
        return advance()

    run.trainer.advance = striking
    assert run.drive().exit_code == 143
    return CheckpointStore(RunFolder(path).checkpoints).load().state


def go_on(path) -> None:
    run = Run(config_of("cartpole", 6), RunFolder(path))
    assert run.restore() and run.drive().exit_code == 0


def test_a_signal_in_the_last_iteration_leaves_the_end_on_the_disk(tmp_path, references):
    # saved in the middle of the last iteration: the end of the run has the same number of env steps and is saved too
    saved = stopped_at(tmp_path / "run", 5, "update")
    assert saved["phase"] == "absorb" and saved["iteration"] == 5
    go_on(tmp_path / "run")
    assert state_digest(tmp_path / "run") == references("cartpole").state


def test_a_signal_while_the_processes_agree_waits_until_all_know_it(tmp_path, monkeypatch):
    # the other processes have been told of no signal and begin the next phase; this one must not stop before it
    config = config_of("cartpole", 6)
    run = Run(config, folder_at(tmp_path / "run", config))
    events: list[Any] = []
    advance, largest = run.trainer.advance, Ranks.largest

    def agree(ranks: Ranks, number: int) -> int:
        agreed = largest(ranks, number)
        events.append(agreed)
        if len(events) == 5:
            run.signals.received = int(signal.SIGTERM)
        return agreed

    monkeypatch.setattr(Ranks, "largest", agree)
    run.trainer.advance = lambda: events.append(advance()) or events[-1]
    assert run.drive().exit_code == 143
    assert events[4] == 0 and isinstance(events[5], str) and events[6:] == [15, 15]


@pytest.mark.slow
def test_a_warm_up_is_left_between_its_pieces(tmp_path, references):
    saved = stopped_at(tmp_path / "run", 0, "warmup")
    assert saved["phase"] == "warmup" and saved["env_steps"] == 32  # 8 of 16 steps in each of 4 envs
    go_on(tmp_path / "run")
    assert state_digest(tmp_path / "run") == references("cartpole").state


ENDLESS = ["train", "cartpole", "--plan.total-steps", "99999999", "--stop.metric", "", "--logging.console"]


def start_command(folder: Path, console: str = "off", *words: str, **settings: Any) -> subprocess.Popen[str]:
    """Start a run from the command line, and return when it has trained for an iteration."""
    command = [sys.executable, "-m", "striderl", *ENDLESS, console, "--runs", str(folder), *words]
    settings = {"preexec_fn": take_signals, "stderr": subprocess.PIPE, **settings}
    process = subprocess.Popen(command, text=True, **settings)
    deadline = time.monotonic() + LIMIT
    while not list(folder.glob("cartpole/*/metrics.csv")) and time.monotonic() < deadline:
        time.sleep(0.05)
    return process


def saved_iteration(folder: Path) -> int:
    (path,) = folder.glob("cartpole/*")
    return int(CheckpointStore(RunFolder(path).checkpoints).load().state["iteration"])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_command_line(number, tmp_path):
    process = start_command(tmp_path)
    process.send_signal(number)
    assert process.wait(timeout=LIMIT) == 128 + number
    assert process.stderr is not None and f"{number.name}: saved; 'striderl resume" in process.stderr.read()
    assert saved_iteration(tmp_path) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("console", ["plain", "rich"])
def test_a_terminal_that_is_closed_saves_the_run(console, tmp_path):
    # the session's terminal goes away: SIGHUP, and from then on no line can be written
    ours, theirs = pty.openpty()

    def own_terminal() -> None:
        take_signals()
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = start_command(tmp_path, console, "--switch-at", "never", preexec_fn=own_terminal, **streams)
    os.close(theirs)
    os.close(ours)
    assert process.wait(timeout=LIMIT) == 129
    assert saved_iteration(tmp_path) >= 1


def ignore_two() -> None:
    """Do what nohup and the background of a shell do."""
    take_signals()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.slow
def test_signals_that_the_parent_ignores_stay_ignored(tmp_path):
    process = start_command(tmp_path, "off", "--switch-at", "never", preexec_fn=ignore_two)
    (table,) = tmp_path.glob("cartpole/*/metrics.csv")
    seen, deadline = table.read_text().count("\n"), time.monotonic() + LIMIT
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGINT)
    while table.read_text().count("\n") < seen + 2 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    assert process.poll() is None and table.read_text().count("\n") >= seen + 2, "the run goes on"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=LIMIT) == 143 and process.stderr is not None
    assert "SIGTERM: saved; 'striderl resume" in process.stderr.read()
    assert saved_iteration(tmp_path) >= 1


# -- disks -------------------------------------------------------------------------------------------------------------

needs_mounts = pytest.mark.skipif(bool(lost_disks.mounts_refused()), reason=lost_disks.mounts_refused() or "-")


@pytest.mark.slow
def test_a_limit_on_the_size_of_files(tmp_path):
    faults, wrong = lost_disks.limit_sizes(tmp_path, 3)
    assert faults == 3 and not wrong


@pytest.mark.slow
@needs_mounts
def test_a_small_disk(tmp_path):
    faults, wrong = lost_disks.small_disks(tmp_path, 2)
    assert faults >= 1 and not wrong


@pytest.mark.slow
@needs_mounts
def test_a_disk_that_becomes_read_only(tmp_path):
    assert lost_disks.read_only(tmp_path) == []


@pytest.mark.slow
def test_a_folder_that_is_deleted(tmp_path):
    assert lost_disks.deleted(tmp_path) == []


def test_a_disk_with_room_again(tmp_path, caplog, monkeypatch):
    logging.disable(logging.NOTSET)
    config = config_of("cartpole", 6)
    run = Run(config, folder_at(tmp_path / "run", config))
    save, calls = run.store.save, []

    def sometimes(*arguments, **settings):
        calls.append(settings["step"])
        if 2 <= len(calls) <= 4:
            raise OSError(28, "No space left on device")
        return save(*arguments, **settings)

    monkeypatch.setattr(run.store, "save", sometimes)
    outcome = run.drive()
    assert outcome.saved and outcome.reason == "the plan is fulfilled"
    assert caplog.text.count("not saved") == 1 and caplog.text.count("saved again") == 1
    assert killed_runs.final_state(tmp_path / "run")["iteration"] == 6
