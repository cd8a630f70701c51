"""Rollout workers as Ray actors: envs on other processes and machines, one learner here.

    learner ── weights, version v ──▶ object store ──▶ worker 0   envs 0 … 7      its own Collector
       ▲                                          ├──▶ worker 1   envs 8 … 15
       └── rollouts [T, n], made by version v ◀───┴──▶ worker 2   envs 16 … 23    an actor anywhere in the cluster

    synchronous     a rollout of every worker with the newest weights: what one process with all envs collects, to the
                    bit but for matrix products of fewer rows
    asynchronous    every worker is always collecting; the learner takes the first rollouts that are there, which are
                    a few versions old: `impala` corrects for that by V-trace, learners from replay need not

A worker has one rollout under way or waiting, so memory and staleness are bounded; one that is older than
`max_staleness` versions is dropped and counted. With a rollout a worker returns its state. When it dies, another one is
started anywhere in the cluster, gets that state and repeats the rollout: nothing is lost, and with the synchronous
schedule no bit differs. Only workers import the simulator; the learner gets specs. Scheduling, transport and placement
are Ray's: a worker that finds no free core waits for a node to join.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from striderl.collect.actors.base import Actor
from striderl.collect.actors.policy_actor import GreedyActor
from striderl.collect.collector import Collected, Collector, CollectorConfig
from striderl.collect.statistics import EpisodeStatistics
from striderl.data import tree
from striderl.data.transition import Transition
from striderl.envs.vec_env import Actions, Obs, StateUnsupportedError, Step, VecEnv
from striderl.execution.modes import Mode
from striderl.storage.replay.replay import Replay
from striderl.training.callbacks.evaluate import Evaluate
from striderl.training.evaluation import EvaluationResult
from striderl.training.experiment.assembly import Learner, build_learner
from striderl.training.experiment.rollout_worker import Shipment
from striderl.training.experiment.run_config import EvaluationSettings, RunConfig
from striderl.training.experiment.worker_fleet import Fleet
from striderl.training.plans import OffPolicyPlan

_log = logging.getLogger(__name__)

ASYNCHRONOUS = "asynchronous"


class RemoteEnv(VecEnv):
    """The specs of the workers' envs; stepping is theirs."""

    def __init__(self, fleet: Fleet, num_envs: int) -> None:
        """Take the specs of the first worker."""
        for name, value in fleet.about["specs"].items():
            setattr(self, name, value)
        self.num_envs, self.device, self.fleet = num_envs, torch.device(fleet.config.device), fleet

    def reset(self, seed: int | None = None) -> Obs:
        """Raise: the workers do it."""
        raise RuntimeError("these envs are stepped by workers")

    def step(self, actions: Actions) -> Step:
        """Raise: the workers do it."""
        raise RuntimeError("these envs are stepped by workers")

    def reset_envs(self, mask: Tensor) -> Obs:
        """Raise: the workers do it."""
        raise RuntimeError("these envs are stepped by workers")

    @property
    def episode_length_buf(self) -> Tensor:
        """Raise: the workers have it."""
        raise StateUnsupportedError("the ages of episodes are with the workers")

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        raise StateUnsupportedError("the ages of episodes are with the workers")

    def metrics(self) -> dict[str, Tensor]:
        """Return nothing: evaluations have them."""
        return {}

    def close(self) -> None:
        """End the workers."""
        self.fleet.close()


