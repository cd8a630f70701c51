"""Callbacks for the tests of sweeps and jobs: one ends its process at a given place, once, one fails."""

from __future__ import annotations

import os
import signal
from pathlib import Path


class Fails:
    """Raise in the first iteration."""

    def __call__(self, record):
        raise ValueError("the simulator is out of order")


class Preempted:
    """Give the submitit process above the notice of a preemption in iteration 3, unless the marker exists already."""

    def __call__(self, record):
        marker = Path(os.environ["STRIDERL_TEST_MARKER"])
        if record.iteration == 3 and not marker.exists():
            marker.touch()
            os.kill(os.getppid(), signal.SIGUSR2)


class Ends:
    """Send `STRIDERL_TEST_SIGNAL` to this process in iteration 3 of a run, unless the marker file exists already."""

    def __call__(self, record):
        marker = Path(os.environ["STRIDERL_TEST_MARKER"])
        if record.iteration == 3 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), int(os.environ.get("STRIDERL_TEST_SIGNAL", signal.SIGKILL)))
