"""On-policy training: collect a rollout, learn from all of it, discard it.

    warmup ─▶ collect ─▶ prepare ─▶ update ─▶ absorb
      once       ▲       targets   gradients  normalisers
                 └──────────────────────────────┘

Nothing here draws from a generator that would have to be saved: the order of minibatches follows from seed and
iteration.

    overlap    envs       rollout 2 ███████████   rollout 3 ███████████     with the policy before the parallel update
               learner          update 1 ██████      update 2 ██████        a step that ended is taken in between two
                                                                            gradient steps, and the next one launched

With `overlap`, actions come from a copy of the policy, renewed when a rollout begins: what is collected does not
depend on how fast envs and learner are. A rollout under way is finished before the state is saved, as part of it.

A phase that an error or an interrupt ends is run again, to the same bits: a rollout resumes at its next step, an update
or a partial update of the normalisers is rolled back first.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from striderl.collect.actors.policy_actor import PolicyActor
from striderl.collect.collector import Collected, Collector
from striderl.collect.quarantine import Fault
from striderl.collect.statistics import OF_EPISODES
from striderl.data import tree
from striderl.policies.policy import Policy
from striderl.storage.rollout import RolloutStorage
from striderl.storage.rollout_presets import QueueRolloutStorage
from striderl.training.checks import (
    check_collector,
    check_overlap,
    check_policy,
    check_queue,
    check_storage,
    warn_about_finals,
)
from striderl.training.guard import Guard
from striderl.training.loops.loop import LoopCounters
from striderl.training.plans import OnPolicyPlan
from striderl.training.protocols import OnPolicyAlgorithm, lacking, order_generator, storage_for

_log = logging.getLogger(__name__)

_DROPPED = "collect/final_obs_dropped"


class OnPolicyLoop:
    """The work of an iteration that learns from a fresh rollout."""

    phases: tuple[str, ...] = ("collect", "prepare", "update", "absorb")

    def __init__(
        self,
        algorithm: OnPolicyAlgorithm,
        collector: Collector,
        plan: OnPolicyPlan,
        *,
        storage: RolloutStorage | QueueRolloutStorage | None = None,
        seed: int = 0,
        total_envs: int = 0,
    ) -> None:
        """Put the parts together, or raise naming those that do not fit; nothing is run yet.

        `total_envs` is how many envs all processes that learn together have; env steps count those of all.
        """
        if not isinstance(algorithm, OnPolicyAlgorithm):
            raise TypeError(
                "Trainer wants an on-policy algorithm such as PPO with an OnPolicyPlan, found "
                f"{type(algorithm).__name__}{lacking(algorithm, OnPolicyAlgorithm)}"
            )
        check_collector(collector)
        check_policy(algorithm, collector)
        algorithm.check_rollout(plan.num_steps_per_env, collector.env.num_envs, collector.columns())
        if storage is None:
            storage = storage_for(algorithm, collector, plan.num_steps_per_env)
        check_queue(storage, algorithm)
        check_storage(storage, collector, plan)
        if plan.warmup_steps and storage.keeps_rollouts:
            raise ValueError(
                "warmup_steps and a dilated buffer: what the warm-up collects would be learned from; drop one"
            )
        warn_about_finals(storage, collector)
        self.algorithm, self.collector, self.plan = algorithm, collector, plan
        self.storage, self.seed = storage, seed
        collector.mode = algorithm.updater.mode.collection
        self.first_phase = "warmup" if plan.warmup_steps else "collect"
        self.counters = LoopCounters()
        self.total_envs = total_envs or collector.env.num_envs
        self.guard = Guard(algorithm, reduce=algorithm.updater.reduce)
        self._initial_state: dict[str, Tensor] = {}
        self._last: tuple[Any, Any] | None = None
        """Observation after a loaded rollout: the envs may have been reset since then."""
        self._prepared: Any = None
        self._unabsorbed = 0
        """Warm-up steps that the normalisers were not yet updated with."""
        self._warned_about_pool = False
        self._overlapped: OverlappedRollout | None = None
        if plan.overlap:
            check_overlap(algorithm, collector, storage)
            ahead = storage_for(algorithm, collector, plan.num_steps_per_env)
            assert isinstance(ahead, RolloutStorage)
            self._overlapped = OverlappedRollout(algorithm.policy, collector, ahead)

    def run(self, phase: str, iteration: int) -> None:
        """Run a phase."""
        if phase == "warmup":
            self._warm_up()
        elif phase == "collect":
            self._collect()
        else:
            started = time.perf_counter()
            if phase == "prepare":
                self._prepare()
            elif phase == "update":
                self._update(iteration)
            else:
                self._update_normalization(self.storage.newest)
            self.counters.learning_seconds += time.perf_counter() - started

    def _warm_up(self) -> None:
        """Update the normalisers with steps before the first rollout, at most a rollout per call."""
        if not self._unabsorbed:
            done = self.counters.env_steps // self.total_envs
            steps = min(self.plan.warmup_steps - done, self.plan.num_steps_per_env)
            self._fill(steps)
            self._unabsorbed = steps
        self._update_normalization(tree.index(self.storage.data, slice(0, self._unabsorbed)))
        self._unabsorbed = 0

    def _update_normalization(self, columns: Mapping[str, Any]) -> None:
        """Update the normalisers; the guard holds a copy of the state before the update phase."""
        if not self.guard.kept:
            self.guard.keep()
        try:
            self.algorithm.update_normalization(columns)
        except BaseException:
            self.guard.roll_back()
            raise
        self.guard.forget()

    @property
    def is_warm(self) -> bool:
        """Whether the warm-up is over."""
        return self.counters.env_steps >= self.plan.warmup_steps * self.total_envs

    def settle(self) -> None:
        """Finish the rollout that is simulated beside the update, if there is one."""
        if self._overlapped is not None:
            self._overlapped.settle()

    def _collect(self) -> None:
        if self._overlapped is not None:
            self._take_over(self._overlapped)
        else:
            if not self.collector.interrupted:
                self.counters.begin()
                self.collector.ready()
                self._last = None
                self._initial_state = self.collector.current_state
            self._fill(self.plan.num_steps_per_env)
        self.counters.numbers = collected_numbers(self.collector)
        if self.storage.finals is not None:
            self.counters.numbers[_DROPPED] = (self.storage.finals.count - self.storage.finals.size).clamp(min=0)

    def _take_over(self, overlapped: OverlappedRollout) -> None:
        """Wait for the rollout that was begun during the last update; the first one is begun here."""
        self.counters.begin()
        overlapped.begin()
        collected = overlapped.settle()
        assert collected is not None
        self._initial_state = overlapped.initial_state
        self._last = self.collector.current_obs, self.collector.current_state
        overlapped.hand_over(self.storage)
        elsewhere = self.plan.num_steps_per_env * (self.total_envs - self.collector.env.num_envs)
        count_steps(collected, self.counters, elsewhere)

    def _fill(self, num_steps: int) -> None:
        """Collect so many steps per env into the empty storage, or the rest of them after an interrupt."""
        if self._overlapped is not None:
            self._overlapped.renew_policy()
        if not self.collector.interrupted:
            self.storage.clear()
        own, everywhere = num_steps * self.collector.env.num_envs, num_steps * self.total_envs
        count_collected(self.collector, own, self.storage, self.counters, elsewhere=everywhere - own)

    def _prepare(self) -> None:
        if self._overlapped is not None:
            self._overlapped.begin()
        last_obs, last_state = self._last or (self.collector.current_obs, self.collector.current_state)
        self._prepared = self.algorithm.prepare(
            self.storage, initial_state=self._initial_state, last_obs=last_obs, last_state=last_state
        )

    def _update(self, iteration: int) -> None:
        self.guard.before()
        order = order_generator(self.seed, iteration, self.collector.env.device)
        if self._overlapped is not None:
            self._overlapped.begin()  # again after an error of the envs
            self.algorithm.updater.after_step = self._overlapped.advance
        try:
            numbers = self.algorithm.update(self._prepared, order)
        except BaseException:
            self.guard.roll_back()
            raise
        finally:
            self.algorithm.updater.after_step = None
        self.counters.numbers |= {f"train/{name}": torch.as_tensor(value) for name, value in numbers.items()}
        self._prepared = None
        self.counters.num_updates += self.algorithm.num_updates_per_rollout
        valid = self.storage.newest["valid"].sum()
        take_back_if_broken(self.guard, self.counters, self.collector.env.device, valid, self.counters.num_steps)

    def finish(self, numbers: dict[str, float]) -> dict[str, float]:
        """Drop episode statistics before the first episode has ended; warn when final observations were lost."""
        if numbers.pop(_DROPPED, 0.0) and not self._warned_about_pool:
            self._warned_about_pool = True
            _log.warning(
                "more episodes were cut by the time limit than the storage has room for final observations; the rest "
                "are valued with V(s_t). Give the storage a larger pool_size"
            )
        return without_episodes(numbers)

    def is_over(self, iteration: int) -> bool:
        """Return whether the plan is fulfilled."""
        return self.plan.is_over(iteration, self.counters.env_steps)

    def remaining_iterations(self, iteration: int) -> int | None:
        """Return how many iterations the plan has left, or None without a limit."""
        return self.plan.remaining_iterations(iteration, self.counters.env_steps, self.total_envs)

    def state_dict(self, phase: str) -> dict[str, Any]:
        """Return the whole state; the rollout only while it is in use, a queue of rollouts always."""
        in_use = phase in ("prepare", "update", "absorb") or self.storage.keeps_rollouts
        overlapped = None if self._overlapped is None else self._overlapped.state_dict()
        return {
            "seed": self.seed,
            "env_steps": self.counters.env_steps,
            "num_updates": self.counters.num_updates,
            "faults": self.counters.faults.state_dict(),
            "guard": self.guard.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "collector": self.collector.state_dict(),
            "rollout": self._rollout_state() if in_use else None,
            **({} if overlapped is None else {"overlapped": overlapped}),
        }

    def load_state_dict(self, state: Mapping[str, Any], phase: str, iteration: int) -> None:
        """Load the state of a training loop built from parts of the same kind."""
        self.algorithm.load_state_dict(state["algorithm"])
        self.collector.load_state_dict(state["collector"])
        self.seed = int(state["seed"])
        self.counters = loaded_counters(self.counters, state)
        self.guard.load_state_dict(state["guard"])
        self._prepared, self._unabsorbed = None, 0
        if self._overlapped is not None:
            self._overlapped.load_state_dict(state.get("overlapped"))
        if state["rollout"] is not None:
            self._load_rollout(state["rollout"], phase)

    def _rollout_state(self) -> dict[str, Any]:
        return {
            "storage": self.storage.state_dict(),
            "initial_state": tree.copy(self._initial_state),
            "last_obs": tree.copy(self._last[0] if self._last else self.collector.current_obs),
            "last_state": tree.copy(self._last[1] if self._last else self.collector.current_state),
            "numbers": tree.copy(self.counters.numbers),
            "num_steps": self.counters.num_steps,
            "collection_seconds": self.counters.collection_seconds,
            "learning_seconds": self.counters.learning_seconds,
        }

    def _load_rollout(self, state: Mapping[str, Any], phase: str) -> None:
        self.storage.load_state_dict(state["storage"])
        self._initial_state, self.counters.numbers = tree.copy(state["initial_state"]), tree.copy(state["numbers"])
        self._last = (tree.copy(state["last_obs"]), tree.copy(state["last_state"])) if "last_obs" in state else None
        self.counters.num_steps = int(state["num_steps"])
        self.counters.collection_seconds = float(state["collection_seconds"])
        self.counters.learning_seconds = float(state["learning_seconds"])
        if phase == "update":
            # targets depend on the rollout and the policy, neither of which has changed since
            self._prepare()

    def close(self) -> None:
        """Close the envs, once no step of theirs is under way."""
        self.collector.schedule.close()
        self.collector.env.close()


# -- simulating during updates -----------------------------------------------------------------------------------------


class OverlappedRollout:
    """The rollout that is simulated while the one before it is learned from."""

    def __init__(self, policy: Policy, collector: Collector, storage: RolloutStorage) -> None:
        """Let the collector act with a copy of the policy; nothing is begun yet."""
        self.initial_state: dict[str, Tensor] = {}
        """The actor's memory before the rollout."""
        self._policy, self._collector, self._storage = policy, collector, storage
        self._copy = copy.deepcopy(policy).requires_grad_(False)
        self._finished: Collected | None = None
        collector.actor = PolicyActor(self._copy)
        collector.mode = collector.mode  # also of groups that exist already

    def renew_policy(self) -> None:
        """Copy the policy's parameters and statistics, in place."""
        self._copy.load_state_dict(self._policy.state_dict())

    def begin(self) -> None:
        """Launch the first step with the policy as it is now, unless the rollout has begun."""
        if self._finished is not None or self._collector.interrupted:
            return
        self.renew_policy()
        self._collector.ready()
        self.initial_state = self._collector.current_state
        self._storage.clear()
        self._collector.begin(n_step=self._storage.num_steps * self._storage.num_envs, storage=self._storage)

    def advance(self) -> None:
        """Take in the steps that have ended and launch the next ones."""
        if self._finished is None:
            self._collector.advance()

    def settle(self) -> Collected | None:
        """Finish a rollout that has begun, and return what was collected."""
        if self._collector.interrupted:
            self._finished = self._collector.resume()
        return self._finished

    @torch.no_grad()
    def hand_over(self, storage: Any) -> None:
        """Copy the finished rollout into a storage; the next one may begin.

        The stored distributions become those of the present policy: the KL that the learning rate follows is then the
        one of this update, as without overlap. Log-probabilities and values stay those of the policy that acted.
        """
        storage.load_state_dict(self._storage.state_dict())
        self._finished = None
        data = storage.data
        done = data["terminated"] | data["truncated"]
        resets = torch.cat([torch.zeros_like(done[:1]), done[:-1]])
        memory = {name: self.initial_state[name] for name in self._policy.state_spec()}
        output = self._policy(data["obs"], memory, data["policy"]["memo"], resets, data["valid"])
        for name, value in output.distribution.params().items():
            data["policy"]["dist"][name].copy_(value)

    def state_dict(self) -> dict[str, Any] | None:
        """Return the rollout, once it is finished; None where none has begun, or an env has failed."""
        if self._collector.schedule.failed:
            self._collector.reset()
        found = self.settle()
        if found is None:
            return None
        faults = [
            {"component": each.component, "env": each.env, "step": each.step, "value": each.value, "count": each.count}
            for each in found.faults
        ]
        return {
            "storage": self._storage.state_dict(),
            "initial_state": tree.copy(self.initial_state),
            "num_steps": found.num_steps,
            "seconds": found.seconds,
            "faults": faults,
        }

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Go on with a saved rollout, or with none."""
        self._finished = None
        if state is None:
            return
        self._storage.load_state_dict(state["storage"])
        self.initial_state = tree.copy(state["initial_state"])
        faults = [Fault(**{name: each[name] for name in _OF_A_FAULT}) for each in state["faults"]]
        self._finished = Collected(int(state["num_steps"]), float(state["seconds"]), faults=faults)


_OF_A_FAULT = ("component", "env", "step", "value", "count")


# -- collecting, for every training loop that does ---------------------------------------------------------------------


def count_collected(
    collector: Collector, num_steps: int, storage: Any, counters: LoopCounters, elsewhere: int = 0
) -> None:
    """Collect so many steps into the storage, count them, and log what was quarantined.

    After an interrupt between two steps, the interrupted call is finished instead. `elsewhere` is how many steps
    other processes collect meanwhile.
    """
    collected = collector.resume() if collector.interrupted else collector.collect(n_step=num_steps, storage=storage)
    count_steps(collected, counters, elsewhere)


def count_steps(collected: Collected, counters: LoopCounters, elsewhere: int = 0) -> None:
    """Count what was collected, and log what was quarantined."""
    counters.env_steps += collected.num_steps + elsewhere
    counters.num_steps += collected.num_steps + elsewhere
    counters.collection_seconds += collected.seconds
    counters.faults.add(collected.faults, env_steps=counters.env_steps, num_updates=counters.num_updates)


def collected_numbers(collector: Collector) -> dict[str, Tensor]:
    """Return the collector's statistics under 'collect/…'."""
    found = collector.statistics.tensors(collector.mode)
    return {f"collect/{name}": value for name, value in found.items() if name != "steps"}


