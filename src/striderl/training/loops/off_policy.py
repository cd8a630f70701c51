"""Off-policy training: env steps into a replay and gradient steps on its samples take turns.

    warmup ─▶ interact:  step envs (train_every) ─▶ replay ─▶ sample ─▶ update ─▶ priorities   × num_updates_per_round
      once       ▲           └──────────────────── × num_steps_per_env / train_every ──────────┘
                 └─ until the plan is over

    overlap    envs       step 1 ██████  step 2 ██████       begun with the policy before the parallel updates
               learner           updates 1 ████ updates 2 ████     what they sample does not contain that step yet

The warm-up acts at random until `learning_starts`. Samples and noise depend on seed and counters alone.

An iteration that an error or an interrupt ends resumes at its next env step or gradient step. A gradient step that
raised has changed some parameters and not others; they are recomputed from the copy taken when the iteration began and
the samples since then:

    copy ── step 1 ── step 2 ── step 3 ⚡      load the copy, take steps 1 and 2 again, then step 3 with its own sample
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from striderl.collect.collector import Collector
from striderl.data import tree
from striderl.envs.vec_env import AsyncVecEnv, VecEnv
from striderl.execution.interrupts import check_interrupt
from striderl.execution.modes import Eager, Mode, mode_of
from striderl.ops.moments import pooled
from striderl.storage.replay.replay import Replay, ReplaySample
from striderl.storage.replay.samplers import BatchShare, NothingValidError, Prioritized, Uniform
from striderl.training.checks import check_collector
from striderl.training.distributed import RankLostError, Ranks
from striderl.training.graphed_updates import added, recorded_updates
from striderl.training.guard import Guard
from striderl.training.loops.loop import LoopCounters
from striderl.training.loops.on_policy import (
    collected_numbers,
    count_collected,
    loaded_counters,
    take_back_if_broken,
    without_episodes,
)
from striderl.training.plans import OffPolicyPlan
from striderl.training.protocols import ReplayAlgorithm, UpdateNoise, lacking, replay_for

_log = logging.getLogger(__name__)

_FOLD = 256
"""How many gradient steps' metrics are summed at once."""
_MOST_BYTES = 64 * 2**20
"""Memory limit of the samples since the last copy of the learned state; beyond it a new copy is made."""


