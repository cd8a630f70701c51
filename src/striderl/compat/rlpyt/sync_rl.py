"""rlpyt's runners that learn in several processes: the same algorithm with envs and samplers of their own.

    affinity is a list, one entry per process
      rank 0   sample ─▶ optimize ─┐ gradients are averaged in every backward      logs, snapshots, evaluations
      rank 1   sample ─▶ optimize ─┘ trajectories go to rank 0's logs

Batch sizes are those of one process. The other processes are forked, log nothing, and compute with one thread unless
their affinity has 'master_torch_threads'.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed

from striderl.compat.rlpyt import logger
from striderl.compat.rlpyt.runner import PREFIX, MinibatchRl, MinibatchRlBase, MinibatchRlEval
from striderl.compat.rlpyt.synchronize import drain_queue, find_port
from striderl.compat.rlpyt.tensors import AttrDict, make_seed

JOIN_SECONDS = 60.0
"""How long the other processes may take to end after the last iteration."""


class SyncRlMixin(MinibatchRlBase):
    """Starts one process per entry of the affinity, and is rank 0 of them."""

    WorkerCls: ClassVar[Any]
    """The runner of the other ranks."""

    def startup(self) -> int:
        """Start the other ranks, and build everything here."""
        self.launch_workers()
        n_itr = super().startup()
        self.par.barrier.wait()
        self._start_time = self._last_time = time.perf_counter()
        return n_itr

    def launch_workers(self) -> None:
        """Fork a process for every rank but this one, and join them by `torch.distributed`."""
        if isinstance(self.affinity, Mapping) or not self.affinity:
            raise TypeError(
                f"{type(self).__name__} wants affinity to be a list with one dict per process, found "
                f"{self.affinity!r}; one process is MinibatchRl"
            )
        self.affinities = list(self.affinity)
        self.affinity = self.affinities[0]
        self.rank, self.world_size = 0, len(self.affinities)
        self.par = self.build_par_objs(self.world_size)
        if self.seed is None:
            self.seed = make_seed()
        port = find_port(offset=next(iter(self.affinity.get("master_cpus", ())), 0) % 100)
        backend = "gloo" if self.affinity.get("cuda_idx") is None else "nccl"
        workers = [
            self.WorkerCls(
                algo=self.algo,
                agent=self.agent,
                sampler=self.sampler,
                n_steps=self.n_steps,
                seed=self.seed + 100 * rank,
                affinity=self.affinities[rank],
                log_interval_steps=self.log_interval_steps,
                rank=rank,
                world_size=self.world_size,
                port=port,
                backend=backend,
                par=self.par,
            )
            for rank in range(1, self.world_size)
        ]
        context = multiprocessing.get_context("fork")
        self.workers = [context.Process(target=_run_worker, args=(worker,)) for worker in workers]
        for process in self.workers:
            process.start()
        _join_group(backend, 0, self.world_size, port)

    def build_par_objs(self, world_size: int) -> AttrDict:
        """Return what the ranks share."""
        context = multiprocessing.get_context("fork")
        return AttrDict(barrier=context.Barrier(world_size), traj_infos_queue=context.Queue())

    def train(self) -> None:
        """Run to the end; the other processes end however it ends."""
        self.workers: list[Any] = []
        hook = sys.excepthook
        try:
            super().train()
            for process in self.workers:
                process.join(JOIN_SECONDS)
        finally:
            self._end_workers()
            sys.excepthook = hook  # torch.distributed puts its own in the place of it

    def _end_workers(self) -> None:
        codes = [process.exitcode for process in self.workers]
        for process in self.workers:
            if process.is_alive():
                process.terminate()
                process.join(JOIN_SECONDS)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        failed = [rank for rank, code in enumerate(codes, 1) if code not in (0, None)]
        if failed:
            logger.log(f"the processes of the ranks {failed} ended with an error, which they wrote to the terminal")


class SyncWorkerMixin(MinibatchRlBase):
    """The runner of a rank other than 0."""

    def __init__(
        self,
        algo: Any,
        agent: Any,
        sampler: Any,
        n_steps: float,
        seed: int,
        affinity: Mapping[str, Any],
        log_interval_steps: float,
        rank: int,
        world_size: int,
        port: int,
        backend: str,
        par: Any,
    ) -> None:
        """Take the parts of rank 0 and the place among the ranks."""
        super().__init__(algo, agent, sampler, n_steps, seed, affinity, log_interval_steps)
        self.rank, self.world_size, self.port, self.backend, self.par = rank, world_size, port, backend, par

    def startup(self) -> int:
        """Join the other ranks and build everything."""
        _join_group(self.backend, self.rank, self.world_size, self.port)
        n_itr = super().startup()
        self.par.barrier.wait()
        return n_itr

    def log_diagnostics(
        self, itr: int, traj_infos: Sequence[Any] | None = None, eval_time: float = 0, prefix: str = PREFIX
    ) -> None:
        """Log nothing."""

    def shutdown(self) -> None:
        """Close the envs."""
        self.sampler.shutdown()


class SyncWorker(SyncWorkerMixin, MinibatchRl):
    """The worker of `SyncRl`: sends its trajectories to rank 0."""

    def store_diagnostics(self, itr: int, traj_infos: Sequence[Any], opt_info: Any) -> None:
        """Send the trajectories."""
        for info in traj_infos:
            self.par.traj_infos_queue.put(info)


class SyncWorkerEval(SyncWorkerMixin, MinibatchRlEval):
    """The worker of `SyncRlEval`: waits while rank 0 evaluates."""

    def store_diagnostics(self, itr: int, traj_infos: Sequence[Any], opt_info: Any) -> None:
        """Keep nothing."""

    def log_diagnostics(
        self, itr: int, traj_infos: Sequence[Any] | None = None, eval_time: float = 0, prefix: str = PREFIX
    ) -> None:
        """Wait for rank 0."""
        self.par.barrier.wait()

    def evaluate_agent(self, itr: int) -> tuple[list[Any], float]:
        """Play nothing."""
        return [], 0.0


class SyncRl(SyncRlMixin, MinibatchRl):
    """`MinibatchRl` in several processes; a log is about the trajectories of all."""

    WorkerCls: ClassVar[Any] = SyncWorker

    def store_diagnostics(self, itr: int, traj_infos: Sequence[Any], opt_info: Any) -> None:
        """Keep the trajectories of all ranks for the window."""
        super().store_diagnostics(itr, [*traj_infos, *drain_queue(self.par.traj_infos_queue)], opt_info)


class SyncRlEval(SyncRlMixin, MinibatchRlEval):
    """`MinibatchRlEval` in several processes, of which this one evaluates."""

    WorkerCls: ClassVar[Any] = SyncWorkerEval

    def log_diagnostics(
        self, itr: int, traj_infos: Sequence[Any] | None = None, eval_time: float = 0, prefix: str = PREFIX
    ) -> None:
        """Log, and let the others go on."""
        super().log_diagnostics(itr, traj_infos, eval_time, prefix)
        self.par.barrier.wait()


def _join_group(backend: str, rank: int, world_size: int, port: int) -> None:
    torch.distributed.init_process_group(
        backend=backend, rank=rank, world_size=world_size, init_method=f"tcp://127.0.0.1:{port}"
    )


def _run_worker(worker: Any) -> None:
    """Run a rank in its process: one thread, as a fork has none of the parent's; others are let go where it fails."""
    logger.disable()
    torch.set_num_threads(1)
    try:
        worker.train()
        worker.par.traj_infos_queue.cancel_join_thread()
        torch.distributed.destroy_process_group()
    except BaseException:
        worker.par.barrier.abort()
        raise
