"""`Trainer`: an iterator over training that owns its state; the user owns the loop.

    for record in trainer:            one iteration each; break, and a second `for` continues where this one stopped
        ...
    for log_data in trainer():        the same run as dicts, one when data was collected, one when it was learned from
        ...

An iteration is a sequence of phases; `advance` runs one of them, and the phase is part of the state. The training loop
defines the phases, and the plan decides the training loop:

    OnPolicyPlan    warmup ─▶ collect ─▶ prepare ─▶ update ─▶ absorb ─▶ consume ─┐        iteration
                      once       ▲                                      log, save │
                                 └────────────────────────────────────────────────┘

`state_dict` may be taken at any time. Between iterations it holds no rollout; in the middle of one it does.

Ctrl-C, or an error, may end any phase; another `for`, or `advance`, continues there, bit-identical to a training that
was never interrupted:

    Ctrl-C                       raised at the end of the env step, gradient step or callback under way; a second one
                                 that comes a second later is raised at once, and then episodes may begin anew
    an error of `env.step`       the step is taken again with the same actions; with envs of several parts (Gymnasium,
                                 worker processes), of which some may have taken it, new episodes begin
    an error of actor or losses  the step is taken again; a partial gradient step is rolled back
    an error of a callback       later callbacks continue; one that Ctrl-C interrupts gets the record once more

Torch's gradient mode, default dtype and number of threads are after every phase what they were before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from striderl._moved import renamed_arguments
from striderl.execution.background import Switch
from striderl.execution.interrupts import check_interrupt, deferred_interrupts
from striderl.training.callbacks.callback import Callback
from striderl.training.callbacks.chain import CallbackList
from striderl.training.checks import check_callbacks
from striderl.training.distributed import Ranks
from striderl.training.loops.loop import TrainLoop
from striderl.training.loops.on_policy import OnPolicyLoop
from striderl.training.plans import OfflinePlan, OffPolicyPlan, OnPolicyPlan, Plan
from striderl.training.record import Record, read_later


class Trainer:
    """Collect, learn and report, an iteration at a time; see the top of this module."""

    @renamed_arguments({"consumers": "callbacks"})
    def __init__(
        self,
        algorithm: Any,
        collector: Any,
        plan: Plan,
        *,
        callbacks: Sequence[Callback] = (),
        storage: Any = None,
        seed: int = 0,
        total_envs: int = 0,
        switch: Switch | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Put the parts together, or raise naming those that do not fit; nothing is run yet.

        `collector` is the source of experience: a Collector, or for an OfflinePlan a filled Replay. `total_envs` is
        how many envs all processes that learn together have, 0 for one process; env steps count those of all. `switch`
        is the one that the algorithm was built with, for programs that are compiled beside training. `ranks` are the
        processes that learn together from their shards of a replay or a dataset.
        """
        self.loop: TrainLoop = loop_for(
            algorithm, collector, plan, storage=storage, seed=seed, total_envs=total_envs, ranks=ranks
        )
        check_callbacks(callbacks, collector)
        self.algorithm, self.collector, self.plan = algorithm, collector, plan
        self.phase = self.loop.first_phase
        """The phase that `advance` runs next."""
        self.iteration = 0
        """How many iterations are finished."""
        self.stop_reason = ""
        """Why a callback ended the run; empty while none has."""
        self.record: Record | None = None
        """The newest record; callbacks may still add to it."""
        self.switch = switch
        self._chain = CallbackList(callbacks)
        self._unreported = ""
        """The last phase, until its record or log_data was yielded."""

    @property
    def seed(self) -> int:
        """Seed of the sample order."""
        return self.loop.seed

    @property
    def env_steps(self) -> int:
        """How many steps the envs have made, over all envs."""
        return self.loop.counters.env_steps

    @property
    def num_updates(self) -> int:
        """How many gradient steps were taken."""
        return self.loop.counters.num_updates

    # -- the loop ------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        """Finish the present iteration and return its record; DivergedError at the end if nothing was learned."""
        if self._unreported != "consume":  # else the interrupt came when the record was ready
            if self.finished:
                self.loop.guard.check_end(self.iteration)
                raise StopIteration
            try:
                with deferred_interrupts():
                    while self._unreported != "consume":
                        self._unreported = self._advance()
            except StopIteration as error:  # from a user's env or term; let out, it would end the loop silently
                raise RuntimeError(f"a StopIteration came out of phase {self.phase!r}") from error
        self._unreported = ""
        assert self.record is not None
        return self.record

    def __call__(self) -> Iterator[dict[str, Any]]:
        """Yield log_data: {"log_type": "collect" | "train" | "evaluate", "sample_step": …, "logs": {…}}.

        'logs' is left out when there is nothing to report. Like the records, it continues where the last loop stopped.
        """
        while self._unreported or not self.finished:
            if not self._unreported:
                with deferred_interrupts():
                    self._unreported = self._advance()
            phase, self._unreported = self._unreported, ""
            for log_type in self._reported_after(phase):
                log_data = self._log_data(log_type)
                if "logs" in log_data or log_type != "evaluate":
                    yield log_data
        self.loop.guard.check_end(self.iteration)

    def advance(self) -> str:
        """Run one phase, move on to the next, and return the phase that was run."""
        self._unreported = ""
        with deferred_interrupts():
            return self._advance()

    def _advance(self) -> str:
        check_interrupt()
        phase = self.phase
        with _kept_modes():
            if phase == "consume":
                self._consume()
                return phase
            if self.switch is not None and phase == self.loop.phases[0]:
                self.loop.settle()  # actions of one rollout come from one program
                self.switch.before_iteration(self.iteration)
            self.loop.run(phase, self.iteration)
        phases = self.loop.phases
        if phase == phases[-1]:
            self._finish_iteration()
            self.phase = "consume"
        else:
            self.phase = phases[phases.index(phase) + 1] if phase in phases else self._after_warmup(phase)
        return phase

    def _after_warmup(self, phase: str) -> str:
        """Return the phase after a piece of the warm-up, which is split so that a run can be stopped in it."""
        return self.loop.phases[0] if self.loop.is_warm else phase

    @property
    def ending(self) -> bool:
        """Whether there is no further iteration: the plan is fulfilled, or a callback gave a reason to stop."""
        return bool(self.stop_reason) or self.loop.is_over(self.iteration)

    @property
    def finished(self) -> bool:
        """Whether the last iteration is over, callbacks included."""
        return self.phase in (self.loop.first_phase, self.loop.phases[0]) and self.ending

    @property
    def remaining_iterations(self) -> int | None:
        """How many iterations the plan still has; None without a limit."""
        return self.loop.remaining_iterations(self.iteration)

    def go_on(self) -> None:
        """Clear the stop reason; the plan's own end stays."""
        self.stop_reason = ""

    # -- records and logs ----------------------------------------------------------------------------------------------

    def _finish_iteration(self) -> None:
        """Make the record; metrics are copied to the host in one transfer and waited for when they are read."""
        counters = self.loop.counters
        self.iteration += 1
        self.record = Record(
            iteration=self.iteration,
            env_steps=counters.env_steps,
            num_updates=counters.num_updates,
            num_steps=counters.num_steps,
            metrics=read_later(counters.numbers, self.loop.finish),
            collection_seconds=counters.collection_seconds,
            learning_seconds=counters.learning_seconds,
        )

    def _consume(self) -> None:
        """Call the callbacks with the record; each sees the state as of after it, so the last one may save it."""
        assert self.record is not None
        after = self.loop.phases[0]
        for callback in self._chain.rest():
            self.phase = "consume" if self._chain.position else after
            try:
                reaction = callback.on_iteration(self.record, self)
            except Exception:  # later callbacks still run
                raise
            except BaseException:  # interrupted, not failed: it gets the record once more
                self._chain.step_back()
                self.phase = "consume"
                raise
            self.record = self.record.with_metrics(reaction.metrics).with_seconds(reaction.seconds)
            self.stop_reason = self.stop_reason or reaction.stop
            if self._chain.position:
                check_interrupt()
        self.phase = after

    def _reported_after(self, phase: str) -> tuple[str, ...]:
        """Return which kinds of log_data are due after a phase."""
        phases = self.loop.phases
        if phase == "consume":
            return ("evaluate",)
        if len(phases) == 1 and phase == phases[0]:
            return ("collect", "train")
        return {phases[0]: ("collect",), phases[-1]: ("train",)}.get(phase, ())

    def _log_data(self, log_type: str) -> dict[str, Any]:
        if log_type == "collect" and self.phase != "consume":
            metrics: Mapping[str, float] = read_later(self.loop.counters.numbers, self.loop.finish)
        else:
            assert self.record is not None
            metrics = self.record.metrics
        prefix = f"{log_type}/"
        logs = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
        log_data: dict[str, Any] = {"log_type": log_type, "sample_step": self.env_steps}
        return {**log_data, "logs": logs} if logs else log_data

    # -- saving and closing --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything that new objects need to continue bit for bit, as copies."""
        return {
            "phase": self.phase,
            "iteration": self.iteration,
            "stop_reason": self.stop_reason,
            "record": None if self.record is None else self.record.state_dict(),
            "consumers": self._chain.state_dict(),
            **({} if self.switch is None else {"execution": self.switch.state_dict()}),
            **self.loop.state_dict(self.phase),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of a trainer built from parts of the same kind."""
        self.phase, self.stop_reason, self._unreported = str(state["phase"]), str(state["stop_reason"]), ""
        self.iteration = int(state["iteration"])
        if self.switch is not None:
            self.switch.set_iteration(self.iteration)
            if "execution" in state:
                self.switch.load_state_dict(state["execution"])
        self.loop.load_state_dict(state, self.phase, self.iteration)
        self._chain.load_state_dict(state["consumers"])
        self.record = None if state["record"] is None else Record.from_state(state["record"])

    def close(self) -> None:
        """Close the callbacks and the envs; calling it twice is fine."""
        self._chain.close()
        self.loop.close()
        if self.switch is not None:
            self.switch.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def place_of(state: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a unique key of a trainer's state: several phases may have the same number of env steps."""
    position = state["consumers"]["position"]
    return (state["env_steps"], state["num_updates"], state["iteration"], state["phase"], position)


@contextmanager
def _kept_modes() -> Iterator[None]:
    """Restore torch's process-wide switches, however a phase ends."""
    gradients, dtype, threads = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()
    try:
        yield
    finally:
        if torch.is_grad_enabled() != gradients:
            torch.set_grad_enabled(gradients)
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


# -- the loop of a plan ------------------------------------------------------------------------------------------------


def loop_for(
    algorithm: Any, source: Any, plan: Plan, *, storage: Any, seed: int, total_envs: int = 0, ranks: Ranks | None = None
) -> TrainLoop:
    """Build the training loop of a plan from its parts, or raise naming the part that does not fit."""
    if isinstance(plan, OnPolicyPlan):
        return OnPolicyLoop(algorithm, source, plan, storage=storage, seed=seed, total_envs=total_envs)
    # imported here: on-policy training never loads the replay modules
    from striderl.training.loops.off_policy import OffPolicyLoop
    from striderl.training.loops.offline import OfflineLoop

    if isinstance(plan, OffPolicyPlan):
        return OffPolicyLoop(algorithm, source, plan, storage=storage, seed=seed, total_envs=total_envs, ranks=ranks)
    if isinstance(plan, OfflinePlan):
        if total_envs:
            raise ValueError(f"total_envs={total_envs} has no effect: an OfflinePlan steps no envs")
        if storage is not None:
            raise ValueError("an OfflinePlan has no storage beside the dataset; leave storage away")
        return OfflineLoop(algorithm, source, plan, seed=seed, ranks=ranks)
    raise TypeError(f"Trainer wants a plan, such as OnPolicyPlan, found {type(plan).__name__}")
