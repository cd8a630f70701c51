"""rlpyt's runners: sampler, algorithm and agent in one loop.

    runner = MinibatchRl(algo=algo, agent=agent, sampler=sampler, n_steps=50_000, log_interval_steps=5_000)
    with logger_context("runs", run_ID=0, name="dqn", log_params=config, snapshot_mode="last"):
        runner.train()

    itr:   agent.sample_mode ─▶ sampler.obtain_samples ─▶ agent.train_mode ─▶ algo.optimize_agent ─▶ diagnostics

`MinibatchRl` logs the trajectories it trains on; `MinibatchRlEval` plays others, before the first iteration and at
every log. Rows are shown, written by the logger, and kept in `runner.diagnostics`, a list of dicts.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from striderl.collect.samplers.samplers import BaseSampler
from striderl.compat.rlpyt import logger
from striderl.compat.rlpyt.agents import BaseAgent
from striderl.compat.rlpyt.algorithms import RlAlgorithm
from striderl.compat.rlpyt.logger import logger_context as logger_context
from striderl.compat.rlpyt.tensors import make_seed, set_seed
from striderl.training.guard import PATIENCE, DivergedError

PREFIX = "Diagnostics/"
"""Before the names of the counts in a row."""


class ProgBarCounter:
    """A line of the terminal that fills until the next log; nothing where no terminal reads along."""

    WIDTH = 40

    def __init__(self, total_count: int) -> None:
        self.total_count = max(1, total_count)
        self.shown = sys.stderr.isatty() and not logger.get_log_tabular_only()

    def update(self, current_count: int) -> None:
        """Show how far it is."""
        if self.shown:
            done = self.WIDTH * current_count // self.total_count
            sys.stderr.write(f"\r[{'#' * done}{' ' * (self.WIDTH - done)}]")
            sys.stderr.flush()

    def stop(self) -> None:
        """Leave the line."""
        if self.shown:
            sys.stderr.write("\n")
            self.shown = False


class BaseRunner:
    """What a program starts: define `train`."""

    def train(self) -> None:
        """Run to the end."""
        raise NotImplementedError


class MinibatchRlBase(BaseRunner):
    """Startup, logging and snapshots; `train` is defined by the subclasses."""

    def __init__(
        self,
        algo: RlAlgorithm,
        agent: BaseAgent,
        sampler: BaseSampler,
        n_steps: float,
        seed: int | None = None,
        affinity: Any = None,
        log_interval_steps: float = 1e5,
    ) -> None:
        """Take the parts; envs, models and optimisers are built by `train`.

        `n_steps` env steps are rounded up to a whole number of logs. `affinity` has the sampler's entries; 'cuda_idx'
        is where the agent is put, 'master_cpus' are the processors of this process and 'master_torch_threads' its
        threads.
        """
        if n_steps < 1 or log_interval_steps < 1:
            raise ValueError(f"n_steps and log_interval_steps are at least 1, found {n_steps}, {log_interval_steps}")
        self.algo, self.agent, self.sampler = algo, agent, sampler
        self.n_steps, self.log_interval_steps = int(n_steps), int(log_interval_steps)
        self.seed = seed
        self.affinity: Any = {} if affinity is None else affinity
        self.rank, self.world_size = 0, 1
        self.diagnostics: list[dict[str, Any]] = []
        """One dict per log."""
        self._finished_itrs = 0

    # -- startup -------------------------------------------------------------------------------------------------------

    def startup(self) -> int:
        """Build everything and return the number of iterations."""
        if not isinstance(self.affinity, Mapping):
            raise TypeError(f"{type(self).__name__} wants affinity to be one dict; a list of them is for SyncRl")
        if self.affinity.get("master_cpus") is not None and self.affinity.get("set_affinity", True):
            os.sched_setaffinity(0, self.affinity["master_cpus"])
        if self.affinity.get("master_torch_threads") is not None:
            torch.set_num_threads(self.affinity["master_torch_threads"])
        if self.seed is None:
            self.seed = make_seed()
        set_seed(self.seed)
        logger.log(f"using seed {self.seed}")
        examples = self.sampler.initialize(
            agent=self.agent,
            affinity=self.affinity,
            seed=self.seed + 1,
            bootstrap_value=self.algo.bootstrap_value,
            traj_info_kwargs=self.get_traj_info_kwargs(),
            rank=self.rank,
            world_size=self.world_size,
        )
        self.itr_batch_size = self.sampler.batch_size * self.world_size
        n_itr = self.get_n_itr()
        self.agent.to_device(self.affinity.get("cuda_idx"))
        if self.world_size > 1:
            self.agent.data_parallel()
        self.algo.initialize(
            agent=self.agent,
            n_itr=n_itr,
            batch_spec=self.sampler.batch_spec,
            mid_batch_reset=self.sampler.mid_batch_reset,
            examples=examples,
            world_size=self.world_size,
            rank=self.rank,
        )
        self.initialize_logging()
        return n_itr

    def get_traj_info_kwargs(self) -> dict[str, Any]:
        """Return the settings of trajectory infos: the discount of the algorithm."""
        return {"discount": getattr(self.algo, "discount", 1)}

    def get_n_itr(self) -> int:
        """Return the number of iterations, a multiple of those between two logs."""
        self.log_interval_itrs = max(self.log_interval_steps // self.itr_batch_size, 1)
        logs = math.ceil(max(self.n_steps // self.itr_batch_size, 1) / self.log_interval_itrs)
        self.n_itr = logs * self.log_interval_itrs
        logger.log(f"Running {self.n_itr} iterations of minibatch RL.")
        return self.n_itr

    def initialize_logging(self) -> None:
        """Start counting."""
        self._opt_infos: dict[str, list[Any]] = {name: [] for name in self.algo.opt_info_fields}
        self._start_time = self._last_time = time.perf_counter()
        self._cum_completed_trajs = 0
        self._last_update_counter = 0
        self._last_itrs = self._barren_itrs = 0
        self.pbar = ProgBarCounter(self.log_interval_itrs)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def train_itr(self, itr: int) -> None:
        """Collect a batch, learn from it and keep the diagnostics."""
        logger.set_iteration(itr)
        self.agent.sample_mode(itr)
        samples, traj_infos = self.sampler.obtain_samples(itr)
        self._count_barren(samples)
        self.agent.train_mode(itr)
        opt_info = self.algo.optimize_agent(itr, samples)
        self._finished_itrs = itr + 1
        self.store_diagnostics(itr, traj_infos, opt_info)

    def _count_barren(self, samples: Any) -> None:
        """Count the iterations in a row without a valid sample; with too many of them, raise DivergedError."""
        valid = getattr(samples.env, "valid", None)
        if self.world_size > 1 or valid is None:  # another process may have valid ones
            return
        self._barren_itrs = 0 if bool(valid.any()) else self._barren_itrs + 1
        if self._barren_itrs >= PATIENCE:
            self._refuse_barren()

    def _refuse_barren(self) -> None:
        raise DivergedError(
            f"nothing was learned in {self._barren_itrs} iterations in a row: none of their samples was valid; their "
            "rewards or observations are not finite, or the envs mark them as not valid"
        )

    def shutdown(self) -> None:
        """Close the envs after the last iteration; DivergedError where no iteration had a valid sample."""
        if 0 < self._finished_itrs <= self._barren_itrs:
            self._refuse_barren()
        logger.log("Training complete.")
        self.sampler.shutdown()

    # -- diagnostics ---------------------------------------------------------------------------------------------------

    @property
    def cum_steps(self) -> int:
        """Env steps so far."""
        return self._finished_itrs * self.itr_batch_size

    def get_itr_snapshot(self, itr: int) -> dict[str, Any]:
        """Return the state of the run."""
        return {
            "itr": itr,
            "cum_steps": self.cum_steps,
            "agent_state_dict": self.agent.state_dict(),
            "optimizer_state_dict": self.algo.optim_state_dict(),
        }

    def save_itr_snapshot(self, itr: int) -> None:
        """Let the logger write the state, in the mode of its context."""
        if logger.get_snapshot_mode() != "none":
            logger.save_itr_params(itr, self.get_itr_snapshot(itr))

    def store_diagnostics(self, itr: int, traj_infos: Sequence[Any], opt_info: Any) -> None:
        """Keep what an iteration returned until the next log; a number of `opt_info` counts as a list of one."""
        self._cum_completed_trajs += len(traj_infos)
        keep_opt_info(self._opt_infos, opt_info)
        self.pbar.update((itr + 1) % self.log_interval_itrs)

    def log_diagnostics(
        self, itr: int, traj_infos: Sequence[Any] | None = None, eval_time: float = 0, prefix: str = PREFIX
    ) -> None:
        """Show and write a row: counts, rates, and the spread of trajectories and optimisation."""
        self.pbar.stop()
        self.save_itr_snapshot(itr)
        now = time.perf_counter()
        seconds = max(now - self._last_time - eval_time, 1e-9)
        updates = self.algo.update_counter - self._last_update_counter
        steps = (self._finished_itrs - self._last_itrs) * self.itr_batch_size
        used = (getattr(self.algo, "batch_size", 0) or 0) * self.world_size
        with logger.tabular_prefix(prefix):
            logger.record_tabular("Iteration", itr)
            logger.record_tabular("CumTime (s)", now - self._start_time)
            logger.record_tabular("CumSteps", self.cum_steps)
            logger.record_tabular("CumCompletedTrajs", self._cum_completed_trajs)
            logger.record_tabular("CumUpdates", self.algo.update_counter)
            logger.record_tabular("StepsPerSecond", steps / seconds if steps else math.nan)
            logger.record_tabular("UpdatesPerSecond", updates / seconds if steps else math.nan)
            logger.record_tabular("ReplayRatio", updates * used / steps if steps else math.nan)
            cum = self.algo.update_counter * used / self.cum_steps if self.cum_steps else math.nan
            logger.record_tabular("CumReplayRatio", cum)
        log_infos(traj_infos or [], self._opt_infos)
        row = logger.dump_tabular(with_prefix=False)
        self.diagnostics.append({name.removeprefix(prefix): value for name, value in row.items()})
        self._last_time, self._last_itrs = time.perf_counter(), self._finished_itrs
        self._last_update_counter = self.algo.update_counter
        self.pbar = ProgBarCounter(self.log_interval_itrs)


class MinibatchRl(MinibatchRlBase):
    """Trains, and logs the trajectories that training went through."""

    def __init__(
        self,
        algo: RlAlgorithm,
        agent: BaseAgent,
        sampler: BaseSampler,
        n_steps: float,
        seed: int | None = None,
        affinity: Any = None,
        log_interval_steps: float = 1e5,
        log_traj_window: int = 100,
    ) -> None:
        """Take the parts; a log is about the last `log_traj_window` trajectories."""
        super().__init__(algo, agent, sampler, n_steps, seed, affinity, log_interval_steps)
        self.log_traj_window = int(log_traj_window)

    def train(self) -> None:
        """Run to the end; the envs are closed however it ends."""
        try:
            for itr in range(self.startup()):
                with logger.prefix(f"itr #{itr} "):
                    self.train_itr(itr)
                    if (itr + 1) % self.log_interval_itrs == 0:
                        self.log_diagnostics(itr)
            self.shutdown()
        finally:
            self.sampler.shutdown()

    def initialize_logging(self) -> None:
        """Start counting."""
        self._traj_infos: deque[Any] = deque(maxlen=self.log_traj_window)
        self._new_completed_trajs = 0
        super().initialize_logging()

    def store_diagnostics(self, itr: int, traj_infos: Sequence[Any], opt_info: Any) -> None:
        """Keep the trajectories for the window."""
        self._new_completed_trajs += len(traj_infos)
        self._traj_infos.extend(traj_infos)
        super().store_diagnostics(itr, traj_infos, opt_info)

    def log_diagnostics(
        self, itr: int, traj_infos: Sequence[Any] | None = None, eval_time: float = 0, prefix: str = PREFIX
    ) -> None:
        """Show and write a row about the window of trajectories."""
        window = list(self._traj_infos) if traj_infos is None else traj_infos
        with logger.tabular_prefix(prefix):
            logger.record_tabular("NewCompletedTrajs", self._new_completed_trajs)
            logger.record_tabular("StepsInTrajWindow", sum(info["Length"] for info in window))
        super().log_diagnostics(itr, window, eval_time, prefix)
        self._new_completed_trajs = 0


class MinibatchRlEval(MinibatchRlBase):
    """Trains, and logs trajectories that were played for it; the sampler wants eval_n_envs."""

    def train(self) -> None:
        """Run to the end; the envs are closed however it ends."""
        try:
            n_itr = self.startup()
            with logger.prefix("itr #0 "):
                self.log_diagnostics(0, *self.evaluate_agent(0))
            for itr in range(n_itr):
                with logger.prefix(f"itr #{itr} "):
                    self.train_itr(itr)
                    if (itr + 1) % self.log_interval_itrs == 0:
                        self.log_diagnostics(itr, *self.evaluate_agent(itr + 1))
            self.shutdown()
        finally:
            self.sampler.shutdown()

    def initialize_logging(self) -> None:
        """Start counting."""
        super().initialize_logging()
        self._cum_eval_time = 0.0

    def evaluate_agent(self, itr: int) -> tuple[list[Any], float]:
        """Play whole trajectories after `itr` iterations; return their infos and the seconds it took."""
        logger.log("Evaluating agent...")
        self.agent.eval_mode(itr)
        started = time.perf_counter()
        traj_infos: list[Any] = self.sampler.evaluate_agent(itr)
        return traj_infos, time.perf_counter() - started

    def log_diagnostics(
        self, itr: int, traj_infos: Sequence[Any] | None = None, eval_time: float = 0, prefix: str = PREFIX
    ) -> None:
        """Show and write a row about an evaluation."""
        played = traj_infos or []
        if not played:
            logger.log("WARNING: had no complete trajectories in eval.")
        self._cum_eval_time += eval_time
        with logger.tabular_prefix(prefix):
            logger.record_tabular("CumTrainTime", time.perf_counter() - self._start_time - self._cum_eval_time)
            logger.record_tabular("StepsInEval", sum(info["Length"] for info in played))
            logger.record_tabular("TrajsInEval", len(played))
            logger.record_tabular("CumEvalTime", self._cum_eval_time)
        super().log_diagnostics(itr, played, eval_time, prefix)


def keep_opt_info(opt_infos: Mapping[str, list[Any]], opt_info: Any) -> None:
    """Append the fields of an opt_info to the lists of their names; a number counts as a list of one."""
    for name, values in opt_infos.items():
        new = getattr(opt_info, name, [])
        values.extend(new if isinstance(new, list) else [new])


def log_infos(traj_infos: Sequence[Any], opt_infos: Mapping[str, list[Any]]) -> None:
    """Record the spread of trajectories and of optimisation, whose lists are empty afterwards."""
    for name in traj_infos[0].logged() if traj_infos else ():
        logger.record_tabular_misc_stat(name, [info[name] for info in traj_infos])
    for name, values in opt_infos.items():
        logger.record_tabular_misc_stat(name, _numbers(values))
        values.clear()


def _numbers(values: Sequence[Any]) -> list[float]:
    """Return the numbers among the values of an opt_info: rows of them count one by one, NaN does not count."""
    found: list[float] = []
    for value in values:
        found.extend(torch.as_tensor(value, dtype=torch.float64).flatten().tolist())
    return [value for value in found if not math.isnan(value)]