class ReplayLearner:
    """Take gradient steps on samples of a replay and sum their metrics.

    On a GPU they are replayed as CUDA graphs, sampling included, where that works: see `recorded_updates`.
    """

    def __init__(
        self,
        algorithm: ReplayAlgorithm,
        replay: Replay,
        batch_size: int,
        seed: int,
        *,
        absorbs: bool = True,
        mode: Mode | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Prepare; nothing is sampled yet. `absorbs`: whether normalisers are updated from samples.

        `mode` is how whole steps are run, sampling included; the algorithm's own without one. Of several processes,
        `ranks`, each samples its part of the batch from its own replay.
        """
        self.algorithm, self.replay, self.absorbs = algorithm, replay, absorbs
        share = batch_share(replay, batch_size, ranks or Ranks())
        self.batch_size, self._reduce = share.count, share.reduce
        device = next(algorithm.policy.parameters()).device
        self.noise = UpdateNoise(algorithm.noise(), share.count, seed, device, first=share.first)
        self._numbers: list[dict[str, Tensor]] = []
        self._sums: dict[str, tuple[Tensor, int]] = {}
        self._last: Mapping[str, Any] | None = None
        if mode is None:
            alone = ranks is None or ranks.world_size == 1
            mode = mode_of(algorithm.config.mode, device, alone=alone) if device.type == "cuda" else Eager()
        self.recorded = recorded_updates(algorithm, replay, batch_size, self.noise, mode)
        """Replays CUDA graphs of whole steps; None without them."""
        self.played = False
        self._copy: Mapping[str, Any] = {}
        self._since: list[tuple[int, ReplaySample]] = []
        """The gradient steps since the copy, by number and sample."""
        self._most_since = 0
        self._drawn: ReplaySample | None = None
        """The sample of a gradient step that has not finished."""
        self._broken = False

    def begin(self, copy: Mapping[str, Any]) -> None:
        """Begin an iteration; `copy` is the algorithm's `state_dict` before it."""
        self._copy, self._since, self._drawn, self._broken, self._most_since = copy, [], None, False, 0

    def step(self, number: int) -> bool:
        """Sample, update, and write back the priorities; `number` counts gradient steps since the run began.

        Returns False, with nothing done, while the replay has no valid step to sample.
        """
        self.mend()
        self.played = self.recorded is not None and self.recorded.play(number)
        if self.played:
            self._copy = {}  # CUDA graphs keep no samples
            return True
        try:
            sample = self._drawn = self._drawn or self.replay.sample(self.batch_size)
        except NothingValidError:
            return False
        self._broken = True
        try:
            numbers = self._updated(number, sample)
        except RankLostError:
            self._load_copy()
            raise
        except BaseException:
            self.mend()
            raise
        self._broken = False
        self._count(number, sample)
        if "td_error" in numbers:
            # a TD error that is not finite comes from broken parameters; as a priority it would break sampling for good
            error = torch.nan_to_num(numbers.pop("td_error"), nan=0.0, posinf=0.0, neginf=0.0)
            self.replay.update_priorities(sample.handle, error)
        self._numbers.append(numbers)
        if len(self._numbers) == _FOLD:
            self._fold()
        self._last = sample.data
        return True

    def _updated(self, number: int, sample: ReplaySample) -> dict[str, Tensor]:
        with pooled(self._reduce):
            return dict(self.algorithm.update(sample.data, sample.weight, self.noise.at(number)))

    def _load_copy(self) -> None:
        """Return to the start of the iteration: without all processes its gradient steps cannot be taken again."""
        if self._copy:
            self.algorithm.load_state_dict(self._copy)
        self._since, self._drawn, self._broken = [], None, False

    def _count(self, number: int, sample: ReplaySample) -> None:
        """Keep the sample of a gradient step, up to a limit of memory."""
        self._drawn = None
        if not self._copy:
            return
        if not self._most_since:
            size = sum(leaf.nbytes for leaf in tree.leaves(sample.data) if isinstance(leaf, Tensor))
            self._most_since = max(1, _MOST_BYTES // max(1, size))
        self._since.append((number, sample))
        if len(self._since) >= self._most_since:
            self._copy, self._since = self.algorithm.state_dict(), []

    def mend(self) -> None:
        """Restore the parameters after a gradient step that raised; do nothing where none has."""
        if not self._broken:
            return
        if self._copy:
            self.algorithm.load_state_dict(self._copy)
            for number, sample in self._since:
                self._updated(number, sample)
        else:
            _log.warning(
                "a gradient step raised half-way and is not taken back: there is no copy of what was learned before it"
            )
        self._broken = False

    def _fold(self) -> None:
        """Sum the waiting metrics; an actor that is updated less often reports in some steps only."""
        for name in dict.fromkeys(name for numbers in self._numbers for name in numbers):
            found = torch.stack([numbers[name] for numbers in self._numbers if name in numbers])
            total, count = self._sums.get(name, (torch.zeros_like(found[0]), 0))
            self._sums[name] = (total + found.sum(), count + len(found))
        self._numbers = []

    def finish(self) -> dict[str, Tensor]:
        """Return the means since the last call under 'train/…', and update the normalisers from the last sample."""
        if self.played and self.recorded is not None:
            self._last = self.recorded.last_sample() if self.absorbs else None
        if self._last is not None and self.absorbs:
            self.mend()
            self._broken = True
            try:
                with pooled(self._reduce):
                    self.algorithm.update_normalization(self._last)
            except RankLostError:
                self._load_copy()
                raise
            except BaseException:
                self.mend()
                raise
        self.begin({})
        self._fold()
        if self.recorded is not None:
            self._sums = added(self._sums, self.recorded.take_totals())
        means = {f"train/{name}": total / count for name, (total, count) in self._sums.items()}
        self._sums, self._last, self.played = {}, None, False
        if self._reduce is None or not means:
            return means
        # sample means are equal everywhere; of other metrics, the mean over processes
        total = self._reduce(torch.stack([*means.values(), torch.ones_like(next(iter(means.values())))]))
        return dict(zip(means, (total[:-1] / total[-1]).unbind()))


def batch_share(replay: Replay, batch_size: int, ranks: Ranks) -> BatchShare:
    """Return this process's part of every batch, and let the replay's sampler draw that part alone."""
    if ranks.world_size == 1:
        return BatchShare(batch_size=batch_size)
    if not isinstance(replay.sampler, (Uniform, Prioritized)):
        raise TypeError(
            f"several processes sample uniformly or by priority, found a {type(replay.sampler).__name__}; train in one"
        )
    if batch_size % ranks.world_size:
        raise ValueError(f"a batch of {batch_size} samples cannot be shared evenly by {ranks.world_size} processes")
    share = BatchShare(rank=ranks.rank, num_ranks=ranks.world_size, batch_size=batch_size, reduce=ranks.all_reduce_sum)
    replay.sampler.share = share
    return share


@dataclass
class _Iteration:
    """What is left of an interrupted iteration."""

    num_rounds: int
    """Rounds that are not finished."""
    num_valid: Tensor
    """How many valid steps there were before the iteration."""
    largest: Tensor | None = None
    """The largest priority before the iteration."""
    num_updates: int = 0
    """Gradient steps left in the present round; 0 before its env steps are taken."""
    collected: bool = False
    """Whether the env steps of the present round are taken, and the next one is not begun."""


class OffPolicyLoop:
    """The work of an iteration that collects into a replay and learns from samples of it."""

    phases: tuple[str, ...] = ("interact",)

    def __init__(
        self,
        algorithm: ReplayAlgorithm,
        collector: Collector,
        plan: OffPolicyPlan,
        *,
        storage: Replay | None = None,
        seed: int = 0,
        total_envs: int = 0,
        ranks: Ranks | None = None,
    ) -> None:
        """Put the parts together, or raise naming those that do not fit; nothing is run yet.

        `total_envs` is how many envs all processes, `ranks`, have together; plans and env steps count those of all.
        """
        check_replay_algorithm(algorithm, "OffPolicyPlan")
        check_collector(collector)
        self.ranks, self.total_envs = ranks or Ranks(), total_envs or collector.env.num_envs
        if storage is None:
            capacity = plan.buffer_size // self.total_envs * collector.env.num_envs
            capacity = plan.buffer_size if self.ranks.world_size == 1 else capacity
            storage = replay_for(collector, algorithm, capacity, seed)
        self.algorithm, self.collector, self.plan = algorithm, collector, plan
        self.storage, self.seed = storage, seed
        device = next(algorithm.policy.parameters()).device
        self.mode: Mode = Eager()
        if device.type == collector.env.device.type:
            self.mode = mode_of(algorithm.config.mode, device, alone=self.ranks.world_size == 1)
            collector.mode = self.mode.collection
        if plan.overlap:
            _check_overlap(collector.env)
        self.first_phase = "warmup" if plan.learning_starts else "interact"
        self.counters = LoopCounters()
        self.guard = Guard(algorithm, reduce=self.ranks.reduce)
        self.learner = self.new_learner()
        self._iteration: _Iteration | None = None

    def new_learner(self) -> ReplayLearner:
        """Return a learner that samples from the beginning; a loaded state then replaces its counters."""
        return ReplayLearner(
            self.algorithm, self.storage, self.plan.batch_size, self.seed, mode=self.mode, ranks=self.ranks
        )

    def run(self, phase: str, iteration: int) -> None:
        """Run a phase."""
        if phase == "warmup":
            self._warm_up()
        else:
            self._interact()

    def _warm_up(self) -> None:
        """Collect random actions, at most an iteration's steps per call."""
        self.algorithm.explore(0, random=True)
        left = -(-self.plan.learning_starts // self.total_envs) - self.counters.env_steps // self.total_envs
        self._collect(min(left, self.plan.num_steps_per_env))

    def _collect(self, num_steps: int) -> None:
        """Collect so many steps of each env, and count those of all processes."""
        own, everywhere = num_steps * self.collector.env.num_envs, num_steps * self.total_envs
        count_collected(self.collector, own, self.storage, self.counters, elsewhere=everywhere - own)

    @property
    def is_warm(self) -> bool:
        """Whether there is enough in the replay to learn from."""
        return self.counters.env_steps >= self.plan.learning_starts

    def _interact(self) -> None:
        sampler, plan = self.storage.sampler, self.plan
        if self._iteration is None:
            self.counters.begin()
            self.guard.before()
            self.learner.begin(self.guard.kept)
            num_valid = self.collector.statistics.num_steps.clone()
            self._iteration = _Iteration(plan.num_steps_per_env // plan.train_every, num_valid, sampler.largest)
        iteration = self._iteration
        while iteration.num_rounds:
            if not iteration.num_updates:
                self._collect_round(iteration)
            started = time.perf_counter()
            while iteration.num_updates:
                check_interrupt()
                self.counters.num_updates += self.learner.step(self.counters.num_updates)
                iteration.num_updates -= 1
            self.counters.learning_seconds += time.perf_counter() - started
            iteration.num_rounds -= 1
        self.counters.numbers = {**collected_numbers(self.collector), **self.learner.finish()}
        self._iteration = None
        valid = self.collector.statistics.num_steps - iteration.num_valid
        num_steps = self.counters.num_steps * self.collector.env.num_envs // self.total_envs
        if take_back_if_broken(self.guard, self.counters, self.collector.env.device, valid, num_steps):
            self.collector.reset()  # the broken policy may have put envs, and its recurrent state, anywhere
            if iteration.largest is not None:
                sampler.limit(iteration.largest)  # errors of broken parameters are no priorities
        self.guard.forget()

    def _collect_round(self, iteration: _Iteration) -> None:
        """Collect the steps before a round of gradient steps, and with overlap begin the first one after it."""
        if not iteration.collected:
            self.algorithm.explore(self.counters.env_steps, random=False)
            self._collect(self.plan.train_every)
            iteration.collected = True
        if (
            self.plan.overlap and iteration.num_rounds > 1
        ):  # nothing is under way when an iteration ends, and may be saved
            self.algorithm.explore(self.counters.env_steps, random=False)
            self.collector.launch()
        iteration.num_updates, iteration.collected = self.plan.num_updates_per_round, False

    def settle(self) -> None:
        """Do nothing: between iterations nothing is under way."""

    def finish(self, numbers: dict[str, float]) -> dict[str, float]:
        """Leave out episode statistics before the first episode has ended."""
        return without_episodes(numbers)

    def is_over(self, iteration: int) -> bool:
        """Return whether the plan is fulfilled."""
        return self.plan.is_over(iteration, self.counters.env_steps)

    def remaining_iterations(self, iteration: int) -> int | None:
        """Return how many iterations the plan has left, or None without a limit."""
        return self.plan.remaining_iterations(iteration, self.counters.env_steps, self.total_envs)

    def state_dict(self, phase: str) -> dict[str, Any]:
        """Return the whole state, replay included."""
        if self.collector.schedule.busy:  # an error or an interrupt came while the envs were a step ahead
            self.collector.reset()
        return {
            "seed": self.seed,
            "env_steps": self.counters.env_steps,
            "num_updates": self.counters.num_updates,
            "faults": self.counters.faults.state_dict(),
            "guard": self.guard.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "collector": self.collector.state_dict(),
            "replay": self.storage.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], phase: str, iteration: int) -> None:
        """Load the state of a training loop built from parts of the same kind."""
        self.algorithm.load_state_dict(state["algorithm"])
        self.collector.load_state_dict(state["collector"])
        self.storage.load_state_dict(state["replay"])
        if state["collector"]["env"] is None:
            self.storage.cut()  # new episodes begin, which do not follow those in the replay
        self.seed = int(state["seed"])
        self.counters = loaded_counters(self.counters, state)
        self.guard.load_state_dict(state["guard"])
        self.learner, self._iteration = self.new_learner(), None

    def close(self) -> None:
        """Close the envs."""
        self.collector.schedule.close()  # after an error, a step may be under way
        self.collector.env.close()


def _check_overlap(env: VecEnv) -> None:
    """Raise for envs that cannot step during updates, and warn about those that would not."""
    if env.device.type != "cpu":
        raise ValueError(
            f"OffPolicyPlan.overlap simulates on the CPU while it learns; the tensors of these envs are on {env.device}"
        )
    if isinstance(env, AsyncVecEnv) and not env.runs_ahead:
        _log.warning(
            "OffPolicyPlan.overlap has no effect: these envs are stepped in this process, when their step is wanted. "
            "Give them worker processes (WorkerConfig(num_workers=2))"
        )


def check_replay_algorithm(algorithm: object, plan: str) -> None:
    """Raise TypeError for an algorithm that cannot learn from samples."""
    if not isinstance(algorithm, ReplayAlgorithm):
        raise TypeError(
            f"Trainer wants an algorithm that learns from replay, such as DQN or SAC, with an {plan}, "
            f"found {type(algorithm).__name__}{lacking(algorithm, ReplayAlgorithm)}"
        )
