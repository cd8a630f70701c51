"""rlpyt's runners that sample beside learning.

    affinity has 'sampler' and 'optimizer'
      thread   obtain_samples(0) ─▶ obtain_samples(1) ─▶ …        runs freely, until n_steps
      thread       └─▶ samples_to_buffer ─▶ replay                two buffers in turn
      runner   optimize_agent ─▶ send_shared_memory ─▶ …          waits where the replay ratio would be exceeded

They want a sampler of `async_samplers.py` and an algorithm with `async_initialize`. Iterations of the sampler and of
the optimiser are counted apart; logs come after a number of the sampler's.
"""

from __future__ import annotations

import contextvars
import math
import multiprocessing
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from striderl.compat.rlpyt import logger
from striderl.compat.rlpyt.runner import PREFIX, BaseRunner, ProgBarCounter, keep_opt_info, log_infos
from striderl.compat.rlpyt.synchronize import drain_queue
from striderl.compat.rlpyt.tensors import AttrDict, make_seed, set_seed

THROTTLE_WAIT = 0.01
"""Seconds between two looks at how far the sampler is."""
JOIN_SECONDS = 60.0
"""How long the threads may take to end after the last iteration."""


class AsyncRlBase(BaseRunner):
    """Learns here while a thread samples; `AsyncRl` and `AsyncRlEval` decide what is logged."""

    _eval: ClassVar[bool] = False

    def __init__(
        self,
        algo: Any,
        agent: Any,
        sampler: Any,
        n_steps: float,
        affinity: Any,
        seed: int | None = None,
        log_interval_steps: float = 1e5,
    ) -> None:
        """Take the parts; `n_steps` are env steps, rounded up to a whole number of logs.

        `affinity` has 'sampler', whose entries are those of a sampler's affinity, and 'optimizer', a list with one
        dict: 'cuda_idx' is where the agent learns, 'cpus' and 'torch_threads' are those of this process.
        """
        if n_steps < 1 or log_interval_steps < 1:
            raise ValueError(f"n_steps and log_interval_steps are at least 1, found {n_steps}, {log_interval_steps}")
        self.algo, self.agent, self.sampler = algo, agent, sampler
        self.n_steps, self.log_interval_steps = int(n_steps), int(log_interval_steps)
        self.seed, self.affinity = seed, _async_affinity(affinity)
        self.diagnostics: list[dict[str, Any]] = []
        """One dict per log."""
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    # -- startup -------------------------------------------------------------------------------------------------------

    def startup(self) -> tuple[float, float]:
        """Build everything and start sampling; return the sampler's iteration to wait for, and by how much it grows."""
        if self.seed is None:
            self.seed = make_seed()
        set_seed(self.seed)
        double_buffer, examples = self.sampler.async_initialize(
            agent=self.agent,
            bootstrap_value=getattr(self.algo, "bootstrap_value", False),
            traj_info_kwargs=self.get_traj_info_kwargs(),
            seed=self.seed,
        )
        self.sampler_batch_size = self.sampler.batch_size
        self.world_size = 1
        n_itr = self.get_n_itr()
        replay_buffer = self.algo.async_initialize(
            agent=self.agent,
            sampler_n_itr=n_itr,
            batch_spec=self.sampler.batch_spec,
            mid_batch_reset=self.sampler.mid_batch_reset,
            examples=examples,
            world_size=self.world_size,
        )
        if not getattr(replay_buffer, "async_", False):
            raise TypeError(
                f"AsyncRl wants a replay that is written while it is drawn from, found {type(replay_buffer).__name__}; "
                "derive it from AsyncReplayBufferMixin"
            )
        self.launch_workers(n_itr, double_buffer, replay_buffer)
        return self.optim_startup()

    def optim_startup(self) -> tuple[float, float]:
        """Put the agent where it learns and build the optimisers; return the two numbers of `startup`."""
        main = self.affinity.optimizer[0]
        if main.get("cpus") and main.get("set_affinity", True):
            os.sched_setaffinity(0, main["cpus"])
        if main.get("torch_threads") is not None:
            torch.set_num_threads(main["torch_threads"])
        self.agent.to_device(main.get("cuda_idx"))
        self.agent.async_cpu(share_memory=False)
        self.algo.optim_initialize(rank=0)
        self.initialize_logging()
        first = 1 + getattr(self.algo, "min_steps_learn", 0) // self.sampler_batch_size
        used = self.algo.batch_size * self.algo.updates_per_optimize
        return first, used / (self.sampler_batch_size * self.algo.replay_ratio)

    def launch_workers(self, n_itr: int, double_buffer: Any, replay_buffer: Any) -> None:
        """Start the threads that sample and that fill the replay."""
        self.traj_infos_queue: queue.Queue[Any] = queue.Queue()
        self.ctrl = self.build_ctrl(self.world_size)
        self.launch_sampler(n_itr)
        self.launch_memcpy(double_buffer, replay_buffer)

    def launch_sampler(self, n_itr: int) -> None:
        """Start sampling with an agent as a fork has it: what it got so far, and models of its own from here on."""
        self.sampler.agent = self.agent.sampling_agent()
        target = self._sample_and_evaluate if self._eval else self._sample
        self._start("sampler", lambda: target(n_itr))

    def launch_memcpy(self, sample_buffers: Any, replay_buffer: Any) -> None:
        """Start to write batches to the replay."""
        self._start("memory copier", lambda: self._copy(sample_buffers, replay_buffer))

    def build_ctrl(self, world_size: int) -> AttrDict:
        """Return what the threads share."""
        return AttrDict(
            quit=multiprocessing.Value("b", 0),
            sample_ready=queue.Queue(),
            sample_copied=[threading.Semaphore(1) for _ in range(2)],
            sampler_itr=multiprocessing.Value("l", 0),
            eval_time=multiprocessing.Value("d", 0.0),
        )

    def _start(self, name: str, target: Callable[[], None]) -> None:
        context = contextvars.copy_context()  # the logger's files

        def run() -> None:
            try:
                context.run(target)
            except BaseException as error:  # noqa: BLE001  (`train` raises it)
                self._errors.append(error)
                self.ctrl.quit.value = 1
            finally:
                self.ctrl.sample_ready.put(None)
                for semaphore in self.ctrl.sample_copied:
                    semaphore.release()

        self._threads.append(threading.Thread(target=run, name=name, daemon=True))
        self._threads[-1].start()

    def get_n_itr(self) -> int:
        """Return the number of batches, a multiple of those between two logs."""
        self.log_interval_itrs = max(self.log_interval_steps // self.sampler_batch_size, 1)
        self.n_itr = math.ceil(self.n_steps / self.log_interval_steps) * self.log_interval_itrs
        logger.log(f"Running {self.n_itr} sampler iterations.")
        return self.n_itr

    def get_traj_info_kwargs(self) -> dict[str, Any]:
        """Return the settings of trajectory infos: the discount of the algorithm."""
        return {"discount": getattr(self.algo, "discount", 1)}

    # -- the threads ---------------------------------------------------------------------------------------------------

    def _sample(self, n_itr: int) -> None:
        """Sample batch after batch; the last one ends the run."""
        self.sampler.initialize(self.affinity.sampler)
        try:
            for itr in range(n_itr):
                traj_infos = self._batch(itr)
                if self.ctrl.quit.value:
                    return
                with self.ctrl.sampler_itr.get_lock():
                    for info in traj_infos:
                        self.traj_infos_queue.put(info)
                    self.ctrl.sampler_itr.value = itr
            logger.log(f"Async sampler reached final itr: {n_itr}, quitting.")
        finally:
            self.ctrl.quit.value = 1
            self.sampler.shutdown()

    def _sample_and_evaluate(self, n_itr: int) -> None:
        """Sample batch after batch, and evaluate at every log; one batch more, for the last evaluation."""
        self.sampler.initialize(self.affinity.sampler)
        try:
            for itr in range(n_itr + 1):
                self._batch(itr)
                if self.ctrl.quit.value:
                    return
                if itr % self.log_interval_itrs == 0:
                    started = time.perf_counter()
                    traj_infos = self.sampler.evaluate_agent(itr)
                    self.ctrl.eval_time.value += time.perf_counter() - started
                    with self.ctrl.sampler_itr.get_lock():
                        for info in (*traj_infos, None):  # None: the end of an evaluation
                            self.traj_infos_queue.put(info)
                        self.ctrl.sampler_itr.value = itr
                else:
                    self.ctrl.sampler_itr.value = itr
            logger.log(f"Async sampler reached final itr: {n_itr + 1}, quitting.")
        finally:
            self.ctrl.quit.value = 1
            self.sampler.shutdown()

    def _batch(self, itr: int) -> list[Any]:
        """Collect into the buffer whose turn it is, when its last batch is copied."""
        self.ctrl.sample_copied[itr % 2].acquire()
        if self.ctrl.quit.value:
            return []
        traj_infos: list[Any] = self.sampler.obtain_samples(itr, itr % 2)
        self.ctrl.sample_ready.put(itr % 2)
        return traj_infos

    def _copy(self, double_buffer: Any, replay_buffer: Any) -> None:
        """Write batches to the replay in the order of time, until there are no more."""
        while (index := self.ctrl.sample_ready.get()) is not None:
            replay_buffer.append_samples(self.algo.samples_to_buffer(double_buffer[index]))
            self.ctrl.sample_copied[index].release()

    # -- the loop ------------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Learn until the sampler has taken its steps; an error of either side ends both."""
        try:
            self._train()
            self.shutdown()
        finally:
            self._join()
        if self._errors:
            raise self._errors[0]

    def _train(self) -> None:
        throttle_itr, delta_throttle_itr = self.startup()
        throttle_time, itr, log_counter = 0.0, 0, 0
        if self._eval:
            self._wait(1)  # the sampler evaluates first
            if self._errors:
                return
            self.store_diagnostics(0, 0, drain_queue(self.traj_infos_queue, n_sentinel=1), ())
            self.log_diagnostics(0, 0, 0.0)
        while True:
            logger.set_iteration(itr)
            with logger.prefix(f"opt_itr #{itr} "):
                throttle_time += self._wait(throttle_itr)
                if self.ctrl.quit.value:
                    break
                throttle_itr += delta_throttle_itr
                self.agent.train_mode(itr)
                opt_info = self.algo.optimize_agent(itr, sampler_itr=self.ctrl.sampler_itr.value)
                self.agent.send_shared_memory()
                sampler_itr = self.ctrl.sampler_itr.value
                traj_infos = [] if self._eval else drain_queue(self.traj_infos_queue)
                self.store_diagnostics(itr, sampler_itr, traj_infos, opt_info)
                if sampler_itr // self.log_interval_itrs > log_counter:
                    if self._eval:
                        self.store_diagnostics(itr, sampler_itr, drain_queue(self.traj_infos_queue, n_sentinel=1), ())
                    self.log_diagnostics(itr, sampler_itr, throttle_time)
                    log_counter, throttle_time = log_counter + 1, 0.0
            itr += 1
        sampler_itr, traj_infos = self.ctrl.sampler_itr.value, drain_queue(self.traj_infos_queue)
        if (traj_infos or not self._eval) and not self._errors:
            self.store_diagnostics(itr, sampler_itr, traj_infos, ())
            self.log_diagnostics(itr, sampler_itr, throttle_time)

    def _wait(self, sampler_itr: float) -> float:
        """Wait until the sampler is so far, or ends; return the seconds."""
        started = time.perf_counter()
        while self.ctrl.sampler_itr.value < sampler_itr and not self.ctrl.quit.value:
            time.sleep(THROTTLE_WAIT)
        return time.perf_counter() - started

    def shutdown(self) -> None:
        """End after the last iteration."""
        self._join()
        logger.log("All threads shut down.  Training complete.")

    def _join(self) -> None:
        if self._threads:
            self.ctrl.quit.value = 1
        for thread in self._threads:
            thread.join(JOIN_SECONDS)

    # -- diagnostics ---------------------------------------------------------------------------------------------------

    def initialize_logging(self) -> None:
        """Start counting."""
        self._opt_infos: dict[str, list[Any]] = {name: [] for name in self.algo.opt_info_fields}
        self._start_time = self._last_time = time.perf_counter()
        self._last_sampler_itr = self._last_update_counter = 0
        self._last_eval_time = 0.0
        self.pbar = ProgBarCounter(self.log_interval_itrs)

    def get_itr_snapshot(self, itr: int, sampler_itr: int) -> dict[str, Any]:
        """Return the state of the run."""
        return {
            "itr": itr,
            "sampler_itr": sampler_itr,
            "cum_steps": sampler_itr * self.sampler_batch_size,
            "cum_updates": self.algo.update_counter,
            "agent_state_dict": self.agent.state_dict(),
            "optimizer_state_dict": self.algo.optim_state_dict(),
        }

    def save_itr_snapshot(self, itr: int, sample_itr: int) -> None:
        """Let the logger write the state, in the mode of its context."""
        if logger.get_snapshot_mode() != "none":
            logger.save_itr_params(itr, self.get_itr_snapshot(itr, sample_itr))

    def store_diagnostics(self, itr: int, sampler_itr: int, traj_infos: Sequence[Any], opt_info: Any) -> None:
        """Keep what an iteration returned until the next log."""
        self._traj_infos.extend(traj_infos)
        keep_opt_info(self._opt_infos, opt_info)
        self.pbar.update((sampler_itr + 1) % self.log_interval_itrs)

    def log_diagnostics(self, itr: int, sampler_itr: int, throttle_time: float, prefix: str = PREFIX) -> None:
        """Show and write a row: counts, rates, and the spread of trajectories and optimisation."""
        self.pbar.stop()
        self.save_itr_snapshot(itr, sampler_itr)
        now = time.perf_counter()
        seconds = max(now - self._last_time, 1e-9)
        updates = self.algo.update_counter - self._last_update_counter
        steps = self.sampler_batch_size * (sampler_itr - self._last_sampler_itr)
        cum_steps, size = sampler_itr * self.sampler_batch_size, self.algo.batch_size
        with logger.tabular_prefix(prefix):
            logger.record_tabular("Iteration", itr)
            logger.record_tabular("SamplerIteration", sampler_itr)
            logger.record_tabular("CumTime (s)", now - self._start_time)
            logger.record_tabular("CumSteps", cum_steps)
            logger.record_tabular("CumUpdates", self.algo.update_counter)
            logger.record_tabular("ReplayRatio", updates * size / max(1, steps))
            logger.record_tabular("CumReplayRatio", self.algo.update_counter * size / max(1, cum_steps))
            logger.record_tabular("StepsPerSecond", steps / seconds if itr else math.nan)
            if self._eval:
                evaluating = self.ctrl.eval_time.value - self._last_eval_time
                rate = steps / max(seconds - evaluating, 1e-9) if itr else math.nan
                logger.record_tabular("NonEvalSamplesPerSecond", rate)
                self._last_eval_time += evaluating
            logger.record_tabular("UpdatesPerSecond", updates / seconds if itr else math.nan)
            logger.record_tabular("OptThrottle", (seconds - throttle_time) / seconds)
        log_infos(list(self._traj_infos), self._opt_infos)
        row = logger.dump_tabular(with_prefix=False)
        self.diagnostics.append({name.removeprefix(prefix): value for name, value in row.items()})
        self._last_time, self._last_sampler_itr = time.perf_counter(), sampler_itr
        self._last_update_counter = self.algo.update_counter
        self.pbar = ProgBarCounter(self.log_interval_itrs)


class AsyncRl(AsyncRlBase):
    """Logs the trajectories that training went through."""

    def __init__(
        self,
        algo: Any,
        agent: Any,
        sampler: Any,
        n_steps: float,
        affinity: Any,
        seed: int | None = None,
        log_interval_steps: float = 1e5,
        log_traj_window: int = 100,
    ) -> None:
        """Take the parts; a log is about the last `log_traj_window` trajectories."""
        super().__init__(algo, agent, sampler, n_steps, affinity, seed, log_interval_steps)
        self.log_traj_window = int(log_traj_window)

    def initialize_logging(self) -> None:
        """Start counting."""
        self._traj_infos = deque(maxlen=self.log_traj_window)
        self._cum_completed_trajs = self._new_completed_trajs = 0
        super().initialize_logging()

    def store_diagnostics(self, itr: int, sampler_itr: int, traj_infos: Sequence[Any], opt_info: Any) -> None:
        """Count the trajectories."""
        self._cum_completed_trajs += len(traj_infos)
        self._new_completed_trajs += len(traj_infos)
        super().store_diagnostics(itr, sampler_itr, traj_infos, opt_info)

    def log_diagnostics(self, itr: int, sampler_itr: int, throttle_time: float, prefix: str = PREFIX) -> None:
        """Show and write a row about the window of trajectories."""
        with logger.tabular_prefix(prefix):
            logger.record_tabular("CumCompletedTrajs", self._cum_completed_trajs)
            logger.record_tabular("NewCompletedTrajs", self._new_completed_trajs)
            logger.record_tabular("StepsInTrajWindow", sum(info["Length"] for info in self._traj_infos))
        super().log_diagnostics(itr, sampler_itr, throttle_time, prefix)
        self._new_completed_trajs = 0


class AsyncRlEval(AsyncRlBase):
    """Logs trajectories that the sampler played for it; the sampler wants eval_n_envs."""

    _eval: ClassVar[bool] = True

    def initialize_logging(self) -> None:
        """Start counting."""
        self._traj_infos = deque()
        super().initialize_logging()

    def log_diagnostics(self, itr: int, sampler_itr: int, throttle_time: float, prefix: str = PREFIX) -> None:
        """Show and write a row about an evaluation."""
        if not self._traj_infos:
            logger.log("WARNING: had no complete trajectories in eval.")
        with logger.tabular_prefix(prefix):
            logger.record_tabular("StepsInEval", sum(info["Length"] for info in self._traj_infos))
            logger.record_tabular("TrajsInEval", len(self._traj_infos))
            logger.record_tabular("CumEvalTime", self.ctrl.eval_time.value)
        super().log_diagnostics(itr, sampler_itr, throttle_time, prefix)
        self._traj_infos.clear()


def _async_affinity(affinity: Any) -> AttrDict:
    """Return an affinity with 'sampler' and one 'optimizer'."""
    if not isinstance(affinity, Mapping) or not {"sampler", "optimizer"} <= set(affinity):
        raise TypeError(
            "AsyncRl wants affinity with 'sampler' and 'optimizer', as make_affinity(async_sample=True, …) returns it; "
            f"found {affinity!r}"
        )
    found = AttrDict(affinity)
    if len(found.optimizer) != 1:
        raise ValueError(f"AsyncRl learns in one process, affinity['optimizer'] has {len(found.optimizer)} entries")
    return found
