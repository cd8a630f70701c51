"""Clocks: how long a block of calls takes, in CPU time (worker processes included) and on the wall."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_PROC = Path("/proc")


class Sample(NamedTuple):
    """Seconds per operation, measured once over a block of operations."""

    cpu: float
    """CPU time of this process, all its threads, and its worker processes."""
    wall: float
    """Time on the clock."""
    peak: float = 0.0
    """Highest resident memory of this process since the row was prepared, bytes; 0 where it is not known."""


def timed_block(block: Callable[[], Any], operations: int) -> Sample:
    """Run the block once and return the time of each of the operations that it consists of."""
    workers = _descendants()
    workers_before = sum(map(_cpu_seconds, workers))
    wall_before, cpu_before = time.perf_counter(), time.process_time()
    block()
    cpu, wall = time.process_time() - cpu_before, time.perf_counter() - wall_before
    cpu += sum(map(_cpu_seconds, workers)) - workers_before
    return Sample(cpu / operations, wall / operations)


def repeated(function: Callable[[], Any], seconds: float = 0.01) -> Callable[[], Sample]:
    """Return a sampler of one small call, repeated until a block takes about this long; it is warmed up already."""
    number = 1
    while (spent := _timed_calls(function, number).cpu * number) < seconds / 2:
        number *= 2
    number = max(1, round(number * seconds / spent))

    def take() -> Sample:
        _timed_calls(function, 1 + number // 10)  # the caches have seen other processes since the last time
        return _timed_calls(function, number)

    return take


def _timed_calls(function: Callable[[], Any], number: int) -> Sample:
    def block() -> None:
        for _ in range(number):
            function()

    return timed_block(block, number)


# -- worker processes --------------------------------------------------------------------------------------------------
#
# `resource.getrusage(RUSAGE_CHILDREN)` knows only children that have ended, so it would count how workers start up. The
# scheduler's own record of a running process is exact to the nanosecond and can be read before and after a block.


def can_see_workers() -> bool:
    """Tell whether this system shows the CPU time of running worker processes."""
    return (_PROC / str(os.getpid()) / "schedstat").exists()


def _descendants() -> list[int]:
    """Return the processes that this one has started, and those that they have started."""
    found: list[int] = []
    parents = [os.getpid()]
    while parents:
        parent = parents.pop()
        for task in (_PROC / str(parent) / "task").glob("*/children"):
            children = [int(child) for child in task.read_text().split()]
            found += children
            parents += children
    return found


def _cpu_seconds(process: int) -> float:
    """Return the CPU time of all threads of a running process."""
    threads = (_PROC / str(process) / "task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) * 1e-9


# -- memory ------------------------------------------------------------------------------------------------------------


def reset_peak_memory() -> bool:
    """Count the highest resident memory of this process from now on; return whether the system can do that."""
    try:
        (_PROC / "self" / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_memory() -> float:
    """Return the highest resident memory of this process since the last reset, bytes; 0 where it is not known."""
    status = _PROC / "self" / "status"
    lines = status.read_text().splitlines() if status.exists() else []
    found = [line.split() for line in lines if line.startswith("VmHWM:")]
    return 1024.0 * float(found[0][1]) if found else 0.0


# -- the machine -------------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Describe what was measured on, without names that belong to one place."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    info = _PROC / "cpuinfo"
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