def take_back_if_broken(
    guard: Guard, counters: LoopCounters, device: torch.device, valid: Tensor, num_samples: int
) -> bool:
    """Check an update and return whether it was rolled back; the counts are logged as 'faults/…'.

    `valid` [] is how many of the iteration's `num_samples` new samples count.
    """
    at = {"env_steps": counters.env_steps, "num_updates": counters.num_updates}
    taken_back = guard.after(counters.faults, **at, valid=valid, num_samples=num_samples)
    counts = {"bad_samples": counters.faults.num_bad_samples, **guard.counts()}
    counters.numbers |= {
        f"faults/{name}": torch.full((), count, dtype=torch.float64, device=device) for name, count in counts.items()
    }
    return taken_back


def loaded_counters(before: LoopCounters, state: Mapping[str, Any]) -> LoopCounters:
    """Return the counters of a saved state with the present fault report."""
    before.faults.load_state_dict(state["faults"])
    return LoopCounters(env_steps=int(state["env_steps"]), num_updates=int(state["num_updates"]), faults=before.faults)


def without_episodes(numbers: dict[str, float]) -> dict[str, float]:
    """Drop episode statistics before the first episode has finished."""
    if numbers.get("collect/episodes"):
        return numbers
    absent = {f"collect/{name}" for name in ("episodes", *OF_EPISODES)}
    return {name: value for name, value in numbers.items() if name not in absent}
