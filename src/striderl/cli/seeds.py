"""`striderl train TASK --seeds N`: several seeds of one config, side by side, a process and a folder each.

    runs/cartpole/2026-01-31_12-00-00/seed_0  seed_1  …      each a run of its own: resume, play, export, … take it
                                      report.html            all of them on one page

The processes are `striderl train` itself. A signal is passed on to each, which saves and ends; a seed that fails does
not stop the others. At the end one table has the interquartile mean over the seeds with its interval.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from striderl.checkpoint.safe_files import open_append
from striderl.cli.runs import CONFIG, SEED
from striderl.cli.seeing.list_names import ListedRun, listed
from striderl.cli.terminal import UsageError, complain, message_of, rank_of_torchrun, say
from striderl.cli.train_flags import JOBS, SEEDS, TAGS, overridden, take
from striderl.loggers.console_logger import clock
from striderl.training.signals import StopSignals

if TYPE_CHECKING:
    from striderl.training.experiment.run_config import RunConfig

_POLL = 0.2
_BETWEEN_LINES = 10.0


@dataclass
class SeedProcess:
    """One seed under way."""

    seed: int
    process: subprocess.Popen[bytes]
    log: Path
    """What the process prints."""
    told: int = 0
    """The signal that was passed on to it."""
    code: int | None = field(default=None)
    """How it ended."""


def train_several(
    config: RunConfig[Any, Any], words: list[str], given: dict[str, str], tags: list[str], signals: StopSignals
) -> int:
    """Train several seeds of one config, a process each; `words` are its settings, without the task."""
    if rank_of_torchrun()[1] > 1:
        raise UsageError(f"{SEEDS} starts processes of its own; under torchrun train one seed at a time")
    if "/" in given.get("--name", ""):
        raise UsageError(f"with {SEEDS} --name is that of the group, without '/', found {given['--name']!r}")
    numbers = {flag: _count(given[flag], flag) for flag in (SEEDS, JOBS) if flag in given}
    task = config.env.task
    first = overridden(config, words, prog=f"striderl train {task}").seed  # also: mistakes are reported once
    plain, _ = take(words, "--seed")
    kept = [f"{flag}={given[flag]}" for flag in ("--algorithm", "--config", "--runs") if flag in given]
    named = [] if "--config" in given else [task]  # a config has its task
    return train_seeds(
        [*named, *plain, *kept, *([TAGS, *tags] if tags else [])],
        seeds=range(first, first + numbers[SEEDS]),
        jobs=numbers.get(JOBS, 0),
        group=given.get("--name", ""),
        runs=Path(given.get("--runs", "runs")),
        signals=signals,
        task=task,
    )


def _count(text: str, flag: str) -> int:
    if not text.isdigit() or not int(text):
        raise UsageError(f"{flag} is a positive whole number, found {text!r}")
    return int(text)


def train_seeds(
    words: Sequence[str], *, seeds: range, jobs: int, group: str, runs: Path, signals: StopSignals, task: str = ""
) -> int:
    """Train all seeds, at most `jobs` at a time (0: as many as cores), and print a summary; returns the exit code.

    `task` is the first word where it is not given.
    """
    from striderl.data.registry import folder_name, full_name

    task = task or words[0]
    place = folder_name(full_name(task))
    name = group or time.strftime("%Y-%m-%d_%H-%M-%S")
    folder = runs / place / name
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    cores = os.cpu_count() or 1
    at_once = min(jobs or cores, len(seeds))
    say(f"{task}, seeds {seeds[0]} to {seeds[-1]}, {at_once} at a time: {folder}")
    ended = _Processes(list(words), name, logs, at_once, cores, signals).run(list(seeds), folder)
    codes = {each.seed: each.code or 0 for each in ended}
    for each in ended:
        if each.code:
            complain(f"seed {each.seed} ended with code {each.code}: {_last_line(each.log)} (all of it: {each.log})")
    _summary([folder / f"{SEED}{seed}" for seed in codes], folder)
    if signals.received:
        complain(f"{signals.name}: every seed was asked to save; 'striderl resume {folder / (SEED + '…')}' goes on")
        return signals.exit_code
    return max(codes.values(), default=0)


class _Processes:
    """Keep so many seeds running until all have ended."""

    def __init__(self, words: list[str], name: str, logs: Path, at_once: int, cores: int, signals: StopSignals) -> None:
        self.words, self.name, self.logs, self.at_once, self.signals = words, name, logs, at_once, signals
        # torch's threads of all processes together are as many as cores, unless the user has decided
        self.environment = {"OMP_NUM_THREADS": str(max(1, cores // at_once)), **os.environ}
        self.running: list[SeedProcess] = []
        self.ended: list[SeedProcess] = []

    def run(self, waiting: list[int], folder: Path) -> list[SeedProcess]:
        """Start, watch and collect; no seed is started after a signal."""
        began = shown = time.monotonic()
        total = len(waiting)
        while self.running or (waiting and not self.signals.received):
            while waiting and len(self.running) < self.at_once and not self.signals.received:
                self.running.append(self._start(waiting.pop(0)))
            time.sleep(_POLL)
            self._look()
            if time.monotonic() - shown > _BETWEEN_LINES:
                shown = time.monotonic()
                self._show(folder, total, shown - began)
        return self.ended

    def _start(self, seed: int) -> SeedProcess:
        log = self.logs / f"{SEED}{seed}.txt"
        flags = ["--seed", str(seed), "--name", f"{self.name}/{SEED}{seed}", "--logging.console", "plain"]
        command = [sys.executable, "-m", "striderl", "train", *self.words, *flags]
        output = open_append(log)
        try:
            # a session of its own: Ctrl-C of the terminal reaches it once, through this process
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        finally:
            os.close(output)
        return SeedProcess(seed, process, log)

    def _look(self) -> None:
        for each in list(self.running):
            if self.signals.received and not each.told:
                each.told = self.signals.received
                each.process.send_signal(each.told)
            each.code = each.process.poll()
            if each.code is not None:
                self.running.remove(each)
                self.ended.append(each)
                say(f"seed {each.seed}: {_last_said(each.log)}")

    def _show(self, folder: Path, total: int, seconds: float) -> None:
        places = [folder / f"{SEED}{each.seed}" for each in self.running]
        rows = [listed(place) for place in places if (place / CONFIG).is_file()]
        say(f"{clock(seconds)}, {len(self.ended)} of {total} ended{''.join(f'; {_standing(row)}' for row in rows)}")


def _standing(row: ListedRun) -> str:
    """Return how far a seed is; before its first iteration, that it starts."""
    if not row.steps > 0.0:
        return f"seed {row.seed}: starting"
    returned = f", return {row.returned:.4g}" if math.isfinite(row.returned) else ""
    return f"seed {row.seed}: {row.steps:,.0f} steps{returned}"


def _last_said(log: Path) -> str:
    """Return why a run ended, from what it printed."""
    lines = _lines(log)
    return next((line for line in reversed(lines) if line.startswith("ended:")), lines[-1] if lines else "ended")


def _last_line(log: Path) -> str:
    return (_lines(log) or ["it printed nothing"])[-1]


def _lines(log: Path) -> list[str]:
    from striderl.checkpoint.safe_files import read_text

    try:
        return [line for line in read_text(log).splitlines() if line.strip()]
    except (OSError, ValueError):
        return []


def _summary(folders: list[Path], group: Path) -> None:
    """Print one table over all seeds and write the page of the group."""
    from striderl.cli.seeing.compare import say_table
    from striderl.cli.seeing.report import write_report
    from striderl.loggers.comparison import compare_runs, table

    there = [folder for folder in folders if (folder / CONFIG).is_file()]
    if not there:
        return
    try:
        found = compare_runs(there)
        say(f"{found.metric}, interquartile mean over distinct seeds with a 95 % bootstrap interval:")
        say_table(*table(found), numbers=(1, 2))
    except (ValueError, KeyError, OSError) as error:
        complain(f"no summary: {message_of(error)}")
    try:
        say(f"report: {write_report(there, group / 'report.html')}")
    except (ValueError, KeyError, OSError) as error:
        complain(f"no report: {message_of(error)}")
