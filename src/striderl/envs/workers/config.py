"""The settings of worker processes."""

from __future__ import annotations

from dataclasses import dataclass

from striderl.data.naming import unknown

START_METHODS = ("spawn", "fork", "forkserver")
"""How a worker process can come to be; see launch.py."""


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """How envs are spread over processes, and what happens when one fails."""

    num_workers: int = 0
    """Worker processes, each with a consecutive part of the envs; 0 steps all envs in the trainer's own process."""
    start_method: str = "spawn"
    """'spawn' (a fresh interpreter), 'forkserver' (a fork of a small, clean one) or 'fork' (a copy of the trainer)."""
    deadline: float = 60.0
    """Seconds that one step, reset, picture or attribute of a worker's envs may take; may be infinite."""
    start_deadline: float = 120.0
    """Seconds until a worker must have built its envs."""
    on_failure: str = "raise"
    """'raise' ends the run with the error of the env; 'restart' starts its worker anew and marks the lost rows."""
    max_restarts: int = 10
    """How often each worker may be restarted over the life of the env before its error is raised all the same."""

    def __post_init__(self) -> None:
        if self.num_workers < 0 or self.max_restarts < 0:
            raise ValueError(f"WorkerConfig wants counts of 0 or more, found {self.num_workers=}, {self.max_restarts=}")
        if self.start_method not in START_METHODS:
            raise ValueError(unknown("start_method", self.start_method, START_METHODS, where="WorkerConfig"))
        if self.on_failure not in ("raise", "restart"):
            raise ValueError(unknown("on_failure", self.on_failure, ("raise", "restart"), where="WorkerConfig"))
        if not self.deadline > 0.0 or not self.start_deadline > 0.0:
            raise ValueError(f"WorkerConfig wants deadlines above 0, found {self.deadline=}, {self.start_deadline=}")
        if self.num_workers == 0 and self.on_failure == "restart":
            raise ValueError("WorkerConfig: on_failure='restart' wants worker processes; set num_workers to 1 or more")
