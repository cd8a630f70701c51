"""Run the fault matrix of the worker-process back end, print what was injected and how it ended.

    python tools/fault_matrix.py                       the whole matrix (some minutes)
    python tools/fault_matrix.py --small               a tenth of it
    python tools/fault_matrix.py --rows hangs          one row, or several
    python tools/fault_matrix.py --patience 3          with all limits three times as long, on a machine with other work
    python tools/fault_matrix.py --plant-bug liveness  shows that the harness notices a broken back end (exits 1)

    row          faults                                              promise
    deaths       SIGKILL, SIGSEGV, os._exit in init, reset, step,    named within 2 s with env, signal, seed and step;
                 idle, close                                         close() within 5 s
    restarts     the same, and hangs, with on_failure="restart"      only the lost step is invalid, the run goes on
    hangs        sleep, C code that holds the GIL, a lock, SIGSTOP   EnvTimeout within deadline + 2 s, with a stack
    exceptions   5 kinds in 6 phases                                 arrive as text, close() within 5 s
    trainer      kill -9 of the trainer in every state               3 s later no descendant, no file is left
    slow learner a trainer that takes longer than the deadline       no false alarm

Exits 1 when a promise is broken or a row injected nothing.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import fault_rows
from fault_rows import (
    METHODS,
    STATES,
    Row,
    deaths,
    exceptions,
    hangs,
    restarts,
    slow_learner,
    trainer_kills,
)
from faulty_envs import DEATHS, HANGS, RAISES  # found through the path that fault_rows sets

from striderl.envs.workers import handle
from striderl.envs.workers import handle as crew
from striderl.envs.workers import parent_watchdog as lifeline


def some(cases: list, count: int, dice: random.Random) -> list:
    """Return so many cases, each method, kind and phase about equally often; all cases come before one comes twice."""
    chosen: list = []
    seen: Counter = Counter()
    left: list = []
    while len(chosen) < count:
        if not left:
            left = dice.sample(cases, len(cases))
        case = min(left, key=lambda candidate: sum(seen[value] for value in enumerate(candidate)))
        left.remove(case)
        chosen.append(case)
        seen.update(enumerate(case))
    return chosen


ROWS = ("deaths", "restarts", "hangs", "exceptions", "trainer", "slow_learner")


def run_matrix(scale: float, seed: int, wanted: Sequence[str] = ROWS) -> list[Row]:
    """Run the rows that are wanted; scale 1 is the whole matrix. A row has the same cases whichever others run."""
    dice = random.Random(seed)
    product = lambda *lists: list(itertools.product(METHODS, *lists))  # noqa: E731
    death_cases = product(DEATHS, ("init", "reset", "step", "idle", "close"))
    restart_cases = product(DEATHS, ("init", "reset", "step", "idle")) + product(("lock",), ("init", "reset", "step"))
    raise_cases = product(RAISES, ("init", "reset", "step", "render", "close", "get_attr"))
    hang_cases = product(HANGS, ("init", "reset", "step"))
    rows: list[Callable[[], Row]] = [
        functools.partial(deaths, some(death_cases, round(160 * scale), dice)),
        functools.partial(restarts, some(restart_cases, round(40 * scale), dice)),
        functools.partial(hangs, some(hang_cases, round(36 * scale), dice)),
        functools.partial(exceptions, some(raise_cases, round(90 * scale), dice)),
        functools.partial(trainer_kills, some(product(STATES), round(105 * scale), dice), dice),
        functools.partial(slow_learner, max(2, round(20 * scale))),
    ]
    return [run() for name, run in zip(ROWS, rows) if name in wanted]


def run_with_bug(name: str) -> list[Row]:
    """Run a row on a back end with a planted bug."""
    fault_rows.DEADLINE, fault_rows.TRIAL_LIMIT = 4.0, 6.0  # what the bug breaks shows in seconds
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    if name == "liveness":
        with mock.patch.object(handle.WorkerHandle, "note_death", nothing):
            return [deaths([("fork", "sigkill", "step")])]
    if name == "deadline":
        with mock.patch.object(handle.WorkerHandle, "is_late", False):
            return [hangs([("fork", "sleep", "step")])]

    def wait_for_the_worker(keeper: Any, parent_pid: int) -> None:
        os.waitid(os.P_PID, keeper.worker_pid, os.WEXITED | os.WNOWAIT)

    with (
        mock.patch.object(lifeline, "_die_with_parent", nothing),
        mock.patch.object(lifeline, "_leave_after", nothing),
        mock.patch.object(lifeline._Keeper, "wait", wait_for_the_worker),
    ):
        return [trainer_kills([("fork", "sleep")], random.Random(0))]


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="fault matrix of the worker-process back end")
    parser.add_argument("--small", action="store_true", help="run a tenth")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS, help="run these rows only")
    parser.add_argument("--seed", type=int, default=0, help="choice and order of the cases")
    parser.add_argument("--patience", type=float, default=1.0, help="every limit and deadline is multiplied by it")
    parser.add_argument("--plant-bug", choices=("liveness", "deadline", "lifeline"), default="")
    arguments = parser.parse_args()
    fault_rows.PATIENCE = arguments.patience
    crew.CLOSE_TIME *= arguments.patience
    before = time.monotonic()
    scale, bug = 0.1 if arguments.small else 1.0, arguments.plant_bug
    rows = run_with_bug(bug) if bug else run_matrix(scale, arguments.seed, arguments.rows)
    print(f"{'row':<13} {'faults':>6} {'broken':>7} {'slowest [s]':>12} {'limit':>8} {'close max [s]':>13}")
    for row in rows:
        print(row.line())
    for row in rows:
        for text in row.broken:
            print(f"BROKEN {text}")
    print(f"seed {arguments.seed}, {sum(row.faults for row in rows)} faults in {time.monotonic() - before:.0f} s")
    return int(any(row.broken or not row.faults for row in rows))


if __name__ == "__main__":
    sys.exit(main())
