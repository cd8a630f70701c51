"""`Trainer`: an iterator over training that owns its state; the user owns the loop.

    for record in trainer:            one iteration each; break, and a second `for` goes on where this one stopped
        ...
    for log_data in trainer():        the same run as dicts, one when data was collected, one when it was learned from
        ...

An iteration is a walk through phases; `advance` does one of them, and the phase is part of the state:

    warmup ─▶ collect ─▶ prepare ─▶ update ─▶ absorb ─▶ consume ─┐        iteration, env_steps, num_updates
      once       ▲       targets   gradients  normalisers  log,  │
                 └───────────────────────────────────────  save ─┘

`state_dict` may be taken at any time. Between iterations it holds no rollout; in the middle of one it does. Nothing
here draws from a generator that would have to be saved: the order of minibatches follows from seed and iteration.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from striderl.collect.collector import Collector
from striderl.collect.statistics import OF_EPISODES
from striderl.data import tree
from striderl.storage.rollout import RolloutStorage
from striderl.training.checks import check_consumers, check_policy, check_storage, check_types, warn_about_finals
from striderl.training.consumers.chain import Chain
from striderl.training.consumers.consumer import Consumer
from striderl.training.on_policy import OnPolicyAlgorithm, order_generator, rollout_storage
from striderl.training.plans import OnPolicyPlan
from striderl.training.record import Record, read_packed

_log = logging.getLogger(__name__)

_BETWEEN = ("warmup", "collect")
_DROPPED = "collect/final_obs_dropped"


class Trainer:
    """Collects, learns and reports, an iteration at a time; see the top of this module."""

    def __init__(
        self,
        algorithm: OnPolicyAlgorithm,
        collector: Collector,
        plan: OnPolicyPlan,
        *,
        consumers: Sequence[Consumer] = (),
        storage: RolloutStorage | None = None,
        seed: int = 0,
    ) -> None:
        """Put the parts together, or say which of them do not fit; nothing is run yet."""
        check_types(algorithm, collector, plan, consumers)
        check_consumers(consumers, collector)
        check_policy(algorithm.policy, collector)
        algorithm.check_rollout(plan.num_steps_per_env, collector.env.num_envs)
        if storage is None:
            storage = rollout_storage(collector, algorithm.policy, plan.num_steps_per_env)
        check_storage(storage, collector, plan)
        warn_about_finals(storage, collector)
        self.algorithm, self.collector, self.plan = algorithm, collector, plan
        self.storage, self.seed = storage, seed
        self.phase = "warmup" if plan.warmup_steps else "collect"
        """What `advance` does next."""
        self.iteration = self.env_steps = self.num_updates = 0
        self.stop_reason = ""
        """Why a consumer ended the run; empty while none has."""
        self.record: Record | None = None
        """The newest record; consumers may still be adding to it."""
        self._chain = Chain(consumers)
        self._initial_state: dict[str, Tensor] = {}
        self._prepared: Any = None
        self._numbers: dict[str, Tensor] = {}
        self._collection_seconds = self._learning_seconds = 0.0
        self._warned_about_pool = False
        self._work = {
            "warmup": self._warm_up,
            "collect": self._collect,
            "prepare": self._prepare,
            "update": self._update,
            "absorb": self._absorb,
            "consume": self._consume,
        }

    # -- the loop ------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        """Finish the present iteration and return its record."""
        if self.finished:
            raise StopIteration
        while self.advance() != "consume":
            pass
        assert self.record is not None
        return self.record

    def __call__(self) -> Iterator[dict[str, Any]]:
        """Yield log_data: {"log_type": "collect" | "train" | "evaluate", "sample_step": …, "logs": {…}}.

        'logs' is left out when there is nothing to report. Like the records, it goes on where the last loop stopped.
        """
        while not self.finished:
            log_data = self._log_data(self.advance())
            if log_data is not None:
                yield log_data

    def advance(self) -> str:
        """Do the work of one phase, move on to the next, and return the phase that was done."""
        phase = self.phase
        self._work[phase]()
        return phase

    @property
    def ending(self) -> bool:
        """Whether there is no further iteration: the plan is fulfilled, or a consumer gave a reason to stop."""
        return bool(self.stop_reason) or self.plan.is_over(self.iteration, self.env_steps)

    @property
    def finished(self) -> bool:
        """Whether the last iteration is over, consumers included."""
        return self.phase in _BETWEEN and self.ending

    @property
    def remaining_iterations(self) -> int | None:
        """How many iterations the plan still has; None without a limit."""
        return self.plan.remaining_iterations(self.iteration, self.env_steps, self.collector.env.num_envs)

    def go_on(self) -> None:
        """Forget why the run was stopped; the plan's own end stays."""
        self.stop_reason = ""

    def _log_data(self, phase: str) -> dict[str, Any] | None:
        if phase == "collect":
            return _log_data("collect", self.env_steps, _logs(_present(read_packed(self._numbers)), "collect"))
        if phase == "absorb" and self.record is not None:
            return _log_data("train", self.env_steps, self.record.logs("train"))
        if phase == "consume" and self.record is not None and self.record.logs("evaluate"):
            return _log_data("evaluate", self.env_steps, self.record.logs("evaluate"))
        return None

    # -- the phases ----------------------------------------------------------------------------------------------------

    def _warm_up(self) -> None:
        """Let the normalisers see some steps before the first rollout."""
        left = self.plan.warmup_steps
        while left:
            steps = min(left, self.plan.num_steps_per_env)
            self._fill(steps)
            self.algorithm.absorb(tree.index(self.storage.data, slice(0, steps)))
            left -= steps
        self.phase = "collect"

    def _collect(self) -> None:
        self.collector.ready()
        self._initial_state = self.collector.current_state
        self._collection_seconds = self._fill(self.plan.num_steps_per_env)
        found = self.collector.statistics.tensors()
        self._numbers = {f"collect/{name}": value for name, value in found.items() if name != "steps"}
        if self.storage.finals is not None:
            self._numbers[_DROPPED] = (self.storage.finals.count - self.storage.finals.size).clamp(min=0)
        self.phase = "prepare"

    def _fill(self, num_steps: int) -> float:
        """Collect so many steps per env into the empty storage and return how long it took."""
        self.storage.clear()
        collected = self.collector.collect(n_step=num_steps * self.collector.env.num_envs, storage=self.storage)
        self.env_steps += collected.num_steps
        for fault in collected.faults:
            _log.warning("bad number, left out: %s", fault)
        return collected.seconds

    def _prepare(self) -> None:
        started = time.perf_counter()
        self._prepare_targets()
        self._learning_seconds = time.perf_counter() - started
        self.phase = "update"

    def _prepare_targets(self) -> None:
        self._prepared = self.algorithm.prepare(
            self.storage,
            initial_state=self._initial_state,
            last_obs=self.collector.current_obs,
            last_state=self.collector.current_state,
        )

    def _update(self) -> None:
        started = time.perf_counter()
        numbers = self.algorithm.update(self._prepared, order_generator(self.seed, self.iteration))
        self._numbers |= {f"train/{name}": value for name, value in numbers.items()}
        self._prepared = None
        self.num_updates += self.algorithm.num_updates_per_rollout
        self._learning_seconds += time.perf_counter() - started
        self.phase = "absorb"

    def _absorb(self) -> None:
        """Let the normalisers learn, and read all numbers of the iteration from the device, in one go."""
        started = time.perf_counter()
        self.algorithm.absorb(self.storage.data)
        metrics = _present(read_packed(self._numbers))
        self._learning_seconds += time.perf_counter() - started
        self._warn_about_pool(metrics)
        self.iteration += 1
        self.record = Record(
            iteration=self.iteration,
            env_steps=self.env_steps,
            num_updates=self.num_updates,
            num_steps=self.plan.num_steps_per_env * self.collector.env.num_envs,
            metrics=metrics,
            collection_seconds=self._collection_seconds,
            learning_seconds=self._learning_seconds,
        )
        self.phase = "consume"

    def _warn_about_pool(self, metrics: dict[str, float]) -> None:
        if metrics.pop(_DROPPED, 0.0) and not self._warned_about_pool:
            self._warned_about_pool = True
            _log.warning(
                "more episodes were cut by the time limit than the storage has room for final observations; the rest "
                "are valued with V(s_t). Give the storage a larger pool_size"
            )

    def _consume(self) -> None:
        """Hand the record to the consumers; each sees the state as it will be after it, so the last one may save it."""
        assert self.record is not None
        for consumer in self._chain.rest():
            self.phase = "consume" if self._chain.position else "collect"
            reaction = consumer.consume(self.record, self)
            self.record = self.record.with_metrics(reaction.metrics)
            self.stop_reason = self.stop_reason or reaction.stop
        self.phase = "collect"

    # -- saving and closing --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything that new objects need to go on bit for bit, as copies."""
        return {
            "phase": self.phase,
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "num_updates": self.num_updates,
            "seed": self.seed,
            "stop_reason": self.stop_reason,
            "record": None if self.record is None else self.record.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "collector": self.collector.state_dict(),
            "consumers": self._chain.state_dict(),
            "rollout": self._rollout_state() if self.phase in ("prepare", "update", "absorb") else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another trainer, built from parts of the same kind, was."""
        self.algorithm.load_state_dict(state["algorithm"])
        self.collector.load_state_dict(state["collector"])
        self._chain.load_state_dict(state["consumers"])
        self.phase, self.stop_reason = str(state["phase"]), str(state["stop_reason"])
        self.iteration, self.env_steps = int(state["iteration"]), int(state["env_steps"])
        self.num_updates, self.seed = int(state["num_updates"]), int(state["seed"])
        self.record = None if state["record"] is None else Record.from_state(state["record"])
        self._prepared = None
        if state["rollout"] is not None:
            self._load_rollout(state["rollout"])

    def _rollout_state(self) -> dict[str, Any]:
        return {
            "storage": self.storage.state_dict(),
            "initial_state": tree.copy(self._initial_state),
            "numbers": tree.copy(self._numbers),
            "collection_seconds": self._collection_seconds,
            "learning_seconds": self._learning_seconds,
        }

    def _load_rollout(self, state: Mapping[str, Any]) -> None:
        self.storage.load_state_dict(state["storage"])
        self._initial_state, self._numbers = tree.copy(state["initial_state"]), tree.copy(state["numbers"])
        self._collection_seconds = float(state["collection_seconds"])
        self._learning_seconds = float(state["learning_seconds"])
        if self.phase == "update":
            # targets follow from the rollout and the policy, neither of which has changed since they were made
            self._prepare_targets()

    def close(self) -> None:
        """Close the consumers and the envs; calling it twice is fine."""
        self._chain.close()
        self.collector.env.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _present(metrics: dict[str, float]) -> dict[str, float]:
    """Drop what means nothing before the first episode has finished."""
    if metrics.get("collect/episodes"):
        return metrics
    absent = {f"collect/{name}" for name in ("episodes", *OF_EPISODES)}
    return {name: value for name, value in metrics.items() if name not in absent}


def _logs(metrics: Mapping[str, float], log_type: str) -> dict[str, float]:
    prefix = f"{log_type}/"
    kept = {name: value for name, value in metrics.items() if name.startswith(prefix) and name != _DROPPED}
    return {name.removeprefix(prefix): value for name, value in kept.items()}


def _log_data(log_type: str, sample_step: int, logs: dict[str, float]) -> dict[str, Any]:
    log_data: dict[str, Any] = {"log_type": log_type, "sample_step": sample_step}
    return {**log_data, "logs": logs} if logs else log_data
