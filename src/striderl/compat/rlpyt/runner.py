"""rlpyt's runners: sampler, algorithm and agent in one loop, and a folder for what they tell.

    runner = MinibatchRl(algo=algo, agent=agent, sampler=sampler, n_steps=50_000, log_interval_steps=5_000)
    with logger_context("runs", run_ID=0, name="dqn", log_params=config, snapshot_mode="last"):
        runner.train()

    itr:   agent.sample_mode ─▶ sampler.obtain_samples ─▶ agent.train_mode ─▶ algo.optimize_agent ─▶ diagnostics

`MinibatchRl` tells about the trajectories it trains on; `MinibatchRlEval` plays others, before the first iteration and
at every report. Reports are also in `runner.diagnostics`, a list of dicts.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from striderl.checkpoint.safe_files import write_text
from striderl.checkpoint.store import CheckpointStore
from striderl.collect.samplers.samplers import BaseSampler
from striderl.collect.samplers.samples import fresh_seed
from striderl.compat.rlpyt.agents import BaseAgent
from striderl.compat.rlpyt.algorithms import RlAlgorithm
from striderl.loggers.file_loggers import CsvLogger
from striderl.loggers.logger import Logger

_log = logging.getLogger(__name__)

SNAPSHOT_MODES = ("none", "last", "all")


@dataclass(frozen=True)
class LogFolder:
    """Where the runner inside a `logger_context` writes."""

    path: Path
    table: Logger
    snapshots: CheckpointStore | None


_folder: ContextVar[LogFolder | None] = ContextVar("rlpyt log folder", default=None)


@contextmanager
def logger_context(
    log_dir: str | Path,
    run_ID: int | str,
    name: str,
    log_params: Mapping[str, Any] | None = None,
    snapshot_mode: str = "none",
) -> Iterator[Path]:
    """Let runners write to log_dir/run_ID: params.json, progress.csv, and snapshots ('none', 'last' or 'all')."""
    if snapshot_mode not in SNAPSHOT_MODES:
        raise ValueError(f"snapshot_mode is one of {SNAPSHOT_MODES}, found {snapshot_mode!r}")
    path = Path(log_dir) / f"run_{run_ID}"
    path.mkdir(parents=True, exist_ok=True)
    params = {"name": name, "run_ID": run_ID, **(log_params or {})}
    write_text(path / "params.json", json.dumps(params, indent=2, default=str))
    keep = 1 if snapshot_mode == "last" else 1_000_000
    store = None if snapshot_mode == "none" else CheckpointStore(path / "snapshots", keep_last=keep)
    table = CsvLogger(path / "progress.csv")
    token = _folder.set(LogFolder(path, table, store))
    try:
        yield path
    finally:
        _folder.reset(token)
        table.close()


class MinibatchRl:
    """Trains, and tells about the trajectories that training went through."""

    evaluates = False

    def __init__(
        self,
        algo: RlAlgorithm,
        agent: BaseAgent,
        sampler: BaseSampler,
        n_steps: float,
        seed: int | None = None,
        affinity: Mapping[str, Any] | None = None,
        log_interval_steps: float = 1e5,
        log_traj_window: int = 100,
    ) -> None:
        """Take the parts; envs, policy and optimisers are built by `train`.

        `n_steps` env steps are rounded up to a whole number of reports. `affinity` has the sampler's entries, and
        'cuda_idx' says where the agent is put.
        """
        if n_steps < 1 or log_interval_steps < 1:
            raise ValueError(f"n_steps and log_interval_steps are at least 1, found {n_steps}, {log_interval_steps}")
        self.algo, self.agent, self.sampler = algo, agent, sampler
        self.n_steps, self.log_interval_steps = int(n_steps), int(log_interval_steps)
        self.seed = fresh_seed() if seed is None else seed
        self.affinity = dict(affinity or {})
        self.diagnostics: list[dict[str, float]] = []
        """One dict per report."""
        self._traj_infos: deque[Any] = deque(maxlen=log_traj_window)
        self._opt_infos: dict[str, list[float]] = {}
        self._completed = 0

    def train(self) -> None:
        """Run to the end; the envs are closed however it ends."""
        try:
            n_itr = self.startup()
            self._started = time.perf_counter()
            if self.evaluates:
                self.log_diagnostics(-1, self._evaluate(0))
            for itr in range(n_itr):
                self.agent.sample_mode(itr)
                samples, traj_infos = self.sampler.obtain_samples(itr)
                self.agent.train_mode(itr)
                self.store_diagnostics(traj_infos, self.algo.optimize_agent(itr, samples))
                if (itr + 1) % self.log_interval_itrs == 0:
                    self.log_diagnostics(itr, self._evaluate(itr + 1) if self.evaluates else list(self._traj_infos))
        finally:
            self.sampler.shutdown()

    def startup(self) -> int:
        """Build everything and return the number of iterations: a multiple of `log_interval_itrs`."""
        self.agent.seed = self.seed
        discount = {"discount": self.algo.discount} if hasattr(self.algo, "discount") else {}
        examples = self.sampler.initialize(
            agent=self.agent,
            affinity=self.affinity,
            seed=self.seed,
            bootstrap_value=self.algo.bootstrap_value,
            traj_info_kwargs=discount,
        )
        size = self.sampler.batch_size
        self.log_interval_itrs = max(self.log_interval_steps // size, 1)
        n_itr = -(-max(self.n_steps // size, 1) // self.log_interval_itrs) * self.log_interval_itrs
        self.agent.to_device(self.affinity.get("cuda_idx"))
        self.algo.initialize(
            agent=self.agent,
            n_itr=n_itr,
            batch_spec=self.sampler.batch_spec,
            mid_batch_reset=self.sampler.mid_batch_reset,
            examples=examples,
        )
        return n_itr

    def store_diagnostics(self, traj_infos: Sequence[Any], opt_info: Any) -> None:
        """Keep what an iteration told until the next report; a number of `opt_info` counts as a list of one."""
        self._completed += len(traj_infos)
        self._traj_infos.extend(traj_infos)
        for name, value in zip(opt_info._fields, opt_info):
            self._opt_infos.setdefault(name, []).extend(value if isinstance(value, list) else [float(value)])

    def log_diagnostics(self, itr: int, traj_infos: Sequence[Any]) -> None:
        """Report: counts, and average, spread, median, least and most of trajectories and optimisation."""
        steps = (itr + 1) * self.sampler.batch_size
        row = {
            "Iteration": float(itr),
            "CumSteps": float(steps),
            "CumUpdates": float(self.algo.update_counter),
            "CumCompletedTrajs": float(self._completed),
            "Seconds": time.perf_counter() - self._started,
            "TrajsInReport": float(len(traj_infos)),
        }
        for name in traj_infos[0].logged() if traj_infos else ():
            row |= _spread(name, [float(info[name]) for info in traj_infos])
        for name, values in self._opt_infos.items():
            row |= _spread(name, values)
        self._opt_infos = {}
        self.diagnostics.append(row)
        _log.info("%d steps: return %.2f", steps, row.get("ReturnAverage", float("nan")))
        folder = _folder.get()
        if folder is not None:
            folder.table.log(steps, row)
            if folder.snapshots is not None:
                folder.snapshots.save(self.snapshot(itr), step=steps)

    def snapshot(self, itr: int) -> dict[str, Any]:
        """Return what a run can be looked at again with."""
        return {
            "itr": itr,
            "cum_steps": (itr + 1) * self.sampler.batch_size,
            "agent_state_dict": self.agent.state_dict(),
            "optimizer_state_dict": self.algo.optim_state_dict(),
        }

    def _evaluate(self, itr: int) -> list[Any]:
        self.agent.eval_mode(itr)
        return self.sampler.evaluate_agent(itr)


class MinibatchRlEval(MinibatchRl):
    """Trains, and tells about trajectories that were played for it; the sampler wants eval_n_envs."""

    evaluates = True


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    numbers = np.asarray([value for value in values if not np.isnan(value)])
    if not len(numbers):
        return {}
    return {
        f"{name}Average": float(numbers.mean()),
        f"{name}Std": float(numbers.std()),
        f"{name}Median": float(np.median(numbers)),
        f"{name}Min": float(numbers.min()),
        f"{name}Max": float(numbers.max()),
    }