class RemoteCollector(Collector):
    """A collector whose envs are stepped by workers; see the top of this module."""

    def __init__(self, env: RemoteEnv, actor: Actor, config: CollectorConfig) -> None:
        """Take the specs of the workers' envs and the learner's own actor."""
        super().__init__(env, actor, config)
        self.fleet, settings = env.fleet, env.fleet.config
        self.waits_for_all = settings.workers.schedule != ASYNCHRONOUS
        self.replays = isinstance(settings.plan, OffPolicyPlan)
        self.num_steps = settings.plan.train_every if self.replays else settings.plan.num_steps_per_env
        """Steps per env of a rollout that workers collect ahead."""
        self.statistics = self._seen = WorkerStatistics(settings.env.num_envs, env.device, config.window)
        self.version = 0
        """How often weights were published."""
        self.num_dropped = 0
        """Rollouts that were too old."""
        self.env_steps = 0
        """Steps that were handed over."""
        self._position: list[tuple[Obs, Any]] = []
        self._batch: list[tuple[int, Shipment]] = []
        self._expected = [0] * self.fleet.num_workers

    @property
    def interrupted(self) -> bool:
        """False: a rollout arrives whole or not at all."""
        return False

    def ready(self) -> None:
        """Start the first episodes, or wait for the next rollouts where workers run ahead."""
        if self._runs_ahead:
            if not self._batch and not self.replays:
                self._batch = self._next_batch()
                self._position = [shipment.first for _, shipment in self._batch]
        elif not self._position:
            for number in range(self.fleet.num_workers):
                place, events = self.fleet.call(number, lambda worker: worker.ready.remote())
                self._position.append(place)
                self._repeat(self.fleet.rows[number], None, iter(events))

    @property
    def _runs_ahead(self) -> bool:
        """Whether workers collect while the learner learns: not while they act at random, before learning starts."""
        return not self.waits_for_all and not getattr(self.actor, "random", False)

    @property
    def current_obs(self) -> Obs:
        """The next observation of every env of the batch."""
        return {name: torch.cat([obs[name] for obs, _ in self._position]).to(self.env.device) for name in self.obs_spec}

    @property
    def current_state(self) -> Any:
        """The actor's memory before the next step."""
        return tree.map(lambda leaf: leaf.to(self.env.device), tree.cat([state for _, state in self._position]))

    def collect(self, *, n_step: int | None = None, storage: Any = None, **other: Any) -> Collected:
        """Collect a rollout: of every worker, or of the first ones that have one."""
        if n_step is None or n_step % self.env.num_envs or other:
            raise ValueError(f"workers collect whole steps of {self.env.num_envs} envs, found n_step={n_step}, {other}")
        started = time.perf_counter()
        self.ready()
        if not self._runs_ahead:
            batch = self._of_all(n_step // self.env.num_envs)
        elif self.replays:
            batch = self._next_batch()
        else:
            batch, self._batch = self._batch, []
        self._seen.note(
            [self.version - shipment.version for _, shipment in batch], self.num_dropped, self.fleet.num_replaced
        )
        self._store(batch, storage)
        self._position = [shipment.last for _, shipment in batch]
        self.env_steps += n_step
        faults = [fault for _, shipment in batch for fault in shipment.faults]
        return Collected(n_step, time.perf_counter() - started, faults=faults)

    def _published(self) -> Any:
        self.version += 1
        return self.fleet.publish(self.actor, self.env_steps)

    def _of_all(self, num_steps: int) -> list[tuple[int, Shipment]]:
        """Return a rollout of every worker with the newest weights, in the order of the envs."""
        weights = self._published()
        for number in range(self.fleet.num_workers):
            self.fleet.order(number, weights, self.version, num_steps)
        return sorted(self.fleet.arrivals(), key=lambda arrived: arrived[0])

    def _next_batch(self) -> list[tuple[int, Shipment]]:
        """Publish the weights, keep every worker busy, and return the first rollouts that are not too old."""
        weights, found = self._published(), []
        settings = self.fleet.settings
        wanted = self.fleet.num_workers if self.replays else settings.batch
        for number in range(self.fleet.num_workers):
            if number not in self.fleet.busy:
                self.fleet.order(number, weights, self.version, self.num_steps)
        for number, shipment in self.fleet.arrivals():
            staleness = self.version - shipment.version
            if staleness > settings.max_staleness:
                self.num_dropped += 1
                self._hand_over([(number, shipment)], [None], None)  # its episodes count all the same
                _log.warning("a rollout of worker %d is dropped: its weights are %d versions old", number, staleness)
            else:
                found.append((number, shipment))
            self.fleet.order(number, weights, self.version, self.num_steps)  # while the learner learns
            if len(found) == wanted:
                break
        return found

    # -- storing -------------------------------------------------------------------------------------------------------

    def _store(self, batch: list[tuple[int, Shipment]], storage: Any) -> None:
        """Store rollouts: in the columns of their worker in a replay, side by side in a rollout."""
        if self.replays and self._runs_ahead:  # a fast worker may be there twice, one after the other
            for number, shipment in batch:
                self._hand_over([(number, shipment)], [self.fleet.rows[number]], storage)
            return
        places, start = [], 0
        for number, _ in batch:
            rows = self.fleet.rows[number]
            places.append(slice(start, start + rows.stop - rows.start))
            start = places[-1].stop
        self._hand_over(batch, places, storage)

    def _hand_over(self, batch: list[tuple[int, Shipment]], places: Sequence[slice | None], storage: Any) -> None:
        """Store the steps of workers in order of time, and repeat the updates of their statistics.

        Several workers are side by side, so their rollouts are joined and moved to the device once.
        """
        events = [iter(shipment.events) for _, shipment in batch]
        num_steps = int(batch[0][1].transitions[2].shape[0])
        for (number, shipment), place in zip(batch, places, strict=True):
            if shipment.start != self._expected[number] and isinstance(storage, Replay):
                storage.cut(place)  # it began new episodes: what is stored there is not followed by these steps
            self._expected[number] = shipment.start + num_steps
        joined = tree.cat([shipment.transitions for _, shipment in batch], axis=1)
        joined = tree.map(lambda leaf: leaf.to(self.env.device), joined)
        first, last = places[0], places[-1]
        whole = None if first is None or last is None else slice(first.start, last.stop)
        for step in range(num_steps):
            transition = Transition(*tree.map(lambda leaf, t=step: leaf[t], joined))
            start = 0
            for (number, _), noted in zip(batch, events, strict=True):
                rows = self.fleet.rows[number]
                columns = slice(start, start := start + rows.stop - rows.start)
                updated = (transition.rew[columns], transition.done[columns], transition.valid[columns])
                self._repeat(rows, updated, noted)
            if storage is not None:
                storage.add(transition, whole)
        for (number, _), noted in zip(batch, events, strict=True):
            self._repeat(self.fleet.rows[number], None, noted)

    def _repeat(
        self, rows: slice, updated: tuple[Tensor, Tensor, Tensor] | None, events: Iterator[tuple[str, Any]]
    ) -> None:
        """Update the statistics with the events up to the next step and with it, or with those that are left."""
        for kind, value in events:
            if kind == "log":
                self.statistics.log(value)
            elif kind == "restart":
                mask = torch.zeros_like(self.statistics.spoiled)
                mask[rows] = value.to(mask.device)
                self.statistics.restart(mask)
            elif updated is not None:
                reward, done, valid = updated
                return self.statistics.update(rows, reward, done, valid, value.to(self.env.device))
        return None

    # -- saving --------------------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> None:
        """Leave the episodes of workers as they are; a fresh policy goes on in them."""
        _log.warning("the envs of workers are not reset: their episodes go on")

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all workers; where they run ahead, new episodes begin after a resume."""
        states: dict[str, Any] | None = None
        if self.waits_for_all:
            self.ready()
            states = {"workers": self.fleet.states()}
        own = {"seed": self.seed, "env_steps": self.env_steps, "version": self.version}
        return {"env": states, **own, "statistics": self.statistics.state_dict(), "groups": []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let every worker go on from its state."""
        if "version" not in state:
            raise ValueError("the run was saved without workers; go on without --workers")
        self.statistics.load_state_dict(dict(state["statistics"]))
        self.env_steps, self.version = int(state["env_steps"]), int(state["version"])
        if state["env"] is None:
            self.statistics.restart(torch.ones_like(self.statistics.spoiled))
            self._expected = [-1] * self.fleet.num_workers
            return
        states = state["env"]["workers"]
        if len(states) != self.fleet.num_workers:
            raise ValueError(
                f"the run was saved with {len(states)} workers, found {self.fleet.num_workers}; go on with as many"
            )
        self._position = self.fleet.load(states)
        self._expected = [int(each["count"]) for each in states]


class WorkerStatistics(EpisodeStatistics):
    """The statistics of all workers' envs, with what is to be seen of the workers themselves."""

    def __init__(self, num_envs: int, device: torch.device, window: int) -> None:
        super().__init__(num_envs, device, window)
        self._of_workers: dict[str, float] = {}

    def note(self, staleness: Sequence[int], num_dropped: int, num_replaced: int) -> None:
        """Keep how old the weights of the last rollouts were, and what has happened to workers so far."""
        self._of_workers = {
            "staleness_mean": sum(staleness) / len(staleness),
            "staleness_max": max(staleness),
            "stale_dropped": num_dropped,
            "workers_replaced": num_replaced,
        }

    def tensors(self, mode: Mode | None = None) -> dict[str, Tensor]:
        """Return the metrics of the episodes and those of the workers."""
        own = {name: torch.tensor(float(value), dtype=torch.float64) for name, value in self._of_workers.items()}
        return {**super().tensors(mode), **{name: value.to(self.spoiled.device) for name, value in own.items()}}


class RemoteEvaluate(Evaluate):
    """An evaluation that a worker plays, the first that is there: the learner has no simulator."""

    def __init__(self, env: VecEnv, policy: Any, settings: EvaluationSettings) -> None:
        """Take the env of the workers and the policy that learns."""
        assert isinstance(env, RemoteEnv)
        every, count = settings.every, settings.num_episodes
        actor = GreedyActor(policy)
        own = RemoteEnv(env.fleet, min(settings.num_envs, count))
        super().__init__(own, actor, every=every, n_episode=count, seed=settings.seed, at_end=settings.at_end)
        self.fleet = env.fleet

    def play(self) -> EvaluationResult:
        """Play the episodes in the worker, after the rollout that it may be collecting."""
        weights, num_envs = self.fleet.publish(self.actor), self.env.num_envs
        found: EvaluationResult = self.fleet.call_any(
            lambda worker: worker.evaluate.remote(weights, num_envs, self.n_episode, self.seed)
        )
        return found

    def close(self) -> None:
        """Leave the workers to the collector."""


def build_with_workers(config: RunConfig[Any, Any]) -> tuple[VecEnv, Learner]:
    """Start the workers; return the specs of their envs, and a learner that they collect for."""
    fleet = Fleet(config)
    try:
        settings, count = config.workers, config.env.num_envs
        if settings.schedule != ASYNCHRONOUS:
            fleet.check_all()
        elif not isinstance(config.plan, OffPolicyPlan):
            count = count // settings.num_workers * settings.batch
        env = RemoteEnv(fleet, count)
        collecting = replace(config.collector, seed=config.seed)
        return env, build_learner(config, env, collector=lambda _, actor: RemoteCollector(env, actor, collecting))
    except BaseException:
        fleet.close()
        raise
