"""What runs in a worker: a part of the envs, a copy of the policy, and rollouts in the form in which they travel."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import striderl
from striderl.collect.actors.policy_actor import GreedyActor
from striderl.collect.collector import Collector
from striderl.collect.statistics import EpisodeStatistics
from striderl.data import tree
from striderl.data.transition import Transition
from striderl.envs.tasks import make
from striderl.envs.vec_env import Obs, VecEnv
from striderl.training.distributed import Ranks
from striderl.training.evaluation import EvaluationResult, evaluate
from striderl.training.experiment.assembly import build_algorithm
from striderl.training.experiment.run_config import RunConfig

State = Mapping[str, Any]


class Shipment(NamedTuple):
    """A rollout of one worker, as it travels."""

    transitions: Any
    """The fields of `Transition`, [T, n, …] each."""
    events: list[tuple[str, Any]]
    """What the statistics were updated with, in order: 'step' with the cut episodes, 'restart' with envs, 'log'."""
    first: tuple[Obs, Any]
    """Observation and actor memory before the first step."""
    last: tuple[Obs, Any]
    """Those after the last step."""
    version: int
    """The version of the weights that acted."""
    start: int
    """How many steps the worker had taken before: another number than expected means that it began new episodes."""
    code: Mapping[str, str]
    """Which code the worker runs."""
    seconds: float
    """How long collecting took."""
    faults: list[Any]
    """Bad numbers that were found."""


class RecordedStatistics(EpisodeStatistics):
    """Statistics that note their updates, so that the learner can repeat them for all envs."""

    def __init__(self, num_envs: int, device: torch.device, window: int) -> None:
        super().__init__(num_envs, device, window)
        self.events: list[tuple[str, Any]] = []

    def update(self, rows: slice, reward: Tensor, done: Tensor, valid: Tensor, cut: Tensor) -> None:
        """Note which episodes were cut, and update."""
        self.events.append(("step", cut.clone()))
        super().update(rows, reward, done, valid, cut)

    def update_quiet(self, rows: slice, reward: Tensor) -> None:
        """Note a step without an end, and update."""
        self.events.append(("step", torch.zeros(len(reward), dtype=torch.bool)))
        super().update_quiet(rows, reward)

    def restart(self, mask: Tensor) -> None:
        """Note which envs started anew, and update."""
        self.events.append(("restart", mask.clone()))
        super().restart(mask)

    def log(self, values: dict[str, Any]) -> None:
        """Note the numbers that the env logged."""
        if values:
            self.events.append(("log", dict(values)))

    def taken(self) -> list[tuple[str, Any]]:
        """Return the notes and begin new ones."""
        events, self.events = self.events, []
        return events


class WorkerSteps:
    """A storage that keeps transitions as they come."""

    balanced = True

    def __init__(self) -> None:
        self.rows: list[Transition] = []

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        """Keep a copy: the env may write its next step to the same place."""
        self.rows.append(Transition(*tree.copy(tuple(transition))))


class RolloutWorker:
    """One worker: a part of the envs with a collector and a copy of the policy. Runs as a Ray actor."""

    def __init__(self, config: str, first_env_index: int, num_envs: int) -> None:
        """Build env and policy from the text of a config."""
        torch.set_num_threads(1)
        whole = RunConfig.from_json(config)
        self.config = replace(whole, device="cpu", mode="eager", env=replace(whole.env, num_envs=num_envs))
        self.env = self._make_env(num_envs, first_env_index)
        self.algorithm = build_algorithm(self.config, self.env, Ranks())
        collector = replace(self.config.collector, seed=self.config.seed)
        self.collector = Collector(self.env, self.algorithm.actor(), collector)
        self.statistics = RecordedStatistics(num_envs, self.env.device, collector.window)
        self.collector.statistics = self.statistics
        self.count = 0
        """Steps of each env so far."""
        self._judged: VecEnv | None = None

    def _make_env(self, num_envs: int, first_env_index: int = 0) -> VecEnv:
        env = self.config.env
        return make(env.task, num_envs=num_envs, settings=env.settings, first_env_index=first_env_index)

    def about(self) -> dict[str, Any]:
        """Return the specs of the env, and which code runs here."""
        names = (
            "obs_spec",
            "action_spec",
            "info_spec",
            "gives_final_obs",
            "max_episode_length",
            "step_dt",
            "actuation",
        )
        return {"specs": {name: getattr(self.env, name) for name in names}, **running_code()}

    def ready(self) -> tuple[tuple[Obs, Any], list[tuple[str, Any]]]:
        """Start the first episodes; returns observation and memory, and what the statistics noted."""
        self.collector.ready()
        return (self.collector.current_obs, self.collector.current_state), self.statistics.taken()

    def rollout(self, weights: State, version: int, num_steps: int) -> tuple[Shipment, State]:
        """Collect so many steps of every env with these weights; returns them and the state after them."""
        self._take(weights)
        self.collector.ready()
        first, steps = (self.collector.current_obs, self.collector.current_state), WorkerSteps()
        collected = self.collector.collect(n_step=num_steps * self.env.num_envs, storage=steps)
        shipment = Shipment(
            transitions=tree.stack([tuple(row) for row in steps.rows]),
            events=self.statistics.taken(),
            first=first,
            last=(self.collector.current_obs, self.collector.current_state),
            version=version,
            start=self.count,
            code=running_code(),
            seconds=collected.seconds,
            faults=collected.faults,
        )
        self.count += num_steps
        return shipment, self.state()

    def _take(self, weights: State) -> None:
        """Act with these weights from now on, and explore as the learner would at this point of the run."""
        self.algorithm.policy.load_state_dict(weights["policy"])
        if hasattr(self.algorithm, "explore"):
            self.algorithm.explore(weights["env_steps"], random=weights["random"])
            self.collector.actor.load_state_dict(weights["actor"])  # type: ignore[attr-defined]

    def state(self) -> State:
        """Return the state of the collector."""
        return {"collector": self.collector.state_dict(), "count": self.count}

    def load(self, state: State) -> tuple[Obs, Any]:
        """Go on from a state; returns observation and memory."""
        self.collector.load_state_dict(state["collector"])
        self.count = int(state["count"])
        self.statistics.taken()
        return self.collector.current_obs, self.collector.current_state

    def evaluate(self, weights: State, num_envs: int, num_episodes: int, seed: int) -> EvaluationResult:
        """Play whole episodes greedily, in envs of their own."""
        self.algorithm.policy.load_state_dict(weights["policy"])
        if self._judged is None:
            self._judged = self._make_env(num_envs)
        return evaluate(self._judged, GreedyActor(self.algorithm.policy), num_episodes, seed)


@cache
def running_code() -> dict[str, str]:
    """Return which process this is, and a digest of the library's source."""
    root = Path(striderl.__file__).parent
    source = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        source.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    here = {"node": socket.gethostname(), "pid": str(os.getpid())}
    return {**here, "python": platform.python_version(), "striderl": source.hexdigest()[:16]}
