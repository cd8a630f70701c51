"""Evaluation of an agent: whole trajectories on envs of their own, of which only the infos are kept."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from striderl.collect.collector import Collector, CollectorConfig
from striderl.collect.sampler_agents import AgentActor, as_actor
from striderl.collect.sampler_envs import as_vec_env
from striderl.collect.sampler_samples import named
from striderl.collect.sampler_seeds import derived_seed
from striderl.collect.sampler_trajectories import transition_steps
from striderl.collect.traj_info import TrajectoryTracker, TrajInfo
from striderl.data.transition import Transition


class EvalCollector:
    """Plays whole trajectories from fresh starts on envs of its own, and keeps their infos only.

    With `max_trajectories` each env plays its share of them, so short episodes are not preferred. Trajectories that
    are under way when `max_T` is reached do not count.
    """

    def __init__(
        self,
        envs: Any,
        agent: Any,
        TrajInfoCls: Callable[[], TrajInfo] = TrajInfo,
        max_T: int | None = None,
        max_trajectories: int | None = None,
        *,
        seed: int = 0,
    ) -> None:
        """Prepare; evaluation `itr` uses the seed that belongs to (seed, itr)."""
        if max_T is None and max_trajectories is None:
            raise ValueError("an evaluation wants max_T, max_trajectories or both; with neither it would not end")
        self.env = as_vec_env(envs)
        self.TrajInfoCls, self.max_T, self.max_trajectories, self.seed = TrajInfoCls, max_T, max_trajectories, seed
        num_envs = self.env.num_envs
        self.actor = as_actor(agent, self.env.obs_spec, num_envs, agent_info=None, alternating=False)
        self.collector = Collector(self.env, self.actor, CollectorConfig(seed=seed, previous_step=True))
        self._everyone = torch.ones(num_envs, dtype=torch.bool)

    def collect_evaluation(self, itr: int) -> list[TrajInfo]:
        """Return the infos of the trajectories in the order in which they ended."""
        if isinstance(self.actor, AgentActor):
            self.actor.eval_mode(itr)
            self.actor.reset()
        self.collector.reset(derived_seed(self.seed, "evaluation", itr))
        tracker = TrajectoryTracker(self.TrajInfoCls, self.env.num_envs)
        missing = self._shares()
        completed = []
        for _ in itertools.count() if self.max_T is None else range(self.max_T):
            if not any(missing):
                break
            last = _LastStep()
            self.collector.collect(n_step=self.env.num_envs, storage=last)
            for env, info in tracker.advance(transition_steps(last.transition, self._everyone, self._agent_info)):
                if missing[env]:
                    missing[env] -= 1
                    completed.append(info)
        return completed

    def _agent_info(self, columns: dict[str, Any]) -> Any:
        return self.actor.agent_info(columns) if isinstance(self.actor, AgentActor) else named("AgentInfo", columns)

    def _shares(self) -> list[float]:
        """Return how many trajectories each env has to play."""
        if self.max_trajectories is None:
            return [float("inf")] * self.env.num_envs
        each, rest = divmod(self.max_trajectories, self.env.num_envs)
        return [each + (env < rest) for env in range(self.env.num_envs)]


class _LastStep:
    """A storage that keeps one step."""

    balanced = True
    transition: Transition

    def add(self, transition: Transition, envs: slice | None = None) -> None:
        self.transition = transition
